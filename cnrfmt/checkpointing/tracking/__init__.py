"""Which rows changed."""
