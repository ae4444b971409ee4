"""``python -m cnrfmt`` is the command ``cnrfmt``."""

from __future__ import annotations

import sys

from cnrfmt.cli import main

if __name__ == "__main__":
    sys.exit(main())
