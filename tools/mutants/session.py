"""The pytest plugins: one that measures and tries mutants with all tests loaded, one that runs a few chosen tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import pytest

from tools.mutants.covering import Covering
from tools.mutants.patch import Functions

SEARCH = "mutation"
_OPTIONS = (
    *("-q", "-s", "-p", "no:cacheprovider"),
    # hypothesis and others are loaded before pytest starts, and that is meant.
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)


def load_profile() -> None:
    """The profile of the session, but a failing example isn't made smaller: that it fails is all we ask."""
    wanted = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    current = hypothesis.settings.get_current_profile_name()
    if current != SEARCH:
        profile = hypothesis.settings.get_profile(current)
        hypothesis.settings.register_profile(SEARCH, profile, phases=wanted, database=None)
        hypothesis.settings.load_profile(SEARCH)


class Loaded:
    """Collects the tests, then hands the session to `use` in their place."""

    def __init__(self, use: Callable[[Loaded], None]) -> None:
        self._use = use
        self.items: list[pytest.Item] = []
        self._tell: Callable[[str], None] | None = None
        self.error: BaseException | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Comes after the conftest that registers the profiles."""
        load_profile()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running all tests once."""
        self.items = session.items
        if not session.testsfailed:
            try:
                self._use(self)
            except BaseException as error:
                self.error = error
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first failure ends the child."""
        if report.failed and self._tell is not None:
            self._tell(report.nodeid)

    def run(self, numbers: list[int], folder: Path, failed: Callable[[str], None]) -> None:
        """Runs tests by their numbers; `failed` is called with the name of each that fails."""
        self._tell = failed
        items = [self.items[n] for n in numbers]
        for item, following in zip(items, [*items[1:], None], strict=True):
            _use_folder(item.config, folder)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def measure(self, covering: Covering, root: Path, paths: list[str], folder: Path) -> list[str]:
        """Fills `covering` with one run of all tests; gives those that fail without any mutant."""
        failures: list[str] = []
        files = [str(root / path) for path in paths]
        measured = coverage.Coverage(data_file=None, include=files, config_file=False)
        measured.start()
        self._tell = failures.append
        for number, item in enumerate(self.items):
            covering.tests.append(item.nodeid)
            measured.switch_context(str(number))
            began = time.process_time()
            _use_folder(item.config, folder)
            following = self.items[number + 1] if number + 1 < len(self.items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            covering.seconds.append(round(time.process_time() - began, 4))
        measured.stop()
        data = measured.get_data()
        for path, file in zip(paths, files, strict=True):
            by_line = data.contexts_by_lineno(file)
            covering.lines[path] = {n: sorted(int(c) for c in found if c) for n, found in sorted(by_line.items())}
        return failures


def _use_folder(config: pytest.Config, folder: Path) -> None:
    """Makes `tmp_path` lie below this folder: the parent's is shared with the other children."""
    factory: Any = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        factory._basetemp = folder


class Chosen:
    """Runs chosen tests in a given order, and says which fails first."""

    def __init__(self, names: list[str], tell: Callable[[str], None]) -> None:
        self._order = {name: n for n, name in enumerate(names)}
        self._tell = tell

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Comes after the conftest that registers the profiles."""
        load_profile()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leaves out the others."""
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Tests that can't even be loaded have failed."""
        if report.failed:
            self._tell(f"{report.nodeid} can't be loaded")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first failure is enough."""
        if report.failed:
            self._tell(report.nodeid)


def run_chosen(names: list[str], folder: Path, tell: Callable[[str], None]) -> None:
    """A session of its own for these tests, after whatever hook of imports is in place."""
    files = sorted({name.split("::")[0] for name in names})
    status = pytest.main([*_OPTIONS, f"--basetemp={folder / 'session'}", *files], plugins=[Chosen(names, tell)])
    if status != pytest.ExitCode.OK:
        tell(f"pytest: {status}")


def collect(tests: list[str], use: Callable[[Loaded], None]) -> None:
    """Loads the tests and calls `use`; whatever it raises is raised here."""
    plugin = Loaded(use)
    status = pytest.main([*_OPTIONS, *tests], plugins=[plugin])
    if plugin.error is not None:
        raise plugin.error
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"the tests can't be loaded: pytest says {status}")


def loaded_functions(root: Path, paths: list[str]) -> Functions:
    """The functions of the modules, as the tests have them."""
    return Functions({str(root / path) for path in paths})
