from __future__ import annotations

import pytest

from cnrfmt.demo.orders import Dataset, load_orders


@pytest.fixture(scope="session")
def everything() -> Dataset:
    """All orders of the package."""
    return load_orders()


@pytest.fixture(scope="session")
def some() -> Dataset:
    """The orders of seven users: few enough to train on where kernels run as plain Python."""
    return load_orders(users=7)
