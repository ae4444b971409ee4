"""Make the test vectors of the specification: spec/vectors/{valid,invalid}.

The builder shares no code with the library or with tools/cnrcheck.py, so that the three agree only
where the specification makes them. It is run by hand, when the specification changes; what a
released version left in spec/vectors stays.

    python tools/make_vectors.py            write the vectors that aren't there yet
    python tools/make_vectors.py --force    overwrite, and remove what isn't built any more
    python tools/make_vectors.py --check    compare what is there with what would be built
    python tools/make_vectors.py --list     name the vectors
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from vectors import (
    invalid_blocks,
    invalid_codes,
    invalid_containers,
    invalid_encodings,
    invalid_integers,
    invalid_log_rows,
    invalid_manifests,
    invalid_parts,
    invalid_rows,
    invalid_schemes,
    invalid_segments,
    invalid_sums,
    invalid_tables,
    valid_chains,
    valid_codes,
    valid_integers,
    valid_log_rows,
    valid_residuals,
    valid_rowwise,
    valid_tables,
)
from vectors.cases import Vector
from vectors.container import Link, Tree

ROOT = Path(__file__).resolve().parent.parent / "spec" / "vectors"
MODULES = (
    valid_tables,
    valid_rowwise,
    valid_codes,
    valid_integers,
    valid_residuals,
    valid_log_rows,
    valid_chains,
    invalid_blocks,
    invalid_segments,
    invalid_tables,
    invalid_encodings,
    invalid_schemes,
    invalid_parts,
    invalid_codes,
    invalid_integers,
    invalid_sums,
    invalid_log_rows,
    invalid_manifests,
    invalid_containers,
    invalid_rows,
)


def vectors() -> Iterator[Vector]:
    """All vectors; no name occurs twice."""
    seen = set()
    for module in MODULES:
        for vector in module.vectors():
            assert vector.name not in seen, vector.name
            seen.add(vector.name)
            yield vector


def files_of(vector: Vector) -> Tree:
    """The files of a vector, by their paths below spec/vectors."""
    files: Tree = {f"{vector.name}.json": vector.info()}
    if isinstance(vector.content, bytes):
        return files | {f"{vector.name}.cnr": vector.content}
    return files | {f"{vector.name}/{path}": data for path, data in vector.content.items()}


def on_disk(root: Path) -> Tree:
    """The files that are there, but for the README."""
    files: Tree = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            files[name] = Link(str(path.readlink()))
        elif path.is_file() and name != "README.md":
            files[name] = path.read_bytes()
    return files


def write(path: Path, data: bytes | Link) -> None:
    """Write a file or a link in the place of whatever is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if isinstance(data, Link):
        path.symlink_to(data.target)
    else:
        path.write_bytes(data)


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status."""
    parser = argparse.ArgumentParser(description="Make the specification's test vectors.")
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    parser.add_argument("--check", action="store_true", help="compare; 1 on any difference")
    parser.add_argument("--list", action="store_true", help="name the vectors")
    parser.add_argument("--root", type=Path, default=ROOT, help="where they lie")
    options = parser.parse_args(arguments)
    built = list(vectors())
    if options.list:
        for vector in built:
            print(f"{vector.verdict['verdict']:8} {vector.name}: {vector.verdict['about']}")
        return 0
    wanted: Tree = {}
    for vector in built:
        wanted |= files_of(vector)
    present = on_disk(options.root)
    wrong = sorted(name for name in wanted.keys() & present if wanted[name] != present[name])
    missing, extra = sorted(wanted.keys() - present), sorted(present.keys() - wanted)
    if options.check:
        for what, names in (("differs", wrong), ("missing", missing), ("not built", extra)):
            for name in names:
                print(f"{what}: {name}", file=sys.stderr)
        return 1 if wrong or missing or extra else 0
    if wrong and not options.force:
        for name in wrong:
            print(f"differs, kept: {name}", file=sys.stderr)
        print("nothing was written; --force overwrites", file=sys.stderr)
        return 1
    if options.force:
        # A name may have been a file and be a folder now, so everything goes first.
        for kind in ("valid", "invalid"):
            shutil.rmtree(options.root / kind, ignore_errors=True)
        missing = sorted(wanted)
    for name in missing:
        write(options.root / name, wanted[name])
    print(f"{len(built)} vectors, {len(missing)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
