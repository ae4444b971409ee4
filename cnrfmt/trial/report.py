"""What a trial found."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from cnrfmt.encodings.base import Recipe
from cnrfmt.encodings.quantize import Quantize


@dataclass(frozen=True)
class Attempt:
    """One way to store a column.

    Attributes
    ----------
    quantize
        What was asked for.
    recipe
        What came of it: how rows are laid out, and the method with its parameters.
    bytes_per_row
        With the rows that stay exact, but for their ids.
    share
        Of the bytes that float32 takes.
    mean_error, max_error
        Relative l2 errors of the rows that don't stay exact.
    exact_rows
        How many of the rows that were tried would be stored exactly, since the encoding can't hold them or errs too
        much.
    encode_rate, decode_rate
        Bytes of float32 rows per second, measured with one thread on this machine.
    best
        Whether it errs least of all that take as many bytes or fewer.
    """

    quantize: Quantize
    recipe: Recipe
    bytes_per_row: float
    share: float
    mean_error: float
    max_error: float
    exact_rows: int
    encode_rate: float
    decode_rate: float
    best: bool = False

    @property
    def word(self) -> str:
        """What was asked for, as the command's ``--quantize`` takes it; what is as it would be anyhow is left out."""
        words = [str(self.quantize.bits)]
        for field_ in fields(Quantize)[1:]:
            value = getattr(self.quantize, field_.name)
            if value != field_.default:
                bare = field_.name in ("method", "layout", "never_worse")
                words.append(field_.name if value is True else str(value) if bare else f"{field_.name}={value}")
        return ":".join(words)

    @property
    def method(self) -> str:
        """The method that chose the codes; ``"raw"`` where rows stay raw."""
        return "raw" if self.recipe.scheme is None else self.recipe.scheme.method

    def to_json(self) -> dict[str, Any]:
        """The same as JSON can say it."""
        scheme = self.recipe.scheme
        return {
            "quantize": self.word,
            "encoding": self.recipe.layout.to_json(),
            "scheme": None if scheme is None else dict(vars(scheme)),
            **{k: v for k, v in vars(self).items() if k not in ("quantize", "recipe")},
        }


@dataclass(frozen=True)
class ColumnTrial:
    """A float32 column: how many rows of how many elements it has, on how many of them what was tried.

    `one_valued`: it has one value per row, whatever the table's dim. `is_quantised`: it comes out of a container that
    doesn't store all of its rows exactly, so that the errors are those that another quantisation would add.
    """

    table: str
    column: str
    rows: int
    width: int
    tried_rows: int
    one_valued: bool
    is_quantised: bool
    attempts: tuple[Attempt, ...]

    @property
    def plain_bytes(self) -> int:
        """Bytes of a row as float32."""
        return 4 * self.width

    def to_json(self) -> dict[str, Any]:
        """The same as JSON can say it."""
        return {**vars(self), "attempts": [attempt.to_json() for attempt in self.attempts]}


@dataclass
class Trial:
    """What `cnrfmt.try_quantization` found.

    Attributes
    ----------
    source
        The path, or None for tables in memory.
    columns
        What was tried of each column.
    skipped
        What can't be quantised, in words.
    """

    source: str | None
    columns: list[ColumnTrial] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON can say it."""
        columns = [column.to_json() for column in self.columns]
        return {"source": self.source, "columns": columns, "skipped": self.skipped}
