"""Kills ranks while they write versions together, and looks at what is left, on disk and with those that live.

    python -m tools.crash.ranks --kills 2000 --seed 1 --state FILE --json OUT

Eight processes write one version after the other to a directory: some rows each, some elements each, whole tables,
their own keys. One of them or two are killed: at a random moment, before or behind some call of the file system, or at
a named point of the commit protocol. The others must end soon, all with the same outcome. After each kill the head must
be what was acknowledged last or that attempt's version, whole, and each version what its ranks wrote; no attempt that a
rank gave up may be there; what lies about is of killed ranks alone; `verify` and `cnrcheck` must find the container
sound. Then a fresh set of ranks, of another number, must succeed and leave nothing unfinished behind. Killed at any
time itself, the same command goes on where it was; ``--life NUMBER`` lives one container's life again. The folder of a
life that ended badly is kept.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import cnrfmt
from cnrfmt.checkpointing.ranks.coordinator import FileCoordinator, SingleRank
from cnrfmt.errors import CommitError
from cnrfmt.storage.fs import Fs
from tools import cnrcheck
from tools.crash import _ranks_workload as workload
from tools.crash._kills_oracle import Journal, Oracle
from tools.crash._kills_processes import PATIENCE, Place, dying_fs, end, fork, wait
from tools.crash._lives import Lives

RANKS = 8
POINTS = {
    "rank-begun": False,
    "segment-synced": False,
    "segment-published": False,
    "rank-published": False,
    "rank-reported": False,
    "rank-told": False,
    "ranks-accepted": True,
    "segments-synced": True,
    "manifest-synced": True,
    "manifest-published": True,
    "manifests-synced": True,
}
"""The named points, and whether rank 0 alone passes them."""
ATTEMPTS = 3
"""So many versions the ranks of a kill write at the most."""
MOST_VERSIONS = 12
KILLS_IN_A_LIFE = 12


@dataclass
class Life:
    """One container, from its creation through its kills."""

    number: int
    seed: int
    place: Place
    meet: Path
    moment: float
    random: Random = field(init=False)
    journal: Journal = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    killed: int = 0
    states: dict[int, workload.State] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    """Whose the versions are, and what they say."""
    checked: int = 0
    named: set[str] = field(default_factory=set)
    """The segments of versions that were looked at, the last of which is `checked`."""
    alive: list[int] = field(default_factory=list)
    """The processes of the kill that is going on."""

    def __post_init__(self) -> None:
        self.random = Random(f"{self.seed}-{self.number}")
        self.journal = Journal(self.place.journal)

    def live(self, kills: int) -> None:
        """Lives through up to so many kills; raises `AssertionError` where anything is wrong."""
        try:
            for _ in range(2 * KILLS_IN_A_LIFE):
                if self.counts["kills"] >= kills or len(self.states) > MOST_VERSIONS:
                    break
                self._kill()
                if self.random.random() < 0.6:
                    self._next_ranks()
            self._next_ranks()
        finally:
            self.place.stop[0] = 1
            for process in self.alive:
                end(process)

    def _start(self, ranks: int, attempts: int, dying: dict[int, Fs]) -> list[int]:
        """Forks a set of ranks that write so many versions, the first of which has the next token."""
        self.rounds += 1
        self.alive.clear()
        token = 1000 * self.number + 10 * self.rounds
        tokens = [token + n for n in self.random.sample(range(10), attempts)]
        for rank in range(ranks):
            body = partial(_write, self.place, self.meet, rank, ranks, tokens, dying.get(rank))
            fork(self.place, body, self.alive)
        return list(self.alive)

    def _kill(self) -> None:
        """Eight ranks, of which one or two are killed; counts how."""
        random = self.random
        how, at = random.choice(["moment", "call", "point", "point"]), ""
        victims = random.sample(range(RANKS), random.choice([1, 1, 2]))
        dying: dict[int, Fs] = {}
        if how == "point":
            at = random.choice(list(POINTS))
            victims = [0] if POINTS[at] else victims[:1]
            dying = {victim: dying_fs(at) for victim in victims}
        elif how == "call":
            dying = {v: dying_fs(call=random.randint(1, 60), behind=random.random() < 0.5) for v in victims}
        earlier = self._members()
        processes = self._start(RANKS, ATTEMPTS, dying)
        if how == "moment":
            # Who hasn't met the others yet would be waited for, as one that may still be started.
            until = time.monotonic() + PATIENCE
            while len(self._members() - earlier) < RANKS and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(random.random() * self.moment)
            for victim in victims:
                os.kill(processes[victim], signal.SIGKILL)
        statuses = [wait(process) for process in processes]
        told, errors = self._read_journal()
        assert not errors, "\n".join(errors)
        for rank, status in enumerate(statuses):
            assert status == 0 or (status == -signal.SIGKILL and rank in victims), f"rank {rank} ended with {status}"
        dead = sum(status != 0 for status in statuses)
        self.killed += dead
        self.counts["kills"] += dead
        self.counts["killed at " + (at or f"a random {how}")] += dead
        if not dead:
            self.counts["came to no end"] += 1
        self._check(told, [rank for rank, status in enumerate(statuses) if status == 0])

    def _members(self) -> set[Path]:
        """The places that ranks have taken in runs of the coordinator."""
        return set(self.meet.glob("run-*/rank-*"))

    def _next_ranks(self) -> None:
        """A fresh set of ranks, of any number, writes a version; then nothing unfinished is left."""
        ranks = self.random.randint(1, RANKS)
        statuses = [wait(process) for process in self._start(ranks, 1, {})]
        told, errors = self._read_journal()
        assert not errors, "\n".join(errors)
        assert statuses == [0] * ranks, f"ranks ended with {statuses}"
        self._check(told, list(range(ranks)))
        assert all("version" in entry for entry in told), f"not committed: {told}"
        left = sorted(str(p) for p in Path(self.place.path).rglob(".tmp-*"))
        assert not left, f"left behind: {left}"
        notes = {finding.error for finding in cnrcheck.check_path(self.place.path)} - {"garbage"}
        assert not notes, f"after the next ranks: {notes}"
        self.counts["next sets of ranks"] += 1

    def _read_journal(self) -> tuple[list[dict[str, Any]], list[str]]:
        entries = self.journal.read()
        return [e for e in entries if "token" in e], [e["error"] for e in entries if "token" not in e]

    def _check(self, told: list[dict[str, Any]], living: list[int]) -> None:
        """All that must hold while nobody writes."""
        outcomes: dict[int, dict[int, Any]] = {}
        for entry in told:
            outcomes.setdefault(entry["token"], {})[entry["rank"]] = entry.get("version", entry.get("refused"))
        path = self.place.path
        head = workload.head_of(path)
        tokens = self._learn(-1 if head is None else head.version)
        for token, by_rank in outcomes.items():
            among = [by_rank[rank] for rank in living if rank in by_rank]
            assert len(set(among)) <= 1, f"ranks disagree about attempt {token}: {by_rank}"
            versions = {v for v in by_rank.values() if isinstance(v, int)}
            for version in versions:
                assert tokens.get(version) == token, f"version {version} of attempt {token} isn't there: {tokens}"
            refusals = {v for v in by_rank.values() if isinstance(v, str)}
            # A killed rank leaves no doubt: the others find out.
            assert refusals <= {"RankLostError"}, f"attempt {token} ended with {refusals}"
            if refusals:
                assert token not in tokens.values(), f"attempt {token} was given up, and is there"
            committed = token in tokens.values()
            self.counts["attempts, " + ("committed" if committed else "not begun to count")] += 1
            if committed and living != list(range(len(living))):
                self.counts["attempts, committed though ranks were killed"] += 1
        if head is None:
            return
        # The others were looked at before, and `verify` looks at them all.
        for version in {*range(self.checked, head.version + 1), self.random.choice(list(tokens))}:
            with cnrfmt.open(path, version=version, backend="pread", verify="all", threads=1) as found:
                self.states[version].check(found)
                assert found.dense == {"reader": tokens[version]}
                self.named |= {entry.segment.hex() for entry in found.manifest.chain}
        self.checked = head.version
        there = {p.stem for p in Path(path, "segments").glob("*.cnrs")}
        # Those who live take back what they published; only the dead leave something.
        left = len(there - self.named)
        assert left <= self.killed, f"{left} segments lie about, and {self.killed} ranks were killed"
        findings = cnrcheck.check_path(path)
        assert cnrcheck.verdict(findings) == "sound", "\n".join(map(str, findings))
        report = cnrfmt.verify(path, threads=1)
        assert report.verdict == "sound", "\n".join(map(str, report.findings))

    def _learn(self, head: int) -> dict[int, int]:
        """Whose the versions up to the head are; learns what those that are new say."""
        assert len(self.tokens) <= head + 1, f"versions were lost: {len(self.tokens)} were there, {head + 1} are"
        for version in range(len(self.tokens), head + 1):
            with cnrfmt.open(self.place.path, version=version, backend="pread", threads=1) as found:
                assert found.step is not None
                self.tokens[version] = found.step
                before = self.states.get(version - 1, workload.State())
                self.states[version] = before.after(found.step, delta=version > 0 and workload.is_delta(found.step))
        assert len(set(self.tokens.values())) == len(self.tokens), f"an attempt was committed twice: {self.tokens}"
        return self.tokens


def _write(place: Place, meet: Path, rank: int, ranks: int, tokens: list[int], fs: Fs | None, oracle: Oracle) -> None:
    """A rank: versions, one after the other, until one fails."""
    with FileCoordinator(meet, rank, ranks, timeout=PATIENCE / 2) as coordinator:
        for token in tokens:
            try:
                manifest = workload.attempt(coordinator, place.path, token, fs)
            except (CommitError, cnrfmt.CommitUnknownError) as error:
                oracle.journal.write(token=token, rank=rank, refused=type(error).__name__)
                return
            assert manifest.step == token
            oracle.journal.write(token=token, rank=rank, version=manifest.version)


def warm_up(folder: Path) -> float:
    """Does everything once, so that forked processes have what they need; gives the seconds of a typical attempt."""
    path, durations, state = str(folder / "warm-run"), [], workload.State()
    for token in (10, 11, 12, 13):
        started = time.monotonic()
        workload.attempt(SingleRank(), path, token, None)
        durations.append(time.monotonic() - started)
        state = state.after(token, delta=token > 10)
    with cnrfmt.open(path, threads=1) as found:
        state.check(found)
    cnrcheck.check_path(path)
    cnrfmt.verify(path, threads=1)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads can't be forked safely"
    gc.freeze()
    return sorted(durations)[len(durations) // 2]


def _live_in(home: Path, number: int, seed: int, kills: int, typical: float) -> Counter[str]:
    place = Place("directory", str(home / "run"), home / "journal", mmap.mmap(-1, 1), os.getpid())
    life = Life(number, seed, place, home / "meet", moment=RANKS * ATTEMPTS * typical)
    try:
        life.live(kills)
    except Exception as error:
        error.add_note(f"the directory and its journal are kept in {home}")
        raise
    finally:
        life.journal.close()
    return life.counts


LIVES = Lives("ranks", __doc__, KILLS_IN_A_LIFE, warm_up, _live_in)


def main(arguments: list[str] | None = None) -> int:
    """Lives one life, or as many as it takes; the exit status."""
    return LIVES.main(arguments)


if __name__ == "__main__":
    LIVES.run()
