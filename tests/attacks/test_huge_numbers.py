"""Numbers that JSON can say and programs can't: integers of a million digits, floats beyond float64, NaN."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.support import Store, accepted, cases, refused


def _step(number: str) -> Store:
    return cases.one_small(hooks={"json text": cases.swap('"step":7', f'"step":{number}')})


def _metadata(number: str) -> Store:
    return cases.one_small(hooks={"json text": cases.swap('"metadata":{}', f'"metadata":{{"a":{number}}}')})


@pytest.mark.parametrize(
    "number", ["9007199254740992", "-9007199254740992", "1" + "0" * 1_000_000, "1e999", "-1e999", "NaN", "Infinity"]
)
def test_a_number_beyond_its_type(tmp_path: Path, number: str) -> None:
    refused(tmp_path / "step", _step(number), "json-syntax")
    refused(tmp_path / "metadata", _metadata(number), "json-syntax")
    accepted(tmp_path / "greatest", _step("9007199254740991"))
    accepted(tmp_path / "metadata-too", _metadata("1.7976931348623157e308"))


def test_a_long_fraction_is_a_number(tmp_path: Path) -> None:
    """A million digits behind the point cost no more than reading them."""
    refused(tmp_path, _step("1." + "3" * 1_000_000), "json-field")
    accepted(tmp_path, _metadata("1." + "3" * 1_000_000))


@pytest.mark.parametrize("number", ["7.0", "true", '"7"', "-0.5"])
def test_a_number_of_another_type(tmp_path: Path, number: str) -> None:
    refused(tmp_path, _step(number), "json-field")
    accepted(tmp_path, _step("-7"))
