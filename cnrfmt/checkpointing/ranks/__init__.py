"""One version written by many processes."""
