"""Quantised tables from end to end: every legal choice is saved, appended to, and read by every path, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Quantize, Rows, TableData, UsageError, plan, segment_writer
from cnrfmt.encodings import Recipe, encoder
from cnrfmt.format.encoding import CastLayout, LogLayout, RawLayout
from cnrfmt.format.toc import Part, TableEntry
from tests.encodings.support import F32, Array, decode, relative_errors
from tools import cnrcheck

COUNT, DIM = 41, 11
ONE_VALUED = ("log12", "log8", "log16", "bfloat16", "raw")


def every_choice() -> list[Quantize]:
    """A `Quantize` for each legal layout and method, other parameters in turn."""
    found: dict[Any, Quantize] = {}
    values = (
        range(2, 9),
        ("symmetric", "asymmetric", "adaptive", "lsq", "kmeans"),
        ("tail", "head", "packed", None),
        ("float32", "float16", "bfloat16", None),
        (None, 8),
        (None, 4),
        (False, True),
    )
    for bits, method, layout, params, group, block, never_worse in product(*values):
        parameters: dict[str, Any] = {"method": method, "layout": layout, "params": params, "group": group}
        parameters |= {"block": block, "never_worse": never_worse, "one_valued": ONE_VALUED[len(found) % 5]}
        if method == "adaptive" or never_worse:
            parameters |= {"num_bins": 5 + len(found) % 7, "ratio": 0.25 + len(found) % 3 / 4}
        if len(found) % 3 == 0:
            parameters["max_error"] = 0.3
        try:
            quantize = Quantize(bits, **parameters)
        except UsageError:
            continue
        found.setdefault((quantize.layout_of(bits), method, never_worse), quantize)
    return list(found.values())


CHOICES = {f"{number:03d}": quantize for number, quantize in enumerate(every_choice())}


def is_keyed(name: str) -> bool:
    return int(name) % 2 == 1


def values_of(name: str, count: int = COUNT, dim: int = DIM) -> tuple[Array, Array]:
    """Rows of a table and a column of one value per row; of each, some that codes can't hold."""
    random = np.random.default_rng(int(name))
    rows = random.normal(size=(count, dim)) * 2.0 ** random.integers(-5, 3, (count, 1))
    rows[1], rows[2], rows[3] = 0, 0.75, np.linspace(-1, 1, dim)
    rows[9, dim // 2], rows[20, 0], rows[-1] = np.nan, np.inf, rows[-1] * 1e30
    sums = np.exp(random.normal(size=count))
    sums[[3, 4, 15]] = 0, -1, np.nan
    return rows.astype(F32), sums.astype(F32)


def keys_of(name: str, count: int = COUNT) -> Array | None:
    return np.arange(count, dtype=np.int64) ** 2 * 7 - 100 if is_keyed(name) else None


DELTAS = [np.array([5, 2, 38, 9, 17]), np.array([17, 20, 21, 22, 23, 40, 3])]
"""The positions that each append writes, in no order."""


def save(path: Path, **options: Any) -> None:
    tables = {}
    for name in CHOICES:
        rows, sums = values_of(name)
        tables[name] = TableData(rows, columns={"sum": sums, "wide": rows}, keys=keys_of(name))
    # A column of dim values is quantised where a pair names it.
    pairs: dict[Any, Any] = {(name, "wide"): q for number, (name, q) in enumerate(CHOICES.items()) if number % 4 == 0}
    cnrfmt.save(path, tables, quantize={**CHOICES, **pairs}, **options)


def append(path: Path, delta: int, **options: Any) -> None:
    changes = {}
    for name in CHOICES:
        rows, sums = values_of(name)
        picked = DELTAS[delta]
        keys = keys_of(name)
        scale = F32(16 * delta + 3)
        new = np.roll(rows, delta + 1, axis=0)[picked] * scale
        columns = {"sum": sums[picked] * scale, "wide": new}
        changes[name] = Rows(picked if keys is None else keys[picked], new, columns=columns)
    cnrfmt.append(path, changes, **options)


@dataclass
class Given:
    """What was handed over for the cells of a column, in the order of positions, one entry for each commit."""

    positions: list[Array]
    rows: list[Array]


def given(name: str, column: str) -> Given:
    rows, sums = values_of(name)
    found = Given([np.arange(COUNT)], [sums.reshape(-1, 1) if column == "sum" else rows])
    for delta, picked in enumerate(DELTAS):
        scale = F32(16 * delta + 3)
        new = sums[picked] * scale if column == "sum" else np.roll(rows, delta + 1, axis=0)[picked] * scale
        order = np.argsort(picked)
        found.positions.append(picked[order])
        found.rows.append(new.reshape(len(picked), -1)[order])
    return found


def entries(path: Path) -> dict[str, list[TableEntry]]:
    """What each segment says of each table."""
    with cnrfmt.open(path) as ck:
        tables = {name: ck[name].schema.table_id for name in ck}
        tocs = [s.toc.by_table for s in ck.view.segments.values()]
        return {name: [toc[table] for toc in tocs if table in toc] for name, table in tables.items()}


def main_part(entry: TableEntry, column: str) -> Part:
    (part,) = [p for p in entry.parts if p.column == column and p.exceptions_of is None]
    return part


def encoded(part: Part, rows: Array) -> Array:
    """The rows of a part and its exceptions by the specification: encoded at once, and decoded in plain numpy."""
    if isinstance(part.layout, RawLayout):
        return rows
    done = encoder(Recipe(part.layout, part.scheme)).encode(rows)
    values = decode(part.layout, done.data, *rows.shape, done.codebooks)
    values[done.bad] = rows[done.bad]
    return values


def expected(said: list[TableEntry], name: str, column: str) -> Array:
    """The rows of a column after all commits."""
    what = given(name, column)
    out = np.full_like(what.rows[0], 77)
    for entry, positions, rows in zip(said, what.positions, what.rows, strict=True):
        out[positions] = encoded(main_part(entry, column), rows)
    return out[:, 0] if column == "sum" else out


COLUMNS = ("weight", "sum", "wide")


@pytest.fixture(scope="module", params=["model.cnr", "model"])
def container(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("quantised") / request.param
    save(path)
    for delta in range(len(DELTAS)):
        append(path, delta)
    return path


@pytest.fixture(scope="module")
def wanted(container: Path) -> dict[tuple[str, str], Array]:
    said = entries(container)
    return {(name, column): expected(said[name], name, column) for name in CHOICES for column in COLUMNS}


def same(found: Any, want: Array) -> None:
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    assert found.tobytes() == want.tobytes()


Wanted = dict[tuple[str, str], Array]


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("verify", ["none", "touched", "all"])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_path_gives_the_same_rows(
    container: Path, wanted: Wanted, backend: Any, verify: Any, threads: int
) -> None:
    random = np.random.default_rng(threads)
    with cnrfmt.open(container, backend=backend, verify=verify, threads=threads) as ck:
        # A third of them each time: those of one remainder for each way to verify.
        some_of_them = list(wanted.items())[("none", "touched", "all").index(verify) :: 3]
        for (name, column), want in some_of_them:
            table = ck[name]
            keys = table.keys
            ids = np.arange(COUNT) if keys is None else keys
            same(table.read(column=column), want)
            some = random.integers(0, COUNT, 17)
            same(table.read(ids[some], column=column), want[some])
            one = int(random.integers(COUNT))
            same(table.read(int(ids[one]), column=column), np.asarray(want[one]))
            a, b = sorted(random.integers(0, COUNT + 1, 2).tolist())
            same(table.read(slice(a, b), column=column, by="position"), want[a:b])
            out = np.full_like(want, 5)
            assert table.read(out=out, column=column) is out
            same(out, want)


def test_raw_rows_and_exceptions_are_those_that_were_given(container: Path) -> None:
    held = 0
    with cnrfmt.open(container) as ck:
        for name, quantize in CHOICES.items():
            rows, _ = values_of(name)
            untouched = np.setdiff1d(np.arange(COUNT), np.concatenate(DELTAS))
            found = ck[name].read(untouched, column="weight", by="position")
            exact = [i for i, p in enumerate(untouched) if found[i].tobytes() == rows[p].tobytes()]
            finite = np.isfinite(rows[untouched]).all(axis=1)
            assert set(np.flatnonzero(~finite)) <= set(exact)
            held += len(untouched) - len(exact)
            if quantize.max_error is not None:
                errors = relative_errors(rows[untouched][finite], found[finite])
                assert errors.max() <= quantize.max_error
    assert held > 10 * len(CHOICES)


def test_parts_say_how_they_were_made(container: Path) -> None:
    said = entries(container)
    for name, quantize in CHOICES.items():
        bits = quantize.bits
        assert bits != "auto"
        for entry, rows in zip(said[name], given(name, "weight").rows, strict=True):
            part = main_part(entry, "weight")
            # An append goes on with layout, method, search and bound.
            assert part.layout == quantize.layout_of(bits)
            assert part.scheme == quantize.scheme_of(bits)
            done = encoder(Recipe(part.layout, part.scheme)).encode(rows)
            held = np.setdiff1d(np.arange(len(rows)), done.bad)
            errors = relative_errors(rows, decode(part.layout, done.data, *rows.shape, done.codebooks))[held]
            assert part.errors.mean == pytest.approx(errors.mean(), rel=1e-9)
            assert part.errors.worst == pytest.approx(errors.max(), rel=1e-9)
            exceptions = [p for p in entry.parts if p.exceptions_of == entry.parts.index(part)]
            assert sum(entry.row_sets[p.rows].count for p in exceptions) == len(done.bad)
            wide = main_part(entry, "wide")
            assert wide.layout == (part.layout if int(name) % 4 == 0 else RawLayout("float32"))


def test_one_valued_columns_go_on_where_the_values_are(container: Path) -> None:
    kinds, said = set(), entries(container)
    for name, quantize in CHOICES.items():
        parts = [main_part(entry, "sum") for entry in said[name]]
        layouts = [part.layout for part in parts]
        kinds.add(quantize.one_valued)
        if isinstance(layouts[0], LogLayout):
            assert quantize.one_valued == f"log{layouts[0].bits}"
            assert len(set(layouts)) == 3
            assert {layout.bits for layout in layouts if isinstance(layout, LogLayout)} == {layouts[0].bits}
            assert {part.scheme for part in parts} == {parts[0].scheme}
        else:
            raw = quantize.one_valued == "raw"
            assert set(layouts) == {RawLayout("float32") if raw else CastLayout("bfloat16")}
    assert kinds == set(ONE_VALUED)


def test_the_container_is_sound(container: Path, wanted: Wanted) -> None:
    report = cnrfmt.verify(container)
    assert report.findings == []
    assert cnrcheck.check_path(str(container)) == []
    # Another reader, written from the specification alone, reads the same.
    for number, name in enumerate(list(CHOICES)[::25]):
        column = COLUMNS[number % 3]
        ids, found = cnrcheck.read_table(str(container), name, column=column)
        keys = keys_of(name)
        assert ids.tolist() == (list(range(COUNT)) if keys is None else keys.tolist())
        same(found, wanted[name, column])


def sections(path: Path) -> list[tuple[bytes, bytes]]:
    """The bytes of all sections of each segment; and what its parts say, but for errors, which are sums."""
    found = []
    with cnrfmt.open(path) as ck:
        for segment in ck.view.segments.values():
            every = b"".join(segment.section(k).tobytes() for k in range(len(segment.toc.sections)))
            said = [replace(p, errors=None) for entry in segment.toc.tables for p in entry.parts]  # type: ignore[arg-type]
            found.append((every, repr(said).encode()))
    return found


def test_the_bytes_depend_on_neither_threads_nor_chunks(
    container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = sections(container)
    for number, (threads, chunk) in enumerate([(1, 4 << 20), (2, 1), (3, 300), (3, 1000)]):
        monkeypatch.setattr(segment_writer, "_CHUNK", chunk)
        path = tmp_path / f"{number}.cnr"
        save(path, threads=threads)
        for delta in range(len(DELTAS)):
            append(path, delta, threads=threads)
        assert sections(path) == want, (threads, chunk)


class Cut:
    """Some elements of the rows of a source."""

    def __init__(self, source: Any, first: int, end: int) -> None:
        self._source, self._elements = source, slice(first, end)
        self.shape, self.dtype, self.is_contiguous = (source.shape[0], end - first), source.dtype, False

    def rows(self, start: int, stop: int) -> Array:
        return np.ascontiguousarray(self._source.rows(start, stop)[:, self._elements])

    def take(self, ids: Array) -> Array:
        return np.ascontiguousarray(self._source.take(ids)[:, self._elements])


def test_parts_of_some_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that are divided by elements, as shards of a model divide them, each part with its own codes."""
    path = tmp_path / "model.cnr"
    cuts = ((0, 4), (4, 5), (5, DIM))
    plain = plan._writes

    def divided(schema: Any, sources: Any, recipe_of: Any) -> Any:
        found = []
        for write in plain(schema, sources, recipe_of):
            if write.column.name != "weight":
                found.append(write)
                continue
            for first, end in cuts:
                found.append(replace(write, source=Cut(write.source, first, end), elements=(first, end)))
        return tuple(found)

    monkeypatch.setattr(plan, "_writes", divided)
    save(path)
    monkeypatch.setattr(plan, "_writes", plain)
    append(path, 0)
    wanted = {}
    for name, (baseline, delta) in entries(path).items():
        what = given(name, "weight")
        want = wanted[name] = np.empty((COUNT, DIM), F32)
        for first, end in cuts:
            (part,) = [p for p in baseline.parts if p.elements == (first, end) and p.exceptions_of is None]
            want[:, first:end] = encoded(part, np.ascontiguousarray(what.rows[0][:, first:end]))
        want[what.positions[1]] = encoded(main_part(delta, "weight"), what.rows[1])
    for backend in ("mmap", "pread"):
        with cnrfmt.open(path, backend=backend) as ck:
            for name, want in wanted.items():
                same(ck[name].read(), want)
                some = [40, 2, 5, 2, 0]
                same(ck[name].read(some, by="position"), want[some])
    assert cnrfmt.verify(path).findings == []
    assert cnrcheck.check_path(str(path)) == []


@pytest.mark.parametrize("dim", [1, 7, 300, 4096])
def test_rows_of_other_widths(dim: int, tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    picked = list(CHOICES.items())[:: 9 if dim < 1000 else 31]
    tables = {name: values_of(name, 25, dim)[0] for name, _ in picked}
    cnrfmt.save(path, tables, quantize=dict(picked))
    ids = np.array([24, 3, 4])
    cnrfmt.append(path, {name: Rows(ids, tables[name][[5, 6, 7]]) for name, _ in picked})
    wanted = {}
    for name, (baseline, delta) in entries(path).items():
        want = wanted[name] = encoded(main_part(baseline, "weight"), tables[name]).copy()
        want[np.sort(ids)] = encoded(main_part(delta, "weight"), tables[name][[6, 7, 5]])
    for backend in ("mmap", "pread"):
        with cnrfmt.open(path, backend=backend) as ck:
            for name, want in wanted.items():
                same(ck[name].read(), want)
                same(ck[name].read([24, 0, 3]), want[[24, 0, 3]])
    assert cnrfmt.verify(path).findings == []


def test_no_rows_and_few(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    auto = {"auto": Quantize("auto", mean_error=0.1), "search": Quantize(3, method="adaptive", num_bins="auto")}
    quantize = {**CHOICES, **auto}
    cnrfmt.save(path, {name: np.empty((0, 5), F32) for name in quantize}, quantize=quantize)
    with cnrfmt.open(path) as ck:
        assert all(ck[name].read().shape == (0, 5) for name in ck)
    assert cnrfmt.verify(path).findings == []
    one = {name: TableData(np.full((1, 5), 0.5, F32), columns={"sum": np.ones(1, F32)}) for name in quantize}
    cnrfmt.save(path, one, quantize=quantize)
    with cnrfmt.open(path) as ck:
        for name in quantize:
            np.testing.assert_allclose(ck[name].read(), 0.5, rtol=8e-3)
            np.testing.assert_allclose(ck[name].read(column="sum"), 1, rtol=0.07)
    assert cnrfmt.verify(path).findings == []


def test_loading_gives_the_same(container: Path, wanted: Wanted) -> None:
    loaded = cnrfmt.load(container, columns=True)
    for name in CHOICES:
        found = loaded[name]
        same(found.values, wanted[name, "weight"])
        assert set(found.columns) == {"sum", "wide"}
        for column, values in found.columns.items():
            same(values, wanted[name, column])
        keys = keys_of(name)
        assert (found.keys is None) == (keys is None)
        assert keys is None or found.keys.tolist() == keys.tolist()


LONG: dict[str, Quantize] = {
    "shared": Quantize(3, method="kmeans", block=5, one_valued="log12"),
    "own": Quantize(2, method="kmeans", one_valued="log8"),
    "tail": Quantize(4, one_valued="log16"),
    "head": Quantize(8, layout="head", one_valued="bfloat16"),
    "packed": Quantize(5, group=8, max_error=0.02),
}


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("seed", range(4))
def test_long_chains(backend: Any, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas over deltas of tables that grow and shrink, read in windows; small steps, so that all ways are taken."""
    monkeypatch.setattr("cnrfmt.layer._STREAM", 100)
    monkeypatch.setattr("cnrfmt.layer._BATCH", 7)
    random = np.random.default_rng(seed)
    path, count = tmp_path / "model.cnr", 301
    rows, sums = values_of(str(seed), count)
    what: dict[str, Array] = {"weight": rows, "sum": sums.reshape(-1, 1)}
    cnrfmt.save(path, {name: TableData(rows, columns={"sum": sums}) for name in LONG}, quantize=LONG)
    steps = [(np.arange(count), what, count)]
    for step in range(6):
        count = max(100, count + int(random.integers(-60, 90)))
        size = int(random.choice([1, 3, 40, 90]))
        start = int(random.integers(0, count - size + 1))
        ids = np.arange(start, start + size) if step % 2 else np.sort(random.choice(count, size, replace=False))
        rows, sums = values_of(str(100 * seed + step), max(size, 30))
        what = {"weight": rows[:size] * F32(step + 2), "sum": sums[:size, None] * F32(4**step)}
        change = Rows(ids, what["weight"], columns={"sum": what["sum"][:, 0]}, rows=count)
        cnrfmt.append(path, dict.fromkeys(LONG, change))
        steps.append((ids, what, count))
    for name, said in entries(path).items():
        for column, width in (("weight", DIM), ("sum", 1)):
            want = np.zeros((0, width), F32)
            for entry, (ids, what, count) in zip(said, steps, strict=True):
                want = np.concatenate([want[:count], np.zeros((max(0, count - len(want)), width), F32)])
                want[ids] = encoded(main_part(entry, column), what[column])
            if column == "sum":
                want = want[:, 0]
            with cnrfmt.open(path, backend=backend, threads=1) as ck:
                table = ck[name]
                same(table.read(column=column), want)
                for _ in range(12):
                    a, b = sorted(random.integers(0, count + 1, 2).tolist())
                    same(table.read(slice(a, b), column=column), want[a:b])
                some = random.integers(0, count, 50)
                same(table.read(some, column=column), want[some])
    assert cnrfmt.verify(path).findings == []
    assert cnrcheck.check_path(str(path)) == []


def read_all(ck: cnrfmt.Checkpoint) -> None:
    for table in ck.values():
        for column in table.columns:
            table.read(column=column)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_a_changed_byte_of_any_section_is_found(backend: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    rows, sums = values_of("0")
    cnrfmt.save(path, {name: TableData(rows, columns={"sum": sums}) for name in LONG}, quantize=LONG)
    with cnrfmt.open(path) as ck:
        (segment,) = ck.view.segments.values()
        places = [(segment.entry.offset or 0) + offset for offset, _ in segment.toc.sections]
        assert sum(p.codebooks is not None for t in segment.toc.tables for p in t.parts) == 1
    data = path.read_bytes()
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 8
        path.write_bytes(changed)
        with cnrfmt.open(path, backend=backend) as ck, pytest.raises(cnrfmt.DamagedError, match="piece-digest"):
            read_all(ck)
        assert not cnrfmt.verify(path).sound


# What an append goes on with.


def test_what_was_left_open_is_chosen_once(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    rows = values_of("1")[0][10:20]
    quantize = Quantize("auto", restores=3, num_bins="auto", ratio="auto", max_error=0.5)
    cnrfmt.save(path, {"t": rows, "u": rows}, quantize={"t": quantize, "u": Quantize("auto", mean_error=0)})
    cnrfmt.append(path, {"t": Rows([1, 2], 1000 * rows[:2] ** 3), "u": Rows([4], rows[:1])})
    parts = [main_part(entry, "weight") for entry in entries(path)["t"]]
    assert parts[0].scheme is not None
    assert (parts[0].scheme.method, parts[0].scheme.bound, parts[0].layout.row_bits(8)) == ("adaptive", 0.5, 24 + 32)
    assert (parts[1].layout, parts[1].scheme) == (parts[0].layout, parts[0].scheme)
    assert {part.layout for entry in entries(path)["u"] for part in entry.parts} == {RawLayout("float32")}


def test_an_append_keeps_what_it_says_nothing_of(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    rows, sums = values_of("0")
    quantize: dict[Any, Any] = {"t": Quantize(8), ("t", "wide"): Quantize(2, method="kmeans")}
    cnrfmt.save(path, {"t": TableData(rows, columns={"sum": sums, "wide": rows})}, quantize=quantize)
    new = Rows([3], rows[5:6], columns={"sum": sums[5:6], "wide": rows[5:6]})
    asked: list[dict[Any, Any]] = [{}, {"t": Quantize(4)}, {("t", "sum"): None}, {"t": None}]
    asked.append({("*", "w?de"): Quantize(3)})
    for choice in asked:
        cnrfmt.append(path, {"t": new}, quantize=choice)
    found = {
        column: [main_part(entry, column).layout for entry in entries(path)["t"]]
        for column in ("weight", "sum", "wide")
    }
    bits = {column: [getattr(layout, "bits", 32) for layout in layouts] for column, layouts in found.items()}
    assert bits == {
        "weight": [8, 8, 4, 4, 32, 32],
        "sum": [12, 12, 12, 32, 32, 32],
        # What is said of a table isn't said of columns of dim values, unless it is that they be raw.
        "wide": [2, 2, 2, 2, 32, 3],
    }
    for misnamed in ({"T": None}, {("t", "sums"): Quantize(4)}):
        with pytest.raises(UsageError, match="is named"):
            cnrfmt.append(path, {"t": new}, quantize=misnamed)


def test_a_column_that_comes_later_is_raw_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    rows, sums = values_of("0")
    cnrfmt.save(path, {"t": rows}, quantize=Quantize(4))
    cnrfmt.append(path, {"t": Rows([3], columns={"a": sums[:1]})})
    cnrfmt.append(path, {"t": Rows([3], columns={"b": sums[:1]})}, quantize=Quantize(4))
    layouts = {p.column: p.layout for entry in entries(path)["t"] for p in entry.parts}
    assert layouts["a"] == RawLayout("float32")
    assert isinstance(layouts["b"], LogLayout)


@pytest.mark.parametrize(
    ("quantize", "says"),
    [
        ({"t": 8}, "must be a Quantize"),
        ({("t", "nope"): Quantize()}, "no column of 't' is named 'nope'"),
        ({("x", "weight"): Quantize()}, "no table is named 'x'"),
        ({("t", "count"): Quantize()}, "column 'count': only float32"),
        ({5: Quantize()}, "patterns are strings"),
    ],
)
def test_what_save_refuses(quantize: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    rows, _ = values_of("0")
    with pytest.raises(UsageError, match=says):
        cnrfmt.save(path, {"t": TableData(rows, columns={"count": np.arange(COUNT)})}, quantize=quantize)
    assert not path.exists()
