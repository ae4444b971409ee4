"""What the demo shows: lines as things happen, progress on a terminal, the result at the end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cnrfmt.demo.orders import Dataset
from cnrfmt.demo.quality import TOP
from cnrfmt.demo.store import Store, words_of

# Narrow enough for a terminal of 80 columns.
_HEADER = "ver orders written    %  rows  ids optim other total  full  less write stall"
_UNITS = "                   rows      kB   kB    kB    kB    kB    kB          ms    ms"


@dataclass(frozen=True)
class Bars:
    """How each run says up to which order it has trained."""

    uninterrupted: Callable[[int], None]
    interrupted: Callable[[int], None]


class Screen:
    """Writes to the standard output, or to the standard error where JSON goes to the output."""

    def __init__(self, *, to_stderr: bool) -> None:
        # A table's lines would be broken at 80 columns where the output is no terminal.
        self._console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)

    def _print(self, text: str = "", style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False)

    def data(self, data: Dataset) -> None:
        """What there is to train on."""
        days = data.stream.hours.max() / 24
        self._print(
            f"{len(data.stream):,} real grocery orders of {data.users:,} users and "
            f"{data.products:,} products, {days:.0f} days in time order;"
        )
        self._print(f"each user's last order is held out ({len(data.held_out.products):,} products)")

    def plan(self, store: Store, every: int, die_at: int, seconds: float) -> None:
        """What will be done."""
        self._print(f"training and checkpointing compiled, or loaded, in {seconds:.1f} s")
        self._print(
            f"runs side by side: one without interruption, and one that checkpoints to {store.path} every {every:,} "
            f"orders (policy {store.policy}, weights {words_of(store.bits)}), and is killed at order {die_at:,}"
        )
        if store.bits is None:
            self._print("beside that one, another is killed that stores rows as Check-N-Run does")
        self._print()
        self._print(_HEADER, "bold")
        self._print(_UNITS, "dim")

    @contextmanager
    def progress(self, orders: int) -> Iterator[Bars]:
        """Shows how far both runs are; on a terminal alone."""
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("orders"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        ) as progress:
            first, second = (progress.add_task(name, total=orders) for name in ("uninterrupted", "interrupted"))
            yield Bars(
                lambda order: progress.update(first, completed=order),
                lambda order: progress.update(second, completed=order),
            )

    def checkpoint(self, told: dict[str, Any]) -> None:
        """One checkpoint, as one line."""
        parts, rows = told["bytes"], sum(told["rows"].values())
        total = sum(parts.values())
        self._print(
            f"{told['version']:3}{told['order']:7,}{rows:8,}{rows / sum(told['existing'].values()):5.0%} "
            f"{_short(parts['rows'], 5)}{_short(parts['ids'], 5)}{_short(parts['optimizer'], 6)}"
            f"{_short(parts['dense'] + parts['metadata'], 6)}{_short(total, 6)}{_short(told['full_bytes'], 6)}"
            f"{told['full_bytes'] / total:5.1f}x{_short(told['seconds'] * 1e6, 6)}{_short(told['stall'] * 1e6, 6)}"
        )

    def died(self, death: dict[str, Any]) -> None:
        """The trainer's end."""
        self._print(
            f"  ✗ the trainer was killed (signal {death['signal']}, SIGKILL) at order "
            f"{death['order']:,}; starting another",
            "bold red",
        )

    def restored(self, death: dict[str, Any]) -> None:
        """The new trainer's start."""
        self._print(
            f"  ✓ a new process restored version {death['restored_version']} in "
            f"{death['restore_seconds'] * 1e3:.0f} ms and goes on at order "
            f"{death['restored_order']:,}: {death['lost_orders']:,} orders are trained again",
            "bold green",
        )

    def result(self, result: dict[str, Any]) -> None:
        """What it all came to."""
        totals, quality, seconds = result["totals"], result["quality"], result["seconds"]
        count, path = len(result["checkpoints"]), shlex.quote(result["path"])
        self._print()
        self._print(
            f"{count} checkpoints: {totals['bytes'] / 1e6:.2f} MB written, where full float32 saves "
            f"take {totals['full_bytes'] / 1e6:.1f} MB: {totals['ratio']:.1f} times less",
            "bold",
        )
        stalls = seconds["checkpoint_stalls"]
        self._print(
            f"training stood still for {stalls * 1e3:.0f} ms in all, beside "
            f"{seconds['uninterrupted_training']:.2f} s of training"
        )
        self._print()
        self._print(f"{'':38}recall@{TOP}   log-loss   written    less", "bold")
        for name, label in (("popularity", "what everybody buys most"), ("favourites", "what the user bought most")):
            self._print(f"{label:38}{quality[f'{name}_recall']:9.2%}")
        whole = quality["uninterrupted"]
        self._print(f"{'the model, uninterrupted':38}{whole['recall']:9.2%}  {whole['log_loss']:9.5f}", "bold")
        for run in (result, *result["beside"]):
            self._killed(run)
        self._print()
        if "plot" in result:
            self._print(f"drawn in {result['plot']}")
        self._print(f"{seconds['total']:.1f} s in all. The container stays; try on it:")
        for command in (f"info {path}", f"rows {path} product 0:5", f"verify {path}"):
            self._print(f"    cnrfmt {command}", "cyan")

    def _killed(self, run: dict[str, Any]) -> None:
        """What became of a run that was killed, and what its checkpoints took."""
        totals, quality = run["totals"], run["quality"]
        found, label = quality["interrupted"], f"killed and restored, {words_of(run['bits'])}"
        self._print(
            f"{label:38}{found['recall']:9.2%}  {found['log_loss']:9.5f}"
            f"{totals['bytes'] / 1e6:7.2f} MB{totals['ratio']:7.1f}x",
            "bold",
        )
        recall, loss = quality["recall_difference"], quality["log_loss_difference"]
        label, points = "  difference, and its standard error", 100 * recall["value"]
        self._print(f"{label:38}{points:+9.2f}  {loss['relative']:+9.3%}")
        errors = f"±{recall['standard_error'] * 100:.2f}", f"±{loss['standard_error']:.3%}"
        self._print(f"{'':38}{errors[0]:>9}  {errors[1]:>9}")


def _short(number: float, width: int) -> str:
    """A number in thousands, with a decimal where it is small."""
    return f"{number / 1000:{width},.0f}" if number >= 9_950 else f"{number / 1000:{width}.1f}"
