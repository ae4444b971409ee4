"""The simulator: the paper's trade-offs, sums done plainly, and the same figures each time. No test looks at a time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.sim import measuring
from tools.sim.__main__ import main
from tools.sim.cluster import COPY, RAW, Assumed, Measured, Timeline, Way, plan, timeline
from tools.sim.failures import expected_lost_minutes, expected_overhead, read_seconds, simulate
from tools.sim.measuring import BITS, as_options, measure
from tools.sim.report import Simulation, table

ROOT = Path(__file__).resolve().parents[2]
MEASURED = Measured(
    encode={2: 1.4e9, 3: 1.9e9, 4: 2e9, 8: 5.5e9, RAW: 3.5e9},
    gather={2: 1.2e9, 3: 1.6e9, 4: 1.7e9, 8: 4.8e9, RAW: 3.5e9},
    copy=9e9,
    disk=2.5e9,
)
RATES = as_options(MEASURED).split()


def made(**facts: Any) -> Timeline:
    """A timeline of checkpoints that are all alike."""
    every = {"gaps": 600.0, "stalls": 2.0, "writes": 60.0, "nbytes": 1e12, "held": 1e12, "reads": 1e12} | facts
    return Timeline(**{name: np.full(4, value) for name, value in every.items()}, plain=1e12)


# The paper's trade-offs


def test_bytes_and_storage_are_reduced_as_in_the_paper() -> None:
    """6 to 17 times less bandwidth and 2.5 to 8 times less storage, for 8 to 2 bits."""
    found = {bits: plan(Assumed(), Way("intermittent", bits), 30.0, 12) for bits in BITS}
    bandwidth = {bits: p.plain_bytes / p.costs.average_written for bits, p in found.items()}
    storage = {bits: p.plain_bytes / p.costs.peak_held for bits, p in found.items()}
    assert 6 < bandwidth[8] < 8
    assert 17 < bandwidth[2] < 26
    assert 2.2 < storage[8] < 2.6
    assert 7.5 < storage[2] < 8.5
    assert bandwidth[8] < bandwidth[4] < bandwidth[3] < bandwidth[2]
    kinds = "".join(c.kind[0] for c in found[4].checkpoints)
    assert kinds == "bsssssssbsss"


def test_more_often_is_more_bytes_and_less_lost() -> None:
    sim = Simulation(MEASURED, Assumed(), seed=1, runs=50)
    often, seldom = (sim.at(Way("intermittent", 3), 256, minutes) for minutes in (5.0, 60.0))
    assert often[0].nbytes.sum() / often[0].gaps.sum() > 2 * seldom[0].nbytes.sum() / seldom[0].gaps.sum()
    assert often[1].lost_minutes < seldom[1].lost_minutes / 4
    assert often[1].stall_share > 2 * seldom[1].stall_share


def test_a_large_cluster_gains_most() -> None:
    sim = Simulation(MEASURED, Assumed(), seed=1, runs=50)

    def overhead(way: Way, ranks: int) -> float:
        return sim.at(way, ranks, sim.best(way, ranks))[1].overhead

    assert [sim.bits(ranks) for ranks in (8, 64, 128, 256, 512, 1024)] == [2, 2, 3, 3, 4, 4]
    assert overhead(Way("intermittent", 4), 1024) < overhead(COPY, 1024) / 3
    # Full float32 checkpoints of a large cluster can't be written as often as they should.
    found, _ = sim.at(COPY, 1024, 5.0)
    assert found.gaps.mean() > 1000
    assert found.writes.max() == pytest.approx(found.nbytes[0] / 20e9)


def test_stalls_are_rows_over_rates() -> None:
    assumed = replace(Assumed(), skew=0.0)
    shard = assumed.shard
    whole = shard.count * shard.plain_bytes / (8 * 0.7)
    assert timeline(MEASURED, assumed, COPY, 8, 30.0, seed=0).stalls == pytest.approx(whole / 9e9)
    assert timeline(MEASURED, assumed, Way("full", 8), 8, 30.0, seed=0).stalls == pytest.approx(whole / 5.5e9)
    later = timeline(MEASURED, assumed, Way("consecutive", 4), 8, 30.0, seed=0).stalls[1:]
    assert later == pytest.approx(0.26 * whole / 1.7e9, rel=1e-6)
    # The slowest of many ranks holds them up, save where all rows are written.
    many = timeline(MEASURED, Assumed(), Way("consecutive", 4), 1024, 30.0, seed=0)
    assert many.stalls[0] == pytest.approx(whole / 2e9)
    assert 1.2 < many.stalls[1] / later[0] < 1.7


# Failures


def test_lost_work_is_what_is_to_be_expected() -> None:
    assumed = replace(Assumed(), failures=1 / 40, run_hours=400.0)
    for found in (made(), made(stalls=100.0), made(writes=600.0), made(gaps=300.0, writes=10.0, stalls=0.0)):
        outcome = simulate(MEASURED, assumed, found, 8, seed=3, runs=200)
        # Some 2,000 failures, each of which loses up to a gap or two.
        assert outcome.failures == pytest.approx(10, rel=0.15)
        assert outcome.lost_minutes == pytest.approx(expected_lost_minutes(found), rel=0.06)
        assert outcome.overhead == pytest.approx(expected_overhead(MEASURED, assumed, found, 8), rel=0.15)


def test_a_plain_walk_through_time_agrees() -> None:
    """The same failures, but time goes by second by second."""
    gaps, stalls, writes = (np.array(x, float) for x in ([90, 120, 60], [5, 1, 9], [50, 20, 60]))
    found = Timeline(gaps, stalls, writes, gaps, gaps, np.zeros(3), 1.0)
    assumed = replace(Assumed(), failures=1 / 0.3, run_hours=8.0, restart_minutes=1.0)
    outcome = simulate(MEASURED, assumed, found, 8, seed=9, runs=20)

    rng = np.random.default_rng([9, 8, 20])
    rate, end = assumed.failure_rate(8) / 3600, 3600 * assumed.run_hours
    failures = 0
    lost = stalled = 0.0
    # Of which any number adds up without rounding.
    step = 1 / 16
    for _ in range(20):
        now, k = 0.0, 0
        while now < end:
            life = rng.exponential(1 / rate)
            fails = life < end - now
            life = min(life, end - now)
            at, saved, gap, pause = 0.0, 0.0, 0.0, 0.0
            trained, number, kept = 0.0, k, k
            waiting: list[tuple[float, float, int]] = []
            while at < life:
                at += step
                if pause > 0:
                    pause -= step
                    stalled += step
                else:
                    trained, gap = trained + step, gap + step
                    if gap >= gaps[number % 3]:
                        pause = stalls[number % 3]
                        waiting.append((at + pause + writes[number % 3], trained, number + 1))
                        number, gap = number + 1, 0.0
                while waiting and waiting[0][0] <= at:
                    _, saved, kept = waiting.pop(0)
            now += life
            k = kept
            if fails:
                failures += 1
                lost += trained - saved
                now += min(60.0, end - now)
    assert outcome.failures == failures / 20
    assert outcome.lost_minutes == pytest.approx(lost / failures / 60, rel=0.01)
    assert outcome.stall_share * 20 * end == pytest.approx(stalled, rel=0.02)


def test_reading_is_as_fast_as_disks_or_storage() -> None:
    found = made()
    assert read_seconds(MEASURED, Assumed(), found, 4) == pytest.approx(1e12 / 1e10)
    assert read_seconds(MEASURED, Assumed(), found, 1024) == pytest.approx(1e12 / 20e9)


# The command


def test_the_same_command_gives_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, picture = tmp_path / "t.txt", tmp_path / "p.png"
    arguments = ["--seed", "4", "--runs", "2", "--rank-gb", "16", *RATES]
    assert main([*arguments, "--text", str(text), "--plot", str(picture)]) == 0
    told = capsys.readouterr().out
    assert text.read_text() == told
    assert picture.read_bytes().startswith(b"\x89PNG")
    command = told.splitlines()[0].removeprefix("$ python -m tools.sim ").split()
    assert main(command) == 0
    assert capsys.readouterr().out == told
    for line in Assumed(rank_bytes=16e9).words():
        assert f"  {line}\n" in told
    for ranks in (8, 1024):
        assert f"  {ranks} ranks, {ranks * 0.016:.2f} TB: copy, then full, float32" in told


def test_rates_are_measured_where_none_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_COPIED", 1 << 20)
    monkeypatch.setattr("cnrfmt.checkpointing.costs.rates._TABLE", 1 << 14)
    monkeypatch.setattr("cnrfmt.checkpointing.costs.rates._ROUNDS", 1)
    monkeypatch.setattr("cnrfmt.checkpointing.costs.rates._WRITE_SECONDS", 0.01)
    found = measure(tmp_path, 16, 2)
    assert set(found.encode) == set(found.gather) == set(BITS)
    assert min(*found.encode.values(), *found.gather.values(), found.copy, found.disk) > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--copy", "5"], "are given together"),
        ([*RATES[:1], *["8=1"] * 5, *RATES[6:]], "a rate for each of"),
        ([*RATES[:1], *["fast"] * 5, *RATES[6:]], "take BITS=MB/s"),
        ([*RATES[:-1], "0"], "rates are above 0"),
        (["--runs", "0"], "0 is less than 1"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_it_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "tools.sim", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "docs/images/checkpoint_tradeoffs.png" in done.stdout


def test_columns_stand_below_each_other() -> None:
    assert table(["", "a"], [["x", "10"], ["long", "7"]]) == ["       a", "x     10", "long   7"]
