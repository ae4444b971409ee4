"""Inputs to start from, made of the specification's vectors, the golden containers and what the library writes.

``python -m tools.fuzz.seeds DIRECTORY`` writes them to ``DIRECTORY/<target>/``.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt.encodings import row_ids
from cnrfmt.format.limits import BLOCK
from cnrfmt.integrations.convert import convert
from tools.fuzz import integers, rows, seal

ROOT = Path(__file__).resolve().parent.parent.parent
VECTORS, GOLDEN = ROOT / "spec" / "vectors", ROOT / "tests" / "golden" / "1.0"
_MOST_BYTES = 16384


def _directories() -> Iterator[tuple[str, list[bytes], list[bytes]]]:
    """Name, segments and manifests of the containers that are directories, in the order of their versions."""
    for kind, parent in (("valid", VECTORS / "valid"), ("invalid", VECTORS / "invalid"), ("golden", GOLDEN)):
        for folder in sorted(path for path in parent.iterdir() if path.is_dir()):
            segments, manifests = _files(folder, "segments/*.cnrs"), _files(folder, "manifests/*.cnrm")
            if all(len(data) >= 2 * BLOCK for data in segments + manifests):
                yield f"{kind}-{folder.name}", segments, manifests


def _files(folder: Path, pattern: str) -> list[bytes]:
    found = sorted(path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink())
    return [path.read_bytes() for path in found]


def _of_containers() -> Iterator[tuple[str, str, bytes]]:
    for number, (name, segments, manifests) in enumerate(_directories()):
        try:
            packed = seal.pack(segments, manifests, (0, seal.SINGLE_FILE, seal.ATTACH)[number % 3])
        except struct.error:
            continue
        if len(packed) <= _MOST_BYTES:
            yield "resealed", name, packed
        for k, data in enumerate(manifests):
            yield "manifest", f"{name}-{k}", data[8:120] + data[BLOCK:-8]
            (length,) = struct.unpack_from("<Q", data, 64)
            try:
                tables = json.loads(data[BLOCK : BLOCK + length])["tables"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            yield "schema", f"{name}-{k}", b"0" + json.dumps(tables, separators=(",", ":")).encode()
        for k, data in enumerate(segments):
            end, at, size = struct.unpack_from("<QQQ", data, len(data) - BLOCK + 32)
            text = data[at : at + size]
            yield "toc", f"{name}-{k}", bytes([3, 0]) + min(end, 1 << 47).to_bytes(6, "little") + text
            yield "strict_json", f"{name}-{k}", text
            yield "segment_header", f"{name}-{k}", b"\1" + data[8:120]
            yield "trailer", f"{name}-{k}", b"\0" + data[-120:-8]
            try:
                parts = [[p["encoding"], p["scheme"]] for t in json.loads(text)["tables"] for p in t["parts"]]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            for number, part in enumerate(parts):
                yield "layout", f"{name}-{k}-{number}", json.dumps(part, separators=(",", ":")).encode()


def _of_files() -> Iterator[tuple[str, str, bytes]]:
    for kind in ("valid", "invalid"):
        for path in sorted((VECTORS / kind).glob("*.cnr")):
            data = path.read_bytes()
            if path.is_file() and len(data) <= 32768:
                yield "single_file", f"{kind}-{path.stem}", data
            if len(data) >= 3 * 4096:
                yield "file_header", path.stem, data[8:120] + data[128:160]
                yield "slot", f"{path.stem}-a", b"\0" + data[4096 + 8 : 4096 + 120] + data[4096 + 128 : 4096 + 160]
                yield "slot", f"{path.stem}-b", b"\1" + data[8192 + 8 : 8192 + 120]


def of_rows() -> Iterator[tuple[str, str, bytes]]:
    """Target, name and input: row indexes, rows of every layout, entries of the dense state."""
    for name, ids in (
        ("few", [0, 3, 4, 9]),
        ("run", list(range(-5, 300))),
        ("thirds", list(range(0, 900, 3))),
        ("far", [-(1 << 63), -1, 0, (1 << 63) - 1]),
        ("two-runs", [*range(40), *range(1000, 1040)]),
        ("groups", [k * k for k in range(300)]),
    ):
        found = np.array(ids, np.int64)
        best = row_ids.plan(found).code
        for code in {best, "raw", "packed"}:
            size = row_ids.plan(found).nbytes if code == best else 16 * len(ids) + 4096
            section = rows._encoded(code, found, size if code == best else _size(code, found))
            yield "row_index", f"{name}-{code}", rows.index_input(code, len(ids), ids[0], ids[-1], section)
    for number, layout in enumerate(rows.LAYOUTS):
        # Widths that leave bits over, and each of the methods.
        width = 11 + rows.MOST_WIDTH * (number % 6)
        size = layout.section_bytes(3, 12) + layout.codebook_bytes(3)
        yield "encoded_rows", str(number), bytes([number, width]) + bytes(range(256))[:size]
        yield "encoded_rows", f"{number}-zero", bytes([number, width]) + bytes(size)
    for number in range(19):
        yield "dense", str(number), bytes([number, 1]) + b'{"a":[1,2.5,null]}'.ljust(32)


def _size(code: str, ids: np.ndarray) -> int:
    from cnrfmt.kernels import row_index as kernel

    words = int(kernel.measure(ids)[1])
    return 8 * len(ids) if code == "raw" else 16 * -(-len(ids) // 128) + 8 * words


def _of_foreign() -> Iterator[tuple[str, str, bytes]]:
    arrays: dict[str, Any] = {
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "turned": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(3, 2)),
        "scalar": np.float64(3),
        "text": np.array(["a", "bc"]),
    }
    for compressed in (False, True):
        file = io.BytesIO()
        (np.savez_compressed if compressed else np.savez)(file, **{k: arrays[k] for k in ("weight", "text")})
        yield "npz_file", f"two-{compressed}", file.getvalue()
    for name, array in arrays.items():
        file = io.BytesIO()
        np.save(file, array)
        yield "npy_header", name, file.getvalue()
        file = io.BytesIO()
        np.savez(file, **{name: array})
        yield "npz_file", name, file.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        container, target = Path(folder) / "model.cnr", Path(folder) / "model"
        keyed = cnrfmt.TableData(np.ones((2, 3), np.float32), keys=[5, -7], columns={"sum": np.ones(2, np.float32)})
        cnrfmt.save(container, {"item": np.ones((2, 2), np.float32), "visitor": keyed}, dense={"x": {"a": 1}}, step=3)
        for suffix, name in ((".safetensors", "safetensors_file"), (".npz", "npz_file")):
            path = target.with_suffix(suffix)
            convert(container, path)
            data = path.read_bytes()
            yield name, "container", data
            if suffix == ".safetensors":
                header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
                yield "notes", "container", header["__metadata__"]["cnrfmt"].encode()


def main(arguments: list[str]) -> int:
    """Write the seeds."""
    folder = Path(arguments[0])
    count = 0
    for part in (_of_containers, _of_files, of_rows, integers.seeds, _of_foreign):
        for target, name, data in part():
            path = folder / target / f"{name}"[:120]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            count += 1
    print(f"{count} seeds")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
