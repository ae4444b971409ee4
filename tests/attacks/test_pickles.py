"""Code in the place of data: there is no pickle in the format, and none is ever loaded."""

from __future__ import annotations

import ast
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.integrations.convert import convert
from tests.attacks.support import ROOT, Store, accepted, cases, in_child, lay, layout, refused


class Trap:
    """An object whose loading leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


def _entry(kind: str, data: bytes) -> Store:
    def content(segment: layout.Segment) -> None:
        segment.blob("model", kind, data)

    return cases.one_small(content=content, tables=(), dense=True)


def _dense(path: Path) -> Any:
    with cnrfmt.open(path) as ck:
        return ck.dense["model"]


def test_a_pickle_is_bytes_like_others(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    data = pickle.dumps(Trap(trace))
    for kind in ("pickle", "object", "python"):
        refused(tmp_path / kind, _entry(kind, data), "json-field", "dense-reference", "section-reference")
    refused(tmp_path / "json", _entry("json", data), "json-syntax", "dense-entry")
    accepted(tmp_path, _entry("bytes", data))
    assert in_child(_dense, lay(tmp_path / "again", _entry("bytes", data))) == data
    assert not trace.exists()


def test_an_array_of_objects(tmp_path: Path) -> None:
    def content(segment: layout.Segment) -> None:
        segment.array("model", "object", [1], pickle.dumps(Trap(tmp_path / "trace")))

    hostile = cases.one_small(content=content, tables=(), dense=True)
    refused(tmp_path, hostile, "json-field", "dense-reference", "section-reference")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("how", ["objects", "record", "bytes"])
def test_a_pickle_in_an_npz_file(tmp_path: Path, how: str) -> None:
    trace, path = tmp_path / "trace", tmp_path / "hostile.npz"
    if how == "bytes":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model.npy", pickle.dumps(Trap(trace)))
    else:
        dtype = object if how == "objects" else np.dtype([("a", object)])
        file = io.BytesIO()
        np.save(file, np.array([(Trap(trace),)], dtype), allow_pickle=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model.npy", file.getvalue())
    error = in_child(convert, path, tmp_path / "model.cnr")
    assert isinstance(error, cnrfmt.CnrError), repr(error)
    assert not trace.exists()
    np.savez(tmp_path / "twin.npz", model=np.ones((2, 2), np.float32))
    assert in_child(convert, tmp_path / "twin.npz", tmp_path / "twin.cnr")["tables"] == ["model"]


def test_nothing_in_the_library_loads_code() -> None:
    """The kernels' cache is numba's own, below a folder of the user's; nothing else knows pickle, eval or exec."""
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    for path in sorted((ROOT / "cnrfmt").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names}
                if isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module.split(".")[0])
                assert not names & forbidden or path.name == "_cache.py", path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
