"""Random damage of all kinds at once."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

import cnrfmt
from cnrfmt import CnrError, DamagedError, StorageError, UnsupportedError
from tests.salvage.conftest import Original
from tests.salvage.support import FS, KINDS, build, check_dense, check_result, contents, copy, regions, said

SEED = 20261
CASES = 200
"""For each kind of container; the command in this file's failure message runs more."""


def damage(original: Original, path: Path, chance: random.Random) -> list[str]:
    """Does one to four things to a copy, and says which."""
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        files = [name for name, data in contents(path).items() if data]
        if not files:
            break
        name = chance.choice(files)
        file = path / name if name else path
        data = bytearray(file.read_bytes())
        at = chance.randrange(len(data))
        aimed = [r for r in original.regions if r.file == name and r.offset + r.length <= len(data)]
        if aimed and chance.random() < 0.7:
            hit = chance.choice(aimed)
            at = chance.randrange(hit.offset, hit.offset + hit.length)
        what = chance.choice(("bit", "bit", "bit", "byte", "zeros", "noise", "page", "swap", "cut", "longer", "remove"))
        length = min(len(data) - at, chance.choice((2, 64, 700, 4096, 9000)))
        if what == "bit":
            data[at] ^= 1 << chance.randrange(8)
        elif what == "byte":
            data[at] = chance.randrange(256)
        elif what == "zeros":
            data[at : at + length] = bytes(length)
        elif what == "noise":
            data[at : at + length] = chance.randbytes(length)
        elif what == "page":
            data[at // 4096 * 4096 : at // 4096 * 4096 + 4096] = bytes(min(4096, len(data) - at // 4096 * 4096))
        elif what == "swap":
            other = chance.randrange(len(data))
            length = min(length, abs(other - at), len(data) - max(other, at))
            first = bytes(data[at : at + length])
            data[at : at + length] = data[other : other + length]
            data[other : other + length] = first
        elif what == "cut":
            del data[at:]
        elif what == "longer":
            data += chance.randbytes(length)
        elif name:
            file.unlink()
        if what != "remove":
            file.write_bytes(data)
        done.append(f"{what} of {length} bytes at {at} of {name or 'the file'}")
    return done


def run_case(original: Original, folder: Path, seed: int, case: int) -> str:
    """Damages a copy and salvages it; gives the outcome. Raises `AssertionError` with what makes it happen again."""
    chance = random.Random(f"{seed}/{case}/{original.path.name}")
    path, target = folder / original.path.name, folder / chance.choice(("new.cnr", "new"))
    copy(original.path, path)
    done = damage(original, path, chance)
    version = chance.choice((None, None, None, "whole", chance.randrange(6)))
    before = contents(path)
    outcome = "whole"
    try:
        try:
            report = cnrfmt.salvage(path, target, version=version, threads=1, fs=FS)
        except (DamagedError, UnsupportedError, cnrfmt.VersionNotFoundError) as error:
            assert not target.exists()
            outcome = type(error).__name__
        else:
            check_result(report, target, original.tables[report.version])
            check_dense(report, target, original.dense[report.version])
            outcome = "whole" if report.complete else "losses"
        assert contents(path) == before, "the source was changed"
        assert not [p for p in folder.iterdir() if p not in (path, target)], "something was left over"
    except (AssertionError, CnrError, StorageError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        kind = original.path.name
        again = f"python -m tests.salvage.test_random --seed {seed} --first {case} --cases 1 --kind {kind}"
        raise AssertionError(f"version {version}; {'; '.join(done)}: {error!r}; to see it again: {again}") from error
    finally:
        if target.exists():
            _remove(target)
    return outcome


def _remove(target: Path) -> None:
    if target.is_file():
        target.unlink()
    else:
        shutil.rmtree(target)


def test_random_damage(original: Original, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    outcomes = [run_case(original, tmp_path, SEED, case) for case in range(CASES)]
    # The damage is such that every outcome occurs, and most of the time something is saved.
    assert {"whole", "losses", "DamagedError"} <= set(outcomes)
    assert outcomes.count("losses") > CASES // 5


def main() -> None:
    parser = argparse.ArgumentParser(description="Salvages randomly damaged containers, and checks every row.")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--kind", choices=KINDS, action="append")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.kind or KINDS:
            (Path(folder) / f"for-{kind}").mkdir()
            path = Path(folder) / f"for-{kind}" / kind
            build(path)
            dense = {}
            for version in range(6):
                with cnrfmt.open(path, version=version) as ck:
                    dense[version] = ck.dense
            original = Original(path, {v: said(path, v) for v in range(6)}, dense, regions(path))
            place = Path(folder) / f"try-{kind}"
            place.mkdir()
            outcomes: dict[str, int] = {}
            for case in range(args.first, args.first + args.cases):
                outcome = run_case(original, place, args.seed, case)
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                if sys.stderr.isatty():
                    print(f"\r{kind}: {case} {outcomes}", end="", file=sys.stderr)
            print(kind, "seed", args.seed, outcomes)


if __name__ == "__main__":
    main()
