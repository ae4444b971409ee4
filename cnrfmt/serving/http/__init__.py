"""A small server of look-ups over HTTP."""
