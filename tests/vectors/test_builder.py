from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
VECTORS = ROOT / "spec" / "vectors"
BUILDER = ROOT / "tools" / "make_vectors.py"
RULES = {
    int(number): error
    for number, error in re.findall(
        r"^\| (\d+) \| `([a-z-]+)` \| ", (ROOT / "spec" / "format.md").read_text("utf-8"), re.MULTILINE
    )
}
INFOS = {
    path.relative_to(VECTORS).with_suffix("").as_posix(): json.loads(path.read_text("utf-8"))
    for kind in ("valid", "invalid")
    for path in sorted((VECTORS / kind).glob("*.json"))
}


def build(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BUILDER), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_vectors_are_what_the_builder_builds() -> None:
    result = build("--check")
    assert (result.returncode, result.stderr) == (0, "")


def test_check_finds_each_difference_and_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    root = ("--root", str(tmp_path))
    assert build(*root).returncode == 0
    assert build("--check", *root).returncode == 0
    victim = tmp_path / "valid" / "chain.cnr"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + b"\x01")
    (tmp_path / "invalid" / "extra.json").write_text("{}")
    (tmp_path / "valid" / "chain-directory.json").unlink()
    result = build("--check", *root)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "differs: valid/chain.cnr",
        "missing: valid/chain-directory.json",
        "not built: invalid/extra.json",
    ]
    assert build(*root).returncode == 1
    assert victim.read_bytes() != whole
    assert build("--force", *root).returncode == 0
    assert victim.read_bytes() == whole
    assert build("--check", *root).returncode == 0


def test_every_rule_of_the_document_has_an_invalid_vector() -> None:
    assert sorted(RULES) == list(range(1, 59))
    broken = {info["rule"] for info in INFOS.values() if info["verdict"] == "damaged"}
    assert broken == set(RULES)


@pytest.mark.parametrize("kind", ["valid", "invalid"])
def test_a_verdict_agrees_with_the_document_and_the_name(kind: str) -> None:
    names = [name for name in INFOS if name.startswith(f"{kind}/")]
    assert names
    for name in names:
        agrees(name)


def agrees(name: str) -> None:
    info = INFOS[name]
    kind, stem = name.split("/")
    assert (VECTORS / f"{name}.cnr").is_file() != (VECTORS / name).is_dir(), name
    assert info["about"].endswith("."), name
    assert set(info["also"]) <= set(RULES.values()) - {info["error"]}, name
    if kind == "valid":
        assert (info["verdict"], info["rule"], info["error"]) == ("sound", None, None), name
        assert info["also"] == [], name
    elif info["verdict"] == "unjudged":
        assert (info["rule"], info["error"]) == (None, None), name
        assert stem.startswith("unjudged--"), name
    else:
        assert info["verdict"] == "damaged", name
        assert info["error"] == RULES[info["rule"]], name
        assert stem.startswith(info["error"] + "--"), name


def test_the_vectors_stay_small() -> None:
    files = [path for path in VECTORS.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < 10_000_000
