"""Valid vectors about chains of versions and about containers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vectors import rows
from vectors.cases import (
    KEYS,
    USER,
    USER_VALUES,
    VISITOR,
    WEIGHT,
    A,
    B,
    C,
    D,
    Vector,
    expected,
    floats,
    one,
    poke,
    put,
    sound,
    sums,
    swap,
    table_id,
    two,
    user,
    values,
    visitor,
    weights,
)
from vectors.container import Store, column, schema
from vectors.layout import Json, Segment, Table

PLAIN = {"user": expected(USER_VALUES)}


def resized(count: int) -> Json:
    """The schema of `user` with another number of rows."""
    return USER | {"rows": count}


def both(weight: np.ndarray, accumulator: np.ndarray, keys: list[int] | None = None) -> Json:
    """The expected values of a table of two columns."""
    return expected({"weight": values(weight), "accumulator": values(accumulator)}, keys)


def keyed_rows(segment: Segment, keys: list[int], base: float, *, sums_too: bool = True) -> Table:
    """Write some rows of `visitor`."""
    table = Table(segment, table_id(VISITOR), None)
    index = table.index("raw", keys, rows.raw(keys))
    floats(table, "weight", index, weights(len(keys), base))
    if sums_too:
        floats(table, "accumulator", index, sums(len(keys), base))
    return table


def chain(folder: bool = False) -> tuple[Store, Json]:
    """A baseline and three deltas: whole rows, one column of a row, some elements of rows."""
    store = Store(folder=folder)
    segments = [Segment(n, f, t) for n, f, t in (("A", None, A), ("B", A, B), ("C", B, C))]
    segments.append(Segment("D", C, D))
    user(segments[0])
    first = Table(segments[1], table_id(USER), 4)
    pair = first.index("packed", [1, 3], rows.packed([1, 3]))
    floats(first, "weight", pair, weights(2, 100))
    floats(first, "accumulator", pair, sums(2, 100))
    second = Table(segments[2], table_id(USER), 4)
    floats(second, "accumulator", second.span(3, 3), sums(1, 200))
    third = Table(segments[3], table_id(USER), 4)
    floats(third, "weight", third.span(0, 1), weights(2, 300)[:, 1:2], first=1)
    entries = []
    for version, segment in enumerate(segments):
        entries.append(store.put(segment))
        store.commit(segment.target, [USER], entries, step=10 * version)
    weight, accumulator = weights(4), sums(4)
    weight[[1, 3]], accumulator[[1, 3]] = weights(2, 100), sums(2, 100)
    accumulator[3] = 200
    weight[0:2, 1] = weights(2, 300)[:, 1]
    return store, {"user": both(weight, accumulator)}


def keyed_chains() -> Iterator[Vector]:
    """Tombstones, rows that come back, new columns of keyed tables."""
    store = Store()
    one_, two_, three = Segment("A", None, A), Segment("B", A, B), Segment("C", B, C)
    visitor(one_)
    gone = Table(two_, table_id(VISITOR), None)
    gone.json["deleted"] = gone.index("raw", [-7, 5, 99], rows.raw([-7, 5, 99]))
    keyed_rows(three, [5, 6], 50, sums_too=False)
    entries = []
    for segment in (one_, two_, three):
        entries.append(store.put(segment))
        store.commit(segment.target, [VISITOR], entries)
    old, old_sums, new = weights(4), sums(4), weights(2, 50)
    weight = np.stack([old[1], new[0], new[1], old[3]])
    accumulator = np.array([old_sums[1], 0, 0, old_sums[3]], np.float32)
    about = (
        "Key 5 is deleted (as are -7 and 99, which never was) and comes back with a weight alone: "
        "its accumulator reads as the fill."
    )
    tables = {"visitor": both(weight, accumulator, [0, 5, 6, 12])}
    yield sound("tombstones", store, about, tables)

    def replaced(segment: Segment) -> None:
        table = keyed_rows(segment, [0], 70)
        table.json["deleted"] = table.index("runs", [5], rows.runs([5]))

    weight = np.stack([old[0], weights(1, 70)[0], old[3]])
    accumulator = np.array([0, 70, old_sums[3]], np.float32)
    about = "One delta that deletes one row and writes another, of one table."
    store = two(replaced, [VISITOR], before=visitor)
    tables = {"visitor": both(weight, accumulator, [-7, 0, 12])}
    yield sound("tombstone-and-write", store, about, tables)

    def all_gone(segment: Segment) -> None:
        table = Table(segment, table_id(VISITOR), None)
        table.json["deleted"] = table.index("bitmap", KEYS, rows.bitmap(KEYS))

    store = two(all_gone, [VISITOR], before=visitor)
    tables = {"visitor": both(weights(0), sums(0), [])}
    yield sound("all-rows-deleted", store, "Every row of a keyed table is deleted.", tables)

    def inserted(segment: Segment) -> None:
        table = Table(segment, table_id(VISITOR), None)
        index = table.index("raw", [-8, 0], rows.raw([-8, 0]))
        floats(table, "weight", index, weights(2, 30)[:, 2:], first=2)

    weight = np.stack([[0, 0, weights(2, 30)[0, 2]], *old]).astype(np.float32)
    weight[2, 2] = weights(2, 30)[1, 2]
    accumulator = np.concatenate([[np.float32(0)], old_sums])
    about = "A delta writes one element of an old row and of a new one, whose others are the fill."
    store = two(inserted, [VISITOR], before=visitor)
    tables = {"visitor": both(weight, accumulator, [-8, *KEYS])}
    yield sound("partial-elements", store, about, tables)


def schemas() -> Iterator[Vector]:
    """Growth, shrinking, dropping, new columns."""

    def grown(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 7)
        floats(table, "weight", table.span(5, 5), weights(1, 40))

    weight = np.concatenate([weights(4), weights(3) * 0]).astype(np.float32)
    weight[5] = weights(1, 40)[0]
    accumulator = np.concatenate([sums(4), sums(3) * 0]).astype(np.float32)
    store = two(grown, [resized(7)], before_tables=[USER])
    about = "A dense table grows from 4 to 7 rows; one new row is written."
    yield sound("growth", store, about, {"user": both(weight, accumulator)})

    store, segments = Store(), []
    for label, source, target, count in (("A", None, A, 4), ("B", A, B, 2), ("C", B, C, 5)):
        segment = Segment(label, source, target)
        if source is None:
            user(segment)
        else:
            Table(segment, table_id(USER), count)
        segments.append(store.put(segment))
        store.commit(target, [resized(count)], segments)
    weight, accumulator = np.zeros((5, 3), np.float32), np.zeros(5, np.float32)
    weight[:2], accumulator[:2] = weights(2), sums(2)
    about = "A dense table shrinks from 4 to 2 rows, then grows to 5: rows 2 and 3 are the fill."
    yield sound("shrink-then-growth", store, about, {"user": both(weight, accumulator)})

    def shrunk(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 1)
        floats(table, "accumulator", table.span(0, 0), sums(1, 9))

    store = two(shrunk, [resized(1)], before_tables=[USER])
    tables = {"user": both(weights(1), sums(1, 9))}
    yield sound("shrink", store, "A dense table shrinks to one row, which is written.", tables)

    again = schema("user again", "user", 3, 2, column("weight", "float32", [2], b"\0\0\x80\x3f"))

    def renewed(segment: Segment) -> None:
        Table(segment, table_id(again), 3)

    store = two(renewed, [again], before_tables=[USER])
    tables = {"user": expected({"weight": values(np.ones((3, 2), np.float32))})}
    about = "A table is dropped and another is added under its name: no old row shows through."
    yield sound("dropped-and-added", store, about, tables)

    store = two(lambda _: None, [], before_tables=[USER])
    yield sound("dropped", store, "The only table is dropped; its bytes don't count.", {})

    momentum = column("momentum", "float16", [3], b"\0\x3c")
    wider = USER | {"columns": [*USER["columns"], momentum]}

    def added(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        data = np.full((1, 3), 0.5, "<f2").tobytes()
        table.part("momentum", table.span(2, 2), (0, 3), rows.raw_encoding("float16"), data)

    values_ = np.ones((4, 3), np.float16)
    values_[2] = 0.5
    store = two(added, [wider], before_tables=[USER])
    tables = {"user": expected(USER_VALUES | {"momentum": values(values_)})}
    about = "A delta brings a new column, written for one row; the older rows are the fill."
    yield sound("new-column", store, about, tables)

    narrower = USER | {"columns": [WEIGHT]}

    def compacted(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        floats(table, "weight", table.span(0, 3), weights(4))

    store, segment = Store(), Segment("A", None, A)
    compacted(segment)
    entry = store.put(segment)
    store.commit(A, [narrower], [entry], step=1)
    store.commit(A, [narrower], [entry], step=2, metadata={"note": "the same state, on"})
    about = "A version that changes metadata alone: the same state and chain."
    tables = {"user": expected({"weight": values(weights(4))})}
    yield sound("metadata-only", store, about, tables)

    store, _ = chain()
    merged = Segment("merged", None, D)
    user(merged)
    store.commit(D, [USER], [store.put(merged)], step=30)
    about = "A new baseline of the state that a chain led to; the older versions are retained."
    yield sound("compacted", store, about, PLAIN)


def names() -> Iterator[Vector]:
    """Names and metadata at their limits."""
    odd = ["../../etc/passwd", "/", "a\\b", "é", "e\u0301", " ", "x" * 1024, "\U0001f40d" * 256]
    tables = [schema(f"odd {k}", name, None, 1) for k, name in enumerate(odd)]

    def content(segment: Segment) -> None:
        for table in tables:
            Table(segment, table_id(table), None)

    nothing = expected({"weight": values(np.zeros((0, 1), np.float32))}, [])
    store = one(content=content, tables=tables)
    about = "Names that look like paths, that differ only in normal form, of 1 and 1024 bytes."
    yield sound("names", store, about, dict.fromkeys(odd, nothing))

    deep: object = 1.5
    for _ in range(30):
        deep = [deep]
    metadata: Json = {"lr": 1e-3, "tiny": 5e-324, "big": 2**53 - 1, "low": 1 - 2**53, "µ": "é\u0001"}
    metadata |= {"-0": -0.0, "null": None, "": {"yes": True}, "🐍": ["\ud7ff", "\uffff"], "deep": deep}
    about = "User metadata with floats, unicode, integers of 53 bits, nested 32 deep."
    yield sound("metadata", one(metadata=metadata), about, PLAIN)

    def pretty(text: bytes) -> bytes:
        spaced = text.replace(b",", b" ,\r\n\t").replace(b":{", b" : {")
        return b"\n " + spaced.replace(b'"user"', b'"\\u0075ser"') + b"\n"

    store = one({"toc text": pretty, "json text": pretty})
    yield sound("json-spaced", store, "Metadata with white space and escapes.", PLAIN)


def attachments() -> Iterator[Vector]:
    """Tables of contents in the manifest; dense state that is inherited."""
    store = Store()
    entries = []
    for segment in (Segment("A", None, A), Segment("B", A, B), Segment("C", B, C)):
        if segment.source is None:
            user(segment)
        if segment.label != "C":
            segment.blob("at", "bytes", segment.label.encode())
        entries.append(store.put(segment))
    dense = bytes.fromhex(entries[1]["segment"])
    store.commit(C, [USER], entries, dense=dense, attach=[0, 2])
    about = "Two of three tables of contents attached; dense state inherited from the second."
    at = {"at": {"kind": "bytes", "hex": b"B".hex()}}
    yield sound("attachments", store, about, PLAIN, dense=at)

    def nothing(segment: Segment) -> None:
        user(segment)
        segment.dense = []

    about = "Dense state without entries, which is not the same as none."
    yield sound("dense-state-empty", one(content=nothing, dense=True), about, PLAIN, dense={})


def containers() -> Iterator[Vector]:
    """What single files and directories may hold besides a plain commit."""
    store, tables = chain()
    yield sound("chain", store, "A baseline and three deltas, all versions retained.", tables)
    store, tables = chain(folder=True)
    yield sound("chain-directory", store, "The same chain in a directory.", tables)
    store, _ = chain()
    store.slots = (store.log[1], store.log[0])
    weight, accumulator = weights(4), sums(4)
    weight[[1, 3]], accumulator[[1, 3]] = weights(2, 100), sums(2, 100)
    about = "A crash between two slot writes: slot A names version 1, slot B version 0."
    notes = ["slots differ", "bytes past the committed end"]
    tables = {"user": both(weight, accumulator)}
    yield sound("interrupted-commit", store, about, tables, notes=notes)
    store = one({"file": lambda data: data + b"\x89CNRS torn".ljust(5000, b"\xff")})
    about = "Bytes past the committed end, which don't even fill a page."
    yield sound("past-the-end", store, about, PLAIN, notes=notes[1:])

    store = Store()
    store.end += 2 * 4096
    segment = Segment("A", None, A)
    user(segment)
    store.commit(A, [USER], [store.put(segment)])
    yield sound("zero-gap", store, "Two pages of zero bytes before the first segment.", PLAIN)

    store, segment = Store(), Segment("A", None, A)
    user(segment)
    parent = {"version": 2, "digest": "0123456789abcdef"}
    store.commit(A, [USER], [store.put(segment)], version=3, parent=parent)
    about = "A container that was replaced: version 3 alone, its parent is not retained."
    yield sound("replaced", store, about, PLAIN)

    store, segment = Store(folder=True), Segment("A", None, A)
    user(segment)
    entry = store.put(segment)
    for version in range(3):
        retain = [c for c in store.log if c.version != 1]
        store.commit(A, [USER], [entry], step=version, retain=retain)
    del store.files["manifests/00000000000000000001.cnrm"]
    about = "A directory that retains version 0 and the head, version 2, but not its parent."
    yield sound("parent-not-retained", store, about, PLAIN)

    store = one(folder=True)
    orphan = Segment("orphan", A, B)
    store.put(orphan)
    store.files["segments/.tmp-1234"] = b"torn"
    store.files["manifests/.tmp-00000000000000000001.cnrm"] = b""
    store.files["README.txt"] = b"Not a part of the container.\n"
    about = "A directory with remains of interrupted writes, a garbage segment and another file."
    notes = ["temporary file", "garbage segment", "other file"]
    yield sound("leftovers-directory", store, about, PLAIN, notes=notes)

    later = {"later": [1.5, "x"]}
    hooks = {"toc": put("statistics", later), "json": put("signature", later)}
    store = one(hooks, masks=(1 << 40, 0, 0))
    about = "An unknown compat bit, and further keys in the table of contents and the manifest."
    yield sound("compat-bit", store, about, PLAIN, notes=["unknown feature"])
    store = one()
    store.masks = (1, 0, 0)
    about = "An unknown compat bit in the file header alone."
    yield sound("compat-bit-file-header", store, about, PLAIN, notes=["unknown feature"])
    wider = one({"manifest": poke(16, b"\x06")}, masks=(4, 0, 0))
    about = "A manifest with more compat bits than its segment."
    yield sound("compat-bit-superset", wider, about, PLAIN, notes=["unknown feature"])
    minor = {stage: poke(10, b"\x07\0") for stage in ("header", "manifest", "file header")}
    about = "Minor version 7 everywhere: it informs, and changes nothing."
    yield sound("minor-version", one(minor), about, PLAIN)
    store = one({"json text": swap('"vectors"', '"' + "v" * 256 + '"')}, step=-3)
    yield sound("step-negative", store, "A negative step; created_by of 256 bytes.", PLAIN)
    store = one(step=None)
    yield sound("step-null", store, "No step.", PLAIN)


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from keyed_chains()
    yield from schemas()
    yield from names()
    yield from attachments()
    yield from containers()
    store = two(lambda s: visitor(s, [3], "runs"), [VISITOR], before=visitor)
    weight = np.insert(weights(4), 2, weights(1), axis=0)
    accumulator = np.insert(sums(4), 2, sums(1))
    tables = {"visitor": both(weight, accumulator, [-7, 0, 3, 5, 12])}
    yield sound("keyed-delta", store, "A delta inserts a key between others.", tables)
