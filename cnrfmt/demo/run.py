"""The demo itself: runs side by side, some of which die, and what became of them."""

from __future__ import annotations

import json as json_module
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cnrfmt.checkpointing.bits import bits_for
from cnrfmt.demo import quality, trainer
from cnrfmt.demo.model import Model
from cnrfmt.demo.orders import Dataset, load_orders
from cnrfmt.demo.quality import Quality
from cnrfmt.demo.report import Screen
from cnrfmt.demo.store import RESTORES, Store, is_demo
from cnrfmt.errors import CnrError, UsageError

MAX_CHECKPOINTS = 200
"""A chain holds 256 segments; the demo keeps well below."""


def run_demo(
    path: str | os.PathLike[str] = "demo.cnr",
    *,
    bits: int | None = None,
    policy: str = "consecutive",
    checkpoint_every: int = 500,
    seed: int = 0,
    plot: str | os.PathLike[str] | None = None,
    json: bool = False,
    threads: int | None = None,
    users: int | None = None,
) -> dict[str, Any]:
    """Trains on real orders without interruption, and killed half-way and restored; and compares.

    Leaves the container behind. Takes some 30 seconds on two cores.

    Parameters
    ----------
    path
        The container to write, a single file. One that an earlier demo left there is overwritten.
    bits
        Bits per element of the stored weights: what `Quantize` takes, or 32 for raw float32. None: weights are on a
        grid, and beside that run there is another one that is killed, with rows of as many bits as Check-N-Run has them
        for as many restores.
    policy
        What a checkpoint writes: a policy's name, as `CheckpointManager` takes it. With ``full``, and in time with
        ``intermittent``, the file is written anew and has the versions since then.
    checkpoint_every
        Orders between two checkpoints.
    seed
        For the model's start, the negatives and the evaluation.
    plot
        Where to draw the result, as a file that matplotlib knows the ending of.
    json
        Print the result as JSON to the standard output, and all else to the standard error.
    threads
        How many threads reading and writing may use.
    users
        Take the first so many users alone.

    Returns
    -------
    dict
        What was printed, as JSON can say it.

    Raises
    ------
    UsageError
        A package of the extra ``demo`` is missing, or an argument doesn't fit.
    CnrError
        A trainer ended as it shouldn't.
    """
    started = time.perf_counter()
    store = Store(Path(path), bits, policy, threads)
    _check(store, users)
    draw = None if plot is None else _drawing(Path(plot))
    screen = Screen(to_stderr=json)
    data = load_orders(users=users)
    orders = len(data.stream)
    if not orders / MAX_CHECKPOINTS <= checkpoint_every <= orders // 2:
        raise UsageError(
            f"checkpoint_every must be {-(-orders // MAX_CHECKPOINTS)} to {orders // 2} orders, "
            f"found {checkpoint_every}"
        )
    die_at = (orders // 2 // checkpoint_every) * checkpoint_every + checkpoint_every // 2
    loaded = time.perf_counter()
    screen.data(data)
    # Here, before the trainer starts, which then finds the machine code in the cache.
    for one in (store, *_stores_beside(store)):
        trainer.rehearse(one, data, checkpoint_every)
    compiled = time.perf_counter()
    screen.plan(store, checkpoint_every, die_at, compiled - loaded)
    _remove_earlier(store.path)
    run = partial(_interrupted, every=checkpoint_every, seed=seed, users=users, die_at=die_at)
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(2, "beside") as others,
        screen.progress(orders) as bars,
    ):
        reference = others.submit(_uninterrupted, data, seed, bars.uninterrupted)
        stores = [replace(one, path=Path(folder) / "beside.cnr") for one in _stores_beside(store)]
        beside = [(one, others.submit(run, one, None, lambda order: None)) for one in stores]
        interrupted = run(store, screen, bars.interrupted)
        uninterrupted, training_seconds = reference.result()
        compared = [
            {
                "bits": one.bits,
                "checkpoints": found.result().checkpoints,
                "totals": _totals(found.result().checkpoints, one.path),
                "quality": _compare(data, uninterrupted, found.result().quality),
            }
            for one, found in beside
        ]
    checkpoints = interrupted.checkpoints
    result: dict[str, Any] = {
        "path": str(store.path),
        "encoding": "grid" if bits is None else "rowwise",
        "bits": bits,
        "policy": policy,
        "checkpoint_every": checkpoint_every,
        "seed": seed,
        "data": {
            "orders": orders,
            "lines": len(data.stream.products),
            "users": data.users,
            "products": data.products,
            "pairs": data.pairs,
            "held_out_lines": len(data.held_out.products),
        },
        "checkpoints": checkpoints,
        "death": interrupted.death,
        "totals": _totals(checkpoints, store.path),
        "quality": _compare(data, uninterrupted, interrupted.quality),
        "beside": compared,
        "seconds": {
            "load": loaded - started,
            "compile": compiled - loaded,
            "uninterrupted_training": training_seconds,
            "checkpoint_stalls": sum(c["stall"] for c in checkpoints),
            "total": time.perf_counter() - started,
        },
    }
    if draw is not None:
        draw(result)
        result["plot"] = str(plot)
    result["seconds"]["total"] = time.perf_counter() - started
    screen.result(result)
    if json:
        sys.stdout.write(json_module.dumps(result, indent=2) + "\n")
    return result


def _stores_beside(store: Store) -> list[Store]:
    """What a grid is compared with: rows of as many bits as go with the restores."""
    return [replace(store, bits=bits_for(RESTORES))] if store.bits is None else []


def _totals(checkpoints: list[dict[str, Any]], path: Path) -> dict[str, Any]:
    """What all checkpoints of a container took."""
    written = sum(sum(c["bytes"].values()) for c in checkpoints)
    full = sum(c["full_bytes"] for c in checkpoints)
    return {"bytes": written, "full_bytes": full, "ratio": full / written, "file_bytes": path.stat().st_size}


def _check(store: Store, users: int | None) -> None:
    if users is not None and users < 2:
        raise UsageError(f"users must be at least 2, found {users}")
    if not store.path.absolute().parent.is_dir():
        raise UsageError(f"{store.path.parent}: is no directory")
    if store.path.is_dir():
        raise UsageError(f"{store.path}: is a directory; the demo writes a single file")
    if store.path.suffix != ".cnr":
        raise UsageError(f"{store.path}: the demo writes a single file; give it a name in .cnr")
    if store.path.exists() and not is_demo(store.path):
        raise UsageError(f"{store.path}: exists, and no demo made it; give another path, or remove it")
    store.manager().close()


def _remove_earlier(path: Path) -> None:
    """Removes what an earlier demo left, so that this one's versions start at 0."""
    path.unlink(missing_ok=True)


def _drawing(path: Path) -> Callable[[dict[str, Any]], None]:
    """What draws a result there; raises `UsageError` at once where it can't."""
    try:
        from cnrfmt.demo import plot
    except ImportError as error:
        raise UsageError("plot needs matplotlib; run: pip install 'cnrfmt[plot]'") from error
    plot.check_path(path)
    return lambda result: plot.draw(result, path)


def _uninterrupted(data: Dataset, seed: int, progress: Callable[[int], None]) -> tuple[Quality, float]:
    """Trains without checkpoints to the end; gives the quality and the seconds of training."""
    start = time.perf_counter()
    model = Model(data, seed)
    while model.order < len(data.stream):
        model.train(min(model.order + trainer.BLOCK, len(data.stream)))
        progress(model.order)
    seconds = time.perf_counter() - start
    return quality.judge(model, seed), seconds


@dataclass
class _Interrupted:
    checkpoints: list[dict[str, Any]]
    death: dict[str, Any]
    quality: Quality


def _interrupted(
    store: Store,
    screen: Screen | None,
    progress: Callable[[int], None],
    *,
    every: int,
    seed: int,
    users: int | None,
    die_at: int,
) -> _Interrupted:
    """Trains in a process that kills itself, and then in one that goes on; gives what they told.

    Without a screen nothing is shown of it.
    """
    command = [sys.executable, "-m", "cnrfmt.demo.worker", str(store.path)]
    command += [f"--policy={store.policy}", f"--every={every}", f"--seed={seed}"]
    command += [] if store.bits is None else [f"--bits={store.bits}"]
    command += [] if store.threads is None else [f"--threads={store.threads}"]
    command += [] if users is None else [f"--users={users}"]
    checkpoints: list[dict[str, Any]] = []
    death: dict[str, Any] = {"order": die_at, "signal": int(signal.SIGKILL)}

    def listen(process: subprocess.Popen[str]) -> dict[str, Any]:
        """Follows a trainer to its end; gives the last that it told, and its exit code."""
        assert process.stdout is not None
        told: dict[str, Any] = {}
        for line in process.stdout:
            told = json_module.loads(line)
            if told["event"] == "progress":
                progress(told["order"])
            elif told["event"] == "checkpoint":
                checkpoints.append({key: told[key] for key in told if key != "event"})
                if screen is not None:
                    screen.checkpoint(told)
            elif told["event"] == "restored":
                death["restored_version"], death["restored_order"] = told["version"], told["order"]
                death["restore_seconds"] = told["seconds"]
                death["lost_orders"] = die_at - told["order"]
                if screen is not None:
                    screen.restored(death)
        return {**told, "code": process.wait()}

    with _process([*command, f"--die-at={die_at}"]) as process:
        _expect(listen(process), "dying", -signal.SIGKILL)
    if screen is not None:
        screen.died(death)
    with _process(command) as process:
        last = listen(process)
    _expect(last, "finished", 0)
    found = Quality(np.array(last["recall"]), np.array(last["loss"]), np.array(last["terms"], np.int64))
    return _Interrupted(checkpoints, death, found)


def _expect(last: dict[str, Any], event: str, code: int) -> None:
    if (last.get("event"), last["code"]) != (event, code):
        raise CnrError(
            f"the demo's trainer was to end {event}, with exit code {code}; it ended {last.get('event', 'mute')}, "
            f"with exit code {last['code']}; what it wrote to the standard error says why"
        )


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A child process that never outlives the block."""
    # The child finds this library where the parent did, also in a checkout that isn't installed.
    here = str(Path(__file__).resolve().parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # In a session of its own it isn't hit by an interrupt from the keyboard, which is this process's to handle.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _compare(data: Dataset, uninterrupted: Quality, interrupted: Quality) -> dict[str, Any]:
    recall = quality.recall_difference(interrupted, uninterrupted)
    loss = quality.loss_difference(interrupted, uninterrupted)
    return {
        "popularity_recall": quality.popularity_recall(data),
        "favourites_recall": quality.favourites_recall(data),
        "uninterrupted": {
            "recall": uninterrupted.mean_recall,
            "log_loss": uninterrupted.mean_loss,
        },
        "interrupted": {"recall": interrupted.mean_recall, "log_loss": interrupted.mean_loss},
        "recall_difference": {"value": recall.value, "standard_error": recall.error},
        "log_loss_difference": {"relative": loss.value, "standard_error": loss.error},
    }
