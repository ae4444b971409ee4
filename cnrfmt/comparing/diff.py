"""Comparing two versions: `diff`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cnrfmt import parallel
from cnrfmt.arrays import Ids
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.comparing.dense import dense_differences
from cnrfmt.comparing.report import Comparison, Side
from cnrfmt.comparing.tables import TablePair
from cnrfmt.errors import UsageError, VersionNotFoundError
from cnrfmt.patterns import Patterns
from cnrfmt.reader import PathLike, open

Progress = Callable[[int, int], None]
"""Called with the bytes of rows that are compared and with how many there are."""


def diff(
    a: PathLike,
    b: PathLike | None = None,
    *,
    version_a: int | None = None,
    version_b: int | None = None,
    tables: Iterable[str] | None = None,
    columns: Iterable[str] | None = None,
    worst: int = 10,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compares two containers, or two versions of one, row by row.

    Rows with the same id or key are compared, those of tables with the same name; a row has changed where any bit
    differs, so a NaN is equal to the same NaN. How far a changed row is off is its relative l2 error: the norm of B's
    row less A's, over the norm of A's. Of two versions of one container, only rows are read that a segment between
    the two wrote.

    It takes some MiB of memory for each thread, whatever the size of the tables, beside the keys of keyed tables,
    the row indexes and two dense entries at a time. The median and the 99th percentile come from a histogram of bins
    as wide as 1/64 of their numbers; all other figures are exact.

    Parameters
    ----------
    a, b
        Paths of containers; with `b` left out, two versions of `a` are compared.
    version_a, version_b
        Their versions, the newest unless given. With `b` left out, `version_a` is the retained version before
        `version_b` unless given.
    tables, columns
        Patterns (as in `fnmatch`) of the tables and columns to compare. With `tables`, the dense state and the
        metadata aren't compared. The counts of a `CheckpointManager` (the column ``cnrfmt.checkpoints``) are compared
        where a pattern matches them, and otherwise left out.
    worst
        How many of the rows with the greatest errors are listed of each column.
    threads
        How many threads to use; as many as there are processors if None.
    progress
        Called from time to time with the bytes that are compared and how many there are.

    Raises
    ------
    UsageError
        A pattern that matches nothing, or a container of one version and nothing to compare it with.
    DamagedError, UnsupportedError, VersionNotFoundError, StorageError
        As `open` raises them.
    """
    names, wanted = Patterns(tables), Patterns(columns, "columns")
    if isinstance(worst, bool) or not isinstance(worst, int) or worst < 0:
        raise UsageError(f"worst is an integer of at least 0, found {worst!r}")
    count = parallel.thread_count(threads)
    # Chunks are compared by several threads at once, so that each reads with one; and mapped files would count as
    # memory of this process.
    with open(a if b is None else b, version=version_b, backend="pread", threads=1) as second:
        if b is None and version_a is None:
            version_a = _version_before(second)
        with open(a, version=version_a, backend="pread", threads=1) as first:
            return _compare(first, second, names, wanted, worst, count, progress, whole=tables is None)


def _version_before(ck: Checkpoint) -> int:
    before = [version for version in ck.versions if version < ck.version]
    if not before:
        raise VersionNotFoundError(
            f"{ck.path}: no version before {ck.version} is retained; name another container to compare it with"
        )
    return before[-1]


def _compare(
    a: Checkpoint,
    b: Checkpoint,
    names: Patterns,
    columns: Patterns,
    worst: int,
    threads: int,
    progress: Progress | None,
    *,
    whole: bool,
) -> Comparison:
    every = list(dict.fromkeys((*a, *b)))
    names.check(every, f"{a.path} and {b.path}")
    pairs = [TablePair(a[name], b[name], _touched(a, b, name), columns) for name in a if name in b and name in names]
    columns.check(list(dict.fromkeys(c for p in pairs for t in (p.a, p.b) for c in t.columns)), a.path)
    total = sum(pair.row_bytes * min(len(pair.a), len(pair.b)) for pair in pairs)
    done = 0

    def report(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(min(done, total), total)

    return Comparison(
        _side(a),
        _side(b),
        [pair.compare(worst, threads, report) for pair in pairs],
        [name for name in a if name not in b and name in names],
        [name for name in b if name not in a and name in names],
        list(dense_differences(a, b)) if whole else None,
        _metadata(a, b) if whole else None,
    )


def _side(ck: Checkpoint) -> Side:
    return Side(ck.path, ck.manifest.container_id.hex(), ck.version, ck.step, ck.digest)


def _touched(a: Checkpoint, b: Checkpoint, name: str) -> Ids | None:
    """The rows of a table that were written between two versions of one history; None where nobody can tell."""
    old, new = (a, b) if a.version <= b.version else (b, a)
    named = {retained.version: retained.digest for retained in new.manifest.versions}
    named[new.version] = new.manifest.digest
    same_history = old.manifest.container_id == new.manifest.container_id
    if not same_history or named.get(old.version) != old.manifest.digest:
        return None
    if old[name].schema.table_id != new[name].schema.table_id:
        return None
    changes = new[name].changed(old.version)
    return changes.rows if changes.exact else None


def _metadata(a: Checkpoint, b: Checkpoint) -> list[str]:
    keys = dict.fromkeys((*a.metadata, *b.metadata))
    missing = object()
    return [key for key in keys if a.metadata.get(key, missing) != b.metadata.get(key, missing)]
