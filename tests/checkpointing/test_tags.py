"""Names of versions: who gets them, what they pin, and where they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import commits
from cnrfmt.checkpointing.keeping.collect import collect
from cnrfmt.checkpointing.keeping.tags import tag, untag
from cnrfmt.errors import ChainTooLongError, MissingKeyError, UsageError, VersionNotFoundError
from cnrfmt.run_record import record_of
from tests.storage.support import QuickFs

VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(params=["model.cnr", "run"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three versions of a table, of which version v has v rows of zeros."""
    made = tmp_path / request.param
    cnrfmt.save(made, {"t": VALUES}, step=0, metadata={"mine": 1}, fs=QuickFs())
    for row in range(2):
        cnrfmt.append(made, {"t": cnrfmt.Rows([row], np.zeros((1, 3), np.float32))}, step=row + 1, fs=QuickFs())
    return made


def test_a_version_is_opened_by_its_tag(path: Path) -> None:
    assert tag(path, "prod", fs=QuickFs()) == 2
    assert tag(path, "bést of all", 1, fs=QuickFs()) == 1
    with cnrfmt.open(path, tag="bést of all") as ck:
        assert (ck.version, ck.step, ck.tags) == (1, 1, {"prod": 2, "bést of all": 1})
        assert not ck["t"].read()[:1].any()
        assert (ck["t"].read()[1:] == VALUES[1:]).all()
        # Who refreshes moves on, to the content of version 2 and tags of now.
        untag(path, "prod", fs=QuickFs())
        assert ck.refresh() is not None
        assert (ck.version, ck.step, ck.tags, ck.metadata) == (5, 2, {"bést of all": 1}, {"mine": 1})
        assert not ck["t"].read()[:2].any()
    with pytest.raises(VersionNotFoundError, match="no version has the tag 'prod'; there are 'bést of all'"):
        cnrfmt.open(path, tag="prod")
    with pytest.raises(UsageError, match="by its number or by a tag"):
        cnrfmt.open(path, tag="prod", version=1)
    assert cnrfmt.verify(path).verdict == "sound"


def test_a_tag_moves_and_what_is_so_already_is_not_committed(path: Path) -> None:
    assert tag(path, "prod", 0, fs=QuickFs()) == 0
    assert tag(path, "prod", 0, fs=QuickFs()) == 0
    assert tag(path, "prod", np.int64(1), fs=QuickFs()) == 1
    with cnrfmt.open(path) as ck:
        assert (ck.tags, ck.versions) == ({"prod": 1}, (0, 1, 2, 3, 4))
        record = record_of(ck.manifest)
    assert record is not None
    # A container that no run has written to has one from now on, and an append goes on with it.
    assert record.checkpoints == ()
    cnrfmt.append(path, {}, fs=QuickFs())
    with cnrfmt.open(path) as ck:
        assert record_of(ck.manifest) == record


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 1025, 5, None])
def test_names_that_are_none(path: Path, name: Any) -> None:
    with pytest.raises(UsageError, match="tag: a name is 1 to 1024 bytes"):
        tag(path, name)


def test_versions_that_are_none(path: Path, tmp_path: Path) -> None:
    for version in (3, -1):
        with pytest.raises(VersionNotFoundError, match="those that can have a tag are 0, 1, 2"):
            tag(path, "prod", version)
    wrong: Any
    for wrong in ("1", True, 1.0):
        with pytest.raises(UsageError, match="a version is an integer"):
            tag(path, "prod", wrong)
    with pytest.raises(MissingKeyError, match="no version has the tag 'prod'; there are none"):
        untag(path, "prod")
    tag(path, "best", fs=QuickFs())
    with pytest.raises(MissingKeyError, match="there are 'best'"):
        untag(path, "prod")
    with pytest.raises(UsageError, match="no version was committed yet"):
        tag(tmp_path / "nothing", "prod")
    assert not (tmp_path / "nothing").exists()
    with cnrfmt.open(path) as ck:
        assert ck.versions == (0, 1, 2, 3)


def test_a_tagged_version_stays_whoever_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tag(path, "prod", 0, fs=QuickFs())
    with commits.attempt(str(path), fs=QuickFs()) as one:
        head = one.head
        assert head is not None
        manifest = one.next(head, same_state=True, keep=lambda found: found[-1:])
        # In a single file, no version goes before it is written anew.
        assert [r.version for r in manifest.versions] == ([0, 3] if path.is_dir() else [0, 1, 2, 3])
    if path.is_dir():
        # Of more versions than there may be, the oldest goes that has no tag.
        monkeypatch.setattr(commits.limits, "MAX_VERSIONS", 4)
        cnrfmt.append(path, {}, fs=QuickFs())
        cnrfmt.append(path, {}, fs=QuickFs())
        with cnrfmt.open(path) as ck:
            assert ck.versions == (0, 2, 3, 4, 5)
        # Nor does the version go that gets a tag just now.
        tag(path, "old", 2, fs=QuickFs())
        tag(path, "older", 4, fs=QuickFs())
        with cnrfmt.open(path) as ck:
            assert ck.versions == (0, 2, 4, 6, 7)
        tag(path, "oldest", 7, fs=QuickFs())
        with pytest.raises(ChainTooLongError, match="4 versions have tags"):
            tag(path, "one more", 8, fs=QuickFs())


def test_a_tag_is_let_go_before_its_version(path: Path) -> None:
    tag(path, "prod", 0, fs=QuickFs())
    if path.is_dir():
        cnrfmt.save(path, {"t": VALUES + 1}, fs=QuickFs())
        assert collect(path, keep=1, grace=0).given_up == (1, 2, 3)
        assert (cnrfmt.load(path, version=0)["t"] == VALUES).all()
        untag(path, "prod", fs=QuickFs())
        assert 0 in collect(path, keep=1, grace=0).given_up
    else:
        with pytest.raises(UsageError, match="version 0 has the tag 'prod', and a single file that is written anew"):
            cnrfmt.save(path, {"t": VALUES + 1}, fs=QuickFs())
        assert (cnrfmt.load(path, version=0)["t"] == VALUES).all()
        untag(path, "prod", fs=QuickFs())
        cnrfmt.save(path, {"t": VALUES + 1}, fs=QuickFs())
        with pytest.raises(VersionNotFoundError):
            cnrfmt.open(path, version=0)
    assert (cnrfmt.load(path)["t"] == VALUES + 1).all()
    with cnrfmt.open(path) as ck:
        assert ck.tags == {}
