"""The undamaged containers, and what they say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cnrfmt
from tests.salvage.support import KINDS, Region, Said, build, regions, said


@dataclass
class Original:
    """A container, and what each of its versions says."""

    path: Path
    tables: dict[int, dict[str, Said]]
    dense: dict[int, dict[str, Any]]
    regions: list[Region]


@pytest.fixture(scope="session", params=KINDS)
def original(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Original:
    path: Path = tmp_path_factory.mktemp("salvage") / request.param
    build(path)
    dense = {}
    for version in range(6):
        with cnrfmt.open(path, version=version) as ck:
            dense[version] = ck.dense
    return Original(path, {v: said(path, v) for v in range(6)}, dense, regions(path))
