"""Where bytes live: the file-system protocol, containers, locks, and the commit."""
