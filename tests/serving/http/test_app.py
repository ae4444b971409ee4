"""What each address answers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.types import Message

import cnrfmt
from cnrfmt.errors import DamagedError
from cnrfmt.serving.http import wire
from cnrfmt.serving.http.app import Service
from cnrfmt.serving.http.wire import JSON, ROWS, Limits
from cnrfmt.serving.hydrated_table import Progress
from cnrfmt.serving.live_rows import LiveRows
from tests.serving.http.support import Client

KEYS = np.array([-(2**63), -5, 2**53 + 1, 2**63 - 1])
USER = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "run7"
    visitor = cnrfmt.TableData(np.arange(8, dtype=np.float32).reshape(4, 2), keys=KEYS, fill=-1.0)
    odd = np.array([[1.0, 2.0], [np.nan, np.inf]], np.float32)
    cnrfmt.save(found, {"user": USER, "visitor": visitor, "odd": odd, "count": np.array([[2**60, 1]])}, step=0)
    return found


@pytest.fixture
def live(path: Path) -> Iterator[cnrfmt.LiveTables]:
    with cnrfmt.LiveTables(path, hold=2) as found:
        found.wait()
        yield found


@pytest.fixture
def service(live: cnrfmt.LiveTables) -> Iterator[Service]:
    found = Service(live)
    yield found
    found.close()


@pytest.fixture
def client(service: Service) -> Client:
    return Client(service)


def serving(live: cnrfmt.LiveTables, **words: Any) -> Client:
    """A client of a service of its own; its threads are never started unless it is asked for much."""
    return Client(Service(live, **words))


def advance(path: Path, live: cnrfmt.LiveTables, service: Service, value: float) -> None:
    cnrfmt.append(path, {"user": cnrfmt.Rows([1, 2], np.full((2, 4), value, np.float32))}, step=int(value))
    assert live.advance()
    service.took(live.snapshot())


def test_look_ups_in_both_forms(client: Client) -> None:
    found = client.post("/lookup", {"table": "user", "ids": [3, "0", 3]})
    assert (found.status_code, found.headers["content-type"]) == (200, JSON)
    assert found.json() == {"version": 0, "rows": USER[[3, 0, 3]].tolist()}
    packed = client.post("/lookup", wire.pack_request("user", [9, 1]), content_type=ROWS)
    assert (packed.status_code, packed.headers["content-type"]) == (200, ROWS)
    version, rows = wire.unpack_answer(packed.content)
    assert (version, rows.tolist()) == (0, USER[[9, 1]].tolist())
    assert client.post("/lookup", {"table": "user", "ids": []}).json() == {"version": 0, "rows": []}


def test_the_answer_has_the_form_that_is_accepted(client: Client) -> None:
    asked = {"table": "user", "ids": [3]}
    packed = wire.pack_request("user", [3])
    for accept, expected in ((ROWS, ROWS), (JSON, JSON), ("*/*", JSON), (f"{ROWS}, {JSON}", JSON)):
        assert client.post("/lookup", asked, accept=accept).headers["content-type"] == expected
    assert client.post("/lookup", packed, content_type=ROWS, accept=JSON).json()["rows"] == [USER[3].tolist()]
    assert client.post("/lookup", asked, content_type="application/json; charset=utf-8").status_code == 200


def test_keys_beyond_doubles_and_unknown_ones(client: Client) -> None:
    keys = [str(2**53 + 1), 2**53 + 1, str(2**53), -(2**63), 2**63 - 1]
    found = client.post("/lookup", {"table": "visitor", "ids": keys})
    assert found.json()["rows"] == [[4, 5], [4, 5], [-1, -1], [0, 1], [6, 7]]


def test_pooling_in_both_forms(client: Client) -> None:
    asked: dict[str, Any] = {"table": "user", "ids": [1, 2, 3], "offsets": [0, 2, 2]}
    pairs = {"sum": USER[1] + USER[2], "mean": (USER[1] + USER[2]) / 2, "max": USER[2]}
    for mode, first in pairs.items():
        expected = [first.tolist(), [0.0] * 4, USER[3].tolist()]
        found = client.post("/pool", asked | {"mode": mode})
        assert (found.status_code, found.json()) == (200, {"version": 0, "rows": expected})
        packed = wire.pack_request("user", [1, 2, 3], offsets=[0, 2, 2], mode=mode)
        assert wire.unpack_answer(client.post("/pool", packed, content_type=ROWS).content)[1].tolist() == expected
    weighted = client.post("/pool", asked | {"weights": [2, 0.5, -1]})
    assert weighted.json()["rows"] == [(2 * USER[1] + USER[2] / 2).tolist(), [0.0] * 4, (-USER[3]).tolist()]


def test_an_older_version_that_is_held(path: Path, live: cnrfmt.LiveTables, service: Service, client: Client) -> None:
    advance(path, live, service, 100)
    asked: dict[str, Any] = {"table": "user", "ids": [1]}
    assert client.post("/lookup", asked).json() == {"version": 1, "rows": [[100.0] * 4]}
    assert client.post("/lookup", asked | {"version": 0}).json() == {"version": 0, "rows": [USER[1].tolist()]}
    packed = wire.pack_request("user", [1], version=0)
    assert wire.unpack_answer(client.post("/lookup", packed, content_type=ROWS).content)[0] == 0
    gone = client.post("/lookup", asked | {"version": 9})
    assert gone.status_code == 404
    assert "version 9 isn't held; held are 0, 1" in gone.json()["error"]
    assert "--hold" in gone.json()["what to do"]


def error_of(answer: httpx.Response, status: int) -> str:
    found = answer.json()
    assert (answer.status_code, answer.headers["content-type"], list(found)) == (status, JSON, ["error", "what to do"])
    assert found["what to do"]
    return str(found["error"])


def test_what_is_wrong_is_said_with_a_status_of_its_own(client: Client) -> None:
    asked: dict[str, Any] = {"table": "user", "ids": [1]}
    assert "no table 'nobody'" in error_of(client.post("/lookup", asked | {"table": "nobody"}), 404)
    assert "no table '\\ud800'" in error_of(client.post("/lookup", asked | {"table": "\ud800"}), 404)
    assert len(error_of(client.post("/lookup", asked | {"table": "x" * 10_000}), 404)) < 600
    assert 'there is no "/lookup/"' in error_of(client.post("/lookup/", asked), 404)
    assert "holds no row 10" in error_of(client.post("/lookup", asked | {"ids": [1, 10]}), 422)
    assert "holds no row -1" in error_of(client.post("/lookup", asked | {"ids": [-1]}), 422)
    assert "ids[0] is true" in error_of(client.post("/lookup", asked | {"ids": [True]}), 400)
    assert 'there is no "/nowhere"' in error_of(client.get("/nowhere"), 404)
    assert '"/lookup" doesn\'t take GET' in error_of(client.get("/lookup"), 405)
    assert client.get("/lookup").headers["allow"] == "POST"
    assert '"/tables" doesn\'t take POST' in error_of(client.post("/tables", {}), 405)
    assert "'text/plain'" in error_of(client.post("/lookup", asked, content_type="text/plain"), 415)
    none = client.request("POST", "/lookup", content=json.dumps(asked).encode())
    assert "no content type" in error_of(none, 415)
    assert "encoded by 'gzip'" in error_of(client.post("/lookup", asked, content_encoding="gzip"), 415)
    assert client.post("/lookup", asked, content_encoding="identity").status_code == 200
    for body in ({"ids": [1, 2], "offsets": [-1]}, {"ids": [1, 2], "offsets": [0, 3]}, {"ids": [1], "offsets": []}):
        assert "offsets" in error_of(client.post("/pool", {"table": "user"} | body), 422)
    short = {"table": "user", "ids": [1, 2], "offsets": [0], "weights": [1]}
    assert "weights" in error_of(client.post("/pool", short), 422)
    assert "weights" in error_of(client.post("/pool", short | {"weights": [1, 2], "mode": "mean"}), 422)


def test_what_json_cant_say_is_had_in_the_binary_form(client: Client) -> None:
    asked: dict[str, Any] = {"table": "odd", "ids": [0, 1]}
    assert "row 1 of the answer has NaN or Infinity" in error_of(client.post("/lookup", asked), 406)
    rows = wire.unpack_answer(client.post("/lookup", asked, accept=ROWS).content)[1]
    assert np.array_equal(rows, [[1, 2], [np.nan, np.inf]], equal_nan=True)
    assert "integers beyond" in error_of(client.post("/lookup", {"table": "count", "ids": [0]}), 406)
    count = client.post("/lookup", {"table": "count", "ids": [0]}, accept=ROWS)
    assert wire.unpack_answer(count.content)[1].tolist() == [[2**60, 1]]


def test_integers_that_sums_would_round_are_refused(client: Client) -> None:
    asked: dict[str, Any] = {"table": "count", "ids": [1], "offsets": [0]}
    assert "table 'count' is int64" in error_of(client.post("/pool", asked), 422)
    assert "table 'count' is int64" in error_of(client.post("/pool", asked | {"mode": "max"}, accept=ROWS), 422)


def test_requests_have_bounds(live: cnrfmt.LiveTables) -> None:
    client = serving(live, limits=Limits(request_bytes=200, ids=20, answer_bytes=1000))
    asked: dict[str, Any] = {"table": "user", "ids": [1] * 20}
    assert "take up to 2000 bytes, and 1000 are allowed" in error_of(client.post("/lookup", asked), 413)
    assert client.post("/lookup", asked, accept=ROWS).status_code == 200
    assert "21 ids" in error_of(client.post("/lookup", asked | {"ids": [1] * 21}), 413)
    long = json.dumps(asked).encode() + b" " * 200
    assert "more than the 200 bytes" in error_of(client.post("/lookup", long), 413)

    async def parts() -> Any:
        for _ in range(5):
            yield b" " * 100

    # Who doesn't say how much comes is stopped when it has come.
    streamed = client.request("POST", "/lookup", content=parts(), headers={"content-type": JSON})
    assert "more than the 200 bytes" in error_of(streamed, 413)
    pooled = client.post("/pool", {"table": "user", "ids": [1] * 12, "offsets": list(range(12))})
    assert "take up to 1200 bytes" in error_of(pooled, 413)


def test_a_large_request_is_answered_by_a_thread_with_the_same(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain = LiveRows.lookup

    def noting(rows: LiveRows, ids: Any, **words: Any) -> Any:
        seen.append(threading.current_thread().name)
        # Such that may not be written to would have kernels compiled for them.
        assert ids.flags.writeable
        return plain(rows, ids, **words)

    monkeypatch.setattr(LiveRows, "lookup", noting)
    ids = np.random.default_rng(0).integers(0, 10, 20_000)
    assert client.post("/lookup", {"table": "user", "ids": ids.tolist()}).json()["rows"] == USER[ids].tolist()
    assert client.post("/lookup", {"table": "user", "ids": [1]}).status_code == 200
    packed = wire.pack_request("user", ids)
    assert client.post("/lookup", packed, content_type=ROWS).status_code == 200
    assert [one.startswith("cnrfmt request") for one in seen] == [True, False, True]


def test_what_may_take_long_is_answered_by_a_thread(live: cnrfmt.LiveTables, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain = wire.answer

    def noting(*words: Any) -> bytes:
        seen.append(threading.current_thread().name)
        return plain(*words)

    monkeypatch.setattr(wire, "answer", noting)
    client = serving(live)
    look_up, pooled = {"table": "user", "ids": [1]}, {"table": "user", "ids": [1], "offsets": [0]}
    assert client.post("/lookup", look_up).status_code == 200
    assert client.post("/pool", pooled).status_code == 200
    # Rows may have to be decoded.
    monkeypatch.setattr(cnrfmt.LiveTables, "progress", Progress(16, 17))
    assert serving(live).post("/lookup", look_up).status_code == 200
    assert [one.startswith("cnrfmt request") for one in seen] == [False, False, True]


def test_tables(path: Path, live: cnrfmt.LiveTables, service: Service, client: Client) -> None:
    found = client.get("/tables").json()
    assert (found["version"], found["step"]) == (0, 0)
    by_name = {one.pop("name"): one for one in found["tables"]}
    assert by_name["user"] == {
        "rows": 10, "dim": 4, "dtype": "float32", "keyed": False, "bytes": 160, "changed_rows": None, "held": None
    }  # fmt: skip
    assert by_name["visitor"]["keyed"] is True
    advance(path, live, service, 100)
    changed = {one["name"]: one["changed_rows"] for one in client.get("/tables").json()["tables"]}
    assert changed == {"user": 2, "visitor": 0, "odd": 0, "count": 0}


def test_tables_tell_what_is_held(path: Path) -> None:
    with cnrfmt.LiveTables(path, shard=(1, 3), shard_by="range") as live:
        live.wait()
        client = serving(live, shard=(1, 3), shard_by="range")
        held = {one["name"]: one["held"] for one in client.get("/tables").json()["tables"]}
        shard = {"number": 1, "count": 3}
        assert held["user"] == shard | {"by": "range", "rows": 3, "of_rows": 10, "first": 3, "end": 6}
        assert held["visitor"] == shard | {"by": "hash", "rows": len(live["visitor"]), "of_rows": None}
        assert client.post("/lookup", {"table": "user", "ids": [3, 5]}).status_code == 200
        assert client.post("/lookup", {"table": "user", "ids": [6]}).status_code == 422


def gone(self: cnrfmt.Snapshot, before: object) -> None:
    raise cnrfmt.VersionExpiredError("it was collected")


def test_status_and_metrics_tell_of_each_version(
    path: Path, live: cnrfmt.LiveTables, service: Service, client: Client
) -> None:
    assert client.get("/status").json()["history"] == []
    for value in (100, 200):
        advance(path, live, service, value)
    status = client.get("/status").json()
    assert (status["version"], status["versions"], status["step"], status["updates"]) == (2, [1, 2], 200, 2)
    assert (status["hydrated"], status["rows_to_hydrate"], status["error"]) == (17, 17, None)
    assert [(one["version"], one["changed_rows"]) for one in status["history"]] == [(1, 2), (2, 2)]
    live.advance(0)
    assert service.took(live.snapshot())["changed_rows"] == 2
    # Who finds the version gone by now can't tell what it changed.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cnrfmt.Snapshot, "changed_since", gone)
        assert service.took(live.snapshot())["changed_rows"] is None
    assert client.get("/tables").json()["tables"][0]["changed_rows"] is None
    client.post("/lookup", {"table": "user", "ids": [1]})
    client.get("/x/y")
    client.get("/x/z")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'cnrfmt_requests_total{route="/lookup",status="200"} 1.0' in answer.text
    assert 'cnrfmt_requests_total{route="other",status="404"} 2.0' in answer.text
    assert 'cnrfmt_request_seconds_bucket{le="+Inf",route="/status"} 2.0' in answer.text
    numbers = dict(re.findall(r"^(cnrfmt_\w+) (\S+)$", answer.text, re.MULTILINE))
    assert {name: float(numbers[f"cnrfmt_{name}"]) for name in ("version", "step", "updates_total")} == {
        "version": 0, "step": 0, "updates_total": 3
    }  # fmt: skip
    assert float(numbers["cnrfmt_changed_rows_total"]) == 6
    assert float(numbers["cnrfmt_rows_hydrated"]) == float(numbers["cnrfmt_rows_to_hydrate"]) == 17
    assert {"cnrfmt_age_seconds", "cnrfmt_update_seconds", "cnrfmt_following_fails"} <= numbers.keys()


def test_health(live: cnrfmt.LiveTables) -> None:
    good = serving(live, max_age=1e9).get("/health")
    assert (good.status_code, good.json()["status"], good.json()["version"]) == (200, "ok", 0)
    assert good.json()["age_s"] >= 0
    aged = serving(live, max_age=1e-9).get("/health")
    assert (aged.status_code, aged.json()["status"]) == (503, "failing")
    assert "version 0 was committed" in aged.json()["error"]
    assert aged.json()["what to do"]


def test_health_while_the_first_rows_are_decoded(live: cnrfmt.LiveTables, monkeypatch: pytest.MonkeyPatch) -> None:
    client, guarded = serving(live), serving(live, token="s3cret")
    monkeypatch.setattr(cnrfmt.LiveTables, "progress", Progress(16, 17))
    begun = client.get("/health")
    assert begun.status_code == 200
    assert (begun.json()["status"], begun.json()["rows"], begun.json()["of_rows"]) == ("starting", 16, 17)
    assert guarded.get("/health").json() == {"status": "starting"}
    monkeypatch.undo()
    assert client.get("/health").json()["status"] == "ok"
    assert "rows" not in client.get("/health").json()


def test_health_where_following_fails(live: cnrfmt.LiveTables, monkeypatch: pytest.MonkeyPatch) -> None:
    patient, impatient = serving(live), serving(live, failing_s=0)
    bad = live.status()._replace(error=DamagedError("manifest-digest", "run7", expected="1", found="2"))
    monkeypatch.setattr(live, "status", lambda: bad)
    assert patient.get("/health").status_code == 200
    failing = impatient.get("/health")
    assert failing.status_code == 503
    assert "no newer version could be taken in" in failing.json()["error"]
    assert "manifest-digest" in failing.json()["error"]
    assert "manifest-digest" in patient.get("/status").json()["error"]
    monkeypatch.undo()
    assert impatient.get("/health").status_code == 200


def test_damaged_rows_are_the_servers_fault(live: cnrfmt.LiveTables, monkeypatch: pytest.MonkeyPatch) -> None:
    error = DamagedError("piece-digest", "run7, piece 3", expected="1", found="2")

    def failing(*_: Any, **__: Any) -> Any:
        raise error

    client = serving(live)
    monkeypatch.setattr(LiveRows, "lookup", failing)
    assert "piece 3: damaged" in error_of(client.post("/lookup", {"table": "user", "ids": [1]}), 500)
    monkeypatch.setattr(live, "wait", failing)
    health = client.get("/health")
    assert health.status_code == 503
    assert "piece 3" in health.json()["error"]


def test_a_fault_of_the_server_tells_nothing_of_it(live: cnrfmt.LiveTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveRows, "lookup", lambda *_, **__: 1 / 0)
    assert error_of(serving(live).post("/lookup", {"table": "user", "ids": [1]}), 500) == "the server failed"


def test_with_a_token_nobody_else_learns_anything(live: cnrfmt.LiveTables) -> None:
    client = serving(live, token="s3cret")
    asked = {"table": "user", "ids": [1]}
    for value in (None, "Bearer s3cre", "Basic s3cret", "Bearer", "s3cret"):
        wrong = {} if value is None else {"authorization": value}
        refused = client.post("/lookup", asked, **wrong)
        assert error_of(refused, 401) == "the token is missing or wrong"
        assert refused.headers["www-authenticate"] == "Bearer"
        for path in ("/pool", "/tables", "/status", "/metrics", "/nowhere"):
            assert client.get(path, headers=wrong).status_code == 401
        assert client.get("/health", headers=wrong).json() == {"status": "ok"}
        assert client.get("/", headers=wrong).status_code == 200
    for right in ("Bearer s3cret", "bearer  s3cret "):
        assert client.post("/lookup", asked, authorization=right).status_code == 200
    assert client.get("/health", headers={"authorization": "Bearer s3cret"}).json()["version"] == 0


def test_a_name_that_leads_here_from_elsewhere_is_refused(live: cnrfmt.LiveTables) -> None:
    client = serving(live, hosts=("127.0.0.1", "localhost", "[::1]"))
    for host in ("LocalHost:8765", "127.0.0.1", "[::1]:80", "[::1]"):
        assert client.get("/tables", headers={"host": host}).status_code == 200
    for host in ("evil.example:8765", "", "localhost.evil.example"):
        assert "this server isn't" in error_of(client.get("/tables", headers={"host": host}), 421)


def test_the_page_asks_for_nothing_from_elsewhere(client: Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == 2
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", page.text) == ["data:,"]
    # The one address is the name of a language of XML.
    assert set(re.findall(r"https?://[^\"'\s]*", page.text)) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in page.text
    fields = set(re.findall(r"\bnow\.(\w+)", page.text))
    assert fields <= client.get("/status").json().keys()
    assert set(re.findall(r"\bone\.(\w+)", page.text)) <= {
        *client.get("/tables").json()["tables"][0], "version", "at", "changed_rows"
    }  # fmt: skip


def test_a_client_that_goes_away_is_nobodys_fault(service: Service) -> None:
    import asyncio

    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": "/lookup", "raw_path": b"/lookup", "query_string": b"",
        "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 80), "client": None,
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", JSON.encode())],
    }  # fmt: skip
    asyncio.run(service.application(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 400
