"""Bits by the number of restores that a run expects, and what they mean for each table, as in Check-N-Run (NSDI 2022).

Training goes on in float32, so an error of quantisation enters a run only when a checkpoint is restored: what few
restores hardly show, many add up.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal, cast

import numpy as np

from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.grid_plan import GridPlan
from cnrfmt.encodings.quantize import BY_RESTORES, Choices, Quantize, choice_for
from cnrfmt.errors import UsageError
from cnrfmt.format.schema import WEIGHT

Bits = Literal[2, 3, 4, 8]

MOST_BITS: Bits = 8
"""For ever so many restores, and where more happen than were expected."""
_RATIO = {2: 0.5, 3: 0.3, 4: 0.2}
"""What the greedy search may take away of a row's range.

On trained token embeddings and on normal, Laplace and Student rows of 16 to 256 elements, the whole range gains less
than 0.3 % over it, and takes at least 1.6 times as long.
"""


def bits_for(expected_restores: float) -> Bits:
    """The fewest bits for so many restores in a run: up to 1 of them 2 bits, up to 3 of them 3, up to 20 of them 4.

    More take 8. Raises `UsageError` for what is no count.
    """
    expected = _number("expected_restores", expected_restores)
    return cast(Bits, next((bits for most, bits in BY_RESTORES if expected <= most), MOST_BITS))


def expected_restores(failure_rate: float, run_hours: float) -> float:
    """How often a run is restored that fails `failure_rate` times an hour and takes `run_hours` of training.

    The rate is that of the whole job: of each machine, times their number. It is a mean; when more restores happen,
    `chosen_bits` falls back. Raises `UsageError` for what is no rate or no length.
    """
    return _number("failure_rate", failure_rate) * _number("run_hours", run_hours)


def chosen_bits(expected: float, restores: int) -> Bits:
    """The bits of the next checkpoint of a run that was expected to be restored so often, and was `restores` times.

    From the first restore beyond the expected ones on they are 8, since nobody knows how many more will come. An
    expectation of 0.3 allows for one: no run is restored by halves.
    """
    if _number("restores", restores) > math.ceil(_number("expected_restores", expected)):
        return MOST_BITS
    return bits_for(expected)


def quantize_for(bits: int) -> Quantize:
    """How rows are quantised to so many bits: by the greedy search up to 4, by least and greatest element from 5 to 8.

    Raises `UsageError` for bits that aren't 2 to 8.
    """
    if isinstance(bits, bool) or bits not in range(2, MOST_BITS + 1):
        raise UsageError(f"bits are 2 to 8, found {bits!r}")
    if bits not in _RATIO:
        return Quantize(int(bits), method="asymmetric")
    return Quantize(int(bits), method="adaptive", ratio=_RATIO[bits])


def choices_for(bits: int, overrides: Choices = None, *, unquantisable: Collection[str] = ()) -> Choices:
    """What `save` is told: the bits of the run for every table, but for those that the caller has a say on.

    Parameters
    ----------
    bits
        2 to 8, or 32 for raw rows.
    overrides
        One `Quantize` goes for all tables, in place of the bits. A dict of patterns goes for the tables or columns that
        it names, be it that they stay raw (None); what none of them matches has the bits of the run. None: no say.
    unquantisable
        Names of tables whose weights aren't float32: raw unless `overrides` names them.

    Raises
    ------
    UsageError
        Bits, or overrides, that are nothing that they may be.
    """
    default = None if bits == 32 else quantize_for(bits)
    if isinstance(overrides, Quantize | Grid | GridPlan):
        return overrides
    named = {} if overrides is None else dict(overrides)
    raw = [name for name in unquantisable if choice_for(named, name, WEIGHT)[0] is None]
    if not named and not raw:
        return default
    # A pair goes before a name and a name before a pattern, wherever it stands; of patterns, the first that matches.
    return {**named, **dict.fromkeys(raw), **({} if "*" in named else {"*": default})}


def _number(name: str, value: float) -> float:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise UsageError(f"{name} must be a number of at least 0, found {value!r}")
    return float(value)
