"""What a vector is, and the sound containers that the invalid ones spoil."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vectors import rows
from vectors.container import Store, Tree, column, schema
from vectors.layout import Hook, Hooks, Json, Segment, Table, state

A, B, C, D = (state(letter) for letter in "ABCD")

ERRORS = dict(
    enumerate(
        """block-magic block-digest block-zero block-length json-syntax json-field json-name
        feature-union limit segment-identity segment-length trailer-geometry trailer-digest
        toc-digest node-digest piece-digest section-geometry section-zero section-reference
        node-count table-repeated row-set row-bounds tombstone elements part-length part-encoding
        exception part-overlap dense-entry manifest-digest manifest-identity manifest-parent schema
        chain-path chain-schema baseline-tiling dense-reference attachment file-header slot
        slot-order file-length span file-gap file-missing directory-layout code-padding
        row-parameter index-code index-order index-bounds part-scheme grid-directory
        grid-models grid-codes residual-base grid-range""".split(),  # noqa: SIM905
        start=1,
    )
)


@dataclass(frozen=True)
class Vector:
    """A container (the bytes of a single file, or the files of a directory) and its verdict."""

    name: str
    content: bytes | Tree
    verdict: Json

    def info(self) -> bytes:
        """The JSON that stands beside the container."""
        return (json.dumps(self.verdict, indent=1) + "\n").encode()


Values = tuple[str, Sequence[int], bytes]


def values(array: Any, dtype: str = "") -> Values:
    """An expected array as (data type, shape, little-endian row-major bytes)."""
    little = np.ascontiguousarray(array, np.asarray(array).dtype.newbyteorder("<"))
    return dtype or str(np.asarray(array).dtype), np.asarray(array).shape, little.tobytes()


def expected(columns: Mapping[str, Values], keys: Sequence[int] | None = None) -> Json:
    """What a reader finds in a table: dense without keys."""
    return {
        "ids": "dense" if keys is None else [str(key) for key in keys],
        "columns": {
            name: {"dtype": dtype, "shape": list(shape), "hex": data.hex()}
            for name, (dtype, shape, data) in columns.items()
        },
    }


def sound(
    name: str,
    store: Store,
    about: str,
    tables: Mapping[str, Json],
    *,
    notes: Sequence[str] = (),
    dense: Json | None = None,
) -> Vector:
    """A valid vector; `dense` is the head's dense state, null where it has none."""
    newest = store.slots[0] if store.slots else store.log[-1]
    verdict: Json = {"verdict": "sound", "rule": None, "error": None, "also": []}
    verdict |= {"notes": list(notes), "about": about, "version": newest.version}
    verdict |= {"step": newest.step, "metadata": newest.metadata, "dense": dense}
    verdict |= {"tables": dict(tables)}
    return Vector(f"valid/{name}", store.build(), verdict)


def broken(rule: int, clause: str, store: Store | bytes | Tree, about: str, also: Sequence[int] = ()) -> Vector:
    """An invalid vector that breaks `rule`; the rules `also` may be named besides."""
    error = ERRORS[rule]
    verdict: Json = {"verdict": "damaged", "rule": rule, "error": error}
    verdict |= {"also": [ERRORS[other] for other in also if other != rule], "notes": [], "about": about}
    content = store.build() if isinstance(store, Store) else store
    return Vector(f"invalid/{error}--{clause}", content, verdict)


def unjudged(clause: str, store: Store, about: str, tables: Mapping[str, Json] | None) -> Vector:
    """A vector of a newer format; `tables` where a reader of this version may still read it."""
    verdict: Json = {"verdict": "unjudged", "rule": None, "error": None, "also": []}
    verdict |= {"notes": ["unknown feature"], "about": about}
    if tables is not None:
        verdict["tables"] = dict(tables)
    return Vector(f"invalid/unjudged--{clause}", store.build(), verdict)


# The tables that most vectors are about: 3 elements, so that sections leave gaps and codes padding.
WEIGHT = column("weight", "float32", [3])
ACCUMULATOR = column("accumulator", "float32", [])
USER = schema("user", "user", 4, 3, WEIGHT, ACCUMULATOR)
VISITOR = schema("visitor", "visitor", None, 3, WEIGHT, ACCUMULATOR)
KEYS = [-7, 0, 5, 12]
FLOAT = rows.raw_encoding("float32")


def weights(count: int, base: float = 0.0) -> np.ndarray:
    """Distinct float32 values of shape [count, 3]."""
    return (np.arange(count * 3, dtype=np.float32).reshape(count, 3) / 8 + np.float32(base)).astype(np.float32)


def sums(count: int, base: float = 0.0) -> np.ndarray:
    """Distinct float32 values of shape [count]."""
    return (np.arange(count, dtype=np.float32) / 2 + np.float32(base)).astype(np.float32)


def table_id(value: Json) -> bytes:
    """The id of a SCHEMA."""
    return bytes.fromhex(value["id"])


def floats(table: Table, name: str, row_set: int, array: np.ndarray, first: int = 0) -> int:
    """Append a raw float32 part of elements `first` on; its number."""
    width = array.shape[1] if array.ndim == 2 else 1
    data = array.astype("<f4").tobytes()
    return table.part(name, row_set, (first, first + width), FLOAT, data)


def user(segment: Segment, count: int = 4) -> Table:
    """Write all of the dense table `user`: weight in part 0, accumulator in part 1."""
    table = Table(segment, table_id(USER), count)
    span = table.span(0, count - 1)
    floats(table, "weight", span, weights(count))
    floats(table, "accumulator", span, sums(count))
    return table


def visitor(segment: Segment, keys: Sequence[int] = KEYS, code: str = "raw") -> Table:
    """Write rows of the keyed table `visitor`: its row index is section 0."""
    table = Table(segment, table_id(VISITOR), None)
    index = table.index(code, keys, rows.index(code, keys))
    floats(table, "weight", index, weights(len(keys)))
    floats(table, "accumulator", index, sums(len(keys)))
    return table


USER_VALUES = {"weight": values(weights(4)), "accumulator": values(sums(4))}
VISITOR_VALUES = {"weight": values(weights(4)), "accumulator": values(sums(4))}

Content = Callable[[Segment], Any]


def one(
    hooks: Hooks | None = None,
    content: Content = user,
    tables: Sequence[Json] = (USER,),
    *,
    folder: bool = False,
    dense: bool = False,
    piece_size: int = 4096,
    masks: tuple[int, int, int] = (0, 0, 0),
    attach: Sequence[int] = (),
    metadata: Json | None = None,
    step: int | None = 7,
) -> Store:
    """A container of one version and one segment; hooks of every stage in one mapping."""
    hooks = hooks or {}
    store = Store(folder=folder, hooks=hooks)
    segment = Segment("A", None, A, hooks=hooks, piece_size=piece_size, masks=masks)
    content(segment)
    store.commit(
        A,
        tables,
        [store.put(segment)],
        step=step,
        dense=segment.id if dense else None,
        masks=masks,
        attach=attach,
        metadata=metadata,
        hooks=hooks,
    )
    return store


def two(
    content: Content,
    tables: Sequence[Json] = (USER,),
    *,
    before: Content = user,
    before_tables: Sequence[Json] | None = None,
    hooks: Hooks | None = None,
    folder: bool = False,
) -> Store:
    """A container of two versions: a baseline and a delta; hooks are the delta's, the head's."""
    hooks = hooks or {}
    store = Store(folder=folder, hooks=hooks)
    baseline, delta = Segment("A", None, A), Segment("B", A, B, hooks=hooks)
    before(baseline)
    content(delta)
    chain = [store.put(baseline)]
    store.commit(A, tables if before_tables is None else before_tables, chain, step=7)
    chain.append(store.put(delta))
    store.commit(B, tables, chain, step=8, hooks=hooks)
    return store


def history(table_schema: Json | Sequence[Json], *contents: Content) -> Store:
    """A directory of a version for each content: a baseline, then deltas of a table, of one schema or one for each."""
    schemas = [table_schema] * len(contents) if isinstance(table_schema, dict) else table_schema
    store, chain, target = Store(folder=True), [], None
    for number, content in enumerate(contents):
        source, target = target, state(f"step {number}")
        segment = Segment(f"step {number}", source, target)
        content(segment)
        chain.append(store.put(segment))
        store.commit(target, [schemas[number]], chain)
    return store


def sharded(*contents: Content, folder: bool = False) -> Store:
    """A container of one version whose baseline step has one segment for each content."""
    store = Store(folder=folder)
    chain = []
    for number, content in enumerate(contents):
        segment = Segment(f"A{number}", None, A)
        content(segment)
        chain.append(store.put(segment))
    store.commit(A, [USER], chain)
    return store


# Directories take a tenth of a single file's bytes, which are pages: vectors about what segments
# and manifests say are directories, those about blocks, digests and containers are files.
one_small = functools.partial(one, folder=True)
two_small = functools.partial(two, folder=True)
sharded_small = functools.partial(sharded, folder=True)


def poke(offset: int, data: bytes) -> Hook:
    """A hook that writes bytes at an offset."""

    def hook(raw: bytearray) -> None:
        raw[offset : offset + len(data)] = data

    return hook


def flip(offset: int) -> Hook:
    """A hook that flips the lowest bit of the byte at an offset."""

    def hook(raw: bytearray) -> None:
        raw[offset] ^= 1

    return hook


def u64(offset: int, change: Callable[[int], int]) -> Hook:
    """A hook that changes the u64 at an offset."""

    def hook(raw: bytearray) -> None:
        (value,) = struct.unpack_from("<Q", raw, offset)
        struct.pack_into("<Q", raw, offset, change(value))

    return hook


def swap(old: str | bytes, new: str | bytes) -> Hook:
    """A hook that replaces text which occurs exactly once."""
    a, b = (part.encode() if isinstance(part, str) else part for part in (old, new))

    def hook(raw: bytes) -> bytes:
        assert raw.count(a) == 1, (a, raw)
        return raw.replace(a, b)

    return hook


def put(*path: Any) -> Hook:
    """A hook that sets the value, which comes last, at a path of keys and numbers in JSON."""
    *way, last, value = path

    def hook(root: Any) -> None:
        for key in way:
            root = root[key]
        root[last] = value

    return hook


def drop(*path: Any) -> Hook:
    """A hook that removes what stands at a path of keys and numbers in JSON."""
    *way, last = path

    def hook(root: Any) -> None:
        for key in way:
            root = root[key]
        del root[last]

    return hook


def both(*hooks: Hook) -> Hook:
    """One hook after the other, each changing the value in place."""

    def hook(value: Any) -> None:
        for each in hooks:
            each(value)

    return hook
