"""What the checkpoints of a container cost, one by one: bytes written, bytes kept, bytes that a restore reads.

Bytes are those of segments, with row ids, optimizer state, dense state, digests and padding; manifests, a few kilobytes
each, are left out. Where the manifest of a version is there, its chain is known. Of a version that is gone, the record
of the run tells the kind, the bytes and the number of segments, from which the chain follows: a delta stands on the
checkpoint before it, and a merge took the neighbours that were the cheapest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cnrfmt.format.manifest import Manifest
from cnrfmt.run_record import CheckpointRecord

RESTATED = "restated"
"""The kind of a merge that wrote nothing: a commit for a tag, or for versions that were given up."""


@dataclass(frozen=True)
class Cost:
    """What one version cost.

    Attributes
    ----------
    checkpoint
        As the run recorded it; without a record rows and bits are 0.
    recorded
        Whether a record tells of it.
    kind
        As in the record, or `RESTATED`.
    needs
        The versions whose segments a restore reads, ascending; None where that isn't known.
    kept
        Bytes that were kept after it, of all versions that were readable then; None where that isn't known.
    read
        Bytes that a restore reads; None where that isn't known.
    readable
        Whether it is still there.
    """

    checkpoint: CheckpointRecord
    recorded: bool
    kind: str
    needs: tuple[int, ...] | None
    kept: int | None
    read: int | None
    readable: bool


def cost_history(
    recorded: Iterable[CheckpointRecord],
    manifests: Sequence[Manifest],
    readable: Collection[int],
    *,
    anew: bool = False,
) -> list[Cost]:
    """What each version cost that is recorded or whose manifest is given, ascending.

    Which versions were readable in the past isn't recorded. Those that are readable now were from when they were
    committed; and beside them, as many of the newest checkpoints as are readable in a row now. That is what was where
    all versions stay, or the last n, or every k-th, or those with tags. Where nothing is known of one of them any more,
    what was kept isn't, either.

    Parameters
    ----------
    recorded
        Of the run, in any order.
    manifests
        Of versions that are there, ascending; all of them, or the newest.
    readable
        The versions that are there.
    anew
        Whether nothing was there before the first of them, as in a single file, which a baseline writes anew.
    """
    told = {c.version: c for c in recorded}
    known = {c.version: c for c in described(manifests)} | told
    checkpoints = [known[version] for version in sorted(known)]
    known_from = _known_from(checkpoints, told, anew)
    chains = _chains(checkpoints, {m.version: m for m in manifests}, known_from)
    kept = _kept(checkpoints, chains, readable, known_from)
    return [
        Cost(
            checkpoint=c,
            recorded=c.version in told,
            kind=RESTATED if _is_restated(c) else c.kind,
            needs=_versions(chain),
            kept=nbytes,
            read=None if chain is None else sum(piece.nbytes for piece in chain),
            readable=c.version in readable,
        )
        for c, chain, nbytes in zip(checkpoints, chains, kept, strict=True)
    ]


def averages(costs: Iterable[Cost]) -> list[float]:
    """After each version, the bytes that all so far wrote, merges too, per checkpoint; a merge is none."""
    written = checkpoints = 0
    found = []
    for cost in costs:
        written += cost.checkpoint.nbytes
        checkpoints += cost.checkpoint.kind != "merge"
        found.append(written / max(1, checkpoints))
    return found


def described(manifests: Sequence[Manifest]) -> list[CheckpointRecord]:
    """What the manifests alone tell of their versions, ascending: everything but rows and bits."""
    found = []
    for before, m in zip((None, *manifests), manifests, strict=False):
        own = [entry for entry in m.chain if entry.to_state == m.state]
        below = [entry.segment for entry in m.chain[: len(m.chain) - len(own)]]
        there = [] if before is None else [entry.segment for entry in before.chain]
        if before is not None and before.state == m.state:
            kind, own = "merge", [entry for entry in m.chain if entry.segment not in there]
        elif not below:
            kind = "baseline"
        elif len(there) > len(below) and there[: len(below)] == below and len(m.steps()) == 2:
            kind = "since-baseline"
        else:
            kind = "delta"
        nbytes = sum(entry.length for entry in own)
        found.append(CheckpointRecord(m.version, m.step, m.created, kind, 0, nbytes, 0, len(m.chain)))
    return found


# Chains


def _known_from(checkpoints: Sequence[CheckpointRecord], told: Collection[int], anew: bool) -> list[int]:
    """For each, where those begin of which none up to it is missing; -1: at the beginning of the container."""
    # A record holds all checkpoints since the newest baseline; missing numbers are those of commits that repeat.
    baseline = max((c.version for c in checkpoints if c.kind == "baseline" and c.version in told), default=None)
    found: list[int] = []
    for n, c in enumerate(checkpoints):
        before = checkpoints[n - 1].version if n else -1
        if c.version == before + 1 or (n == 0 and anew) or (n and baseline is not None and before >= baseline):
            found.append(found[-1] if n else -1)
        else:
            found.append(n)
    return found


@dataclass(frozen=True)
class _Piece:
    """A step of a chain: the version that wrote it, or the id of a segment where that isn't known."""

    key: int | bytes
    segments: int
    nbytes: int


_Chain = tuple[_Piece, ...]


def _chains(
    checkpoints: Sequence[CheckpointRecord], manifests: Mapping[int, Manifest], known_from: Sequence[int]
) -> list[_Chain | None]:
    """The chain of each version; None where it isn't known."""
    known = _Known()
    found: list[_Chain | None] = []
    before: _Chain | None = None
    baseline: _Chain | None = None
    for n, c in enumerate(checkpoints):
        if known_from[n] == n:
            before = baseline = None
        chain = _goes_on(c, before, baseline)
        if c.version in manifests:
            guesses = [chain or (), *([before or ()] if c.kind == "merge" else [])]
            chain = known.settled(guesses, c, manifests[c.version])
        if chain is not None and (c.kind == "baseline" or baseline is None):
            baseline = chain[:1]
        before = chain
        found.append(chain)
    return found


def _goes_on(c: CheckpointRecord, before: _Chain | None, baseline: _Chain | None) -> _Chain | None:
    if c.kind == "baseline":
        return (_Piece(c.version, c.chain, c.nbytes),)
    if c.kind == "merge":
        return before if before is None or _is_restated(c) else _merged(c, before)
    below = baseline if c.kind == "since-baseline" else before
    own = c.chain - _segments(below or ())
    # What went on from an older version, as after a restore, doesn't stand on what is before it in the record.
    return None if below is None or own < 1 else (*below, _Piece(c.version, own, c.nbytes))


def _merged(c: CheckpointRecord, before: _Chain) -> _Chain | None:
    """The chain with one segment in the place of neighbours: of as many as make the length right, the cheapest."""
    gone = _segments(before) - c.chain + 1
    ends = [0]
    nbytes = [0]
    for piece in before:
        ends.append(ends[-1] + piece.segments)
        nbytes.append(nbytes[-1] + piece.nbytes)
    place = {end: n for n, end in enumerate(ends)}
    ranges = [(a, place[end + gone]) for a, end in enumerate(ends) if gone > 1 and end + gone in place]
    if not ranges:
        return None
    first, last = min(ranges, key=lambda r: (nbytes[r[1]] - nbytes[r[0]], r))
    return (*before[:first], _Piece(c.version, 1, c.nbytes), *before[last:])


class _Known:
    """Which pieces the segments in manifests are."""

    def __init__(self) -> None:
        self._keys: dict[int | bytes, int | bytes] = {}
        self._segments: dict[int | bytes, bytes] = {}

    def settled(self, guesses: Sequence[_Chain], c: CheckpointRecord, manifest: Manifest) -> _Chain:
        """The chain that a manifest tells: a guess that is right, or the last with what is right at its ends."""
        steps = manifest.steps()
        exact = [_Piece(step[0].segment, len(step), sum(entry.length for entry in step)) for step in steps]
        guess = next((g for g in guesses if len(g) == len(exact) == self._alike(g, exact)), guesses[-1])
        head = self._alike(guess, exact)
        tail = self._alike(guess[head:][::-1], exact[head:][::-1])
        middle = exact[head : len(exact) - tail]
        # What the version itself wrote stands somewhere if it is a merge, else at the end.
        if middle and (len(middle) == 1 if c.kind == "merge" else not tail):
            self._keys.setdefault(middle[-1].key, c.version)
        middle = [replace(piece, key=self._keys.get(piece.key, piece.key)) for piece in middle]
        chain = (*guess[:head], *middle, *guess[len(guess) - tail :])
        for piece, step in zip(chain, steps, strict=True):
            self._keys[step[0].segment] = piece.key
            self._segments[piece.key] = step[0].segment
        return chain

    def _alike(self, guess: Sequence[_Piece], exact: Sequence[_Piece]) -> int:
        """How many from the first on are the same."""
        pairs = enumerate(zip(guess, exact, strict=False))
        return next((n for n, pair in pairs if not self._is_same(*pair)), min(len(guess), len(exact)))

    def _is_same(self, guess: _Piece, exact: _Piece) -> bool:
        # Two baselines have one size more often than not.
        segment = self._segments.get(guess.key)
        if segment is not None or exact.key in self._keys:
            return segment == exact.key
        return (guess.segments, guess.nbytes) == (exact.segments, exact.nbytes)


def _segments(chain: _Chain) -> int:
    return sum(piece.segments for piece in chain)


def _versions(chain: _Chain | None) -> tuple[int, ...] | None:
    keys = [] if chain is None else [piece.key for piece in chain]
    versions = sorted(key for key in keys if isinstance(key, int))
    return tuple(versions) if keys and len(versions) == len(keys) else None


def _is_restated(c: CheckpointRecord) -> bool:
    return c.kind == "merge" and not c.nbytes


# What is kept


class _Held:
    """The segments of the versions that are readable at one time."""

    def __init__(self) -> None:
        self._uses: Counter[int | bytes] = Counter()
        self._nbytes = self._unknown = 0

    def add(self, chain: _Chain | None) -> None:
        self._unknown += chain is None
        for piece in chain or ():
            self._nbytes += piece.nbytes if not self._uses[piece.key] else 0
            self._uses[piece.key] += 1

    def drop(self, chain: _Chain | None) -> None:
        self._unknown -= chain is None
        for piece in chain or ():
            self._uses[piece.key] -= 1
            self._nbytes -= piece.nbytes if not self._uses[piece.key] else 0

    @property
    def nbytes(self) -> int | None:
        return None if self._unknown else self._nbytes


def _kept(
    checkpoints: Sequence[CheckpointRecord],
    chains: Sequence[_Chain | None],
    readable: Collection[int],
    known_from: Sequence[int],
) -> Iterator[int | None]:
    """Bytes that are kept after each version; of a checkpoint and its merges the last stays when the next one comes."""
    groups: list[list[int]] = []
    for n, c in enumerate(checkpoints):
        if c.kind != "merge" or not groups:
            groups.append([])
        groups[-1].append(n)
    stays = [c.version in readable for c in checkpoints]
    # How many are readable in a row, as far as none is missing.
    ends = (n for n, g in enumerate(reversed(groups)) if g[-1] < known_from[-1] or not any(stays[i] for i in g))
    last = max(1, next(ends, len(groups)))
    held = _Held()
    for number, group in enumerate(groups):
        oldest = groups[number - last + 1][0] if number >= last - 1 else -1
        leaving = groups[number - 1][:-1] if number else []
        leaving = leaving + (groups[number - last][-1:] if number >= last else [])
        for n in group:
            held.add(chains[n])
            for i in leaving if n == group[0] else []:
                if not stays[i]:
                    held.drop(chains[i])
            yield held.nbytes if known_from[n] <= oldest else None
