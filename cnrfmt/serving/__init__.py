"""The inference server's side: rows decoded when they are first touched, tables that follow a trainer, look-ups."""
