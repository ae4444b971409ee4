"""Point 2: the greedy search of Check-N-Run, against PyTorch's with the same bins and the same ratio."""

from __future__ import annotations

from typing import Any

from cnrfmt.encodings import Recipe
from tools.bench._figures import say
from tools.bench._quantize_codes import decoded, kernels_of, mean_error, recipe, statistics_of
from tools.bench._quantize_figures import Line, Work, error, race, speed
from tools.bench._quantize_setting import Setting, Values, operators, tensor

_BINS = {2: 25, 3: 25, 4: 45}
_RATIO = 0.5
"""What both searches may take away of a row's range: of `ratio` PyTorch means the same."""
_LEAST = 40.0
_RATES = {2: 1.0, 3: 1.0, 4: None}
_PEER = "torch prepack, optimized_qparams"


def figures(setting: Setting) -> list[Line]:
    """Times and mean errors; PyTorch has no 3 bits."""
    found = []
    for case in setting.cases():
        rows = setting.few(*case)
        for bits, bins in _BINS.items():
            say(f"point 2: {case[0]} rows of {case[1]}, {bits} bits")
            how = recipe(bits, "adaptive", num_bins=bins, ratio=_RATIO)
            found += _one(setting, case, rows, bits, how)
    return found


def _one(setting: Setting, case: tuple[str, int], rows: Values, bits: int, how: Recipe) -> list[Line]:
    own = kernels_of(how, rows)
    contenders: dict[str, Work] = {"own": own, "statistics": statistics_of(how, rows)}
    if bits != 3:
        contenders["torch"] = lambda: prepack(bits, rows)
    times = race(setting.repeat, contenders)
    name = f"adaptive, {bits} bits"
    found = [
        speed(2, name, case, times["own"], rows.nbytes, least_rate=_RATES[bits]),
        speed(2, f"{name}, encoder with statistics", case, times["statistics"], rows.nbytes),
    ]
    mean = mean_error(rows, decoded(how.layout, own(), rows))
    if bits == 3:
        return [*found, error(2, f"{name}, mean error", case, mean)]
    peer = mean_error(rows, unpack(bits, prepack(bits, rows)))
    return [
        speed(2, name, case, times["own"], rows.nbytes, peer=(_PEER, times["torch"]), least=_LEAST),
        *found,
        error(2, f"{name}, mean error", case, mean, peer=(_PEER, peer), most=1.0),
    ]


def prepack(bits: int, rows: Values) -> Any:
    """PyTorch's greedy search and its codes, a row after the other."""
    op = getattr(operators().quantized, f"embedding_bag_{bits}bit_prepack")
    return op(tensor(rows), optimized_qparams=True, nbins=_BINS[bits], ratio=_RATIO)


def unpack(bits: int, packed: Any) -> Values:
    """What PyTorch's codes stand for."""
    found: Values = getattr(operators().quantized, f"embedding_bag_{bits}bit_unpack")(packed).numpy()
    return found
