"""`tag`: giving names, listing them, taking them away."""

from __future__ import annotations

from pathlib import Path

import cnrfmt
from tests.cli.support import Command


def test_a_name_comes_and_goes(path: Path, cnr: Command) -> None:
    assert cnr("tag", path).out == f"{path}: no version has a tag\n"
    assert cnr("tag", path, "prod").out == f"{path}: version 2 is tagged 'prod'\n"
    assert cnr("tag", path, "best", "--version", 1, "--json").json == {"tag": "best", "version": 1, "deleted": False}
    assert cnr("tag", path).out == "TAG   VERSION\nbest        1\nprod        2\n"
    assert cnr("tag", path, "--json").json == {"best": 1, "prod": 2}
    with cnrfmt.open(path, tag="best") as ck:
        assert ck.version == 1
    found = cnr("tag", path, "best", "--delete")
    assert (found.code, found.out) == (0, f"{path}: version 1 isn't tagged 'best' any more\n")
    assert cnr("tag", path, "prod", "--delete", "--json").json == {"tag": "prod", "version": 2, "deleted": True}
    assert cnr("tag", path, "--json").json == {}
    assert cnr("verify", path).code == 0


def test_a_name_of_braces_is_a_name(path: Path, cnr: Command) -> None:
    assert cnr("tag", path, "{0}").out == f"{path}: version 2 is tagged '{{0}}'\n"
