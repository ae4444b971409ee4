"""Runs of a trainer in any order of events, held against an oracle that copies the whole model each time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import cnrfmt
from cnrfmt import CheckpointManager, CnrError, Keep
from tests.checkpointing.support import Disk, Trainer, check, sound


class Run(RuleBasedStateMachine):
    """Whatever happened before, a version that was acknowledged says what the model said at its save."""

    @initialize(
        policy=st.sampled_from(["full", "one-shot", "consecutive", "intermittent"]),
        mode=st.sampled_from(["encode", "copy"]),
        most=st.sampled_from([4, 5, 32]),
        keep=st.sampled_from([None, 1, 2, Keep(every_steps=3)]),
        single=st.booleans(),
        seed=st.integers(0, 9),
    )
    def begin(self, policy: str, mode: Any, most: int, keep: Any, single: bool, seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / ("model.cnr" if single else "run")
        self.options = {"policy": policy, "mode": mode, "most_segments": most, "keep": None if single else keep}
        self.trainer, self.said = Trainer(seed, rows=12), dict[int, Any]()
        self.disk = Disk()
        self.manager = self._manager()

    def _manager(self, **options: Any) -> CheckpointManager:
        return CheckpointManager(self.path, bits=32, grace=0, fs=self.disk, **self.options, **options)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()
            if self.said:
                sound(self.path)
            self.folder.cleanup()

    @rule(share=st.sampled_from([0.1, 0.5]))
    def train(self, share: float) -> None:
        self.trainer.train(self.manager, share)

    @rule(key=st.integers(-5, 5))
    def admit(self, key: int) -> None:
        self.trainer.admit(self.manager, key)

    @rule(key=st.integers(-7, 5))
    def evict(self, key: int) -> None:
        self.trainer.evict(self.manager, key)

    @rule(rows=st.integers(20, 30))
    def grow(self, rows: int) -> None:
        self.trainer.grow(self.manager, rows)

    @rule()
    def save(self) -> None:
        version = self.manager.save(self.trainer.step, self.trainer.tables()).wait()
        assert version is not None
        self.said[version] = self.trainer.copy()
        check(self.path, version, self.said[version])

    @rule(failing=st.sampled_from(["sync", "names"]))
    def fail(self, failing: str) -> None:
        self.disk.failing = failing
        pending = self.manager.save(self.trainer.step, self.trainer.tables())
        now = self.trainer.copy()
        try:
            version = pending.wait()
            assert version is not None
            self.said[version] = now
        except CnrError:
            with_it = _head(self.path)
            if with_it is not None and with_it not in self.said and failing == "names":
                # It can't be told whether it counts; if it does, it is what was saved.
                self.said[with_it] = now
        finally:
            self.disk.failing, self.disk.armed = None, False

    @precondition(lambda self: self.said)
    @rule(older=st.booleans(), lazy=st.booleans(), data=st.data())
    def restart(self, older: bool, lazy: bool, data: Any) -> None:
        self.manager.close()
        self.manager = self._manager()
        with cnrfmt.open(self.path) as ck:
            versions = [v for v in ck.versions if v in self.said]
            newest = ck.version
        wanted = data.draw(st.sampled_from(versions)) if older and versions else None
        restored = self.manager.restore(version=wanted, lazy=lazy)
        assert restored is not None
        assert restored.version == (newest if wanted is None else wanted)
        self.trainer.take_over(restored)

    @precondition(lambda self: self.said)
    @rule(what=st.sampled_from(["tag", "compact", "collect"]))
    def meddle(self, what: str) -> None:
        self.manager.flush()
        if what == "tag":
            if self.path.is_dir():
                cnrfmt.tag(self.path, "prod")
        elif what == "compact":
            cnrfmt.compact(self.path)
        elif self.path.is_dir():
            cnrfmt.collect(self.path, grace=0)

    @precondition(lambda self: self.said)
    @rule()
    def look(self) -> None:
        self.manager.flush()
        with cnrfmt.open(self.path) as ck:
            versions = ck.versions
        for version in versions:
            if version in self.said:
                check(self.path, version, self.said[version])


def _head(path: Path) -> int | None:
    try:
        with cnrfmt.open(path) as ck:
            return ck.version
    except CnrError:
        return None


def test_runs_in_any_order_of_events() -> None:
    # What fails here is a story of a few events already, and takes minutes to make shorter.
    phases = [phase for phase in settings().phases if phase != Phase.shrink]
    run_state_machine_as_test(Run, settings=settings(phases=phases, stateful_step_count=25))
