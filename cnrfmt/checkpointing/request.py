"""What a trainer asks to be saved, checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from cnrfmt.checkpointing.contents import Live, live
from cnrfmt.checkpointing.policies import Decision
from cnrfmt.checkpointing.resuming import random_state
from cnrfmt.checkpointing.resuming.restoring import OWN, READER
from cnrfmt.commits import Prepared, check_common
from cnrfmt.dense import prepare
from cnrfmt.errors import UsageError
from cnrfmt.format.strict_json import check_name


@dataclass(frozen=True)
class Request:
    """One call of `CheckpointManager.save`; `dense` has the reader's position and the random states in it."""

    step: int | None
    tables: dict[str, Live]
    dense: Prepared | None
    metadata: dict[str, Any]
    metrics: dict[str, float]
    tags: tuple[str, ...]
    kind: Decision | None


def request(
    step: int | None,
    tables: Mapping[str, Any],
    dense: Mapping[str, Any] | None,
    reader: Any,
    random: bool | Mapping[str, Any],
    metrics: Mapping[str, float] | None,
    tags: Iterable[str],
    metadata: Mapping[str, Any] | None,
    kind: Decision | None,
    *,
    shards: bool,
) -> Request:
    """The call, its dense state copied; raises `UsageError` for what can't be saved."""
    check_common(metadata, step)
    if dense is not None and not isinstance(dense, Mapping):
        raise UsageError(f"dense must be a dict of names to values, found {type(dense).__name__}")
    taken = [name for name in dense or {} if isinstance(name, str) and name.startswith(OWN)]
    if taken:
        raise UsageError(f"dense[{taken[0]!r}]: names that start with {OWN!r} are the manager's; take another")
    everything = dict(dense or {})
    if reader is not None:
        everything[READER] = reader
    if not isinstance(random, bool | Mapping):
        raise UsageError(f"random is True, False, or a dict of names to generators of numpy, found {random!r}")
    if random is not False:
        everything |= random_state.capture({} if random is True else random)
    if isinstance(tags, str):
        raise UsageError(f"tags is a list of names; use tags=[{tags!r}]")
    if kind is not None and kind not in get_args(Decision):
        raise UsageError(f"kind is one of {', '.join(map(repr, get_args(Decision)))}, or None; found {kind!r}")
    # The arrays may change as soon as the snapshot is made, and the dense state is written after it.
    prepared = [(entry, data.copy()) for entry, data in prepare(everything)] if everything else None
    return Request(
        step,
        live(tables, shards=shards),
        prepared,
        dict(metadata or {}),
        _metrics(metrics),
        tuple(check_name(tag, "tag") for tag in tags),
        kind,
    )


def _metrics(metrics: Mapping[str, float] | None) -> dict[str, float]:
    if metrics is not None and not isinstance(metrics, Mapping):
        raise UsageError(f"metrics must be a dict of names to numbers, found {type(metrics).__name__}")
    found = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str) or isinstance(value, bool):
            raise UsageError(f"metrics: names to numbers, found {name!r}: {value!r}")
        try:
            number = float(np.asarray(value).item())
        except (TypeError, ValueError):
            raise UsageError(f"metrics[{name!r}] must be a number, found {value!r}") from None
        # A loss that has become infinite is nothing that JSON can say, and no reason to lose a checkpoint.
        if math.isfinite(number):
            found[name] = number
    return found
