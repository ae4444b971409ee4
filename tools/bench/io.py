"""How fast cnrfmt saves, loads, opens and appends, and what memory it takes, next to its peers.

    python tools/bench/io.py [--only save,load,open,append,memory] [--json FILE] [--dir DIR] [--repeat 5] [--quick]

Contenders run in the same process in turn (A B A B ...). A figure is the median of its rounds with least and
greatest, a ratio the median of the ratios of each round. Nothing fails where a target is missed: a shared or busy
machine proves nothing. See README.md beside this file for what each figure is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The modules beside this one are found from the checkout's root, and so is cnrfmt.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import _append, _data, _load, _machine, _memory, _open, _save
from tools.bench._figures import Figure, say, settle_repeat, table_of
from tools.bench._setting import Setting

GROUPS: dict[str, Callable[[Setting], list[Figure]]] = {
    "save": _save.figures,
    "load": _load.figures,
    "open": _open.figures,
    "append": _append.figures,
    "memory": _memory.figures,
}
_FORMAT = 1


def measure(setting: Setting, groups: Sequence[str]) -> tuple[dict[str, Any], list[Figure]]:
    """The results as JSON can say them, and the figures for the report."""
    before = _machine.facts(setting.folder)
    start = time.time()
    figures: list[Figure] = []
    for name in groups:
        figures += GROUPS[name](setting)
    results = {
        "format": _FORMAT,
        "machine": {**before, "load_average_after": list(os.getloadavg())},
        "settings": {"quick": setting.quick, "repeat": setting.repeat, "groups": list(groups)},
        "data": _data.described(quick=setting.quick),
        "seconds": time.time() - start,
        "figures": [figure.as_json() for figure in figures],
    }
    return results, figures


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, comma-separated: %(default)s")
    parser.add_argument("--json", type=Path, help="write all results, raw timings included, to this file")
    parser.add_argument("--dir", type=Path, help="measure on the file system of this folder; up to 7 GB are used")
    parser.add_argument("--repeat", type=int, help="rounds (5; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="tiny tables: tries the benchmark, measures nothing")
    found = parser.parse_args(argv)
    found.groups = [name.strip() for name in found.only.split(",")]
    if unknown := [name for name in found.groups if name not in GROUPS]:
        parser.error(f"no group is called {unknown[0]!r}; there are {', '.join(GROUPS)}")
    settle_repeat(parser, found)
    return found


def _preface(results: dict[str, Any]) -> str:
    machine = results["machine"]
    return "\n".join(
        [
            f"{machine['processor']}, {machine['cores']} cores, cnrfmt uses {machine['threads']} threads; "
            f"load {machine['load_average'][0]:.1f} before, {machine['load_average_after'][0]:.1f} after "
            "(its own included)",
            f"{machine['file_system']}; {machine['free_memory_bytes'] / 1e9:.1f} of "
            f"{machine['memory_bytes'] / 1e9:.1f} GB of memory free; huge pages {machine['huge_pages']}",
            _machine.versions(machine),
            f"{results['data']['bytes'] / 1e6:.0f} MB of float32 in tables of "
            + ", ".join(f"{r:,} x {d}" for r, d in results["data"]["tables"].values())
            + f"; {results['settings']['repeat']} rounds; GB/s are of float32",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the report, and writes the JSON if asked to."""
    arguments = _arguments(argv)
    with tempfile.TemporaryDirectory(prefix="cnrfmt-bench-", dir=arguments.dir) as folder:
        setting = Setting(Path(folder), arguments.quick, arguments.repeat)
        results, figures = measure(setting, arguments.groups)
    print(_preface(results), "", table_of(figures), sep="\n")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        say(f"wrote {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
