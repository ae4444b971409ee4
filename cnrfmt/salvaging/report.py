"""What a salvage kept and what it lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from cnrfmt.salvaging.runs import Runs


@dataclass(frozen=True, eq=False)
class Loss:
    """Rows of a table, or an entry of the dense state, that can't be proven sound.

    Attributes
    ----------
    table, column
        Where they are lost. `column` is None where whole rows are: those of a keyed table whose keys are left out.
        `table` is None for the dense state.
    dense
        The name of the dense entry; None for a table, and where no name is known.
    rows
        Row ids or keys as an int64 array of (first, last) pairs, both inclusive.
    count
        How many rows are lost; where `exact` is False, the most that may be, and None if nobody can tell.
    exact
        Whether each of `rows` is lost. False for keys that stood in a damaged row index or segment: some keys in
        these runs, which don't stand in the new container, were there.
    rule, place
        Why: the rule that is broken, and where.
    """

    table: str | None
    column: str | None
    dense: str | None
    rows: Runs
    count: int | None
    exact: bool
    rule: str
    place: str

    def to_json(self) -> dict[str, Any]:
        """The loss as JSON can say it; row ids are decimal strings, as in the format."""
        return {
            "table": self.table,
            "column": self.column,
            "dense": self.dense,
            "rows": [[str(a), str(b)] for a, b in self.rows.tolist()],
            "count": self.count,
            "exact": self.exact,
            "rule": self.rule,
            "place": self.place,
        }


@dataclass(frozen=True)
class SalvagedTable:
    """A table of the new container: how many rows it has, and how many of them lost something (or are left out).

    `lost` are those that are known to be. Where `exact` is False there may be others: `most` in all, as far as anybody
    can tell, and where `unbounded` any number of keys beside them.
    """

    name: str
    keyed: bool
    rows: int
    lost: int
    exact: bool
    most: int
    unbounded: bool

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost."""
        return not self.lost and self.exact


@dataclass(frozen=True)
class VersionState:
    """How much of a version can be proven sound.

    `state` is ``"whole"``; ``"damaged"``, with some rows or dense entries lost; ``"gaps"``, where segments can't be
    read at all, so that whatever no newer segment gives is lost; or ``"unreadable"``, where the manifest is damaged or
    contradicts its segments. For ``"damaged"``, `lost` counts rows and dense entries that are known to be lost, and
    `most` those that may be. `reason` says what is wrong. Where only some tables were asked
    for, this is about them and the dense state.
    """

    version: int
    step: int | None
    created: str | None
    state: Literal["whole", "damaged", "gaps", "unreadable"]
    lost: int = 0
    most: int = 0
    reason: str = ""


@dataclass
class Salvage:
    """What `cnrfmt.salvage` found and did.

    Attributes
    ----------
    source, target
        The paths; `target` is None after a dry run.
    version, step
        Which version was salvaged.
    container_id, digest
        The damaged container's id, and the digest of the version's manifest.
    versions
        All versions that are known to have existed, ascending.
    newer
        Why a version newer than the newest sound one must or may have existed; empty if nothing says so.
    perhaps_newer
        Why one may have existed, where an append that was interrupted leaves the same, which is no damage: so this
        doesn't count against `complete`. A newest version of which every trace is gone can't be seen at all.
    newest_whole
        The newest version of which nothing is lost (of the tables asked for), if there is any: what
        ``version="whole"`` takes.
    tables, dense
        What the new container holds.
    losses
        What is lost of the version.
    notes
        Damage that lost nothing of this version, and other things worth knowing.
    explicit
        Whether the caller named the version.
    """

    source: str
    target: str | None
    version: int
    step: int | None
    container_id: str
    digest: str
    explicit: bool
    versions: list[VersionState] = field(default_factory=list)
    newer: list[str] = field(default_factory=list)
    perhaps_newer: list[str] = field(default_factory=list)
    newest_whole: int | None = None
    tables: list[SalvagedTable] = field(default_factory=list)
    dense: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing is lost, of the version or (unless the caller named it) by a newer one's absence."""
        return not self.losses and (self.explicit or not (self.newer or self.left_out))

    @property
    def left_out(self) -> list[int]:
        """The versions that are known to be newer than the one that was salvaged."""
        return [v.version for v in self.versions if v.version > self.version]

    @property
    def exit_code(self) -> int:
        """0 if nothing was lost, else 1."""
        return 0 if self.complete else 1

    def to_json(self) -> dict[str, Any]:
        """The report as JSON can say it."""
        return {
            "source": self.source,
            "target": self.target,
            "version": self.version,
            "step": self.step,
            "container_id": self.container_id,
            "digest": self.digest,
            "complete": self.complete,
            "newer": self.newer,
            "perhaps_newer": self.perhaps_newer,
            "newest_whole": self.newest_whole,
            "left_out": self.left_out,
            "versions": [vars(v) for v in self.versions],
            "tables": [{**vars(t), "whole": t.is_whole} for t in self.tables],
            "dense": self.dense,
            "losses": [loss.to_json() for loss in self.losses],
            "notes": self.notes,
        }
