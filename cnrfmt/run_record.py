"""What the commits of a training run leave for the next one: its id, its policy, what each checkpoint cost, tags.

It stands in the metadata of the manifest, under a name of the library's own. No reader needs it: whatever isn't as it
should be is taken for nothing, so that a container of another making is never refused for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from cnrfmt.format.manifest import Manifest

RESERVED = "cnrfmt.run"
"""The name, among those of the user's metadata."""
MOST = 4096
"""Checkpoints that are remembered; as many as versions may be retained."""
_MOST_NAMES = 20
"""Tables that are named of those that are stored alike."""


@dataclass(frozen=True)
class CheckpointRecord:
    """What one checkpoint cost, and what it was judged by.

    Attributes
    ----------
    version, step, created
        As the manifest of the version says.
    kind
        ``"baseline"``, ``"delta"`` (everything since the checkpoint before it), ``"since-baseline"`` (everything since
        the baseline) or ``"merge"`` (the same content in fewer segments).
    rows, nbytes
        Rows that were written (of all tables and ranks), and bytes of segments.
    bits
        Bits per value of most weights; 32 where they are raw, 0 where they are on a grid and take what they need.
    chain
        Segments that a restore reads.
    metrics
        What the trainer measured of the model.
    """

    version: int
    step: int | None
    created: str
    kind: str
    rows: int
    nbytes: int
    bits: int
    chain: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """The run that commits to a container.

    Attributes
    ----------
    run
        A random id, 32 hexadecimal digits: two runs on one container are told apart by it.
    policy
        The name of the policy that chose the newest checkpoint.
    restores
        How often the run went on from a checkpoint.
    expected_restores
        How often it was expected to, when the bits were chosen; None where nobody said.
    tags
        Names of versions; a version that has one is never removed.
    checkpoints
        Those that are retained, and those since the newest baseline; ascending.
    encodings
        How the newest checkpoint stored tables and why, in words, with the names of the tables (some, of very many);
        no names where it is all of them.
    """

    run: str
    policy: str = ""
    restores: int = 0
    expected_restores: float | None = None
    tags: Mapping[str, int] = field(default_factory=dict)
    checkpoints: tuple[CheckpointRecord, ...] = ()
    encodings: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def checkpoint(self, version: int) -> CheckpointRecord | None:
        """What is known of a version."""
        return next((c for c in self.checkpoints if c.version == version), None)

    def since_baseline(self) -> tuple[CheckpointRecord, ...]:
        """The newest baseline and the checkpoints after it; merges, which change nothing, are left out."""
        last = max((i for i, c in enumerate(self.checkpoints) if c.kind == "baseline"), default=0)
        return tuple(c for c in self.checkpoints[last:] if c.kind != "merge")

    def only(self, versions: set[int]) -> RunRecord:
        """Without the checkpoints before the newest baseline that aren't among these versions.

        One that a merge among them stands for stays: it says what the merge is a merge of.
        """
        last = max((i for i, c in enumerate(self.checkpoints) if c.kind == "baseline"), default=0)
        # A merge that wrote nothing, as for a tag, tells nothing of what the run cost.
        wanted = versions | {c.version for c in self.checkpoints[last:] if c.kind != "merge" or c.nbytes}
        kept: list[CheckpointRecord] = []
        stood_for = False
        for c in reversed(self.checkpoints):
            if c.version in wanted or (stood_for and c.kind != "merge"):
                kept.append(c)
            stood_for = c.kind == "merge" and (stood_for or c.version in wanted)
        return replace(self, checkpoints=tuple(reversed(kept))[-MOST:])

    def to_json(self) -> dict[str, Any]:
        """As metadata."""
        checkpoints = [[asdict(c)[f.name] for f in fields(c)] for c in self.checkpoints]
        return {**asdict(self), "checkpoints": checkpoints}

    @staticmethod
    def parse(found: Any) -> RunRecord | None:
        """The record that metadata hold; None where they hold none that makes sense."""
        try:
            record = RunRecord(**{**found, "checkpoints": tuple(CheckpointRecord(*c) for c in found["checkpoints"])})
            return record if _makes_sense(record) else None
        except (TypeError, KeyError, ValueError, AttributeError):
            return None


def _makes_sense(r: RunRecord) -> bool:
    expected = r.expected_restores
    return (
        re.fullmatch("[0-9a-f]{32}", r.run) is not None
        and isinstance(r.policy, str)
        and _is_count(r.restores)
        and (expected is None or (isinstance(expected, int | float) and expected >= 0))
        and all(_is_count(version) for version in r.tags.values())
        and len(r.checkpoints) <= MOST
        and all(_is_sound(c) for c in r.checkpoints)
        and all(isinstance(name, str) for names in r.encodings.values() for name in names)
    )


def _is_sound(c: CheckpointRecord) -> bool:
    return (
        (c.step is None or (isinstance(c.step, int) and not isinstance(c.step, bool)))
        and isinstance(c.created, str)
        and isinstance(c.kind, str)
        and all(_is_count(n) for n in (c.version, c.rows, c.nbytes, c.bits, c.chain))
        and all(isinstance(x, int | float) for x in c.metrics.values())
    )


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def by_words(words: Mapping[str, str]) -> dict[str, list[str]]:
    """What a record says of encodings, from words by table."""
    found: dict[str, list[str]] = {}
    for name, text in sorted(words.items()):
        found.setdefault(text, []).append(name)
    if len(found) == 1:
        return {text: [] for text in found}
    over = {text: len(names) - _MOST_NAMES for text, names in found.items()}
    return {
        text: [*names[:_MOST_NAMES], f"{over[text]} more"] if over[text] > 0 else names for text, names in found.items()
    }


def user_metadata(manifest: Manifest) -> dict[str, Any]:
    """The metadata that users gave."""
    return {key: value for key, value in manifest.metadata.items() if key != RESERVED}


def metadata_with(user: Mapping[str, Any], record: RunRecord | None) -> dict[str, Any]:
    """Metadata as manifests hold them: the user's, and the library's own."""
    return dict(user) if record is None else {**user, RESERVED: record.to_json()}


def record_of(manifest: Manifest) -> RunRecord | None:
    """What the commits of a training run left for the next; None where no run was here."""
    return RunRecord.parse(manifest.metadata.get(RESERVED))
