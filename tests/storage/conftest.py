"""Containers of two versions, of either kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.support import two_versions


@pytest.fixture(params=["model.cnr", "run"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return two_versions(tmp_path / request.param)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return two_versions(tmp_path / "model.cnr")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_versions(tmp_path / "run")
