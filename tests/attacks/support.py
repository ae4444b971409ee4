"""What the attacks share: hostile containers laid down and judged in a process with little memory.

The builder of the specification's vectors makes them, so that every digest is right and the attacked field alone is
wrong. Both validators and every kind of reader look at each, in a child whose memory is bounded and which is ended if
it hangs.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
# The builder is a program beside its own package.
sys.path.append(str(ROOT / "tools"))

import numpy as np  # noqa: E402
from vectors import cases, container, encodings, integers, layout, parts, rows  # noqa: E402
from vectors.container import Link, Store, Tree  # noqa: E402

import cnrfmt  # noqa: E402
from tools import cnrcheck  # noqa: E402

__all__ = [
    "Link",
    "Store",
    "accepted",
    "cases",
    "command",
    "container",
    "encodings",
    "in_child",
    "integers",
    "lay",
    "layout",
    "outcome",
    "parts",
    "refused",
    "rows",
]

MEMORY = 256 << 20
"""Bytes that a child may take beyond what it starts with."""
PATIENCE = 300
"""Seconds until a child counts as hanging: no bound on how fast anything is."""
_FEW = 64
_accepted: set[tuple[str, int | None]] = set()
"""Twins that were judged: many attacks have the same."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.attacks.warm"])


def in_child(work: Callable[..., Any], *args: Any, memory: int | None = MEMORY, patience: float = PATIENCE) -> Any:
    """What `work` gives in a child with bounded memory; its exception, if it raises one.

    Fails where the child hangs or dies.
    """
    ours, theirs = _context.Pipe(duplex=False)
    child = _context.Process(target=_run, args=(theirs, work, args, memory))
    child.start()
    theirs.close()
    try:
        if not ours.poll(patience):
            child.kill()
            raise AssertionError(f"{work.__name__}{args} hangs")
        try:
            return ours.recv()
        except EOFError:
            child.join()
            raise AssertionError(f"{work.__name__}{args}: the process died with {child.exitcode}") from None
    finally:
        child.join(PATIENCE)
        ours.close()


def _run(pipe: Any, work: Callable[..., Any], args: Any, memory: int | None) -> None:
    if memory is not None:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        limit = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        found = work(*args)
    except Exception as error:
        # A traceback would keep what the call had taken.
        found = error.with_traceback(None)
    pipe.send(found)


@dataclass(frozen=True)
class Outcome:
    """What both validators and the readers make of a container.

    `read` holds the error of each backend's reading of everything, None where all was read.
    """

    verify: str
    rules: frozenset[str]
    cnrcheck: str
    cnrcheck_rules: frozenset[str]
    read: dict[str, Exception | None]


def lay(where: Path, content: bytes | Tree | Store) -> Path:
    """Puts a container on the disk."""
    content = content.build() if isinstance(content, Store) else content
    if isinstance(content, bytes):
        path = where.with_suffix(".cnr")
        path.write_bytes(content)
        return path
    for name, data in content.items():
        file = where / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, Link):
            file.symlink_to(data.target)
        else:
            file.write_bytes(data)
    return where


def outcome(path: Path, max_bytes: int | None = None) -> Outcome:
    """Judges a container in this process; call it in a child."""
    report = cnrfmt.verify(path, threads=1)
    findings = cnrcheck.check_path(path)
    read = {backend: read_everything(path, backend, max_bytes) for backend in ("mmap", "pread")}
    return Outcome(
        report.verdict,
        frozenset(f.rule for f in report.findings if f.severity == "damage"),
        cnrcheck.verdict(findings),
        frozenset(f.error for f in findings if f.severity == "damage"),
        read,
    )


def read_everything(path: Path, backend: Any, max_bytes: int | None) -> Exception | None:
    """Reads all versions, all that is small of their tables, and the dense state; gives our own error, if any."""
    try:
        with cnrfmt.open(path, backend=backend, threads=1, max_bytes=max_bytes) as ck:
            versions = ck.versions
        for version in versions:
            with cnrfmt.open(path, version=version, backend=backend, threads=1, max_bytes=max_bytes) as ck:
                assert isinstance(ck.dense, dict)
                for table in ck.values():
                    for column in table.columns:
                        rows = np.arange(min(len(table), _FEW))
                        table.read(rows, column=column, by="position")
                        if len(table) * table.shape[1] <= 1 << 20:
                            table.read(column=column)
    except cnrfmt.CnrError as error:
        return error.with_traceback(None)
    return None


def refused(
    tmp_path: Path, content: bytes | Tree | Store, *rules: str, read: bool = True, memory: int = MEMORY
) -> Outcome:
    """Both validators find the first of the rules broken and none but these, and no reader reads everything.

    With ``read=False`` readers may: they don't look where the damage is.
    """
    found: Any = in_child(outcome, lay(tmp_path / "hostile", content), memory=memory)
    assert isinstance(found, Outcome), repr(found)
    assert (found.verify, found.cnrcheck) == ("damaged", "damaged"), found
    assert rules[0] in found.rules, found
    assert rules[0] in found.cnrcheck_rules, found
    assert found.rules | found.cnrcheck_rules <= set(rules), found
    for error in found.read.values():
        if read or error is not None:
            assert isinstance(error, cnrfmt.DamagedError), found
            assert error.rule in rules, found
    return found


def accepted(tmp_path: Path, content: bytes | Tree | Store, max_bytes: int | None = None) -> Path:
    """The legal twin: both validators call it sound, and it is read; gives its path."""
    path = lay(tmp_path / "twin", content)
    known = (_digest(path), max_bytes)
    if known in _accepted:
        return path
    found: Any = in_child(outcome, path, max_bytes)
    assert isinstance(found, Outcome), repr(found)
    assert (found.verify, found.cnrcheck) == ("sound", "sound"), found
    assert set(found.read.values()) == {None}, found
    _accepted.add(known)
    return path


def _digest(path: Path) -> str:
    """Of the names and bytes of a container."""
    found = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        data = os.fsencode(os.readlink(file)) if file.is_symlink() else file.read_bytes() if file.is_file() else b""
        found.update(repr((str(file.relative_to(path)), file.is_symlink(), len(data))).encode())
        found.update(data)
    return found.hexdigest()


def command(path: Path, *words: str) -> tuple[int, str, str]:
    """The exit code and the output of the command, in this process; call it in a child."""
    import contextlib
    import io

    from cnrfmt.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([words[0], os.fspath(path), *words[1:]])
    return code, out.getvalue(), err.getvalue()
