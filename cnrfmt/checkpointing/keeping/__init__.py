"""Which versions stay, what removes the others, and tags."""
