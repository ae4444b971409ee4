"""Keys that occur twice in one object: two parsers could take different ones for true."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.support import accepted, cases, refused

STEP = '"step":7'


@pytest.mark.parametrize("twice", ['"step":7,"step":8', '"step":8,"\\u0073tep":7'])
def test_a_key_twice_in_a_manifest(tmp_path: Path, twice: str) -> None:
    refused(tmp_path, cases.one_small(hooks={"json text": cases.swap(STEP, twice)}), "json-syntax")
    accepted(tmp_path, cases.one_small(hooks={"json text": cases.swap(STEP, '"\\u0073tep":7')}))


def test_a_key_twice_in_a_table_of_contents(tmp_path: Path) -> None:
    hostile = cases.one_small(hooks={"toc text": cases.swap('"dense":null', '"dense":null,"dense":[]')})
    refused(tmp_path, hostile, "json-syntax")
    accepted(tmp_path, cases.one_small(hooks={"toc text": cases.swap('"dense":null', '"dense" : null')}))


def test_a_key_twice_in_user_metadata(tmp_path: Path) -> None:
    refused(tmp_path, _metadata('{"a":1,"a":1}'), "json-syntax")
    accepted(tmp_path, _metadata('{"a":1,"A":1}'))


def _metadata(text: str) -> object:
    return cases.one_small(hooks={"json text": cases.swap('"metadata":{}', f'"metadata":{text}')})
