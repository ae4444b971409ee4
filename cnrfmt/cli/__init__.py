"""The command `cnrfmt`: thin, over the public API."""

from __future__ import annotations

from cnrfmt.cli.program import main

__all__ = ["main"]
