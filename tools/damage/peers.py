"""The same damage to the same table in cnrfmt and in its peers: found, answered with wrong values, or a dead process.

    python -m tools.damage.peers --cases 2000 --seed 1 --state FILE --out tools/damage/results      all formats
    python -m tools.damage.peers --formats "LMDB;h5py" --cases 100                                  some of them

For each format the table (256 rows of the embeddings that the package wordllama carries) is written once. Then in
turn one bit is flipped (uniformly over the bits of all its files), a file is cut (the byte of the cut uniformly over
all files), or an aligned page of 4096 bytes that isn't zero already is zeroed; each time the whole table is read, in a
process that the cases share until one ends it. Needs safetensors, lmdb, zarr, torch and wordllama besides the
project's own dependencies.

With `--state`, the same command goes on with the formats and kinds of damage that weren't finished. The results go to
peers.json and peers.md in the folder of `--out`.

Outcomes: *found* is an exception, *wrong* other values, *unharmed* the right ones, *crash* a signal that ended the
process, *hang* more than 30 seconds.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from tools.damage.damage import memory_folder
from tools.damage.peer_formats import Format, Table, formats, trained_table
from tools.progress import Kept, at_least, chosen, counting, engine_parser, run_program, write_json, write_text

ROWS, PAGE = 256, 4096
PATIENCE = 30.0
MEMORY = 8 << 30
KINDS = {"bit flips": "one bit flipped", "truncations": "one file cut", "zeroed pages": "4096 bytes zeroed"}
OUTCOMES = {"f": "found", "w": "wrong", "u": "unharmed", "c": "crash", "h": "hang"}

Files = dict[Path, bytes]
Hurt = tuple[Path, int, int]
"""A damage: the file, the offset, and the bit where one is flipped."""


def files_of(path: Path) -> Files:
    """The files of a container, by path."""
    return {p: p.read_bytes() for p in sorted([path, *path.rglob("*")]) if p.is_file()}


def _locate(files: Files, at: int) -> tuple[Path, int]:
    """The file, and the offset in it, of a byte counted through all files."""
    for path, data in files.items():
        if at < len(data):
            return path, at
        at -= len(data)
    raise IndexError(at)


def drawn(files: Files, kind: str, random: Random) -> Hurt:
    """A damage drawn by chance."""
    while True:
        path, at = _locate(files, random.randrange(sum(map(len, files.values()))))
        if kind == "bit flips":
            return path, at, random.randrange(8)
        start = at // PAGE * PAGE
        if kind == "truncations":
            return path, at, 0
        if any(files[path][start : start + PAGE]):
            return path, start, 0


def damaged(data: bytes, kind: str, at: int, bit: int) -> bytes:
    """A file's bytes with its damage."""
    if kind == "bit flips":
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    rest = data[at:] if kind == "zeroed pages" else b""
    return data[:at] + bytes(len(rest[:PAGE])) + rest[PAGE:]


def overwrite(path: Path, data: bytes) -> None:
    """Give the file these bytes, in place."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def outcome(format_: Format, path: Path, table: Table) -> str:
    """Read the table; the letter of what comes of it."""
    try:
        found = format_.read(path)
        same = (found.dtype, found.shape) == (table.dtype, table.shape) and found.tobytes() == table.tobytes()
    except BaseException:
        # Rust's panics come as exceptions that aren't `Exception`.
        return "f"
    return "u" if same else "w"


def child(format_: Format, path: Path, table: Table, files: Files, kind: str, work: list[Hurt], pipe: int) -> None:
    """Read the table under each damage, and tell each outcome; never returns."""
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for target, at, bit in work:
            overwrite(target, damaged(files[target], kind, at, bit))
            letter = outcome(format_, path, table)
            overwrite(target, files[target])
            os.write(pipe, letter.encode())
    finally:
        os._exit(0)


def letters(pid: int, pipe: int) -> Iterator[str]:
    """The outcomes that a child tells; the last is a crash or a hang where it ended before its time."""
    while True:
        ready, _, _ = select.select([pipe], [], [], PATIENCE)
        told = os.read(pipe, 1 << 16) if ready else b""
        yield from told.decode()
        if not told:
            if not ready:
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if os.WIFSIGNALED(status):
                yield "c" if ready else "h"
            return


def read_all(format_: Format, path: Path, table: Table, files: Files, kind: str, work: list[Hurt]) -> list[str]:
    """The outcomes of reading the table under each damage, up to the one that ends the reading process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(format_, path, table, files, kind, work, writing)
    os.close(writing)
    try:
        return list(letters(pid, reading))
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(reading)


def try_format(format_: Format, path: Path, table: Table, kind: str, cases: int, seed: int) -> Counter[str]:
    """Count the outcomes of the cases of one kind."""
    pid = os.fork()
    if pid == 0:
        try:
            format_.write(path, table)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    # What is imported before the reading processes are forked is imported once.
    import_module(format_.package)
    files = files_of(path)
    random = Random(f"{seed} {kind}")
    work = [drawn(files, kind, random) for _ in range(cases)]
    # The first file cut at its end is no damage: it must give the table, or nothing that follows means anything.
    whole, data = next(iter(files.items()))
    if read_all(format_, path, table, files, "truncations", [(whole, len(data), 0)]) != ["u"]:
        raise RuntimeError(f"{format_.name}: the undamaged table isn't what was written")
    results: list[str] = []
    while len(results) < len(work):
        before = len(results)
        results += read_all(format_, path, table, files, kind, work[before:])
        if len(results) == before:
            raise RuntimeError(f"{format_.name}: the reading process ended without a word at case {before}")
        # Where it died within a case, it left the damage behind.
        target = work[len(results) - 1][0]
        overwrite(target, files[target])
    return Counter(OUTCOMES[letter] for letter in results)


def markdown(result: Any) -> str:
    """The result as a table; per format and kind of damage: found / wrong / unharmed / crash / hang."""
    lines = [
        f"`{result['command']}`, {result['date']}; {result['cases']} cases of each kind, seed {result['seed']}; "
        f"{result['rows']} x {result['dim']} float32. Share of the cases in which the damage was found, other values "
        "were returned, the right values were returned, the process died, or it hung.",
        "",
        "| format | checks | damage | found | wrong values | unharmed | crash | hang |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in result["formats"].items():
        for kind, counts in entry["kinds"].items():
            total = sum(counts.values())
            shares = " | ".join(f"{100 * counts.get(o, 0) / total:.1f} %" for o in OUTCOMES.values())
            lines.append(f"| {name} ({entry['version']}) | {entry['checks']} | {kind} | {shares} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status: 1 where cnrfmt answered with wrong values, crashed or hung."""
    parser = engine_parser("tools.damage.peers", __doc__)
    parser.add_argument("--cases", type=at_least(1), default=2000, help="cases of each kind and format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--formats", help="names with semicolons between; all unless given")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where peers.json and peers.md are written")
    options = parser.parse_args(arguments)
    table = trained_table(ROWS)
    known = formats(table.shape)
    wanted = list(known) if options.formats is None else options.formats.split(";")
    chosen(parser, "format", wanted, known)
    kept = Kept(options.state, {"cases": options.cases, "seed": options.seed}, anyway=options.anyway)
    entries: dict[str, Any] = kept.load() or {}
    tried = 0
    with counting(lambda: f"{tried} cases", options.state):
        for name in wanted:
            format_, file = known[name]
            entry = entries.setdefault(name, {"version": format_.version, "checks": format_.checks, "kinds": {}})
            for kind in KINDS:
                if kind in entry["kinds"]:
                    continue
                with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
                    counts = try_format(format_, Path(folder) / file, table, kind, options.cases, options.seed)
                    shutil.rmtree(Path(folder) / file, ignore_errors=True)
                entry["kinds"][kind] = dict(counts)
                tried += options.cases
                kept.save(entries)
                print(f"{name}, {kind}: {dict(counts)}", flush=True)
    if not tried:
        kept.say_finished()
    result = {
        "command": f"python -m tools.damage.peers --cases {options.cases} --seed {options.seed}",
        **{"code": kept.code, "date": kept.date, "cases": options.cases, "seed": options.seed},
        **{"rows": table.shape[0], "dim": table.shape[1], "formats": {name: entries[name] for name in wanted}},
    }
    print(markdown(result))
    if options.out is not None:
        write_json(options.out / "peers.json", result)
        write_text(options.out / "peers.md", markdown(result))
    ours = [c for n in wanted if n.startswith("cnrfmt") for c in entries[n]["kinds"].values()]
    return 1 if any(c.get(bad, 0) for c in ours for bad in ("wrong", "crash", "hang")) else 0


if __name__ == "__main__":
    run_program(main)
