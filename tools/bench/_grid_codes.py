"""How fast rows become codes on a grid and come back, by one thread, next to a copy of the same float32 bytes.

    python -m tools.bench._grid_codes [--dir DIR] [--rows wordllama,demo,laplace] [--dim 16,64,128,256] [--repeat 5]
        [--quick]

GB/s are of float32, of the 27 % of a table's rows that Zipf ids touched. *rans, encode* picks these rows, takes the
differences from what is stored of them, packs them as a snapshot does, and encodes the sections of them; *snapshot's
part* ends with packing. *rans, decode* goes from sections to float32. *packed* and *fixed* are kernels alone, from
codes in the cache and to them. *sum* adds decoded rows to others, *merge* decodes three increments, adds them up and
encodes the sum: its GB/s are of what is decoded. A *random row* is read by its id, from a container that is open, of
which nothing but such rows was read before.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cnrfmt
from cnrfmt import Grid
from cnrfmt.arrays import Bytes
from cnrfmt.encodings.grid import GROUP_VALUES
from cnrfmt.encodings.groups import group_count
from cnrfmt.encodings.integer_sections import GivenCodes, encode_section
from cnrfmt.encodings.integers import OpenPart, integer_coder
from cnrfmt.encodings.packed_rows import PackedRows
from cnrfmt.format.encoding import GridLayout
from cnrfmt.kernels import exponents as exponent_kernels
from cnrfmt.kernels import integers, quantising
from tools.bench import _data
from tools.bench._figures import Figure, Target, in_turn, say, settle_repeat, table_of, timed
from tools.bench._grid_data import KINDS, Rows
from tools.bench._quantize_figures import Line, Work, race, report, speed

DIMS = (16, 64, 128, 256)
QUICK_DIMS = (16, 64)
_BYTES, _QUICK_BYTES = 1 << 30, 1 << 20
_CHUNK, _SLICE, _BLOCK = 1 << 18, 8 << 20, 64 << 10
"""Values that a snapshot takes at a time, of a slice, and that a reader decodes at a time."""
_MOST_BITS = 26
_INCREMENTS = 3
_ROW_BYTES, _SINGLE, _TOGETHER = 64 << 20, 500, 1000
_STEP = 1 / 8
LEAST = {
    "rans, encode": 0.8,
    "rans, decode": 1.3,
    "packed, encode": 3.0,
    "packed, decode": 3.0,
    "fixed, encode": 6.0,
    "fixed, decode": 6.0,
    "sum of decoded increments": 2.0,
}
"""GB/s that are asked for."""
_MOST_SECONDS = 20e-6

Integers = npt.NDArray[np.int32]


class Case:
    """All work on rows of one kind and width, and the memory for it, which was all used once before.

    `sections` are those of the rows that changed, `codes` their integers, c << e, and `out` the values of these.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        kind = "residual" if len(rows.stored) else "absolute"
        self.layout = GridLayout(kind, rows.floor, "rans", None, max(1, GROUP_VALUES // rows.dim))
        shape = len(rows.positions), rows.dim
        self._picked, self.out = rows.values[rows.positions], np.zeros(shape, np.float32)
        self.sections = self.encode()
        self.codes, self._exponents = np.zeros(shape, np.int32), np.zeros(len(rows.positions), np.uint8)
        self.decode()
        for first, part in self._parts():
            some = slice(first, first + part.coder.count)
            part.decode(self._section(first), part.span(0, part.coder.count)[0], 0, self.codes[some],
                        self._exponents[some])  # fmt: skip

    def work(self) -> dict[str, Work]:
        """By the names of the figures."""
        cached = self._cached()
        total = np.zeros(self.rows.values.shape, np.int32)
        return {
            "copy": lambda: np.copyto(self.out, self._picked),
            "rans, snapshot's part of encode": self.take,
            "rans, encode": self.encode,
            "rans, decode": self.decode,
            **cached,
            "sum of decoded increments": lambda: self._add(total),
            "merge of three increments": self._merge,
        }

    @property
    def bits(self) -> float:
        """What a value takes in the sections."""
        return 8 * sum(map(len, self.sections)) / self.out.size

    def take(self) -> list[PackedRows]:
        """What a snapshot has of these rows when the trainer goes on."""
        return [self._taken(first, stop) for first, stop in self._slices()]

    def encode(self) -> list[Bytes]:
        """The sections of these rows, from the live table on."""
        found = []
        for first, stop in self._slices():
            packed = self._taken(first, stop)
            found.append(encode_section(self.layout, packed, stop - first, self.rows.dim)[1])
        return found

    def decode(self) -> None:
        """The values of residual rows are those of the differences alone: the same work."""
        block = np.empty((max(1, _BLOCK // self.rows.dim), self.rows.dim), np.int32)
        for first, part in self._parts():
            section = self._section(first)
            for start in range(0, part.coder.count, len(block)):
                some = block[: part.coder.count - start]
                part.decode(section, part.span(start, len(some))[0], start, some)
                integers.values(some, self.rows.floor, self.out[first + start : first + start + len(some)])

    def _slices(self) -> list[tuple[int, int]]:
        count, step = len(self.rows.positions), max(1, _SLICE // self.rows.dim)
        return [(first, min(first + step, count)) for first in range(0, count, step)]

    def _taken(self, first: int, stop: int) -> PackedRows:
        rows, dim = self.rows, self.rows.dim
        packed, step = PackedRows(dim), max(1, _CHUNK // dim)
        for a in range(first, stop, step):
            positions = rows.positions[a : min(a + step, stop)]
            count = len(positions)
            exponents, widths = rows.exponents[a : a + count].copy(), np.empty(count, np.uint8)
            room = np.empty(count * (-(-dim * _MOST_BITS // 8)) + 64, np.uint8)
            bad = np.empty(count, np.uint8)
            used = quantising.quantise_packed(
                rows.values, positions, rows.stored, positions, rows.floor, exponents, widths, bad, room
            )
            packed.append(exponents, widths, room[:used].copy())
        packed.seal()
        return packed

    def _section(self, first: int) -> Bytes:
        return self.sections[first // max(1, _SLICE // self.rows.dim)]

    def _parts(self) -> list[tuple[int, OpenPart]]:
        """The sections as parts, with the place of their first row among those that changed."""
        found = []
        for (first, stop), section in zip(self._slices(), self.sections, strict=True):
            coder = integer_coder(self.layout, stop - first, self.rows.dim, "benchmark")
            found.append((first, coder.opened(section[: coder.prefix_bytes(section[:16])], len(section))))
        return found

    def _cached(self) -> dict[str, Work]:
        """Packed and fixed codes both ways, of one block over and over, as often as it takes to come to all bytes."""
        dim, group = self.rows.dim, max(1, GROUP_VALUES // self.rows.dim)
        count = min(max(1, _CHUNK // dim), len(self.codes))
        exponents = self._exponents[:count]
        codes = self.codes[:count] >> exponents[:, None].astype(np.int32)
        widths, ends = np.empty(count, np.uint8), np.empty(group_count(count, group), np.int64)
        integers.code_widths(codes, widths)
        bits = max(1, int(widths.max()))
        sizes = (widths.astype(np.int64) * dim + 7) // 8
        packed = np.empty(int(sizes.sum()) + 2 * count, np.uint8)
        fixed = np.empty(count * (1 + (dim * bits + 7) // 8), np.uint8)
        integers.pack_groups(codes, exponents, widths, group, packed, ends)
        bounds, last = np.concatenate([[0], ends]), count - (len(ends) - 1) * group
        integers.pack_fixed(codes, exponents, bits, fixed)
        out, found = np.empty_like(codes), np.empty(count, np.uint8)

        def packing() -> None:
            integers.code_widths(codes, widths)
            integers.pack_groups(codes, exponents, widths, group, packed, ends)

        def over_and_over(one: Work) -> Work:
            def all_bytes() -> None:
                for _ in range(-(-len(self.codes) // count)):
                    one()

            return all_bytes

        return {
            "packed, encode": over_and_over(packing),
            "packed, decode": over_and_over(
                lambda: integers.unpack_groups(packed, 0, bounds, group, last, 0, _MOST_BITS, out, found)
            ),
            "fixed, encode": over_and_over(lambda: integers.pack_fixed(codes, exponents, bits, fixed)),
            "fixed, decode": over_and_over(lambda: integers.unpack_fixed(fixed, 0, bits, _MOST_BITS, out, found)),
        }

    def _add(self, total: Integers) -> None:
        """Decoded rows go to their places among all rows of the table."""
        step = max(1, _BLOCK // self.rows.dim)
        block = self.codes[:step]
        for start in range(0, len(self.codes), step):
            positions = self.rows.positions[start : start + step]
            integers.add_at(total, positions, block[: len(positions)])

    def _merge(self) -> list[Bytes]:
        """Increments of the same rows as one."""
        found, dim = [], self.rows.dim
        block = np.empty((max(1, _BLOCK // dim), dim), np.int32)
        for first, part in self._parts():
            section, count = self._section(first), part.coder.count
            sums, exponents = np.zeros((count, dim), np.int32), np.zeros(count, np.uint8)
            for _ in range(_INCREMENTS):
                for start in range(0, count, len(block)):
                    some = block[: count - start]
                    part.decode(section, part.span(start, len(some))[0], start, some)
                    integers.add(sums[start : start + len(some)], some)
            exponent_kernels.take_out(sums, exponents)
            found.append(encode_section(self.layout, GivenCodes(sums, exponents), count, dim)[1])
        return found


def lines(kind: str, dim: int, repeat: int, *, quick: bool) -> list[Line]:
    """All figures of rows of one kind and width."""
    say(f"codes: {kind} rows of {dim}")
    case = Case(KINDS[kind]((_QUICK_BYTES if quick else _BYTES) // (4 * dim), dim, quick=quick))
    work, nbytes = case.work(), case.rows.nbytes
    times = race(repeat, work)
    found = []
    for name in list(work)[1:]:
        moved = _INCREMENTS * nbytes if name.startswith("merge") else nbytes
        peer = None if name.startswith("merge") else ("a copy", times["copy"])
        line = speed(1, name, (kind, dim), times[name], moved, peer=peer, least_rate=LEAST.get(name))
        found.append(line)
    bits = Figure("codes", "rans, bits of a value", [case.bits], unit="error")
    return [*found, Line(1, kind, dim, 1, bits)]


def random_rows(folder: Path, dim: int, repeat: int, *, quick: bool) -> list[Figure]:
    """Rows that lie anywhere, one by one and many in one call, next to the same of a raw table."""
    say(f"codes: random rows of {dim}")
    values = _data.table((_QUICK_BYTES if quick else _ROW_BYTES) // (4 * dim), dim)
    paths = {"rans": folder / "rans.cnr", "raw": folder / "raw.cnr"}
    cnrfmt.save(paths["rans"], {"table": values}, quantize=Grid(step=float(values.std()) * _STEP))
    cnrfmt.save(paths["raw"], {"table": values})
    found = []
    for verify in ("none", "touched"):
        for what, read, count in (("one", _one_by_one, _SINGLE), ("of 1,000 in one call", _together, _TOGETHER)):
            count = min(count, len(values))
            times = in_turn(repeat + 1, {name: _rows_of(path, verify, read, count) for name, path in paths.items()})
            found.append(
                Figure(
                    group="random row",
                    name=f"dim {dim}, {what}",
                    cnrfmt=times["rans"][1:],
                    peer_name="raw",
                    peer=times["raw"][1:],
                    target=Target("cnrfmt", "<=", _MOST_SECONDS),
                    verify=verify,
                    touch="first",
                    cache="warm",
                )
            )
    return found


def _rows_of(path: Path, verify: Any, read: Callable[[Any, Any], float], count: int) -> Callable[[int], float]:
    def seconds(number: int) -> float:
        with cnrfmt.open(path, verify=verify, threads=1) as ck:
            table = ck["table"]
            ids = _data.random_rows(len(table), count, number)
            # What all groups have in common is read by the first row that is asked for.
            table[0]
            return read(table, ids) / count

    return seconds


def _one_by_one(table: Any, ids: Any) -> float:
    each = ids.tolist()
    return timed(lambda: [table[one] for one in each])


def _together(table: Any, ids: Any) -> float:
    return timed(lambda: table[ids])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="where containers go (a temporary directory)")
    parser.add_argument("--rows", default=",".join(KINDS), help="kinds of rows: %(default)s")
    parser.add_argument("--dim", help="widths: 16,64,128,256 (with --quick 16,64)")
    parser.add_argument("--repeat", type=int, help="rounds (5; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="small tables: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    settle_repeat(parser, given)
    given.dims = tuple(map(int, given.dim.split(","))) if given.dim else QUICK_DIMS if given.quick else DIMS
    given.kinds = [name.strip() for name in given.rows.split(",")]
    if unknown := [name for name in given.kinds if name not in KINDS]:
        parser.error(f"no rows are called {unknown[0]!r}; there are {', '.join(KINDS)}")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    given = _arguments(argv)
    found = [
        line
        for kind in given.kinds
        for dim in given.dims
        for line in lines(kind, dim, given.repeat, quick=given.quick)
    ]
    print(report(found))
    with tempfile.TemporaryDirectory(prefix="cnrfmt-bench-", dir=given.dir) as folder:
        rows = [x for dim in given.dims for x in random_rows(Path(folder), dim, given.repeat, quick=given.quick)]
    print("", table_of(rows), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
