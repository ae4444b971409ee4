"""What all commits have in common, whoever makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import ChainTooLongError, CommitUnknownError, Rows, UsageError
from cnrfmt.format import limits
from cnrfmt.run_record import RESERVED, record_of
from tests.checkpointing.support import Disk

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def append(path: Path, n: int = 1, **options: Any) -> int:
    return cnrfmt.append(path, {"t": Rows([n % 4], TABLE[:1])}, **options)


def tag_more(path: Path) -> None:
    for n in range(3):
        cnrfmt.tag(path, f"more{n}", append(path))


def test_the_librarys_own_name_is_no_users(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(UsageError, match=r"'cnrfmt\.run' is the library's own"):
        cnrfmt.save(path, {"t": TABLE}, metadata={RESERVED: {}})
    assert not path.exists()


def test_metadata_of_users_and_the_librarys_own_go_past_each_other(tmp_path: Path) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"t": TABLE}, metadata={"a": 1})
    cnrfmt.tag(path, "prod")
    append(path)
    append(path, metadata={"b": 2})
    with cnrfmt.open(path) as ck:
        record = record_of(ck.manifest)
        assert (ck.metadata, ck.tags) == ({"b": 2}, {"prod": 0})
    assert record is not None
    cnrfmt.save(path, {"t": TABLE})
    with cnrfmt.open(path) as ck:
        assert (ck.metadata, ck.tags) == ({}, {"prod": 0})


def test_a_single_file_with_a_tagged_version_is_not_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": TABLE})
    append(path)
    cnrfmt.tag(path, "prod", 1)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="version 1 has the tag 'prod'"):
        cnrfmt.save(path, {"t": TABLE})
    with pytest.raises(UsageError, match="untag it first"):
        cnrfmt.compact(path)
    assert path.read_bytes() == before
    cnrfmt.untag(path, "prod")
    version = cnrfmt.save(path, {"t": TABLE})
    with cnrfmt.open(path) as ck:
        assert ck.versions == (version,)
    cnrfmt.tag(path, "prod", version)
    cnrfmt.untag(path, "prod")
    assert cnrfmt.save(path, {"t": TABLE}) == version + 3


def test_tagged_versions_stay_as_long_as_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    monkeypatch.setattr(limits, "MAX_VERSIONS", 3)
    cnrfmt.save(path, {"t": TABLE})
    cnrfmt.tag(path, "first", 0)
    for n in range(5):
        append(path, n)
    with cnrfmt.open(path) as ck:
        assert ck.versions == (0, 4, 5, 6)
    for name in ("second", "third"):
        cnrfmt.tag(path, name, append(path))
    with cnrfmt.open(path) as ck:
        tagged, newest = ck.tags, ck.version
        assert set(tagged.values()) <= set(ck.versions)
    with pytest.raises(ChainTooLongError, match="3 versions have tags, as many as may be retained; untag some"):
        tag_more(path)
    with cnrfmt.open(path) as ck:
        assert ck.version > newest
        assert {name: ck.tags[name] for name in tagged} == tagged


def test_an_outcome_that_is_unknown_names_its_state(tmp_path: Path) -> None:
    path, disk = tmp_path / "run", Disk()
    cnrfmt.save(path, {"t": TABLE})
    disk.failing = "names"
    with pytest.raises(CommitUnknownError) as caught:
        append(path, fs=disk)
    with cnrfmt.open(path) as ck:
        assert (ck.manifest.state, ck.manifest.commit_id) == (caught.value.state, caught.value.commit_id)
        assert caught.value.version == ck.version == 1
