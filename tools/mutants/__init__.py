"""What `tools/mutation.py` is made of: changing sources, and running tests against the changes."""
