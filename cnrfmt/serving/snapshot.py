"""One version of all tables that are served, and how the server stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from cnrfmt.errors import MissingKeyError
from cnrfmt.format.manifest import Manifest
from cnrfmt.serving.following import Changed
from cnrfmt.serving.generations import Lease
from cnrfmt.serving.hydrated_table import Progress
from cnrfmt.serving.live_rows import LiveRows
from cnrfmt.table import Changes
from cnrfmt.view import View


class Snapshot(Mapping[str, LiveRows]):
    """All tables at one version, and its dense state; it stays as it is for as long as it, or a table of it, is held.

    Attributes
    ----------
    version, step, digest
        As `Checkpoint` has them.
    created
        When the version was committed, by its writer's clock.
    """

    def __init__(self, view: View, tables: dict[str, LiveRows], lease: Lease) -> None:
        self._view, self._tables, self._lease = view, tables, lease
        manifest = view.manifest
        self.version, self.step, self.digest = manifest.version, manifest.step, f"{manifest.digest:016x}"
        self.created = datetime.fromisoformat(manifest.created)

    @property
    def view(self) -> View:
        """The version, open; its files are let go of when nobody holds it."""
        return self._view

    @property
    def manifest(self) -> Manifest:
        """The commit record of the version."""
        return self._view.manifest

    def changed_since(self, before: Manifest) -> Mapping[str, Changes]:
        """By table, the rows that changed after another version of the container; found out when it is asked for."""
        return Changed(self._view, before)

    @property
    def dense(self) -> dict[str, Any]:
        """The dense state: arrays, JSON values and bytes by name; read when it is first asked for."""
        return self._view.dense

    def __getitem__(self, name: str) -> LiveRows:
        if name not in self._tables:
            names = ", ".join(map(repr, list(self._tables)[:10])) or "none"
            raise MissingKeyError(f"no table {name!r} is served of version {self.version}; there are {names}")
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __repr__(self) -> str:
        return f"<cnrfmt.Snapshot of version {self.version}: {len(self)} tables>"


class LiveStatus(NamedTuple):
    """How a server stands.

    Attributes
    ----------
    version, step, created
        Of what is served.
    age_s
        Seconds since the version was committed, by its writer's clock.
    updates
        How many versions were taken in since it began.
    applied_s
        Seconds that the last of them took; None before there was one.
    hydrated
        How many rows of the first version are there.
    pinned
        Whether a version was asked for, so that no newer one is taken in by itself.
    error
        What is wrong with following; None where nothing is.
    failing_s
        Seconds since that went wrong first; 0 where nothing is.
    """

    version: int
    step: int | None
    created: datetime
    age_s: float
    updates: int
    applied_s: float | None
    hydrated: Progress
    pinned: bool
    error: BaseException | None
    failing_s: float
