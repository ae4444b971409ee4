"""Appending a delta, and loading a chain of ten."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import cnrfmt
from tools.bench._data import random_rows, table, touched_rows
from tools.bench._figures import Figure, Target, Times, in_turn, say, timed
from tools.bench._setting import ENCODINGS, Setting, clear, warm


def figures(setting: Setting) -> list[Figure]:
    """Appends of 1 % of the rows against full saves; loads after ten deltas of 10 % against the baseline's."""
    found = []
    for encoding in ("raw", "8-bit"):
        found += append_one_percent(setting, encoding)
    for encoding in ("raw", "8-bit"):
        found.append(load_after_ten(setting, encoding))
    return found


def append_one_percent(setting: Setting, encoding: str) -> list[Figure]:
    """Time and bytes of a delta of 1 % of the rows (sorted random ids), in the pair of the save before it."""
    say(f"append: 1 % of the rows, {encoding}")
    path = setting.folder / "append.cnr"
    delta = {
        name: cnrfmt.Rows(ids := _sorted(len(values), len(values) // 100), values[ids])
        for name, values in setting.tables.items()
    }
    sizes: dict[str, Times] = {"save": [], "append": []}

    def save(_: int) -> float:
        clear(path)
        seconds = timed(lambda: cnrfmt.save(path, setting.tables, quantize=ENCODINGS[encoding]))
        sizes["save"].append(path.stat().st_size)
        return seconds

    def append(_: int) -> float:
        before = path.stat().st_size
        seconds = timed(lambda: cnrfmt.append(path, delta))
        sizes["append"].append(path.stat().st_size - before)
        return seconds

    contenders = {"save": save, "append": append}
    in_turn(1, contenders)
    sizes = {name: [] for name in sizes}
    times = in_turn(setting.repeat, contenders)
    clear(path)
    shown: dict[str, Any] = {"group": "append", "peer_name": "full save", "verify": "digests made", "touch": "first"}
    return [
        Figure(
            name=f"1 % of the rows, {encoding}",
            cnrfmt=times["append"],
            peer=times["save"],
            target=Target("ratio", "<=", 0.03),
            **shown,
        ),
        Figure(
            name=f"1 % of the rows, {encoding}: bytes",
            cnrfmt=sizes["append"],
            unit="bytes",
            peer=sizes["save"],
            target=Target("ratio", "<=", 0.013),
            **shown,
        ),
    ]


def _sorted(rows: int, count: int) -> Any:
    ids = random_rows(rows, max(1, count), 1)
    ids.sort()
    return ids


def load_after_ten(setting: Setting, encoding: str) -> Figure:
    """Ten deltas, each of 10 % of the rows as traffic touches them, on top of a baseline."""
    say(f"append: load after ten deltas, {encoding}")
    base = setting.container(encoding)
    chain = _chain_of_ten(setting, base)
    for path in (base, chain):
        warm(path)
        cnrfmt.load(path)
    times = in_turn(
        setting.repeat,
        {
            "base": lambda _: timed(lambda: cnrfmt.load(base)),
            "chain": lambda _: timed(lambda: cnrfmt.load(chain)),
        },
    )
    clear(chain)
    return Figure(
        group="append",
        name=f"load after ten deltas of 10 %, {encoding}",
        cnrfmt=times["chain"],
        peer_name="baseline alone",
        peer=times["base"],
        target=Target("ratio", "<=", 1.25),
        verify="touched",
        touch="first",
        cache="warm",
        bytes_moved=setting.nbytes,
    )


def _chain_of_ten(setting: Setting, base: Path) -> Path:
    chain = setting.folder / "chain.cnr"
    shutil.copyfile(base, chain)
    news = {name: table(len(v) // 10, v.shape[1], seed=2) for name, v in setting.tables.items()}
    for number in range(10):
        changes = {
            name: cnrfmt.Rows(touched_rows(len(values), len(values) // 10, number), news[name])
            for name, values in setting.tables.items()
        }
        cnrfmt.append(chain, changes)
    return chain
