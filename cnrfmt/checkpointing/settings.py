"""What a manager is told once, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, get_args

import numpy as np

from cnrfmt import parallel
from cnrfmt.checkpointing.bits import MOST_BITS, expected_restores
from cnrfmt.checkpointing.encoding_rule import Encoding, EncodingRule, encoding_rule
from cnrfmt.checkpointing.events import Listener
from cnrfmt.checkpointing.keeping.retention import Keep, keep_of
from cnrfmt.checkpointing.policies import Decision, Full, History, Policy, policy_for
from cnrfmt.encodings.quantize import Choices, Quantize
from cnrfmt.errors import UsageError
from cnrfmt.storage.container import SUFFIX

WhenBusy = Literal["wait", "skip", "replace"]
Start = Literal["resume", "anew"]
Mode = Literal["encode", "copy"]
StoredIn = Literal["memory", "container"]

MOST_SEGMENTS = 32
"""How many segments a chain has at the most, unless something else is said."""
LEAST_SEGMENTS = 4
"""A chain that is merged has room for this many segments at the least."""
MERGE_SHARE = 1.0
"""Of a run on a grid: merging writes about as much as the deltas do, and a chain takes up to twice its baseline."""


@dataclass(frozen=True)
class Settings:
    """How a `CheckpointManager` works; the parameters are described there."""

    policy: Policy
    rule: EncodingRule
    keep: Keep
    grace: float
    most_segments: int
    merge_share: float | None
    buffer_bytes: int
    mode: Mode
    when_busy: WhenBusy
    start: Start
    threads: int
    save_threads: int
    stored_values: StoredIn | None
    stored_bytes: int | None
    on_event: Listener | None


def settings(
    path: str,
    *,
    policy: str | Policy | Callable[[History], Decision] | None,
    encoding: Encoding,
    learning_rate: float | None,
    bits: int | None,
    expected: Any,
    failure_rate: float | None,
    run_hours: float | None,
    quantize: Choices,
    keep: int | Keep | None,
    grace: float | timedelta,
    most_segments: int,
    merge_share: float | Literal["auto"] | None,
    buffer_bytes: int,
    mode: Mode,
    when_busy: WhenBusy,
    start: Start,
    threads: int,
    save_threads: int | None,
    stored_values: StoredIn | None,
    stored_bytes: int | None,
    on_event: Listener | None,
) -> Settings:
    """The settings that a caller asks for; raises `UsageError` for what doesn't fit, or not together."""
    _one_of("mode", mode, Mode)
    _one_of("when_busy", when_busy, WhenBusy)
    _one_of("start", start, Start)
    if stored_values is not None:
        _one_of("stored_values", stored_values, StoredIn)
    _whole("buffer_bytes", buffer_bytes, 1)
    if stored_bytes is not None:
        _whole("stored_bytes", stored_bytes, 0)
    _whole("most_segments", most_segments, LEAST_SEGMENTS)
    if merge_share is not None and merge_share != "auto":
        is_number = isinstance(merge_share, int | float) and not isinstance(merge_share, bool)
        if not (is_number and 0 < merge_share < float("inf")):
            raise UsageError(f'merge_share must be a number above 0, "auto" or None, found {merge_share!r}')
    _check_quantize(quantize)
    legal = (*range(2, MOST_BITS + 1), 32)
    if bits is not None and (isinstance(bits, bool) or not isinstance(bits, int) or bits not in legal):
        raise UsageError(f"bits are 2 to 8, or 32 for raw rows, found {bits!r}; quantize= has all other ways")
    if isinstance(expected, np.integer | np.floating):
        expected = expected.item()
    if (failure_rate is None) != (run_hours is None):
        raise UsageError("failure_rate (per hour) and run_hours go together; give both, or expected_restores")
    if failure_rate is not None and run_hours is not None:
        if expected is not None:
            raise UsageError("give expected_restores, or failure_rate and run_hours; not both")
        expected = expected_restores(failure_rate, run_hours)
    rule = encoding_rule(encoding, bits, quantize, expected, learning_rate)
    if policy is None:
        policy = "consecutive" if rule.may_be_grid else "intermittent"
    found = policy_for(policy)
    rule = replace(rule, counts=not (found.needs_since_baseline or isinstance(found, Full)))
    if merge_share == "auto":
        # Where deltas are put on the baseline alone, there is nothing to add up.
        merges = rule.may_be_grid and not found.needs_since_baseline and is_directory(path)
        merge_share = MERGE_SHARE if merges else None
    if merge_share is not None and not is_directory(path):
        raise UsageError(f"{path}: chains of a single file aren't merged; merge_share= needs a directory")
    if keep is not None and not is_directory(path):
        raise UsageError(
            f"{path}: versions of a single file go when it is written anew, with each baseline; keep= needs a directory"
        )
    if on_event is not None and not callable(on_event):
        raise UsageError(f"on_event must be a function of an event, found {on_event!r}")
    return Settings(
        found,
        rule,
        keep_of(keep),
        _seconds(grace),
        most_segments,
        merge_share,
        buffer_bytes,
        mode,
        when_busy,
        start,
        parallel.thread_count(threads),
        parallel.thread_count(save_threads, "save_threads"),
        stored_values,
        stored_bytes,
        on_event,
    )


def is_directory(path: str) -> bool:
    """Whether the container there is a directory, or would be."""
    return os.path.isdir(path) if os.path.lexists(path) else not path.endswith(SUFFIX)


def check_for_ranks(found: Settings, path: str) -> None:
    """That several ranks may write with these settings; raises `UsageError`."""
    if found.when_busy != "wait":
        raise UsageError('with several ranks when_busy is "wait": what one of them skips, the others would wait for')
    if not is_directory(path):
        raise UsageError(f"{path}: a single file has one writer; give several ranks a directory")


def check_restore(options: Mapping[str, Any]) -> None:
    """That what a restore is asked for has the right shape; raises `UsageError`."""
    for name in ("verify_all", "strict", "columns", "convert", "lazy"):
        check_flag(name, options[name])
    for name in ("rows", "into", "rename", "remap", "resize", "order"):
        value = options[name]
        if value is not None and not isinstance(value, Mapping):
            raise UsageError(f"{name} must be a dict by names of tables, found {value!r}")
    tables = options["tables"]
    if isinstance(tables, str) or not (tables is None or isinstance(tables, Iterable)):
        raise UsageError(f"tables must be a list of names or patterns, found {tables!r}")


def check_flag(name: str, value: Any) -> None:
    """That an option is True or False; raises `UsageError`."""
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is True or False, found {value!r}")


def _check_quantize(quantize: Any) -> None:
    """That there are a `Quantize`, or a dict of patterns to these; raises `UsageError`."""
    found = list(quantize.values()) if isinstance(quantize, Mapping) else [quantize]
    for value in found:
        if value is not None and not isinstance(value, Quantize):
            raise UsageError(f"quantize must be a cnrfmt.Quantize, or a dict of patterns to these, found {value!r}")


def _one_of(name: str, value: Any, kind: Any) -> None:
    legal = get_args(kind)
    if not isinstance(value, str) or value not in legal:
        raise UsageError(f"{name} is one of {', '.join(map(repr, legal))}; found {value!r}")


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be an integer of at least {least}, found {value!r}")


def _seconds(grace: float | timedelta) -> float:
    found = grace.total_seconds() if isinstance(grace, timedelta) else grace
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < float("inf"):
        raise UsageError(f"grace must be seconds or a timedelta, at least 0, found {grace!r}")
    return float(found)
