"""The manifests of a container: the newest, the older ones that it names, and whether one goes on from another."""

from __future__ import annotations

import numpy as np

from cnrfmt.errors import DamagedError, UsageError, VersionNotFoundError
from cnrfmt.format.manifest import Manifest, Retained, parse_manifest
from cnrfmt.memory import Budget
from cnrfmt.storage.container import Container


class History:
    """The newest manifest of a container, and the older ones that it names.

    A checkpoint shares it with its views, which so don't hold the checkpoint: one that nobody closed goes with its
    files as soon as nobody holds it, without waiting for the collector of cycles.
    """

    head: Manifest

    def __init__(self, path: str, container: Container) -> None:
        self.path, self.container = path, container

    def manifest_of(self, version: int, budget: Budget) -> Manifest | None:
        """The manifest of a version of the head's history; None if it was committed but isn't retained."""
        head = self.head
        if isinstance(version, bool) or not isinstance(version, int | np.integer):
            raise UsageError(f"a version is an integer, found {version!r}")
        if version == head.version:
            return head
        if not 0 <= version < head.version:
            raise VersionNotFoundError(f"{self.path}: no version {version}; the newest is {head.version}")
        for retained in head.versions:
            if retained.version == version:
                return self._read_retained(retained, budget)
        return None

    def _read_retained(self, retained: Retained, budget: Budget) -> Manifest:
        data = self.container.read_manifest(retained)
        manifest = _parse(self.container, data, retained.version, budget)
        if manifest.container_id != self.head.container_id:
            raise DamagedError(
                "manifest-identity",
                f"{self.container.path}, manifest of version {retained.version}",
                expected=f"container {self.head.container_id.hex()}",
                found=f"container {manifest.container_id.hex()}",
            )
        return manifest


def read_head(container: Container, budget: Budget) -> Manifest:
    """The newest manifest."""
    data, version, _ = container.head()
    return _parse(container, data, version, budget)


def _parse(container: Container, data: bytes, version: int, budget: Budget) -> Manifest:
    """A manifest that storage has found to be the one that was named."""
    place = f"{container.path}, manifest of version {version}"
    budget.take_json(len(data), place)
    return parse_manifest(data, place)


def check_goes_on(before: Manifest, head: Manifest, path: str) -> None:
    """That a head is the one seen before or a later one of the same history; raises `DamagedError`."""
    another = head.container_id != before.container_id
    if another or head.version < before.version:
        raise DamagedError(
            "manifest-identity",
            path,
            expected=f"container {before.container_id.hex()} at version {before.version} or later",
            found=f"container {head.container_id.hex()} at version {head.version}",
            advice=f"{'another container' if another else 'an older state'} was put in its place: open it anew if that "
            "is meant",
        )
    named = {retained.version: retained.digest for retained in head.versions} | {head.version: head.digest}
    if head.parent is not None:
        named[head.parent[0]] = head.parent[1]
    if (found := named.get(before.version, before.digest)) != before.digest:
        raise DamagedError(
            "manifest-identity",
            f"{path}, version {before.version}",
            expected=f"the manifest {before.digest:016x} that was open",
            found=f"{found:016x}",
            advice="an older state was put back and went another way: open it anew if that is meant",
        )
