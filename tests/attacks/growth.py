"""Files of every kind that can be large, at any size: what opening, reading and judging them costs.

``python -m tests.attacks.growth [--json FILE]`` prints the processor time and the memory of each at several sizes.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from tests.attacks.support import Store, cases, container, in_child, lay, layout, rows

BYTE = rows.raw_encoding("uint8")
_SEED = 1


def tables(count: int) -> Store:
    """So many tables of one row."""
    schemas = [
        container.schema(str(n), f"table {n}", 1, 1, container.column("weight", "uint8", [1])) for n in range(count)
    ]

    def content(segment: layout.Segment) -> None:
        for schema in schemas:
            table = layout.Table(segment, cases.table_id(schema), 1)
            table.part("weight", table.span(0, 0), (0, 1), BYTE, b"x")

    return cases.one_small(content=content, tables=schemas)


def columns(count: int) -> Store:
    """A table with so many columns, each in parts of its own."""
    named = [container.column(f"c{n}" if n else "weight", "uint8", [4]) for n in range(count)]
    schema = container.schema("wide", "wide", 4, 4, *named)

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(schema), 4)
        span = table.span(0, 3)
        for column in named:
            for first in (0, 2):
                table.part(column["name"], span, (first, first + 2), BYTE, bytes(8))

    return cases.one_small(content=content, tables=[schema])


def versions(count: int) -> Store:
    """So many retained versions of one state."""
    store = Store()
    segment = layout.Segment("A", None, cases.A)
    cases.user(segment)
    chain = [store.put(segment)]
    for number in range(count):
        store.commit(cases.A, [cases.USER], chain, retain=store.log if number == count - 1 else ())
    return store


def chain(count: int) -> Store:
    """A chain of so many segments, each of which writes a row."""
    store = Store(folder=True)
    entries = []
    for number in range(count):
        source = layout.state(str(number - 1)) if number else None
        segment = layout.Segment(str(number), source, layout.state(str(number)))
        cases.visitor(segment, [number, number + 1])
        entries.append(store.put(segment))
    store.commit(layout.state(str(count - 1)), [cases.VISITOR], entries)
    return store


def metadata(count: int) -> Store:
    """User metadata of so many numbers."""
    return cases.one_small(metadata={"numbers": list(range(count))})


def parts(count: int) -> Store:
    """One row in so many parts side by side."""
    schema = container.schema("wide", "wide", 1, count, container.column("weight", "uint8", [count]))

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(schema), 1)
        span = table.span(0, 0)
        for number in range(count):
            table.part("weight", span, (number, number + 1), BYTE, b"x")

    return cases.one_small(content=content, tables=[schema])


def exceptions(count: int) -> Store:
    """So many row-wise parts, each with an exception part."""
    schema = container.schema("wide", "wide", count, 3, cases.WEIGHT)

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(schema), count)
        spans = [table.span(number, number) for number in range(count)]
        for span in spans:
            table.part("weight", span, (0, 3), rows.rowwise_encoding(8), bytes(11))
        for number, span in enumerate(spans):
            table.part("weight", span, (0, 3), cases.FLOAT, cases.weights(1).tobytes(), number)

    return cases.one_small(content=content, tables=[schema])


def row_sets(count: int) -> Store:
    """A keyed table in so many parts with interleaved keys."""

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(cases.VISITOR), None)
        for number in range(count):
            ids = [number, number + count]
            index = table.index("raw", ids, rows.raw(ids))
            cases.floats(table, "weight", index, cases.weights(2))

    return cases.one_small(content=content, tables=[cases.VISITOR])


def dense(count: int) -> Store:
    """So many dense entries, in as many sections."""

    def content(segment: layout.Segment) -> None:
        for number in range(count):
            segment.blob(f"entry {number}", ("bytes", "json")[number % 2], b"1")

    return cases.one_small(content=content, tables=(), dense=True)


def pieces(count: int) -> Store:
    """A table over so many pieces of the smallest size: from 8192 on, its digests have nodes."""
    width = 500
    schema = container.schema("long", "long", count, width, container.column("weight", "uint8", [width]))

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(schema), count)
        table.part("weight", table.span(0, count - 1), (0, width), BYTE, bytes(count * width))

    return cases.one_small(content=content, tables=[schema], piece_size=512)


def damage(count: int) -> Store:
    """The same with a wrong byte in every piece: as many findings."""
    store = pieces(count)
    for name, data in store.files.items():
        if name.startswith("segments/"):
            assert isinstance(data, bytes)
            changed = bytearray(data)
            end = int.from_bytes(changed[-96:-88], "little")
            for at in range(128, end, 512):
                changed[at] ^= 1
            store.files[name] = bytes(changed)
    return store


def index(count: int) -> Store:
    """A packed row index of so many ids."""
    ids = np.cumsum(np.random.default_rng(_SEED).integers(1, 9, count)).tolist()
    schema = container.schema("keys", "keys", None, 1, container.column("weight", "uint8", [1]))

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(schema), None)
        table.part("weight", table.index("packed", ids, rows.packed(ids)), (0, 1), BYTE, bytes(count))

    return cases.one_small(content=content, tables=[schema])


@dataclass(frozen=True)
class Case:
    """A kind of large file: what makes it, the size that tests compare with four times as much, the largest legal."""

    build: Callable[[int], Store]
    size: int
    most: int


CASES = {
    "tables": Case(tables, 250, 65536),
    "columns": Case(columns, 60, 256),
    "versions": Case(versions, 100, 4096),
    "chain": Case(chain, 60, 256),
    "metadata": Case(metadata, 20_000, 8_000_000),
    "parts": Case(parts, 400, 65536),
    "exceptions": Case(exceptions, 250, 32768),
    "row_sets": Case(row_sets, 250, 65536),
    "dense": Case(dense, 500, 65536),
    "pieces": Case(pieces, 2500, 200_000),
    "damage": Case(damage, 500, 50_000),
    "index": Case(index, 20_000, 4_000_000),
}


def use(path: Path) -> None:
    """Opens, reads one row and the dense state, and judges."""
    # Some of the cases are damaged: then the work to find that out is what counts.
    with suppress(cnrfmt.DamagedError), cnrfmt.open(path, backend="pread", threads=1) as ck:
        assert isinstance(ck.dense, dict)
        for name in list(ck)[:3]:
            table = ck[name]
            table.at[len(table) // 2]
    cnrfmt.verify(path, threads=1)


def calls(path: Path) -> int:
    """How many calls of Python's `use` makes: a count of work that no machine's pace changes."""
    use(path)
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        use(path)
    finally:
        sys.setprofile(None)
    return count


def cost(path: Path) -> tuple[float, int]:
    """Seconds of processor time that `use` takes, and bytes that the process grows by."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    use(path)
    return time.process_time() - started, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def size_of(path: Path) -> int:
    """Bytes of a container."""
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def main(arguments: list[str] | None = None) -> int:
    """Measure every case at a quarter and a sixteenth of the largest legal size, and at that size."""
    parser = argparse.ArgumentParser(description="Measure what the largest legal files cost.")
    parser.add_argument("--json", type=Path, help="where the table is written")
    options = parser.parse_args(arguments)
    table: dict[str, Any] = {}
    for name, case in CASES.items():
        table[name] = []
        for count in (case.most // 16, case.most // 4, case.most):
            with tempfile.TemporaryDirectory() as folder:
                path = lay(Path(folder) / "model", case.build(count))
                found = in_child(cost, path, memory=None, patience=7200)
                row = {"count": count, "bytes": size_of(path), "seconds": round(found[0], 3), "memory": found[1]}
            table[name].append(row)
            print(name, row, flush=True)
    result = {"command": "python -m tests.attacks.growth", "date": time.strftime("%Y-%m-%d"), "cases": table}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
