"""Where ranks plan a checkpoint: that all save the same one, on which grids tables begin, and what each writes.

Rows are encoded before a rank can say what it writes, and codes follow from the grid of the whole table. So ranks that
have parts of a table that begins with a grid meet first, and say what their rows are like. Whoever has none of those
needn't wait: it says what it writes, finds that others weren't as far, and says it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cnrfmt.checkpointing.ranks.coordinator import Coordinator
from cnrfmt.checkpointing.ranks.together import PLAN, together
from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.grid_plan import GridPlan, GridSummary, plan_of
from cnrfmt.errors import UsageError
from cnrfmt.format import strict_json

Said = Mapping[str, Any]
"""What a rank tells the others, as JSON has it. ``"same"`` is what all have to say alike of the checkpoint."""

_ALWAYS = ("step", "kind", "bits", "base")
"""What every rank has to say; the rest of the version may be left to rank 0."""


@dataclass(frozen=True)
class NewGrid:
    """The grid that a table begins with, and its columns besides the weight, wherever they are."""

    plan: GridPlan
    columns: tuple[str, ...]


def plan_grids(
    coordinator: Coordinator,
    same: Said,
    grids: Mapping[str, Grid],
    summaries: Callable[[], Mapping[str, GridSummary]],
) -> dict[str, NewGrid]:
    """The grids that tables begin with of which any rank may have a part alone.

    Parameters
    ----------
    same
        What all ranks have to say alike of the checkpoint.
    grids, summaries
        What this rank wants for these tables, at least one, and what its rows are like.

    Raises
    ------
    UsageError, RankLostError, SilenceError
        On all ranks alike, those included that `meet` already: ranks don't save the same checkpoint, or don't want the
        same grid, or one of them can't say what its rows are like.
    """

    def own() -> Said:
        found = summaries()
        return {
            "same": same,
            "grids": {name: {"grid": asdict(grid), "summary": found[name].to_json()} for name, grid in grids.items()},
        }

    return _combined(_told(coordinator, own))


def meet(coordinator: Coordinator, own: Callable[[], Said]) -> list[Said]:
    """What each rank writes, in the order of the ranks; raises as `plan_grids` does."""
    while True:
        told = _told(coordinator, own)
        if not any("grids" in one for one in told):
            return told
        # What is wrong with the grids of others is wrong for all.
        _combined(told)


def _told(coordinator: Coordinator, own: Callable[[], Said]) -> list[Said]:
    """What all ranks say, which is of the same checkpoint."""
    told = together(coordinator, PLAN, lambda: strict_json.dump(own()))
    said: list[Said] = [strict_json.parse(data, f"rank {rank}") for rank, data in enumerate(told)]
    first = said[0]["same"]
    for rank, one in enumerate(said):
        for what, value in one["same"].items():
            if value != first[what] and (value or what in _ALWAYS):
                raise UsageError(
                    f"the ranks save different checkpoints: {what} is {first[what]!r} on rank 0 and {value!r} on rank "
                    f"{rank}; make all managers alike, restore the same version on all ranks, and call save with the "
                    "same step as often as on the others; kind='baseline' on all of them begins anew"
                )
    return said


def _combined(told: Sequence[Said]) -> dict[str, NewGrid]:
    """The grids of all tables that somebody asks for one of; it depends on what was told alone, errors included."""
    asking: dict[str, list[tuple[int, Any]]] = {}
    for rank, one in enumerate(told):
        for name, said in one.get("grids", {}).items():
            asking.setdefault(name, []).append((rank, said))
    found = {}
    for name, ones in asking.items():
        (first, said), *others = ones
        grid = Grid(**said["grid"])
        for rank, other in others:
            if (wanted := Grid(**other["grid"])) != grid:
                raise UsageError(
                    f"table {name!r}: rank {first} asks for {grid}, and rank {rank} for {wanted}; make all managers "
                    "alike"
                )
        summaries = [GridSummary.parse(one["summary"]) for _, one in ones]
        columns = dict.fromkeys(column for summary in summaries for column in summary.columns)
        found[name] = NewGrid(plan_of(grid, summaries), tuple(columns))
    return found
