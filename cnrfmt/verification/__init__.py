"""Validating a container: every broken rule of the specification, named with its place."""

from __future__ import annotations

from cnrfmt.verification.report import Finding, Report
from cnrfmt.verification.verify import verify

__all__ = ["Finding", "Report", "verify"]
