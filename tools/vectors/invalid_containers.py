"""Invalid vectors about single files and directories (rules 40 - 47)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vectors.cases import (
    USER,
    A,
    B,
    Vector,
    broken,
    flip,
    one,
    poke,
    put,
    table_id,
    two,
    u64,
    user,
)
from vectors.container import FIRST, Link, Store, Tree
from vectors.layout import PAGE, Hooks, Segment, Table, seal

# What a file that ends early lacks besides.
CUT = (41, 43)


def header_pages() -> Iterator[Vector]:
    """Rules 40 to 43."""
    whole = one().build()
    assert isinstance(whole, bytes)
    for clause, length in (("empty", 0), ("block", 100), ("page", PAGE), ("slot", FIRST - 1)):
        about = f"A file of {length} bytes."
        yield broken(40, clause, whole[:length], about, CUT)
    store = one({"header page": poke(128, b"\x01")})
    yield broken(40, "page-128", store, "Byte 128 of the header page isn't zero.")
    store = one({"header page": poke(PAGE - 1, b"\x01")})
    yield broken(40, "page-4095", store, "Byte 4095 of the header page isn't zero.")

    slots: dict[str, tuple[Hooks, str]] = {
        "page-128": ({"page A": poke(128, b"\x01")}, "Byte 128 of slot page A isn't zero."),
        "page-4095": ({"page B": poke(4095, b"\x01")}, "Byte 4095 of slot page B isn't zero."),
        "number-a": ({"slot A": poke(8, b"\x01")}, "Slot A has the number 1."),
        "number-b": ({"slot B": poke(8, b"\x02")}, "Slot B has the number 2."),
        "container": ({"slot B": flip(16)}, "Slot B has the id of another container."),
        "offset": ({"slot B": u64(40, lambda n: n + 64)}, "Slot B: an offset off the pages."),
        "offset-low": ({"slot B": u64(40, lambda n: 2 * PAGE)}, "Slot B: an offset below 12288."),
        "end-high": ({"slot B": u64(64, lambda n: n + PAGE)}, "Slot B: an end a page too high."),
        "end-exact": ({"slot B": u64(64, lambda n: n - 8)}, "Slot B: an end off the pages."),
        "blank": ({"page B": lambda _: bytes(PAGE)}, "Slot page B is zero."),
        "overflow": ({"slot A": u64(48, lambda _: 2**64 - 1)}, "Slot A: a length near 2^64."),
    }
    for clause, (hooks, about) in slots.items():
        yield broken(41, clause, one(hooks), about)
    blank: Hooks = {f"page {letter}": lambda _: bytes(PAGE) for letter in "AB"}
    yield broken(41, "both-blank", one(blank), "Both slot pages are zero: no head.")

    store = two(lambda s: Table(s, table_id(USER), 4))
    store.slots = (store.log[0], store.log[1])
    yield broken(42, "older", store, "Slot A names version 0, slot B version 1.")
    store, segment = Store(), Segment("A", None, A)
    user(segment)
    entry = store.put(segment)
    first = store.commit(A, [USER], [entry])
    head = store.commit(A, [USER], [entry], step=1, retain=[first])
    store.log.pop()
    other = store.commit(A, [USER], [entry], step=2, retain=[first])
    store.slots = (head, other)
    about = "Both slots name a version 1, but not the same."
    yield broken(42, "other", store, about, (44, 45))

    length = one().log[-1].length
    store = one({"file": lambda data: data[: len(data) - PAGE + length]})
    yield broken(43, "cut", store, "The last page is cut after the manifest's last byte.")
    store = one({"file": lambda data: data[: -2 * PAGE]})
    about = "The file ends before the manifest."
    yield broken(43, "manifest", store, about, (1, 4, 31, 44))


def spans() -> Iterator[Vector]:
    """Rules 44 and 45."""

    def placed(at: int | None, manifest_at: int | None = None) -> Store:
        store, segment = Store(), Segment("A", None, A)
        user(segment)
        entry = store.put(segment, at)
        store.commit(A, [USER], [entry], at=manifest_at)
        return store

    store = placed(FIRST + 64)
    yield broken(44, "segment-unaligned", store, "A segment isn't on a multiple of 4096.")
    store = placed(FIRST + PAGE, FIRST)
    yield broken(44, "segment-late", store, "A segment lies beyond the committed end.")
    store = one({"json": put("chain", 0, "offset", 2 * PAGE)})
    about = "A segment at the offset of a slot."
    yield broken(44, "segment-low", store, about, (1, 45))
    store = one({"json": put("chain", 0, "offset", 2**53 - PAGE)})
    about = "A segment far beyond the end of the file."
    yield broken(44, "segment-far", store, about, (4, 9, 45))
    store = one({"json": put("chain", 0, "offset", None)})
    about = "A segment without offset in a single file."
    yield broken(44, "segment-null", store, about, (6, 45))
    store = one({"json": put("chain", 0, "offset", 0)}, folder=True)
    about = "A segment with an offset in a directory."
    yield broken(44, "segment-directory", store, about, (6,))

    store, segment = Store(), Segment("A", None, A)
    user(segment)
    entry = store.put(segment)
    store.commit(A, [USER], [entry], at=FIRST + PAGE + 64)
    store.commit(A, [USER], [entry])
    about = "The manifest of a retained version isn't on a multiple of 4096."
    yield broken(44, "versions-unaligned", store, about)
    store, segment = Store(folder=True), Segment("A", None, A)
    user(segment)
    entry = store.put(segment)
    store.commit(A, [USER], [entry])
    hooks: Hooks = {"json": put("versions", 0, 1, FIRST)}
    store.commit(A, [USER], [entry], hooks=hooks)
    about = "A retained version with an offset in a directory."
    yield broken(44, "versions-directory", store, about, (6,))

    # A delta that stands within a section of the baseline, on a multiple of 4096 of the file.
    delta = Segment("B", A, B)
    Table(delta, table_id(USER), 4)
    inner = seal(delta).data
    store, outer = Store(), Segment("A", None, A)
    user(outer)
    outer.blob("nest", "bytes", bytes(PAGE - 256) + inner)
    entry = store.put(outer)
    within = store.put(delta, FIRST + PAGE)
    store.commit(B, [USER], [entry, within])
    yield broken(44, "nested", store, "A segment lies within another.")

    gap = placed(FIRST + PAGE)
    gap.hooks = {"file": poke(FIRST + 8, b"\x01")}
    yield broken(45, "page", gap, "A byte of a page that no span has isn't zero.")
    gap = one({"file": poke(FIRST + PAGE - 1, b"\x01")})
    yield broken(45, "rest", gap, "The last byte of a segment's last page isn't zero.")
    gap = one({"file": lambda data: data[:-1] + b"\x01"})
    yield broken(45, "rest-manifest", gap, "The last byte of the manifest's page isn't zero.")
    store = Store()
    store.put(Segment("orphan", None, B))
    segment = Segment("A", None, A)
    user(segment)
    store.commit(A, [USER], [store.put(segment)])
    yield broken(45, "orphan", store, "A segment that no version names lies before the end.")


def directories() -> Iterator[Vector]:
    """Rules 46 and 47."""

    def tree(change: Callable[[Tree], object]) -> Tree:
        store = two(lambda s: Table(s, table_id(USER), 4), folder=True)
        change(store.files)
        return store.files

    first = f"segments/{Segment('A', None, A).id.hex()}.cnrs"
    second = f"segments/{Segment('B', A, B).id.hex()}.cnrs"
    upper = "segments/" + second[9:41].upper() + ".cnrs"
    older = "manifests/00000000000000000000.cnrm"

    def without(*names: str) -> Callable[[Tree], object]:
        return lambda files: [files.pop(name) for name in names]

    def moved(old: str, new: str) -> Callable[[Tree], object]:
        return lambda files: files.update({new: files.pop(old)})

    def linked(name: str, target: str) -> Callable[[Tree], object]:
        def change(files: Tree) -> None:
            files["elsewhere"] = files.pop(name)
            files[name] = Link(target)

        return change

    for clause, change, about in (
        ("segment", without(second), "A segment of the head is missing."),
        ("segment-baseline", without(first), "A segment of both versions is missing."),
        ("manifest", without(older), "The manifest of a retained version is missing."),
        ("segment-name", moved(second, upper), "The name of a segment in upper case."),
        ("segment-folder", moved(second, f"{second}/data"), "A folder in a segment's place."),
        ("segment-link", linked(second, "../elsewhere"), "A link in a segment's place."),
        ("manifest-link", linked(older, "../elsewhere"), "A link in a retained manifest's place."),
        ("manifest-folder", moved(older, f"{older}/data"), "A folder in a manifest's place."),
    ):
        yield broken(46, clause, tree(change), about)

    lost = Segment("lost", None, A)
    user(lost)
    store, segment = Store(folder=True), Segment("A", None, A)
    user(segment)
    store.commit(A, [USER], [store.put(lost)])
    store.commit(A, [USER], [store.put(segment)])
    store.files.pop(f"segments/{lost.id.hex()}.cnrs")
    about = "A segment of a retained version alone is missing."
    yield broken(46, "segment-retained", store, about)

    def renamed(old: str, new: str, extra: Tree) -> Callable[[Tree], object]:
        def change(files: Tree) -> None:
            for name in [name for name in files if name.startswith(f"{old}/")]:
                files[new + name[len(old) :]] = files.pop(name)
            files.update(extra)

        return change

    for clause, change, about, also in (
        ("no-manifests", renamed("manifests", "other", {}), "No folder `manifests`.", ()),
        ("no-segments", renamed("segments", "other", {}), "No folder `segments`.", (46,)),
        (
            "manifests-empty",
            renamed("manifests", "other", {"manifests/.tmp-1": b""}),
            "No manifest in `manifests`.",
            (),
        ),
        (
            "manifests-file",
            renamed("manifests", "other", {"manifests": b"a file\n"}),
            "A file in the place of `manifests`.",
            (),
        ),
        (
            "manifests-link",
            renamed("manifests", "other", {"manifests": Link("other")}),
            "A link in the place of `manifests`.",
            (),
        ),
        (
            "segments-link",
            renamed("segments", "other", {"segments": Link("other")}),
            "A link in the place of `segments`.",
            (46,),
        ),
        (
            "manifest-names",
            renamed("manifests", "other", {"manifests/1.cnrm": b"", "manifests/x.cnrm": b""}),
            "No file in `manifests` has a manifest's name.",
            (),
        ),
    ):
        yield broken(47, clause, tree(change), about, also)


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from header_pages()
    yield from spans()
    yield from directories()
