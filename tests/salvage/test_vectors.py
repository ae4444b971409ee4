"""The specification's valid containers come out whole; its invalid ones end in an error, or in a sound container."""

from __future__ import annotations

from pathlib import Path

import pytest

import cnrfmt
from cnrfmt import DamagedError, UnsupportedError
from tests.salvage.support import FS
from tests.vectors.test_verdicts import INFOS, READABLE, container


def test_valid_containers_come_out_whole(tmp_path: Path) -> None:
    for number, name in enumerate(READABLE):
        target = tmp_path / f"{number}.cnr"
        report = cnrfmt.salvage(container(name), target, threads=1, fs=FS)
        assert report.complete, (name, report)
        with cnrfmt.open(container(name)) as old, cnrfmt.open(target) as new:
            assert list(old) == list(new)
            for table in old:
                a, b = old[table], new[table]
                assert a.columns == b.columns
                assert a.schema.rows == b.schema.rows
                if a.keyed:
                    assert (a.keys == b.keys).all(), name
                rows = None if len(a) < 1 << 20 else range(1000)
                for column in a.columns:
                    assert a.read(rows, column=column).tobytes() == b.read(rows, column=column).tobytes(), name
            assert str(old.dense) == str(new.dense)


@pytest.mark.parametrize("part", range(4))
def test_invalid_containers_end_in_an_error_or_a_sound_container(part: int, tmp_path: Path) -> None:
    names = [name for name in INFOS if name.startswith("invalid")][part::4]
    outcomes = set()
    for number, name in enumerate(names):
        target = tmp_path / f"{number}.cnr"
        refused = ""
        try:
            # It is verified in full before it is put in its place.
            cnrfmt.salvage(container(name), target, threads=1, fs=FS)
        except (DamagedError, UnsupportedError) as error:
            refused = str(error)
        assert target.exists() == (not refused), name
        assert "another disk" not in refused, name
        outcomes.add("refused" if refused else "salvaged")
    assert outcomes == {"salvaged", "refused"}
