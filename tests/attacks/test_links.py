"""Links in a directory container: whoever follows them reads what isn't the container's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.support import Link, accepted, cases, container, in_child, lay, outcome, refused

MANIFEST = "manifests/00000000000000000000.cnrm"


def _linked(name: str) -> container.Tree:
    """The container with one of its files behind a symbolic link to the very same bytes."""
    tree = dict(cases.one_small().build())
    found = next(file for file in tree if file.startswith(name))
    tree["elsewhere"] = tree[found]
    tree[found] = Link("../elsewhere")
    return tree


@pytest.mark.parametrize("name", ["manifests/", "segments/"])
def test_a_symbolic_link_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    refused(tmp_path, _linked(name), "file-missing")
    accepted(tmp_path, cases.one_small())


@pytest.mark.parametrize("name", ["manifests", "segments"])
def test_a_symbolic_link_in_the_place_of_a_folder(tmp_path: Path, name: str) -> None:
    tree = dict(cases.one_small().build())
    for file in [file for file in tree if file.startswith(f"{name}/")]:
        tree[f"elsewhere/{Path(file).name}"] = tree.pop(file)
    tree[name] = Link("elsewhere")
    refused(tmp_path, tree, "directory-layout", "file-missing")
    accepted(tmp_path, cases.one_small())


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "/dev/stdin", "nowhere", "00000000000000000000.cnrm"])
def test_a_link_to_somewhere_else(tmp_path: Path, target: str) -> None:
    """A device that never ends, nothing at all, the link itself."""
    refused(tmp_path, {**cases.one_small().build(), MANIFEST: Link(target)}, "file-missing")
    accepted(tmp_path, cases.one_small())


def test_hard_links_are_files(tmp_path: Path) -> None:
    """Another name for a segment's bytes changes nothing; another version's name for a manifest is a lie."""
    path = lay(tmp_path / "linked", cases.one_small())
    segment = next((path / "segments").iterdir())
    os.link(segment, tmp_path / "second-name")
    found = in_child(outcome, path)
    assert (found.verify, found.cnrcheck, set(found.read.values())) == ("sound", "sound", {None})
    os.link(path / MANIFEST, path / "manifests/00000000000000000001.cnrm")
    found = in_child(outcome, path)
    assert (found.verify, found.cnrcheck) == ("damaged", "damaged")
    assert "manifest-identity" in found.rules & found.cnrcheck_rules


def test_a_container_may_be_named_through_a_link(tmp_path: Path) -> None:
    """The user's own link to the container is followed, that is what it's for."""
    path = lay(tmp_path / "real", cases.one_small())
    (tmp_path / "link").symlink_to(path)
    found = in_child(outcome, tmp_path / "link")
    assert (found.verify, found.cnrcheck, set(found.read.values())) == ("sound", "sound", {None})
