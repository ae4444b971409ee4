"""Point 6: error against bits for all schemes on real tables."""

from __future__ import annotations

from typing import Any

import cnrfmt
from cnrfmt.encodings import Recipe, encoder
from tools.bench import _data
from tools.bench._figures import say
from tools.bench._quantize_setting import Setting, Values, demo_tables

Curves = dict[str, dict[str, list[dict[str, Any]]]]

PLAIN = "asymmetric"
"""What the others are held against."""
_GROUP, _BLOCK = 32, 256
SCHEMES: dict[str, dict[str, Any]] = {
    "symmetric": {"method": "symmetric"},
    PLAIN: {"method": "asymmetric"},
    "adaptive": {"method": "adaptive"},
    "lsq, 2 starts": {"method": "lsq", "starts": 2},
    "lsq, 4 starts": {"method": "lsq", "starts": 4},
    f"lsq, 4 starts, groups of {_GROUP}": {"method": "lsq", "starts": 4, "group": _GROUP},
    "k-means, a codebook per row": {"method": "kmeans"},
    f"k-means, one for {_BLOCK} rows": {"method": "kmeans", "block": _BLOCK},
}
"""What each scheme is called, and what `cnrfmt.Quantize` is told of it beside the bits."""
_PARAMS = "float16"
"""Of all, so that they differ in nothing but the scheme."""
_MOST_BITS = {"kmeans": 4}


def tables(*, quick: bool) -> dict[str, Values]:
    """The tables, by what they are called: all rows of them, as they were trained."""
    found = {"wordllama, tokens": _data.trained_rows()}
    found |= {f"demo, {name}s": values for name, values in demo_tables(quick=quick).items()}
    return {name: values[: 8 if quick else None] for name, values in found.items()}


def curves(setting: Setting) -> Curves:
    """For each table and scheme, by bits: bits stored per element, and mean and greatest relative l2 error."""
    found: Curves = {}
    for table, values in tables(quick=setting.quick).items():
        rows, dim = values.shape
        say(f"point 6: {table}, {rows:,} x {dim}")
        kept = found[f"{table}: {rows:,} x {dim}"] = {}
        for name, options in SCHEMES.items():
            # Groups as wide as the row are no groups.
            if options.get("group", 0) < dim:
                most = _MOST_BITS.get(options["method"], 8)
                kept[name] = [_point(values, bits, options) for bits in range(2, most + 1)]
    return found


def _point(values: Values, bits: int, options: dict[str, Any]) -> dict[str, Any]:
    asked = cnrfmt.Quantize(bits=bits, params=_PARAMS, **options)
    how = Recipe(asked.layout_of(bits), asked.scheme_of(bits))
    whole = encoder(how)
    step = max(1, (4 << 20) // (4 * values.shape[1] * whole.step)) * whole.step
    total, worst, exact, nbytes = 0.0, 0.0, 0, 0
    for start in range(0, len(values), step):
        done = whole.encode(values[start : start + step])
        total, worst = total + done.error_sum, max(worst, done.worst_error)
        exact += len(done.bad)
        nbytes += len(done.data) + (0 if done.codebooks is None else len(done.codebooks))
    return {
        "bits": bits,
        "stored_bits": 8 * nbytes / values.size,
        "mean_error": total / max(1, len(values) - exact),
        "max_error": worst,
        "exact_rows": exact,
    }


def report(found: Curves) -> str:
    """Mean errors, a row per scheme and a column per number of bits."""
    blocks = []
    for table, kept in found.items():
        blocks.append(f"{table}: mean relative l2 error (bits stored per element)")
        width = max(map(len, kept))
        blocks.append(" " * width + "".join(f" | {f'{bits} bits':<14}" for bits in range(2, 9)))
        for name, points in kept.items():
            cells = [f"{p['mean_error']:.3g} ({p['stored_bits']:.3g})" for p in points]
            blocks.append(name.ljust(width) + "".join(f" | {cell:<14}" for cell in cells))
        blocks.append("")
    return "\n".join(line.rstrip() for line in blocks)
