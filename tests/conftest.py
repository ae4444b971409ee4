"""What every test shares: hypothesis's profiles, and the rule that nothing is skipped in CI.

A skipped test is a promise that nobody checked. On a developer's machine that may do; with
``CI=true`` or ``CNRFMT_NO_SKIP=1`` every skip is a failure. One exception is a test that runs a
program which pip can't install: it is marked ``needs_system("strace")``, is left out at collection
where the program is absent, and the report's header says so. Nor can a test be blamed for what the
kernel doesn't let its user do, such as mounting a file system: its skip says ``the kernel forbids it``
(tests/crash/support.py), stays a skip, and stands in the summary with its reason.

Environment
-----------
CI, CNRFMT_NO_SKIP
    ``true`` and ``1``: skips fail.
CNRFMT_HYPOTHESIS_PROFILE
    ``quick`` (the default), ``ci`` or ``long``.
"""

from __future__ import annotations

import gc
import os
import shutil
import tomllib
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
NO_SKIP = os.environ.get("CI") == "true" or os.environ.get("CNRFMT_NO_SKIP") == "1"
PROFILE = os.environ.get("CNRFMT_HYPOTHESIS_PROFILE", "quick")

# No profile sets a time limit on an example: the first one that reaches a kernel waits for its
# compilation, and a shared machine's pace says nothing about whether the code is right.
_UNTIMED = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# The same examples at every run, so that a failure is the change's that shows it.
hypothesis.settings.register_profile("quick", _UNTIMED, max_examples=15, derandomize=True)
hypothesis.settings.register_profile(
    "ci", _UNTIMED, max_examples=16, derandomize=True, print_blob=True
)
# New examples at every run: the profile that looks for what the others never tried.
hypothesis.settings.register_profile(
    "long", _UNTIMED, max_examples=5000, derandomize=False, print_blob=True
)
hypothesis.settings.load_profile(PROFILE)


def _system_programs() -> dict[str, str]:
    """Each program that a test may need, with its Debian package: pyproject.toml lists them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    programs: dict[str, str] = project["tool"]["cnrfmt"]["system-programs"]
    return programs


SYSTEM_PROGRAMS = _system_programs()
ABSENT_PROGRAMS = sorted(name for name in SYSTEM_PROGRAMS if shutil.which(name) is None)


def pytest_report_header() -> list[str]:
    """Say which tests this run leaves out, and how strict it is."""
    lines = [
        f"cnrfmt: hypothesis profile {PROFILE}; a skipped test "
        + ("is a failure" if NO_SKIP else "is allowed (CNRFMT_NO_SKIP=1 makes it a failure)")
    ]
    if ABSENT_PROGRAMS:
        lines.append(
            f"cnrfmt: absent here: {', '.join(ABSENT_PROGRAMS)}; tests that need them are left "
            "out (.ci/run installs them)"
        )
    return lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests whose system programs are absent."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        needed = {name for mark in item.iter_markers("needs_system") for name in mark.args}
        unknown = needed - SYSTEM_PROGRAMS.keys()
        if unknown:
            raise pytest.UsageError(
                f"{item.nodeid} needs {', '.join(sorted(unknown))}, which .ci/run wouldn't install:"
                " add it to [tool.cnrfmt.system-programs] in pyproject.toml"
            )
        (left_out if needed.intersection(ABSENT_PROGRAMS) else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection_finish() -> None:
    """Keep Python's collector away from the tests and the modules, which stay to the end.

    They are so many objects that each pass over them takes a third of a second, and tests that look for leaks, or whose
    garbage has cycles, ask for hundreds of passes.
    """
    gc.collect()
    gc.freeze()


def _reason(longrepr: object) -> str:
    return longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)


def _must_not_skip(report: pytest.TestReport | pytest.CollectReport) -> bool:
    # An expected failure has the outcome "skipped" too; it ran, and strictly, so it stays.
    if not NO_SKIP or not report.skipped or hasattr(report, "wasxfail"):
        return False
    return "the kernel forbids it: " not in _reason(report.longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test into a failure where nothing may be skipped."""
    report = yield
    if _must_not_skip(report):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into an error where nothing may be skipped."""
    report = yield
    if _must_not_skip(report):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {_reason(report.longrepr)}"
    return report
