"""What `cnrfmt serve` answers under load, while versions come and while none do.

    python -m tools.bench._serving_http [--dir DIR] [--seconds 10] [--connections 16] [--switches 100] [--quick]

The server, the load and the trainer are processes of their own on this machine. The load is `wrk` where it is
installed, else a client in Python, which takes more of the processors than the server does. First each kind of request
is asked for some seconds with no trainer; then again and again, in turn, while a trainer commits every half second, 1 %
of a table of 64 elements per row and all of a small one, until the server has switched so often. Half-way the trainer
is killed by SIGKILL, and started again. All the while another client asks for rows of the small table, each of which
has its version in every element, and looks whether an answer is of one version whole.

The exit code is 1 where a request failed or an answer wasn't whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np

import cnrfmt
from cnrfmt.serving.http import wire
from tools.bench._figures import Figure, say, table_of

_ROWS, _QUICK_ROWS, _DIM = 1_000_000, 20_000, 64
_MARKS = 256
_SHARE = 0.01
_EVERY_S = 0.5
_CROWD, _CROWD_S = 200, 3.0
_PAUSE_S = 0.02
"""Between requests of the client that looks whether answers are whole: it mustn't be the load."""
_SEED = 7
_THIS = (sys.executable, "-m", "tools.bench._serving_http")

_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "%s"
wrk.body = "%s"
done = function(summary, latency)
  local e = summary.errors
  print(string.format("REPORT %%d %%d %%d %%f %%f", summary.requests, summary.duration,
    e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50), latency:percentile(99)))
end
"""


class Kind(NamedTuple):
    """A kind of request."""

    name: str
    address: str
    form: str
    body: bytes


class Load(NamedTuple):
    """What came of asking for some seconds."""

    requests: int
    seconds: float
    failed: int
    p50: float
    p99: float


def kinds(rows: int) -> list[Kind]:
    """Those that are asked."""
    random = np.random.default_rng(_SEED)
    few, many = random.integers(0, rows, 8), random.integers(0, rows, 1000)
    offsets = np.arange(0, 1000, 10)
    return [
        Kind("8 rows, JSON", "/lookup", wire.JSON, json.dumps({"table": "user", "ids": few.tolist()}).encode()),
        Kind("8 rows, binary", "/lookup", wire.ROWS, wire.pack_request("user", few)),
        Kind("1000 rows, binary", "/lookup", wire.ROWS, wire.pack_request("user", many)),
        Kind("100 sums of 10 rows, binary", "/pool", wire.ROWS, wire.pack_request("user", many, offsets=offsets)),
    ]


def by_wrk(url: str, kind: Kind, connections: int, seconds: float) -> Load:
    """Load by wrk, in one thread."""
    body = "".join(f"\\{byte:03d}" for byte in kind.body)
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT % (kind.form, body))
        script.flush()
        words = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}", "-s", script.name]
        done = subprocess.run([*words, url + kind.address], stdout=subprocess.PIPE, text=True, check=True)
    words = next(line for line in done.stdout.splitlines() if line.startswith("REPORT ")).split()[1:]
    return Load(int(words[0]), int(words[1]) / 1e6, int(words[2]), float(words[3]) / 1e6, float(words[4]) / 1e6)


def by_python(url: str, kind: Kind, connections: int, seconds: float) -> Load:
    """Load by a process of Python."""
    words = ["--load", url, kind.name, str(connections), str(seconds)]
    done = subprocess.run([*_THIS, *words], input=kind.body, stdout=subprocess.PIPE, check=True)
    return Load(*json.loads(done.stdout))


async def _ask(url: str, kind: Kind, connections: int, seconds: float) -> Load:
    taken: list[float] = []
    failed = 0
    begin = time.perf_counter()

    async def asking(client: httpx.AsyncClient) -> None:
        nonlocal failed
        while (started := time.perf_counter()) < begin + seconds:
            try:
                answer = await client.post(kind.address, content=kind.body, headers={"content-type": kind.form})
                failed += answer.status_code != 200
            except httpx.HTTPError:
                failed += 1
            taken.append(time.perf_counter() - started)

    limits = httpx.Limits(max_connections=connections)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        await asyncio.gather(*(asking(client) for _ in range(connections)))
    p50, p99 = np.percentile(taken, [50, 99])
    return Load(len(taken), time.perf_counter() - begin, failed, float(p50), float(p99))


def train(path: Path) -> None:
    """Commits version after version, from the newest on, until it is killed."""
    random = np.random.default_rng()
    with cnrfmt.open(path) as ck:
        rows, version = len(ck["user"]), ck.version
    while True:
        version += 1
        ids = np.flatnonzero(random.random(rows) < _SHARE)
        changes = {
            "user": cnrfmt.Rows(ids, random.normal(size=(len(ids), _DIM)).astype(np.float32)),
            "mark": cnrfmt.Rows(np.arange(_MARKS), np.full((_MARKS, _DIM), version, np.float32)),
        }
        cnrfmt.append(path, changes, step=version)
        time.sleep(_EVERY_S)


class Watcher:
    """Asks all the while whether an answer is of one version whole."""

    def __init__(self, url: str) -> None:
        self.asked = self.failed = self.torn = 0
        self.versions: set[int] = set()
        self._url, self._over = url, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        body, headers = wire.pack_request("mark", range(_MARKS)), {"content-type": wire.ROWS}
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._over.wait(_PAUSE_S):
                self.asked += 1
                try:
                    answer = client.post("/lookup", content=body, headers=headers)
                except httpx.HTTPError:
                    self.failed += 1
                    continue
                if answer.status_code != 200:
                    self.failed += 1
                    continue
                version, rows = wire.unpack_answer(answer.content)
                self.versions.add(version)
                self.torn += not (rows == version).all()

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def program(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process of Python that ends with this block."""
    process = subprocess.Popen([sys.executable, "-m", *words], text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def measure(folder: Path, given: argparse.Namespace) -> int:
    """Measures, prints, and gives the exit code."""
    path, rows = folder / "run", _QUICK_ROWS if given.quick else _ROWS
    table = np.random.default_rng(_SEED).normal(size=(rows, _DIM)).astype(np.float32)
    cnrfmt.save(path, {"user": table, "mark": np.zeros((_MARKS, _DIM), np.float32)}, step=0)
    del table
    load = by_wrk if shutil.which("wrk") else by_python
    # The load has no token.
    os.environ.pop("CNRFMT_SERVE_TOKEN", None)
    begin = time.perf_counter()
    with program("cnrfmt", "serve", str(path), "--port", "0", "--json", stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        begun_s = time.perf_counter() - begin
        # A pipe that nobody reads would hold it up.
        threading.Thread(target=server.stdout.read, daemon=True).start()
        found = _under_load(url, path, kinds(rows), load, given)
        server.send_signal(signal.SIGTERM)
        ended = server.wait()
    print(found.text)
    print(f"server ready within {begun_s:.1f} s")
    print(f"server ended with exit code {ended}; load by {'wrk' if load is by_wrk else 'Python'}")
    return 1 if found.faults or ended else 0


class Found(NamedTuple):
    """The report, and how many requests failed or weren't whole."""

    text: str
    faults: int


def _under_load(url: str, path: Path, asked: list[Kind], load: Any, given: argparse.Namespace) -> Found:
    def updates() -> int:
        return int(httpx.get(f"{url}/status", timeout=60).json()["updates"])

    quiet: dict[str, Load] = {}
    busy: dict[str, list[Load]] = {kind.name: [] for kind in asked}
    say(f"serve: {_CROWD} clients from the first second on")
    crowd: Load = load(url, asked[0], _CROWD, _CROWD_S)
    while httpx.get(f"{url}/health", timeout=60).json()["status"] != "ok":
        time.sleep(_PAUSE_S)
    for kind in asked:
        say(f"serve: {kind.name}, no trainer")
        quiet[kind.name] = load(url, kind, given.connections, given.seconds)
    killed = 0
    with Watcher(url) as watcher:
        trainer = _trainer(path)
        try:
            while (switched := updates()) < given.switches:
                kind = asked[sum(map(len, busy.values())) % len(asked)]
                say(f"serve: {kind.name}, after {switched} of {given.switches} switches")
                if not killed and switched >= given.switches // 2:
                    trainer.kill()
                    trainer.wait()
                    killed += 1
                    trainer = _trainer(path)
                busy[kind.name].append(load(url, kind, given.connections, given.seconds))
        finally:
            trainer.kill()
            trainer.wait()
    runs = [crowd, *quiet.values(), *(one for some in busy.values() for one in some)]
    requests, failed = sum(one.requests for one in runs), sum(one.failed for one in runs)
    figures = [figure for name, some in busy.items() if some for figure in _figures(name, quiet[name], some)]
    text = (
        f"{table_of(figures)}\n\n"
        f"{_CROWD} clients from the first second on: {crowd.requests / crowd.seconds:.0f} requests/s, "
        f"p50 {1e3 * crowd.p50:.0f} ms, p99 {1e3 * crowd.p99:.0f} ms\n"
        f"{requests + watcher.asked} requests, {failed + watcher.failed} failed; "
        f"{watcher.asked} looked at, of {len(watcher.versions)} versions, {watcher.torn} not whole; "
        f"{switched} switches, trainer killed {killed} times"
    )
    return Found(text, failed + watcher.failed + watcher.torn)


def _trainer(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*_THIS, "--train", str(path)])


def _figures(name: str, quiet: Load, busy: list[Load]) -> list[Figure]:
    speeds = [statistics.median(one.requests / one.seconds for one in some) for some in ([quiet], busy)]
    said = f"{name}: {speeds[1]:.0f} requests/s with versions, {speeds[0]:.0f} without"
    return [
        Figure(
            group="serve",
            name=f"{said}, {label}",
            cnrfmt=[getattr(one, label) for one in busy],
            peer_name="no trainer",
            peer=[getattr(quiet, label)] * len(busy),
        )
        for label in ("p50", "p99")
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="where the container goes (a temporary directory)")
    parser.add_argument("--seconds", type=float, help="of load at a time (10; with --quick 1)")
    parser.add_argument("--connections", type=int, default=16, help="%(default)s")
    parser.add_argument("--switches", type=int, help="versions that are taken in under load (100; with --quick 8)")
    parser.add_argument("--quick", action="store_true", help="a small table: tries the benchmark, measures nothing")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.train is not None:
        train(given.train)
    if given.load is not None:
        url, name, connections, seconds = given.load
        kind = next(kind for kind in kinds(1) if kind.name == name)._replace(body=sys.stdin.buffer.read())
        print(json.dumps(asyncio.run(_ask(url, kind, int(connections), float(seconds)))))
        return 0
    given.seconds = given.seconds or (1 if given.quick else 10)
    given.switches = given.switches or (8 if given.quick else 100)
    with tempfile.TemporaryDirectory(prefix="cnrfmt-serve-", dir=given.dir) as folder:
        return measure(Path(folder), given)


if __name__ == "__main__":
    raise SystemExit(main())
