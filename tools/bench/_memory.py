"""What a fresh process pays: memory of a large save, import, the first save."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.bench._data import write_table
from tools.bench._figures import Figure, Target, in_turn, say
from tools.bench._setting import ENCODINGS, Setting, clear

_ROOT = Path(__file__).resolve().parents[2]
_BYTES = 1_500_000_000
_DIM = 64


def figures(setting: Setting) -> list[Figure]:
    """Extra memory of a save, time to import, time to a first save."""
    return [*save_memory(setting), import_time(setting), *first_save(setting)]


def run_probe(*arguments: str) -> dict[str, Any]:
    """What `_probe.py` says in a process of its own."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench._probe", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def save_memory(setting: Setting) -> list[Figure]:
    """Anonymous memory that a save of a mapped table takes beyond what the process had before the call.

    Mapped input pages count as resident, though the kernel takes them back whenever it likes; so what counts is
    RssAnon. The peak of all resident memory is reported beside it, without a target: as VmHWM, since ru_maxrss
    starts from what the parent process had.
    """
    source, path = setting.folder / "input.f32", setting.folder / "memory.cnr"
    rows = (_BYTES // 400 if setting.quick else _BYTES) // (4 * _DIM)
    say("memory: writing the input")
    write_table(source, rows, _DIM)
    found = []
    for encoding in ENCODINGS:
        say(f"memory: save, {encoding}")
        rounds = 1 if setting.quick else 3
        raw: dict[str, list[float]] = {"first": [], "later": [], "resident": []}
        for _ in range(rounds):
            clear(path)
            says = run_probe("save-memory", str(source), str(_DIM), str(path), encoding)
            for name in raw:
                raw[name].append(says[name])
        shown: dict[str, Any] = {"group": "memory", "unit": "bytes", "verify": "digests made", "cache": "mapped input"}
        most = Target("cnrfmt", "<=", 128 << 20)
        what = f"of a {rows * _DIM * 4 / 1e9:.2g} GB save, {encoding}"
        found += [
            Figure(name=f"extra {what}", cnrfmt=raw["first"], target=most, touch="first save", **shown),
            Figure(name=f"extra {what}", cnrfmt=raw["later"], target=most, touch="later save", **shown),
            Figure(name=f"peak resident (VmHWM) {what}", cnrfmt=raw["resident"], touch="whole process", **shown),
        ]
    clear(source, path)
    return found


def import_time(setting: Setting) -> Figure:
    """`import cnrfmt` in fresh processes, beside `import h5py`, in turn."""
    say("memory: import")

    def seconds(module: str) -> float:
        return float(run_probe("import", module)["seconds"])

    run_probe("import", "cnrfmt")  # Byte code is compiled, and the files are in the page cache.
    times = in_turn(
        max(5, setting.repeat) if not setting.quick else 1,
        {"cnrfmt": lambda _: seconds("cnrfmt"), "h5py": lambda _: seconds("h5py")},
    )
    return Figure(
        group="start",
        name="import",
        cnrfmt=times["cnrfmt"],
        peer_name="import h5py",
        peer=times["h5py"],
        target=Target("cnrfmt", "<=", 0.4),
        touch="fresh process",
        cache="warm",
    )


def first_save(setting: Setting) -> list[Figure]:
    """From a fresh process's first line to the end of its first save of 1,000 rows, kernels compiled before."""
    path = setting.folder / "first.cnr"
    found = []
    for encoding in ENCODINGS:
        say(f"memory: first save, {encoding}")

        def one(encoding: str = encoding) -> dict[str, Any]:
            clear(path)
            return run_probe("first-save", str(path), encoding)

        one()
        runs = [one() for _ in range(1 if setting.quick else max(5, setting.repeat))]
        shown: dict[str, Any] = {"group": "start", "touch": "fresh process", "cache": "kernels compiled before"}
        found += [
            Figure(
                name=f"import and first save, {encoding}",
                cnrfmt=[run["import"] + run["save"] for run in runs],
                target=Target("cnrfmt", "<=", 1.0),
                **shown,
            ),
            Figure(name=f"first save alone, {encoding}", cnrfmt=[run["save"] for run in runs], **shown),
        ]
    clear(path)
    return found
