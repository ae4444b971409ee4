"""Mutation testing: small faults are put into the sources, one at a time, and each should make a test fail.

    python tools/mutation.py --state FILE [--json tools/results/mutation.json]

Two areas are mutated: everything that says what the bytes mean (`cnrfmt/format`), and the path of a commit
(`cnrfmt/storage` but for the calls of the operating system themselves, and `cnrfmt/writer.py`).
`tools/mutants/mutate.py` says what is changed and what isn't.

The tests are loaded once; for each mutant the process is forked, the changed function is put in place, and the tests
that run the changed line are run until one fails: those that killed mutants of the same function first, then the
quickest, up to `--budget` seconds of tests. So a mutant that is counted as survived may still be killed by a slower
test, and the share of killed ones is a lower bound. Constants, defaults and fields, which are evaluated at import,
get a session of their own, with the tests of the functions that use them. Kernels run as plain Python
(``NUMBA_DISABLE_JIT=1``), and a failing example of hypothesis isn't made smaller.

Why not mutmut or cosmic-ray: the first leaves out what is decorated (half of the parsers here are static methods or
properties) and whatever isn't inside a function; both start pytest anew for each mutant, which takes longer here than
the tests.

Each result is appended to the state file: killed at any time, the same command goes on. A mutant is tried again when
the source of its function changes; `--again` tries those that survived, which is what new tests are for.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["NUMBA_DISABLE_JIT"] = "1"
os.environ.setdefault("CNRFMT_HYPOTHESIS_PROFILE", "quick")

from tools.mutants.covering import Covering, Order, Uses, stamp_of  # noqa: E402
from tools.mutants.mutate import Mutant, read_mutants  # noqa: E402
from tools.mutants.patch import ImportHook, NotInPlaceError  # noqa: E402
from tools.mutants.session import Loaded, collect, loaded_functions, run_chosen  # noqa: E402
from tools.mutants.trial import Result, kill, run_trials  # noqa: E402

AREAS = {
    "format": sorted(str(p.relative_to(ROOT)) for p in (ROOT / "cnrfmt" / "format").glob("*.py")),
    "commit": [
        "cnrfmt/storage/base.py",
        "cnrfmt/storage/directory.py",
        "cnrfmt/storage/directory_commit.py",
        "cnrfmt/storage/locks.py",
        "cnrfmt/storage/single_file.py",
        "cnrfmt/storage/single_file_commit.py",
        "cnrfmt/writer.py",
    ],
}
# Neither the crash engines nor the slower of the other tests: they would be beyond any mutant's budget.
TESTS = [
    "tests/format",
    "tests/storage",
    "tests/vectors/test_verdicts.py",
    "tests/test_reader.py",
    "tests/test_writer.py",
]


class State:
    """The results so far, a line of JSON each."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.results: dict[str, tuple[str, str]] = {}
        text = file.read_text("utf-8") if file.exists() else ""
        # The last line may have been cut off when the run was killed.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            file.write_text(whole, "utf-8")
        for line in whole.splitlines():
            key, outcome, by = json.loads(line)
            self.results[key] = (outcome, by)

    def add(self, result: Result) -> None:
        """Keeps a result."""
        self.results[result.mutant.key] = (result.outcome, result.by)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([result.mutant.key, result.outcome, result.by]) + "\n")


class Progress:
    """Notes each result and says how far it has come."""

    def __init__(self, state: State, order: Order, total: int) -> None:
        self._state, self._order, self._total = state, order, total
        self._counts: dict[str, int] = {}
        self.broken: list[str] = []
        self._began = time.monotonic()

    def __call__(self, result: Result) -> None:
        """Takes a result."""
        if result.outcome == "broken":
            self.broken.append(f"{result.mutant.key}: {result.by}")
            print(f"broken: {self.broken[-1]}", flush=True)
            return
        self._state.add(result)
        self._counts[result.outcome] = self._counts.get(result.outcome, 0) + 1
        if result.outcome == "killed":
            self._order.learn(result.mutant, result.by)
        elif result.outcome == "survived":
            print(f"survived: {result.mutant.describe()}", flush=True)
        done = sum(self._counts.values())
        if done % 50 == 0 or done == self._total:
            counts = ", ".join(f"{n} {what}" for what, n in sorted(self._counts.items()))
            print(f"{done} of {self._total} in {time.monotonic() - self._began:.0f} s: {counts}", flush=True)


def in_child(body: Callable[[], None]) -> None:
    """Calls a function in a forked child, so that this process loads nothing; exits if it fails."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except SystemExit as error:
            print(error, flush=True)
            os._exit(1)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit("the campaign has failed; nothing is lost, run it again")


def measure(loaded: Loaded, file: Path, stamp: str) -> None:
    """Runs all tests once, and keeps what each covers."""

    def body() -> None:
        covering = Covering(stamp)
        paths = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "cnrfmt").rglob("*.py"))
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            failures = loaded.measure(covering, ROOT, paths, Path(folder))
        if failures:
            raise SystemExit(f"these fail without any mutant: {', '.join(failures[:10])}")
        covering.write(file)

    print(f"\n{len(loaded.items)} tests; measuring what each covers", flush=True)
    in_child(body)


def try_in_place(
    loaded: Loaded, mutants: list[Mutant], order: Order, seconds: list[float], jobs: int, done: Any
) -> None:
    """Tries the mutants of functions."""
    functions = loaded_functions(ROOT, sorted({m.path for m in mutants}))

    def trials() -> Iterator[tuple[Mutant, float, Callable[[int, Path], None]]]:
        for mutant in mutants:
            numbers = order.of(mutant)
            if not numbers:
                done(Result(mutant, "uncovered"))
                continue

            def body(tell: int, folder: Path, mutant: Mutant = mutant, numbers: list[int] = numbers) -> None:
                try:
                    functions.put(ROOT, mutant)
                except NotInPlaceError:
                    kill("not in place", tell)
                loaded.run(numbers, folder, lambda name: kill(name, tell))

            yield mutant, sum(seconds[n] for n in numbers), body

    run_trials(trials(), jobs=jobs, done=done)


def try_at_import(mutants: list[Mutant], order: Order, covering: Covering, jobs: int, done: Any) -> None:
    """Tries the mutants of what is evaluated at import, each in a session of its own."""
    # So that no child has to load them.
    import h5py  # noqa: F401
    import hypothesis.extra.numpy  # noqa: F401
    import ml_dtypes  # noqa: F401
    import numba  # noqa: F401
    import xxhash  # noqa: F401

    def trials() -> Iterator[tuple[Mutant, float, Callable[[int, Path], None]]]:
        for mutant in mutants:
            numbers = order.of(mutant)
            if not numbers:
                done(Result(mutant, "uncovered"))
                continue

            def body(tell: int, folder: Path, mutant: Mutant = mutant, numbers: list[int] = numbers) -> None:
                ImportHook(ROOT, mutant).put()
                run_chosen([covering.tests[n] for n in numbers], folder, lambda name: kill(name, tell))

            yield mutant, 10 + sum(covering.seconds[n] for n in numbers), body

    run_trials(trials(), jobs=jobs, done=done)


def campaign(mutants: list[Mutant], state: State, options: argparse.Namespace) -> None:
    """Tries what isn't in the state yet."""
    file = options.state.with_suffix(".tests.json")
    stamp = stamp_of(ROOT, ["cnrfmt", "tools/cnrcheck.py", *TESTS])
    uses = Uses(ROOT, sorted(str(p.relative_to(ROOT)) for p in (ROOT / "cnrfmt").rglob("*.py")))
    again = ("survived", "uncovered") if options.again else ()
    todo = [m for m in mutants if m.key not in state.results or state.results[m.key][0] in again]
    random.Random(options.seed).shuffle(todo)
    todo = todo[: options.sample]

    def in_place(loaded: Loaded) -> None:
        covering = Covering.read(file, stamp)
        if covering is None:
            measure(loaded, file, stamp)
            covering = Covering.read(file, stamp)
            assert covering is not None
        assert covering.tests == [item.nodeid for item in loaded.items]
        order = Order(covering, uses, options.budget)
        those = [m for m in todo if m.function]
        print(f"{len(those)} mutants of functions to try", flush=True)
        try_in_place(loaded, those, order, covering.seconds, options.jobs, Progress(state, order, len(those)))

    if todo:
        in_child(lambda: collect(TESTS, in_place))
    covering = Covering.read(file, stamp)
    those = [m for m in todo if not m.function]
    if covering is not None and those:
        order = Order(covering, uses, options.budget)
        print(f"{len(those)} mutants of constants, defaults and fields to try", flush=True)
        try_at_import(those, order, covering, options.jobs, Progress(state, order, len(those)))


def table(mutants: list[Mutant], state: State) -> dict[str, dict[str, Any]]:
    """Counts by module and by area."""
    found: dict[str, dict[str, Any]] = {}
    for area, paths in AREAS.items():
        for path in (*paths, area):
            outcomes = [
                state.results[m.key][0]
                for m in mutants
                if m.key in state.results and (m.path == path or (path == area and m.path in paths))
            ]
            if outcomes:
                killed = sum(outcome in ("killed", "timeout") for outcome in outcomes)
                found[path] = {
                    "mutants": len(outcomes),
                    "killed": killed,
                    "of them by time or memory": outcomes.count("timeout"),
                    "survived": len(outcomes) - killed,
                    "percent killed": round(100 * killed / len(outcomes), 1),
                }
    return found


def report(mutants: list[Mutant], state: State, options: argparse.Namespace) -> None:
    """Prints the table, and writes it if asked to."""
    counts = table(mutants, state)
    print(f"{'':44} mutants  killed  (timeout)  survived")
    for name, row in counts.items():
        print(f"{name:44} {row['mutants']:7} {row['killed']:7} {row['of them by time or memory']:10} ", end="")
        print(f"{row['survived']:9} {row['percent killed']:7} %")
    missing = sum(m.key not in state.results for m in mutants)
    if missing:
        print(f"not tried yet: {missing}")
    if options.json:
        survivors = [m for m in mutants if state.results.get(m.key, ("",))[0] in ("survived", "uncovered")]
        value = {
            "command": f"python tools/mutation.py --state FILE --budget {options.budget:g} --seed {options.seed}",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "not tried": missing,
            "counts": counts,
            "survivors": [m.describe() for m in survivors],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(value, indent=1) + "\n", "utf-8")


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--state", type=Path, required=True, help="where results are kept: the run can be resumed")
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--only", default="", help="only mutants whose description has this in it")
    parser.add_argument("--area", choices=[*AREAS, "all"], default="all")
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    parser.add_argument("--list", action="store_true", help="name the survivors so far, and try nothing")
    parser.add_argument("--sample", type=int, help="try at most so many, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which mutants are tried")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests for each mutant")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    areas = list(AREAS) if options.area == "all" else [options.area]
    mutants = read_mutants(ROOT, [path for area in areas for path in AREAS[area]])
    mutants = [m for m in mutants if options.only in m.describe()]
    state = State(options.state)
    if options.list:
        for mutant in mutants:
            if state.results.get(mutant.key, ("",))[0] in ("survived", "uncovered"):
                print(state.results[mutant.key][0], mutant.describe())
    else:
        print(f"seed {options.seed}, {len(mutants)} mutants, {len(state.results)} results so far", flush=True)
        campaign(mutants, state, options)
    # Processes of their own have added to the file.
    report(mutants, State(options.state), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
