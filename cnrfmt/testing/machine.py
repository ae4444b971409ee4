"""A hypothesis state machine over the public API, with crashes and reopenings as steps.

`ContainerMachine` saves, appends, merges, tags, collects, checkpoints, reads, refreshes and follows, lets processes end
and calls be refused in the midst of all that, cuts the power where its disk can do that, and compares with a plain
model after each step. A subclass gives it another disk::

    class Machine(ContainerMachine):
        make_disk = MyDisk

    TestMachine = Machine.TestCase
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cnrfmt.checkpoint import Checkpoint
from cnrfmt.errors import CommitUnknownError, DamagedError, StorageError, VersionExpiredError
from cnrfmt.reader import load
from cnrfmt.reader import open as open_checkpoint
from cnrfmt.storage.fs import Fs
from cnrfmt.testing.checks import changed_rows, check_bits, check_rows, check_whole, learn
from cnrfmt.testing.commits import UPKEEP, Commit, Maker, Place, State, baseline, delta
from cnrfmt.testing.disk import Disk, FolderDisk
from cnrfmt.testing.followers import REFUSED, Followers
from cnrfmt.testing.misuse import MISUSES, refuse
from cnrfmt.testing.process import Killed, Process
from cnrfmt.verification import verify

_SEED = st.integers(0, (1 << 32) - 1)
_CALL = st.integers(1, 40) | st.integers(-8, -1)
"""Which call of a commit goes wrong: some more than it makes; a negative number counts from where all is prepared."""
_PREPARED = ("manifest-synced", "file-synced")
"""The points after which a version comes to count."""
_CODES = st.sampled_from([errno.EIO, errno.ENOSPC, errno.EDQUOT])


class ContainerMachine(RuleBasedStateMachine):
    """The machine. `make_disk` gives each run a disk of its own."""

    make_disk: ClassVar[Callable[[], Disk]] = FolderDisk
    outcomes: ClassVar[Counter[str]] = Counter()
    """How many steps were taken, and how commits and crashes have ended: whether a run has tried what it should."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = type(self).make_disk()
        self.state = State()
        # What a loss of power may leave: the last acknowledged state, and those of pending commits after it.
        self.possible = [self.state]
        self.steps = 0
        self.reader: Checkpoint | None = None
        self.reading = self.state
        self.followers: Followers | None = None
        self.path = ""

    def teardown(self) -> None:
        """Lets go of the disk."""
        self._leave_reader()
        self._leave_followers()
        self.disk.close()

    @initialize(name=st.sampled_from(["model.cnr", "model"]))
    def choose_kind(self, name: str) -> None:
        """A single file or a directory."""
        self.path = os.path.join(self.disk.folder, name)
        self.single = name.endswith(".cnr")

    @invariant()
    def count(self) -> None:
        """What holds after each step is checked by the step, which knows what may have changed."""
        self.outcomes["steps"] += 1

    # Commits.

    @rule(seed=_SEED)
    def save(self, seed: int) -> None:
        """A baseline."""
        self._succeed(self._make(baseline, Random(seed)))

    @precondition(lambda self: self.state.model.versions)
    @rule(seed=_SEED)
    def append(self, seed: int) -> None:
        """A delta."""
        self._succeed(self._make(delta, Random(seed)))

    @precondition(lambda self: self.state.model.versions)
    @rule(seed=_SEED)
    def keep_up(self, seed: int) -> None:
        """A merge, a tag, a collection, or a checkpoint of a training run that goes on."""
        random = Random(seed)
        self._succeed(self._make(random.choice(UPKEEP), random))

    @rule(
        seed=_SEED, call=_CALL, torn=st.sampled_from([0.0, 0.3, 0.9, 1.0]), power=st.sampled_from([False, False, True])
    )
    def commit_and_die(self, seed: int, call: int, torn: float, power: bool) -> None:
        """The process ends before some call of a commit; perhaps the machine loses power then."""
        commit = self._any(Random(seed))
        process = Process(self.disk.fs, ends_at=abs(call), torn=torn, counted_from=_PREPARED if call < 0 else ())
        try:
            version = commit.call(fs=process.fs)
        except Killed:
            process.end()
            self._settle(commit, "killed")
        else:
            self._acknowledged(commit, version)
        if process.killed:
            process.end()
            if power and self.disk.can_lose_power:
                if self.state.model.versions:
                    # What is pending is seen before it is lost.
                    self.follow(seed)
                self._lose_power(Random(seed))
        self._check_head()

    @rule(seed=_SEED, call=_CALL, code=_CODES, lasting=st.booleans())
    def commit_refused(self, seed: int, call: int, code: int, lasting: bool) -> None:
        """Some call of a commit is refused."""
        commit = self._any(Random(seed))
        process = Process(
            self.disk.fs,
            refused_at=abs(call),
            code=code,
            lasting=lasting,
            counted_from=_PREPARED if call < 0 else (),
        )
        try:
            version = commit.call(fs=process.fs)
        except CommitUnknownError:
            self._settle(commit, "unknown")
        except StorageError as error:
            self._failed(commit, error, code)
        else:
            self._acknowledged(commit, version)
        # Refused or not, a commit that has ended holds nothing: there is no process to be ended for that.
        assert process.open_handles == 0, f"{process.open_handles} handles left open after {process.refused}"
        self._check_head()

    @precondition(lambda self: self.disk.can_lose_power and self.state.model.versions)
    @rule(seed=_SEED)
    def lose_power(self, seed: int) -> None:
        """The machine stops; what was acknowledged is there when it starts again."""
        if len(self.possible) > 1:
            self.follow(seed)
        self._lose_power(Random(seed))
        self._check_head()

    @precondition(lambda self: self.state.model.versions)
    @rule(name=st.sampled_from(sorted(MISUSES)), seed=_SEED)
    def misuse(self, name: str, seed: int) -> None:
        """A call that can't be done changes nothing."""
        refuse(name, self.path, self.disk.fs, self.state.model, Random(seed))
        self._check_head()

    # Readers.

    @precondition(lambda self: self.state.model.versions)
    @rule(backend=st.sampled_from(["mmap", "pread"]), verified=st.sampled_from(["none", "touched", "all"]))
    def open_reader(self, backend: Any, verified: Any) -> None:
        """A reader that stays open."""
        self._leave_reader()
        self._open_reader(backend, verified)

    @precondition(lambda self: self.state.model.versions)
    @rule(seed=_SEED)
    def read(self, seed: int) -> None:
        """The reader reads what it opened, whatever was committed since, or is told that it was given up."""
        reader = self._open_reader() if self.reader is None else self.reader
        head = self.reading.model.versions[self.reading.model.head]
        try:
            for name in reader:
                check_rows(reader[name], head[name], Random(seed))
        except VersionExpiredError:
            assert reader.version not in self.state.model.versions, f"version {reader.version} stays, and has expired"
            self.outcomes["reads of a version that was given up"] += 1
            return
        self.outcomes["reads of an older version" if self.reading is not self.state else "reads of the head"] += 1

    @precondition(lambda self: self.state.model.versions)
    @rule()
    def refresh(self) -> None:
        """The reader moves on to the head, and tells what changed."""
        reader = self._open_reader() if self.reader is None else self.reader
        before, after = self.reading.model, self.state.model
        refreshed = reader.refresh()
        self.reading = self.state
        if reader.version == before.head:
            assert refreshed is None
            self.outcomes["refreshed, nothing new"] += 1
        else:
            assert refreshed is not None
            self.outcomes["refreshed"] += 1
            assert (refreshed.before, refreshed.version) == (before.head, after.head)
            old, new = before.versions[before.head], after.versions[after.head]
            assert set(refreshed.added) == set(new) - set(old)
            assert set(refreshed.dropped) == set(old) - set(new)
            for name, changed in refreshed.changed.items():
                if name in old:
                    assert changed_rows(old[name], new[name]) <= set(changed.rows.tolist()), f"changes of {name}"
        self._check_reader()

    @precondition(lambda self: self.state.model.versions)
    @rule(seed=_SEED)
    def open_old(self, seed: int) -> None:
        """Any version that is retained says what it always said, and what changed since is told."""
        random, state = Random(seed), self.state
        version = random.choice(sorted(state.model.versions))
        with open_checkpoint(self.path, version=version, backend="pread", threads=1, fs=self.disk.fs) as ck:
            self._check(ck, state, version)
        head = state.model.versions[state.model.head]
        with open_checkpoint(self.path, threads=1, fs=self.disk.fs) as ck:
            for name, old in state.model.versions[version].items():
                if name in head:
                    found = ck[name].changed(since=version)
                    rows, ids = set(found.rows.tolist()), set(head[name].ids)
                    assert changed_rows(old, head[name]) <= rows <= ids, f"changes of {name} since {version}"
                    if found.exact:
                        assert set(old.ids) - ids <= set(found.deleted.tolist()), f"deletions of {name}"

    @precondition(lambda self: self.state.model.versions)
    @rule(seed=_SEED)
    def load_into(self, seed: int) -> None:
        """`load` fills arrays."""
        random, head = Random(seed), self.state.model.versions[self.state.model.head]
        names = random.sample(sorted(head), random.randint(0, len(head)))
        out = {name: np.empty_like(head[name].array("weight")) for name in names if random.random() < 0.5}
        found = load(self.path, names, out=out, columns=True, threads=1, fs=self.disk.fs)
        for name in names:
            check_bits(found[name].values, head[name].array("weight"), f"{name} loaded")
            assert name not in out or found[name].values is out[name]

    @precondition(lambda self: self.state.model.versions)
    @rule()
    def verify(self) -> None:
        """A validation finds no damage, crashes or not."""
        report = verify(self.path, threads=1, fs=self.disk.fs)
        assert report.verdict == "sound", "\n".join(map(str, report.findings))
        assert report.versions == sorted(self.state.model.versions)

    @precondition(lambda self: self.state.model.versions)
    @rule(seed=_SEED)
    def follow(self, seed: int) -> None:
        """Live tables and a follower go on to the head, or say that it belongs to another history than they saw."""
        self._check_head()
        if self.followers is None:
            self.followers = Followers(self.path, self.state.model, fs=self.fs_afar() or self.disk.fs)
            return
        how = self.followers.follow(self.state.model, Random(seed))
        self.outcomes[how] += 1
        if how == REFUSED:
            self._leave_followers()

    # What the rules share.

    def fs_afar(self) -> Fs | None:
        """The calls of another machine on the disk, which goes on when this one loses power; None without one."""
        return None

    def _any(self, random: Random) -> Commit:
        makers: list[Maker] = [baseline]
        if self.state.model.versions:
            makers = [baseline, delta, delta, *UPKEEP]
        return self._make(random.choice(makers), random)

    def _make(self, maker: Maker, random: Random) -> Commit:
        self.steps += 1
        return maker(Place(self.path, self.disk.fs, self.single), self.state, random, self.steps)

    def _succeed(self, commit: Commit) -> None:
        version = commit.call(fs=self.disk.fs)
        assert version == commit.version, f"committed as version {version}, expected {commit.version}"
        self._acknowledged(commit, version)
        self._check_head()

    def _acknowledged(self, commit: Commit, version: int | None) -> None:
        if version is not None:
            found = [state for state in commit.stages if state.model.head == version]
            assert found, f"committed as version {version}, expected {commit.version}"
            self.state = found[0]
            self.possible = [self.state]
        self.outcomes["acknowledged"] += 1
        if version != commit.version:
            # What comes after a checkpoint may have been begun.
            self._settle(commit, "kept for another time")

    def _failed(self, commit: Commit, error: StorageError, code: int) -> None:
        assert error.errno == code, f"expected the error {code} that was put in: {error}"
        if commit.goes_on:
            self._settle(commit, "refused")
            return
        assert self._who() == self.state.who, f"refused, and committed all the same: {error}"
        self.outcomes["refused"] += 1

    def _settle(self, commit: Commit, how: str) -> None:
        """After a commit that wasn't acknowledged and may have happened: the head tells."""
        who, before = self._who(), self.state
        for stage in commit.stages:
            if (stage.who or (-1,))[0] > (before.who or (-1,))[0] and who is not None and stage.model.head <= who[0]:
                self.state = stage
                self.possible.append(stage)
        self.outcomes[f"{how}, {'not begun' if self.state is before else 'pending'}"] += 1
        assert who == self.state.who, f"the head is {who}, expected {self.state.who} or what {commit.version} says"

    def _lose_power(self, random: Random) -> None:
        self._leave_reader()
        self.disk.lose_power(random)
        who = self._who()
        found = [state for state in self.possible if state.who == who]
        expected = [state.who for state in self.possible]
        assert found, f"after a loss of power the head is {who}, expected one of {expected}"
        if len(self.possible) == 1:
            self.outcomes["power lost, nothing pending"] += 1
        else:
            self.outcomes[f"power lost, pending version {'lost' if found[0] is self.possible[0] else 'kept'}"] += 1
        self.state = found[0]
        self.possible = found
        if self.fs_afar() is None:
            self._leave_followers()
        elif self.followers is not None and self.followers.version > (who or (-1,))[0]:
            self.followers.lost = True
            self.outcomes["power lost, with it what was followed"] += 1

    def _who(self) -> tuple[int, int | None] | None:
        """Version and step of the head; None where no version was ever committed."""
        try:
            with open_checkpoint(self.path, backend="pread", threads=1, fs=self.disk.fs) as ck:
                return ck.version, ck.step
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
        except DamagedError as error:
            if error.rule != "directory-layout":
                raise
        return None

    def _check_head(self) -> None:
        """The container has just the versions that it should have, and the head is whole."""
        if not self.state.model.versions:
            assert self._who() is None
            return
        with open_checkpoint(self.path, backend="pread", threads=1, fs=self.disk.fs) as ck:
            expected = sorted(self.state.model.versions)
            assert list(ck.versions) == expected, f"versions {ck.versions}, expected {expected}"
            assert ck.tags == self.state.tags, f"tags {ck.tags}, expected {self.state.tags}"
            learn(ck, self.state.model.versions[self.state.model.head])
            self._check(ck, self.state, self.state.model.head)

    def _open_reader(self, backend: Any = "mmap", verified: Any = "touched") -> Checkpoint:
        self.reader = open_checkpoint(self.path, backend=backend, verify=verified, threads=1, fs=self.disk.fs)
        self.reading = self.state
        self._check_reader()
        return self.reader

    def _check_reader(self) -> None:
        assert self.reader is not None
        self._check(self.reader, self.reading, self.reading.model.head)

    def _check(self, ck: Checkpoint, state: State, version: int) -> None:
        dense, metadata, step = state.others[version]
        assert (ck.version, ck.step, ck.metadata) == (version, step, metadata)
        assert set(ck.dense) == set(dense), f"dense {sorted(ck.dense)}, expected {sorted(dense)}"
        for name, value in dense.items():
            if isinstance(value, np.ndarray):
                check_bits(ck.dense[name], value, f"dense {name}")
            else:
                assert ck.dense[name] == value, f"dense {name}"
        check_whole(ck, state.model.versions[version])

    def _leave_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def _leave_followers(self) -> None:
        if self.followers is not None:
            self.followers.close()
            self.followers = None
