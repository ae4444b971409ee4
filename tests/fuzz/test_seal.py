"""A packed container stands for the container that it was made of: what is mutated later is all that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

import cnrfmt
from tools import cnrcheck
from tools.fuzz import mutations, seal
from tools.fuzz.memory_fs import MemoryFs

VECTORS = Path(__file__).resolve().parent.parent.parent / "spec" / "vectors" / "valid"
FOLDERS = [path for path in sorted(VECTORS.iterdir()) if path.is_dir() and not path.name.startswith("leftovers")]
DIGESTS = {"block-magic", "block-digest", "trailer-digest", "toc-digest", "node-digest", "piece-digest"}
"""What a mutation that is sealed again never breaks; but for the digest of a manifest that nothing names rightly."""


def packed(folder: Path, options: int) -> bytes:
    segments = [path.read_bytes() for path in sorted(folder.glob("segments/*"))]
    manifests = [path.read_bytes() for path in sorted(folder.glob("manifests/*"))]
    return seal.pack(segments, manifests, options)


def findings(content: bytes | dict[str, bytes]) -> tuple[str, set[str]]:
    found = cnrcheck.check_bytes(content) if isinstance(content, bytes) else cnrcheck.check_files(content)
    return cnrcheck.verdict(found), {f.error for f in found if f.severity == "damage"}


def test_there_are_folders() -> None:
    assert FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_sound_container_stays_sound(folder: Path) -> None:
    for options in (0, seal.SINGLE_FILE, seal.ATTACH, seal.SINGLE_FILE | seal.OLD_SLOT):
        stays_sound(folder, options)


def stays_sound(folder: Path, options: int) -> None:
    content = seal.unpack(packed(folder, options))
    assert isinstance(content, bytes) == bool(options & seal.SINGLE_FILE)
    assert findings(content) == ("sound", set())
    files = {"/model": content} if isinstance(content, bytes) else {f"/model/{k}": v for k, v in content.items()}
    with cnrfmt.open("/model", fs=MemoryFs(files)) as ck, cnrfmt.open(folder) as original:
        assert set(ck) == set(original)
        for name in ck:
            assert ck[name].read().tobytes() == original[name].read().tobytes()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_mutations_get_past_the_digests(folder: Path) -> None:
    data, reached = packed(folder, 0), set()
    for seed in range(40):
        changed = mutations.packed(data, Random(seed))
        content = seal.unpack(changed)
        assert seal.unpack(changed) == content
        reached |= findings(content)[1]
    # Some names of a segment are mutated themselves, and then nothing says which its digests should be.
    assert len(reached - DIGESTS) >= 5


def test_the_change_of_one_byte_is_found() -> None:
    content = seal.unpack(packed(FOLDERS[0], seal.SINGLE_FILE | seal.FLIP))
    assert findings(content)[0] == "damaged"


@pytest.mark.parametrize("data", [b"", b"\0", b"\1", b"\1" + b"\x89CNRM\r\n\x1a", b"\1" + b"\x89CNRS\r\n\x1a"])
def test_anything_unpacks(data: bytes) -> None:
    content = seal.unpack(data)
    assert findings(content or b"")[0] == "damaged"


def test_json_is_mutated_into_json() -> None:
    text = json.dumps({"a": [1, "two", {"three": None}], "b": {"c": 0.5}}).encode()
    changed = {mutations.json_text(text, Random(seed)) for seed in range(50)}
    assert len(changed) > 30
    for found in changed:
        json.loads(found.decode("utf-8", "surrogatepass"))
    assert mutations.json_text(b"not JSON", Random(1)) == b"not JSON"
