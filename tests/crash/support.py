"""What the tests of the crash engines share."""

from __future__ import annotations

from typing import NoReturn

import pytest


def forbidden(reason: object) -> NoReturn:
    """Skips a test for something that the kernel doesn't let this user do; tests/conftest.py lets that pass."""
    pytest.skip(f"the kernel forbids it: {reason}")
