"""The command as a process: it follows a trainer, answers all the while, and ends when it is told to."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import http.client
import json
import logging
import os
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn

import cnrfmt
from cnrfmt.cli import main, serve
from cnrfmt.serving.http import connections, server, starting, wire
from cnrfmt.serving.http.connections import Listener
from cnrfmt.serving.http.wire import JSON, ROWS
from tests.serving.http.support import Process

ROWS_OF, DIM, SWITCHES = 64, 8, 10
EVERY = np.arange(ROWS_OF)
HALF = (
    b"POST /lookup HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
)
"""A request most of whose body is missing."""


def rows(version: int) -> Any:
    """Rows that say in every element of which version they are."""
    return np.full((ROWS_OF, DIM), version, np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "run7"
    cnrfmt.save(found, {"user": rows(0), "item": rows(0)}, step=0)
    return found


class Asking:
    """Asks again and again, in turn by JSON, in the binary form, and for sums, until it is told to end."""

    def __init__(self, url: str) -> None:
        self.faults: list[str] = []
        self.versions: set[int] = set()
        self.count = 0
        self._url, self._over = url, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        asked = {"ids": EVERY.tolist()}
        with httpx.Client(base_url=self._url) as client:
            while not self._over.is_set():
                table = ("user", "item")[self.count % 2]
                self._check(client.post("/lookup", json=asked | {"table": table}), "json")
                packed = wire.pack_request(table, EVERY)
                self._check(client.post("/lookup", content=packed, headers={"content-type": ROWS}), "rows")
                pooled = wire.pack_request(table, EVERY, offsets=[0, 32], mode="mean")
                self._check(client.post("/pool", content=pooled, headers={"content-type": ROWS}), "pool")

    def _check(self, answer: httpx.Response, how: str) -> None:
        self.count += 1
        if answer.status_code != 200:
            self.faults.append(f"{how}: {answer.status_code} {answer.text}")
            return
        if how == "json":
            version, found = answer.json()["version"], np.array(answer.json()["rows"])
        else:
            version, found = wire.unpack_answer(answer.content)
        self.versions.add(version)
        if found.shape[1] != DIM or not (found == version).all():
            self.faults.append(f"{how}: version {version} has {np.unique(found)}")

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def test_every_answer_is_one_version_whole_while_versions_come(path: Path) -> None:
    with Process(path, "--port", 0, "--max-age", 3600) as process:
        started = process.wait_for("serving")
        assert (started["version"], started["step"], started["tables"]) == (0, 0, 2)
        asking = Asking(started["url"])
        try:
            for version in range(1, SWITCHES + 1):
                change = cnrfmt.Rows(EVERY, rows(version))
                assert cnrfmt.append(path, {"user": change, "item": change}, step=10 * version) == version
                while (update := process.wait_for("update"))["version"] < version:
                    pass
                assert (update["version"], update["step"]) == (version, 10 * version)
                assert update["changed_rows"] == 2 * ROWS_OF
                # Some versions follow one another at once, some are looked at first.
                end = time.monotonic() + 60
                while version % 3 == 0 and version not in asking.versions and time.monotonic() < end:
                    time.sleep(0.002)
            health = httpx.get(f"{started['url']}/health").json()
            assert (health["status"], health["version"]) == ("ok", SWITCHES)
        finally:
            asking.end()
        assert asking.faults == []
        assert set(range(3, SWITCHES + 1, 3)) <= asking.versions <= set(range(SWITCHES + 1))
        assert process.end() == (0, "")
        assert process.wait_for("ended")["version"] == SWITCHES


def test_what_is_under_way_is_answered_before_it_ends(path: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    words = (path, "--port", 0, "--max-request-bytes", 1000, "--token-file", token, "--tables", "us*")
    headers = {"authorization": "Bearer s3cret", "content-type": ROWS}
    with Process(*words, CNRFMT_SERVE_TOKEN="another") as process:
        url = process.wait_for("serving")["url"]
        assert [one["name"] for one in httpx.get(f"{url}/tables", headers=headers).json()["tables"]] == ["user"]
        assert httpx.post(f"{url}/lookup", content=bytes(2000)).status_code == 401
        # It is refused as it begins, and the answer is there to be read all the same.
        assert httpx.post(f"{url}/lookup", content=bytes(1 << 22), headers=headers).status_code == 413
        where = httpx.URL(url)
        # What is no HTTP at all is refused, and nothing is written of it.
        with socket.create_connection((where.host, where.port or 0), timeout=60) as raw:
            raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
            head, body = raw.makefile("rb").read().split(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            assert json.loads(body)["what to do"]
        body = wire.pack_request("user", EVERY)
        connection = http.client.HTTPConnection(where.host, where.port or 0, timeout=60)
        connection.putrequest("POST", "/lookup")
        for name, value in {**headers, "content-length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body[:-1])
        # When another request was answered, this one has come, too.
        assert httpx.get(f"{url}/health").status_code == 200
        ended: list[tuple[int, str]] = []
        ending = threading.Thread(target=lambda: ended.append(process.end(signal.SIGINT)))
        ending.start()
        connection.send(body[-1:])
        answer = connection.getresponse()
        assert (answer.status, wire.unpack_answer(answer.read())[1].tolist()) == (200, rows(0).tolist())
        connection.close()
        ending.join()
        assert ended == [(0, "")]


def test_who_comes_when_as_many_are_there_as_may_be_is_refused(path: Path) -> None:
    words = (path, "--port", 0, "--max-connections", 3, "--shard", "1/2", "--shard-by", "hash", "--dtype", "float16")
    with Process(*words) as process:
        url = httpx.URL(process.wait_for("serving")["url"])
        tables = httpx.get(url.join("/tables")).json()["tables"]
        held = [(one["dtype"], *(one["held"][word] for word in ("by", "number", "count"))) for one in tables]
        assert held == [("float16", "hash", 1, 2)] * 2
        with contextlib.ExitStack() as stack:
            open_: list[socket.socket] = []
            end = time.monotonic() + 60
            # The one that was asked first may take a moment to be closed.
            while len(open_) < 3 and time.monotonic() < end:
                one = stack.enter_context(socket.create_connection((url.host, url.port or 0), timeout=60))
                one.sendall(HALF if open_ else b"POST /look")
                one.settimeout(0.2)
                with contextlib.suppress(TimeoutError):
                    assert one.recv(4096).startswith(b"HTTP/1.1 503")
                    continue
                open_.append(one)
            full = httpx.get(url.join("/health"))
            assert (full.status_code, full.headers["content-type"]) == (503, JSON)
            assert "connections are open" in full.json()["error"]
            open_.pop().close()
            while (metrics := httpx.get(url.join("/metrics"))).status_code == 503:
                pass
            told = re.findall(r"^cnrfmt_(connections\w*) (\S+)$", metrics.text, re.MULTILINE)
            refused = [float(number) for name, number in told if name == "connections_refused_total"]
            assert len(refused) == 1
            assert refused[0] >= 1
            assert ("connections_allowed", "3.0") in told
            while "were refused" not in process.wait_for("warning")["warning"]:
                pass
        assert process.end() == (0, "")
        # Each line is JSON, or this fails.
        assert process.wait_for("ended")["version"] == 0


def test_a_container_that_isnt_there_yet_is_waited_for(path: Path) -> None:
    later = path.with_name("later")
    with Process(later, "--port", 0, "--wait", 120) as process:
        waiting = process.wait_for("waiting")
        assert waiting["seconds"] == 120
        assert "no container here" in waiting["reason"]
        url = httpx.URL(waiting["url"])
        # An empty folder, as a volume is at first, is no container either.
        for make in (lambda: None, later.mkdir):
            make()
            health = httpx.get(url.join("/health"))
            assert (health.status_code, health.json()["status"], health.headers["retry-after"]) == (503, "waiting", "1")
            assert "what to do" in health.json()
        early = httpx.post(url.join("/lookup"), json={"table": "user", "ids": [1]})
        assert early.status_code == 503
        assert "nothing is served yet" in early.json()["error"]
        assert httpx.get(url.join("/")).headers["content-type"].startswith("text/html")
        cnrfmt.save(later, {"user": rows(7)})
        assert process.wait_for("serving")["url"] == waiting["url"]
        found = httpx.post(url.join("/lookup"), json={"table": "user", "ids": [1]})
        assert found.json() == {"version": 0, "rows": [[7] * DIM]}
        assert process.end() == (0, "")


def test_who_is_told_to_end_before_there_is_a_container_ends(path: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    def begin() -> cnrfmt.LiveTables:
        return cnrfmt.LiveTables(path.with_name("nothing"))

    def tell(event: str, facts: dict[str, Any]) -> None:
        told.append((event, facts))
        os.kill(os.getpid(), signal.SIGTERM) if event == "waiting" else None

    with server.listen("127.0.0.1", 0) as sock:
        server.serve(begin, sock, server.Settings(wait_s=60), tell)
    assert [event for event, _ in told] == ["waiting", "ended"]
    assert told[1][1] == {"version": None}
    with server.listen("127.0.0.1", 0) as sock, pytest.raises(cnrfmt.StorageError, match="no container here"):
        server.serve(begin, sock, server.Settings(wait_s=0.01), lambda *_: None)


def test_nothing_is_learnt_of_what_is_waited_for_without_the_token(path: Path) -> None:
    door = starting.Door("s3cret", None)
    door.say("waiting", str(path))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url="http://127.0.0.1")

    async def ask() -> list[httpx.Response]:
        async with client:
            trusted = {"authorization": "Bearer s3cret"}
            return [await client.get(at, headers=h) for at in ("/health", "/tables") for h in ({}, trusted)]

    answers = asyncio.run(ask())
    assert [one.status_code for one in answers] == [503, 503, 401, 503]
    assert answers[0].json() == {"status": "waiting"}
    assert answers[1].json()["error"] == str(path)


def served(
    path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[str], None], **words: Any
) -> list[tuple[str, dict[str, Any]]]:
    """What is told where tables are served in this process while a thread does something."""
    told: list[tuple[str, dict[str, Any]]] = []
    plain = server._Server.run

    def run(one: server._Server, **sockets: Any) -> None:
        def do() -> None:
            try:
                end = time.monotonic() + 120
                while not any(event == "serving" for event, _ in told) and time.monotonic() < end:
                    time.sleep(0.005)
                meanwhile(server.url_of(sockets["sockets"][0]))
            finally:
                one.should_exit = True

        thread = threading.Thread(target=do)
        thread.start()
        plain(one, **sockets)
        thread.join()

    monkeypatch.setattr(server._Server, "run", run)
    with server.listen("127.0.0.1", 0) as sock:
        tell = lambda event, facts: told.append((event, facts))  # noqa: E731
        server.serve(lambda: cnrfmt.LiveTables(path), sock, server.Settings(**words), tell)
    return told


def test_what_doesnt_come_in_time_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[bytes] = []

    def ask(url: str) -> None:
        where = httpx.URL(url)
        with contextlib.ExitStack() as stack:
            asked: list[socket.socket] = []
            for sent in (b"", b"POST /look", HALF, HALF.replace(b"/lookup", b"/nowhere")):
                asked.append(stack.enter_context(socket.create_connection((where.host, where.port or 0), timeout=60)))
                asked[-1].sendall(sent)
            for one in asked:
                ends.append(b"")
                with contextlib.suppress(ConnectionResetError):
                    while part := one.recv(4096):
                        ends[-1] += part

    assert [event for event, _ in served(path, monkeypatch, ask, patience_s=0.3)] == ["serving", "ended"]
    assert ends[:2] == [b"", b""]
    assert ends[2].startswith(b"HTTP/1.1 408")
    assert b"connection: close" in ends[2].lower()
    assert b"the body didn't come within 0.3 s: 1 bytes did" in ends[2]
    assert ends[3].startswith(b"HTTP/1.1 404")


def test_half_a_request_is_refused_at_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        halves: list[socket.socket] = []

        def ask(url: str) -> None:
            where = httpx.URL(url)
            for sent in (HALF, HALF, b"POST /look"):
                one = stack.enter_context(socket.create_connection((where.host, where.port or 0), timeout=60))
                one.sendall(sent)
                halves.append(one)
            # When another request was answered, these have come, too.
            assert httpx.get(f"{url}/health").status_code == 200

        told = served(path, monkeypatch, ask, grace_s=0)
        answers = [one.makefile("rb").read() for one in halves]
    for answer in answers[:2]:
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'{"error": "the server ends"' in answer
    assert answers[2] == b""
    # What uvicorn says of it is told as a warning, and no traceback is.
    assert [event for event, _ in told] == ["serving", "warning", "ended"]
    assert list(told[1][1]) == ["warning"]


def test_an_answer_that_nobody_reads_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = wire.pack_request("user", np.zeros(100_000, np.int64))
    head = f"POST /lookup HTTP/1.1\r\nhost: localhost\r\ncontent-type: {ROWS}\r\ncontent-length: {len(body)}\r\n\r\n"
    wide = path.with_name("wide")
    cnrfmt.save(wide, {"user": np.zeros((4, 160), np.float32)})

    def ask(url: str) -> None:
        where = httpx.URL(url)
        with socket.create_connection((where.host, where.port or 0), timeout=60) as one:
            one.sendall(head.encode() + body)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            assert one.recv(1) == b"H"
            end = time.monotonic() + 60
            while listeners[0]._open and time.monotonic() < end:
                time.sleep(0.05)
            assert not listeners[0]._open

    listeners: list[Listener] = []
    plain = server.listen

    def listen(host: str, port: int) -> Listener:
        listeners.append(plain(host, port))
        return listeners[0]

    monkeypatch.setattr(server, "listen", listen)
    told = served(wide, monkeypatch, ask, patience_s=0.3)
    assert told[-1][0] == "ended"


def test_few_descriptors_let_few_connections_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "raise_descriptors", lambda: 8)
    seen: list[int] = []

    def ask(url: str) -> None:
        logging.getLogger("asyncio").error("odd", exc_info=ValueError("it was"))
        seen.append(httpx.get(f"{url}/health").status_code)

    told = served(path, monkeypatch, ask)
    assert seen == [200]
    assert "only 6 connections are let in" in told[0][1]["warning"]
    (odd,) = [facts for event, facts in told if facts.get("warning") == "odd"]
    assert odd["traceback"].endswith("ValueError: it was")


def test_as_many_descriptors_as_may_be_had_are_asked_for() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, hard), hard))
    try:
        left = connections.raise_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert 0 < left < hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_serving_is_told_before_any_update(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(live: cnrfmt.LiveTables, *, on_update: Callable[[cnrfmt.Snapshot], None], **_: Any) -> None:
        on_update(live.snapshot())

    monkeypatch.setattr(cnrfmt.LiveTables, "follow", follow)
    told = served(path, monkeypatch, lambda _: None)
    assert [event for event, _ in told] == ["serving", "update", "ended"]


def test_no_descriptor_for_a_connection_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: Listener) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(Listener, "_accept", none)
    with server.listen("127.0.0.1", 0) as sock, pytest.raises(BlockingIOError):
        sock.accept()


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["serve", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_wrong_calls(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    port = ("--port", 0)
    assert "no table matches 'nobody'" in refused(capsys, path, *port, "--tables", "nobody")
    assert "I/N such as 0/4" in refused(capsys, path, *port, "--shard", "4/4")
    assert "--poll is a number of seconds above 0, found 0.0" in refused(capsys, path, *port, "--poll", 0)
    assert "--max-age is a number of seconds above 0, found nan" in refused(capsys, path, *port, "--max-age", "nan")
    assert "--wait is a number of seconds from 0 on, found -1.0" in refused(capsys, path, *port, "--wait", -1)
    assert "--max-ids is at least 1, found 0" in refused(capsys, path, *port, "--max-ids", 0)
    assert "--hold is how many versions are held, at least 1, found 0" in refused(capsys, path, *port, "--hold", 0)
    assert "give --shard, too" in refused(capsys, path, *port, "--shard-by", "hash")
    assert "--max-connections is at least 1, found 0" in refused(capsys, path, *port, "--max-connections", 0)
    assert "--max-bytes allows 100" in refused(capsys, path, *port, "--max-bytes", 100)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert f"can't listen at 127.0.0.1, port {number}" in refused(capsys, path, "--port", number)
    assert "--port is a number from 0 to 65535, found 70000" in refused(capsys, path, "--port", 70000)
    for token in ("", "two words", "\u00fc"):
        monkeypatch.setenv("CNRFMT_SERVE_TOKEN", token)
        assert "CNRFMT_SERVE_TOKEN must hold a token" in refused(capsys, path, *port)
    monkeypatch.undo()
    empty = path.with_name("token")
    empty.touch()
    assert f"{empty} must hold a token" in refused(capsys, path, *port, "--token-file", empty)
    assert main(["serve", str(path.with_name("nothing")), "--port", "0"]) == 4
    assert main(["serve", str(path), "--port", "0", "--token-file", str(path.with_name("nothing"))]) == 4


def test_without_the_extra_it_says_what_to_install(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "cnrfmt.serving.http":
            raise ImportError(name, name="uvicorn")
        return found(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    text = refused(capsys, path)
    assert text == "cnrfmt: serve needs uvicorn, which isn't installed; run: pip install 'cnrfmt[serve]'\n"


def opened(one: uvicorn.Server, **_: Any) -> None:
    """Returns when there is something to serve."""
    door: Any = one.config.app
    end = time.monotonic() + 120
    while door.application is None and time.monotonic() < end:
        time.sleep(0.005)


def test_who_is_reached_by_others_without_a_token_is_warned(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uvicorn.Server, "run", opened)
    monkeypatch.delenv("CNRFMT_SERVE_TOKEN", raising=False)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert main(["serve", str(path), "--host", "0.0.0.0", "--port", "0"]) == 0
    shown = capsys.readouterr()
    assert "can read these tables; give --token-file" in shown.err
    assert "run7: version 0 (step 0), 2 tables, at http://0.0.0.0:" in shown.out
    assert shown.out.endswith("ended at version 0\n")
    monkeypatch.setenv("CNRFMT_SERVE_TOKEN", "s3cret")
    assert main(["serve", str(path), "--host", "0.0.0.0", "--port", "0"]) == 0
    assert capsys.readouterr().err == ""
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_log_that_nobody_reads_doesnt_end_following(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def tell(event: str, facts: dict[str, Any]) -> None:
        told.append(event)
        if event in ("update", "warning"):
            raise BrokenPipeError

    def run(one: uvicorn.Server, **_: Any) -> None:
        opened(one)
        for version in (1, 2):
            cnrfmt.append(path, {"user": cnrfmt.Rows(EVERY, rows(version))}, step=version)
            end = time.monotonic() + 60
            while live.version < version and time.monotonic() < end:
                time.sleep(0.01)

    live = cnrfmt.LiveTables(path)
    monkeypatch.setattr(uvicorn.Server, "run", run)
    with server.listen("127.0.0.1", 0) as sock:
        server.serve(lambda: live, sock, server.Settings(max_age=1e-9), tell)
    assert live.status().version == 2
    assert {"serving", "update", "warning", "ended"} == set(told)


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    for facts in (
        {"version": 3, "step": 30, "changed_rows": 1234, "seconds": 0.0123},
        {"version": 3, "step": None, "changed_rows": None, "seconds": None},
    ):
        serve._Log(as_json=False)("update", facts)
    serve._Log(as_json=False)("waiting", {"url": "http://x", "seconds": 30.0, "reason": "no container here"})
    serve._Log(as_json=False)("ended", {"version": None})
    serve._Log(as_json=False)("warning", {"warning": "old\x1b[2J", "traceback": "File\n\x1b[2J"})
    serve._Log(as_json=True)("warning", {"warning": "old\x1b[2J"})
    shown = capsys.readouterr()
    assert shown.out == "version 3 (step 30), 1,234 rows changed, taken in within 12.3 ms\nversion 3\n" + (
        "waiting for up to 30 s, at http://x: no container here\nended before there was a version\n"
        '{"event": "warning", "warning": "old\\u001b[2J"}\n'
    )
    assert shown.err == "cnrfmt: warning: old\\x1b[2J\nFile\n\\x1b[2J\n"


def test_a_line_that_would_have_to_wait_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as read, open(writing, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        log = serve._Log(as_json=True)
        # As many as no pipe holds.
        for _ in range(30):
            log("update", {"text": "x" * 3900})
        taken = read.read(1 << 20).count(b"\n")
        assert 0 < taken < 30
        log("ended", {"version": 3})
        assert json.loads(read.read(1 << 20)) == {"event": "ended", "version": 3, "lines_lost": 30 - taken}
    monkeypatch.undo()


def test_what_fails_at_the_start_is_one_line_too(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(path.with_name("nothing")), "--port", "0", "--json"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    failed = json.loads(line)
    assert (failed["event"], failed["error"]["exit_code"]) == ("failed", 4)
    assert "nothing" in failed["error"]["message"]
    for wrong in (["--port", "x"], ["--shard", "4/4"], ["--frob"], ["--poll", "0"]):
        assert main(["serve", "--json", str(path), *wrong]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        failed = json.loads(line)
        assert (failed["event"], failed["error"]["kind"], failed["error"]["exit_code"]) == ("failed", "UsageError", 2)


def test_the_head_of_an_answer_is_written_with_what_follows() -> None:
    written: list[bytes] = []

    class Transport(asyncio.Transport):
        def write(self, data: Any) -> None:
            written.append(bytes(data))

        def close(self) -> None:
            written.append(b"closed")

        def is_closing(self) -> bool:
            return False

    one = connections._Joining(Transport())
    assert one.is_closing() is False
    head, large = b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 17)
    for data in (b"HTTP/1.1 100 Continue\r\n\r\n", head, b"rows", b"more", head, large, head):
        one.write(data)
    one.close()
    assert written == [b"HTTP/1.1 100 Continue\r\n\r\n", head + b"rows", b"more", head, large, head, b"closed"]


def test_an_address_of_the_newer_kind() -> None:
    try:
        found = server.listen("::1", 0)
    except cnrfmt.UsageError:
        # A machine without it.
        return
    with found:
        assert server.is_local(found)
        assert server.url_of(found).startswith("http://[::1]:")
