"""Opening a container and reading some rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from tools.bench._data import random_rows
from tools.bench._figures import Figure, Target, Times, in_turn, say, timed
from tools.bench._setting import Setting, clear, warm

_TABLE = "user"
_DIM = 64
_WINDOW = 1000
_SMALL, _LARGE = 40_000_000, 4_000_000_000


def figures(setting: Setting) -> list[Figure]:
    """A window of a small and of a huge table, random rows at first touch, random rows of a verified table."""
    return [*window(setting), *random_first_touch(setting), verified_take(setting)]


def window(setting: Setting) -> list[Figure]:
    """Open and 1,000 consecutive rows, a fresh open each time; the huge table is all zeros, and as large on disk."""
    say("open: a window of a small and of a huge table")
    sizes = (_SMALL // 40, _SMALL // 5) if setting.quick else (_SMALL, _LARGE)
    paths = [_zeros(setting, f"zeros-{number}", size) for number, size in enumerate(sizes)]
    counts = [size // (4 * _DIM) for size in sizes]
    places = np.random.default_rng(3).random(setting.short_repeat)

    def measure(path: Path, rows: int) -> Callable[[int], float]:
        def one(number: int) -> float:
            start = int(places[number] * (rows - _WINDOW))

            def work() -> Any:
                with cnrfmt.open(path) as ck:
                    return ck[_TABLE][start : start + _WINDOW]

            return timed(work)

        return one

    contenders = {name: measure(path, rows) for name, path, rows in zip(("small", "large"), paths, counts, strict=True)}
    in_turn(2, contenders)
    times = in_turn(setting.short_repeat, contenders)
    clear(*paths)
    shown: dict[str, Any] = {"group": "open", "verify": "touched", "touch": "first", "cache": "warm"}
    small, large = ("1 MB", "8 MB") if setting.quick else ("40 MB", "4 GB")
    soon = Target("cnrfmt", "<=", 1e-3)
    alike = Target("ratio", "<=", 1.3)
    what = f"open + {_WINDOW:,} consecutive rows"
    return [
        Figure(name=f"{what} of {small}", cnrfmt=times["small"], target=soon, **shown),
        Figure(name=f"{what} of {large}", cnrfmt=times["large"], target=soon, **shown),
        Figure(
            name=f"{what} of {large}",
            cnrfmt=times["large"],
            peer_name=small,
            peer=times["small"],
            target=alike,
            **shown,
        ),
    ]


def _zeros(setting: Setting, name: str, size: int) -> Path:
    """A container of a table that is a hole in a sparse file; in the container the zeros are written out."""
    path, hole = setting.folder / f"{name}.cnr", setting.folder / f"{name}.hole"
    with hole.open("wb") as file:
        file.truncate(size)
    values = np.memmap(hole, np.float32, "r", shape=(size // (4 * _DIM), _DIM))
    cnrfmt.save(path, {_TABLE: values})
    del values
    clear(hole)
    return path


def random_first_touch(setting: Setting) -> list[Figure]:
    """1,000 random rows of a raw table, verified as they are touched; peers verify nothing."""
    say("open: random rows at first touch")
    import h5py
    import torch

    values = setting.tables[_TABLE]
    raw = setting.container("raw")
    hdf5, tensors = setting.folder / "random.h5", setting.folder / "random.pt"
    with h5py.File(hdf5, "w") as file:
        file.create_dataset(_TABLE, data=values)
    torch.save({_TABLE: torch.from_numpy(values)}, tensors)
    for path in (raw, hdf5, tensors):
        warm(path)
    ids = [random_rows(len(values), min(1000, len(values)), 10 + n) for n in range(setting.short_repeat)]

    openers: dict[str, Callable[[], Any]] = {
        "cnrfmt": lambda: cnrfmt.open(raw),
        "cnrfmt, none": lambda: cnrfmt.open(raw, verify="none"),
        "h5py": lambda: h5py.File(hdf5, "r"),
        "torch": lambda: torch.load(tensors, mmap=True, weights_only=True),
    }
    chosen: dict[str, Callable[[int], Any]] = {
        "cnrfmt": lambda n: ids[n],
        "cnrfmt, none": lambda n: ids[n],
        # h5py takes ascending ids alone; sorting them is on the house.
        "h5py": lambda n: np.sort(ids[n]),
        "torch": lambda n: torch.from_numpy(ids[n]),
    }

    def measure(name: str, with_open: bool) -> Callable[[int], float]:
        def one(number: int) -> float:
            key = chosen[name](number)
            opened = [] if with_open else [openers[name]()]

            def work() -> Any:
                if with_open:
                    opened.append(openers[name]())
                return opened[0][_TABLE][key]

            seconds = timed(work)
            if name != "torch":
                opened[0].close()
            return seconds

        return one

    contenders = {
        f"{name}{' + open' if with_open else ''}": measure(name, with_open)
        for with_open in (True, False)
        for name in openers
    }
    in_turn(1, contenders)
    times = in_turn(setting.short_repeat, contenders)
    clear(hdf5, tensors)
    return _random_figures(times)


def _random_figures(times: dict[str, Times]) -> list[Figure]:
    found = []
    for suffix, what in ((" + open", "open + 1,000 random rows"), ("", "1,000 random rows, just opened")):
        own = times[f"cnrfmt{suffix}"]
        shown: dict[str, Any] = {
            "group": "open",
            "name": what,
            "ratio_of": "speed",
            "touch": "first",
            "cache": "warm",
        }
        found += [
            Figure(
                cnrfmt=own,
                peer_name="h5py, sorted ids",
                peer=times[f"h5py{suffix}"],
                target=Target("ratio", ">=", 5.0),
                verify="touched",
                **shown,
            ),
            Figure(
                cnrfmt=own,
                peer_name="torch.load(mmap=True)",
                peer=times[f"torch{suffix}"],
                target=Target("ratio", ">=", 1.0),
                verify="touched",
                **shown,
            ),
            Figure(
                cnrfmt=times[f"cnrfmt, none{suffix}"],
                peer_name="torch.load(mmap=True)",
                peer=times[f"torch{suffix}"],
                verify="none",
                **shown,
            ),
        ]
    return found


def verified_take(setting: Setting) -> Figure:
    """100,000 random rows of an 8-bit table that was read before, against `take` on float32 in memory."""
    say("open: many random rows of a verified 8-bit table")
    values = setting.tables[_TABLE]
    path = setting.container("8-bit")
    count = min(100_000, len(values))
    rounds = 5 * setting.repeat
    ids = [random_rows(len(values), count, 1000 + n) for n in range(rounds)]
    with cnrfmt.open(path) as ck:
        table = ck[_TABLE]
        table.read()
        table[ids[0]]
        times = in_turn(
            rounds,
            {
                "cnrfmt": lambda n: timed(lambda: table[ids[n]]),
                "take": lambda n: timed(lambda: values.take(ids[n], axis=0)),
            },
        )
    return Figure(
        group="open",
        name=f"{count:,} random rows, 8-bit",
        cnrfmt=times["cnrfmt"],
        peer_name="numpy take of float32",
        peer=times["take"],
        target=Target("ratio", "<=", 2.0),
        verify="touched",
        touch="repeated",
        cache="warm",
    )
