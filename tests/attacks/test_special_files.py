"""Pipes, sockets, devices and folders in the place of files: whoever opens them waits for ever, or reads for ever."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import cnrfmt
from tests.attacks.support import accepted, cases, in_child, lay, outcome

MANIFEST = "manifests/00000000000000000000.cnrm"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        # The name of a socket is short; the folder of a test isn't.
        before = Path.cwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)


KINDS: dict[str, Callable[[Path], None]] = {"pipe": os.mkfifo, "socket": _socket, "folder": os.mkdir}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["manifests", "segments"])
def test_in_a_directory(tmp_path: Path, kind: str, name: str) -> None:
    path = lay(tmp_path / "hostile", cases.one_small())
    file = next((path / name).iterdir())
    file.unlink()
    KINDS[kind](file)
    found = in_child(outcome, path)
    assert (found.verify, found.cnrcheck) == ("damaged", "damaged")
    assert "file-missing" in found.rules & found.cnrcheck_rules
    assert all(isinstance(error, cnrfmt.DamagedError) for error in found.read.values())
    accepted(tmp_path, cases.one_small())


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_in_the_place_of_a_container(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.cnr"
    KINDS[kind](path)
    for work in (cnrfmt.verify, cnrfmt.load):
        assert isinstance(in_child(work, path), cnrfmt.StorageError)
    accepted(tmp_path, cases.one())


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_no_container(tmp_path: Path, device: str) -> None:
    for work in (cnrfmt.verify, cnrfmt.load):
        assert isinstance(in_child(work, device), cnrfmt.StorageError)
    accepted(tmp_path, cases.one())
