"""The tests. A package of its own, since others install one of that name, which would be found in its place."""
