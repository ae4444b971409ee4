"""Invalid vectors about manifests (rules 31 - 33, 35, 38, 39)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vectors.cases import (
    USER,
    A,
    B,
    C,
    Vector,
    broken,
    flip,
    one,
    put,
    swap,
    table_id,
    u64,
    user,
)
from vectors.container import Store
from vectors.layout import Hooks, Json, Segment, Table, ident, state


def history(count: int = 3, hooks: Hooks | None = None, *, folder: bool = False) -> Store:
    """Versions 0 .. count - 1 of one state; hooks are the last manifest's."""
    store, segment = Store(folder=folder), Segment("A", None, A)
    user(segment)
    entry = store.put(segment)
    for version in range(count):
        last = version == count - 1
        store.commit(A, [USER], [entry], step=version, hooks=hooks if last else None)
    return store


def identity() -> Iterator[Vector]:
    """Rules 31 to 33."""
    store = one({"manifest digest": lambda value: value ^ 1})
    yield broken(31, "manifest", store, "The manifest ends in a wrong digest, as the slots say.")
    store = one({"slot A": u64(56, lambda d: d ^ 1), "slot B": u64(56, lambda d: d ^ 1)})
    yield broken(31, "slots", store, "Both slots give another digest than the manifest's.")
    store = history(3, {"json": put("versions", 0, 3, "0123456789abcdef")})
    yield broken(31, "versions", store, "`versions` gives another digest of version 0.")
    store = history(2, {"json": put("parent", "digest", "0123456789abcdef")}, folder=True)
    about = "`parent` gives another digest of version 0 than `versions` and the manifest."
    yield broken(33, "digest", store, about, (31,))
    store = one(folder=True)
    (name,) = (path for path in store.files if path.startswith("manifests/"))
    whole = store.files[name]
    assert isinstance(whole, bytes)
    store.files[name] = whole[:-9] + b"\x20" + whole[-8:]
    about = "A byte of a directory's manifest is another, its digest is not."
    yield broken(31, "manifest-byte", store, about, (4, 5))

    store = one({"manifest": flip(40)})
    yield broken(32, "container", store, "The manifest has the id of another container.")
    store = one({"slot A": u64(32, lambda _: 5), "slot B": u64(32, lambda _: 5)})
    yield broken(32, "slots", store, "The slots say version 5, the manifest says 0.")

    def exchanged(manifest: Json) -> None:
        first, second, _ = manifest["versions"]
        first[1:], second[1:] = second[1:], first[1:]

    store = history(4, {"json": exchanged})
    about = "`versions` has the manifests of versions 0 and 1 in each other's places."
    yield broken(32, "versions", store, about)
    store = one(folder=True)
    store.files["manifests/00000000000000000004.cnrm"] = store.files.pop("manifests/00000000000000000000.cnrm")
    yield broken(32, "file-name", store, "The manifest of version 0 has the name of version 4.")
    foreign = Store(folder=True)
    foreign.id = ident("another container")
    segment = Segment("A", None, A)
    user(segment)
    entry = foreign.put(segment)
    first = foreign.commit(A, [USER], [entry])
    foreign.id = Store().id
    foreign.commit(A, [USER], [entry], retain=[first])
    yield broken(32, "retained", foreign, "The retained version 0 is of another container.")

    store = one({"json": put("parent", {"version": 0, "digest": "0123456789abcdef"})})
    yield broken(33, "of-version-0", store, "Version 0 has a parent.")
    store = history(2, {"json": put("parent", None)})
    yield broken(33, "null", store, "Version 1 has no parent.")
    store = history(3)
    grandparent = store.log[0].parent()
    store = history(3, {"json": put("parent", grandparent)})
    yield broken(33, "grandparent", store, "The parent of version 2 is version 0.")
    store = history(2, {"json": put("parent", "version", 1)})
    yield broken(33, "itself", store, "The parent of version 1 is version 1.", (31,))
    store = history(3, {"json": lambda m: m["versions"].reverse()})
    yield broken(33, "versions-descending", store, "`versions` is in descending order.")
    store = history(3, {"json": lambda m: m["versions"].insert(0, m["versions"][0])})
    yield broken(33, "versions-twice", store, "`versions` names version 0 twice.")

    store, segment = Store(), Segment("A", None, A)
    user(segment)
    entry = store.put(segment)
    store.commit(A, [USER], [entry])
    zero = store.log[0]
    parent = {"version": 4, "digest": "0123456789abcdef"}
    store.commit(A, [USER], [entry], version=5, parent=parent)
    store.commit(A, [USER], [entry], version=1, parent=zero.parent())
    yield broken(33, "versions-later", store, "`versions` of version 1 names a version 5.")


Step = tuple[str, bytes | None, bytes]
AB: list[Step] = [("A", None, A), ("B", A, B)]


def path(steps: Sequence[Step], target: bytes, hooks: Hooks | None = None) -> Store:
    """One version whose chain has these segments: label, from-state, to-state."""
    store = Store(folder=True)
    entries: list[Json] = []
    kept: dict[str, Json] = {}
    for label, source, to in steps:
        if label not in kept:
            segment = Segment(label, source, to)
            if source is None and not any(e["from"] is None for e in entries):
                user(segment)
            elif source is not None:
                Table(segment, table_id(USER), 4)
            kept[label] = store.put(segment)
        entries.append(kept[label])
    store.commit(target, [USER], entries, hooks=hooks)
    return store


def chains() -> Iterator[Vector]:
    """Rule 35."""
    x = state("X")
    store = one({"json": put("chain", [])}, lambda _: None, [], folder=True)
    yield broken(35, "empty", store, "A chain of no segments.")
    for clause, steps, target, about in (
        ("no-baseline", [("B", A, B)], B, "The chain starts with a delta."),
        ("gap", [*AB, ("C", x, C)], C, "A from-state that is no to-state before."),
        ("state", AB, x, "The last to-state isn't the manifest's state."),
        ("state-earlier", AB, A, "The manifest's state is that of an earlier step."),
        ("returned", [*AB, ("A2", B, A)], A, "The chain returns to its first state."),
        ("skipped", [*AB, ("C", A, C)], C, "A from-state that is the one before the last."),
        ("later-baseline", [*AB, ("C", None, C)], C, "A second baseline step."),
        ("twice", [*AB, ("B", A, B)], B, "A segment occurs twice in its step."),
        ("torn-step", [*AB, ("A2", None, A)], A, "A segment of the first step comes third."),
        ("other-from", [*AB, ("B2", x, B)], B, "Two segments of one to-state and two from-states."),
    ):
        yield broken(35, clause, path(steps, target), about)
    backwards: Hooks = {"json": lambda manifest: manifest["chain"].reverse()}
    store = path([*AB, ("C", B, C)], C, backwards)
    yield broken(35, "backwards", store, "The chain is in descending order.")


def references() -> Iterator[Vector]:
    """Rules 38 and 39."""

    def dense(segment: Segment) -> None:
        user(segment)
        segment.blob("a", "bytes", b"a")

    store = one({"json": put("dense", ident("nobody").hex())}, dense)
    yield broken(38, "absent", store, "`dense` names a segment that isn't in the chain.")
    store = one(dense=True)
    about = "`dense` names a segment without dense state."
    yield broken(38, "null", store, about)

    toc = ("chain", 0, "toc")

    def attached(steps: Sequence[Step], attach: Sequence[int], hooks: Hooks) -> Store:
        store, entries = Store(folder=True), []
        for label, source, target in steps:
            segment = Segment(label, source, target)
            if source is None:
                user(segment)
            entries.append(store.put(segment))
        store.commit(steps[-1][2], [USER], entries, attach=attach, hooks=hooks)
        return store

    def wider(manifest: Json) -> None:
        manifest["chain"][0]["toc"][1] += 1

    def later(manifest: Json) -> None:
        manifest["chain"][0]["toc"][0] += 1

    def moved(manifest: Json) -> None:
        manifest["chain"][1]["toc"][0] += 8

    first = len(one(folder=True).tocs[Segment("A", None, A).id.hex()])
    for clause, steps, attach, hooks, about in (
        ("before", AB[:1], [0], {"attachments": lambda a: b" " + a, "json": later}, "A byte before."),
        ("after", AB[:1], [0], {"attachments": lambda a: a + b" "}, "A byte after the attachment."),
        (
            "between",
            AB,
            [0, 1],
            {"attachments": lambda a: a[:first] + bytes(8) + a[first:], "json": moved},
            "8 bytes between two attachments.",
        ),
        ("unnamed", AB[:1], [0], {"json": put(*toc, None)}, "Nothing names the attachment."),
        ("none", AB[:1], [], {"json": put(*toc, [0, first])}, "No attachments, one is named."),
        ("beyond", AB[:1], [0], {"json": wider}, "An attachment reaches beyond the last."),
        (
            "huge",
            AB[:1],
            [0],
            {"json": put(*toc, [2**53 - 1, 2**53 - 1])},
            "An attachment far beyond the last.",
        ),
        ("other-order", AB, [1, 0], {}, "The attachments are in descending order of the chain."),
        (
            "other-bytes",
            AB[:1],
            [0],
            {"attachments": swap('"min":"0"', '"min":"1"')},
            "The attachment isn't the table of contents of its segment.",
        ),
        (
            "other-spacing",
            AB[:1],
            [0],
            {"attachments": lambda a: a + b" ", "json": wider},
            "The attachment has a space that the table of contents hasn't.",
        ),
        ("exchanged", AB, [0, 1], {"json": _exchange}, "Two attachments in each other's places."),
    ):
        yield broken(39, clause, attached(steps, attach, hooks), about, (14,))


def _exchange(manifest: Json) -> None:
    one_, two_ = manifest["chain"]
    one_["toc"], two_["toc"] = two_["toc"], one_["toc"]


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from identity()
    yield from chains()
    yield from references()
