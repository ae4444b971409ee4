"""What threads have taken of live rows while the trainer waits, until it is entropy-coded behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.errors import total
from cnrfmt.encodings.packed_rows import PackedRows
from cnrfmt.format.scheme import NO_ERRORS, Errors


@dataclass
class Taken:
    """What was taken of rows that are stored in the same way: as they are, or as differences."""

    numbers: list[range | Ids] = field(default_factory=list)
    grids: dict[str, PackedRows] = field(default_factory=dict)
    codes: dict[str, list[Array]] = field(default_factory=dict)
    others: dict[str, list[Bytes]] = field(default_factory=dict)
    bad: dict[str, list[Ids]] = field(default_factory=dict)
    exact: dict[str, list[Array]] = field(default_factory=dict)
    errors: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    count: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        kept = [*self.codes.values(), *self.others.values(), *self.exact.values()]
        own = sum(some.nbytes for some in self.numbers if not isinstance(some, range))
        return own + sum(rows.nbytes for rows in self.grids.values()) + sum(a.nbytes for arrays in kept for a in arrays)

    def clear(self) -> None:
        """Lets go of all rows."""
        self.count = 0
        self.numbers.clear()
        for kept in (self.grids, self.codes, self.others, self.bad, self.exact):
            kept.clear()

    def add(self, other: Taken) -> None:
        """Takes over what was taken of the rows behind."""
        for name, rows in other.grids.items():
            self.grids.setdefault(name, PackedRows(rows.width)).join(rows)
        for name, (count, found, worst) in other.errors.items():
            before = self.errors.get(name, (0, 0.0, 0.0))
            self.errors[name] = before[0] + count, before[1] + found, max(before[2], worst)
        for name, bad in other.bad.items():
            self.bad.setdefault(name, []).extend(at + self.count for at in bad)
        for own, others in ((self.codes, other.codes), (self.others, other.others), (self.exact, other.exact)):
            for name, arrays in others.items():
                own.setdefault(name, []).extend(arrays)
        self.numbers += other.numbers
        self.count += other.count

    def seal(self) -> None:
        """Ends the adding."""
        for rows in self.grids.values():
            rows.seal()

    def add_exceptions(self, column: str, bad: Bytes, rows: Callable[[Ids], Array]) -> None:
        """Keeps the rows of the chunk that is being taken which the encoding doesn't hold."""
        if bad.any():
            at = np.flatnonzero(bad)
            self.bad.setdefault(column, []).append(at + self.count)
            self.exact.setdefault(column, []).append(rows(at))

    def add_errors(self, column: str, errors: Array, samples: Sequence[Ids]) -> None:
        """Counts errors of samples of the rows; the numbers in `samples` tell how many each of them has."""
        count, found, worst = self.errors.get(column, (0, 0.0, 0.0))
        start = 0
        for sample in samples:
            some, most = total(errors[start : start + len(sample)])
            start += len(sample)
            count, found, worst = count + len(sample), found + some, max(worst, most)
        self.errors[column] = count, found, worst

    def errors_of(self, column: str) -> Errors:
        """The errors of the rows that were looked at."""
        count, found, worst = self.errors.get(column, (0, 0.0, 0.0))
        return Errors(min(found / count, worst), worst) if count else NO_ERRORS
