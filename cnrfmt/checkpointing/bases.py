"""What differences are taken from: the stored values of the version that the next delta is put on.

Under policies of deltas on deltas that is the newest version; under those whose deltas are put on the baseline, the
baseline. A checkpoint that fails leaves them as they were: they move on with what is durable, and before a delta is
planned they are brought to its base if they aren't there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from cnrfmt.arrays import Ids
from cnrfmt.checkpointing.contents import Tables
from cnrfmt.checkpointing.kept_tables import Held
from cnrfmt.checkpointing.lineage import Lineage
from cnrfmt.checkpointing.settings import Settings, StoredIn
from cnrfmt.checkpointing.stored_values import FromContainer, InMemory, StoredValues
from cnrfmt.encodings.grid_plan import GridPlan
from cnrfmt.format.manifest import Manifest
from cnrfmt.reader import open
from cnrfmt.storage.fs import Fs
from cnrfmt.stored_integers import StoredIntegers

_DEFAULT_BYTES = 1 << 30
_NO_BOUND = 1 << 62

HeldTables = Mapping[str, Held] | None
"""What a rank holds of each table; None where there is one writer, who has all."""


@dataclass
class Bases:
    """The stored values that a run keeps, for the trainer (`asked`) and for deltas on a grid; often the same ones."""

    path: str
    settings: Settings
    fs: Fs | None
    asked: StoredValues | None = field(init=False)

    def __post_init__(self) -> None:
        where, grids = self.settings.stored_values, self.settings.rule.may_be_grid
        self.asked = None if where is None else self._store(where, bounded=not grids)
        self._own: StoredValues | None = None
        if grids:
            # What the trainer asks for is the newest version.
            apart = self.asked is None or self.settings.policy.needs_since_baseline
            self._own = self._store(where or "memory", bounded=False) if apart else self.asked

    def _store(self, where: StoredIn, *, bounded: bool) -> StoredValues:
        settings = self.settings
        limit = settings.stored_bytes
        limit = (_DEFAULT_BYTES if bounded else _NO_BOUND) if limit is None else limit
        if where == "memory":
            return InMemory(limit, integers_only=self.settings.stored_values is None)
        return FromContainer(self.path, limit, threads=settings.threads, fs=self.fs)

    def move_on(self, lineage: Lineage, held: HeldTables) -> None:
        """Goes on to what is durable now: after a commit or a restore."""
        base = lineage.base
        assert base is not None
        if self.asked is not None:
            self._update(self.asked, lineage, base, held)
        own = lineage.baseline if self.settings.policy.needs_since_baseline else base
        if self._own is not None and self._own is not self.asked and own is not None and self._own.state != own.state:
            self._update(self._own, lineage, own, held)

    def of(self, lineage: Lineage, base: Manifest, held: HeldTables) -> StoredValues | None:
        """The stored values that a delta on `base` differs from; None where nothing is on a grid.

        Raises what `StoredValues.update` raises.
        """
        if self._own is not None and self._own.state != base.state:
            self._update(self._own, lineage, base, held)
        return self._own

    def counts(self, lineage: Lineage) -> StoredValues | None:
        """What knows how many checkpoints rows were in, of what is kept; None where that isn't the newest version's."""
        base = lineage.base
        return self._own if self._own is not None and base is not None and self._own.state == base.state else None

    def _update(self, store: StoredValues, lineage: Lineage, to: Manifest, held: HeldTables) -> None:
        base = lineage.base
        assert base is not None
        with ExitStack() as opened:
            ck = opened.enter_context(open(self.path, threads=self.settings.threads, fs=self.fs))
            if ck.manifest.state != base.state:
                ck = opened.enter_context(
                    open(self.path, version=base.version, threads=self.settings.threads, fs=self.fs)
                )
            # Else the newest version says the same, be it that it was merged since.
            store.update(ck, held, baseline=None if to.state == ck.manifest.state else to)

    def forget(self) -> None:
        """Lets go of everything, until a version is known again."""
        for store in (self.asked, self._own):
            if store is not None:
                store.close()


@dataclass(frozen=True)
class OfChain:
    """Stored values of the tables that go on; another one of the same name has none."""

    stored: StoredValues
    names: Collection[str]

    def integers(self, table: str, columns: Sequence[str], ids: Ids) -> dict[str, StoredIntegers]:
        """As `StoredValues.integers`; there are none of a table that begins."""
        if table not in self.names:
            return {name: StoredIntegers.nothing(len(ids), 1) for name in columns}
        return self.stored.integers(table, columns, ids)


def chain_of(tables: Tables, base: Manifest | None, stored: StoredValues | None) -> dict[str, GridPlan | None]:
    """Of each table that goes on from a version, the grid that it is on."""
    known = {} if base is None else {schema.name: schema for schema in base.tables}
    going_on = [
        name
        for name, table in tables.items()
        if table.data is not None and name in known and table.goes_on(known[name])
    ]
    return {name: None if stored is None else stored.plan(name) for name in going_on}


def held_by(tables: Tables) -> dict[str, Held]:
    """What this rank holds of the tables that it gives."""
    found = {}
    for name, table in tables.items():
        if table.data is not None:
            place = table.place
            rows = None if place is None or place.rows is None else (table.first, table.first + table.rows)
            keys = table.sorted_keys[0] if table.keyed else None
            found[name] = Held(rows, keys, None if place is None else place.elements)
    return found
