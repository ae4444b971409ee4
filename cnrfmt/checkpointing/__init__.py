"""The trainer's side: what changed, when to write it and how, and what to keep."""
