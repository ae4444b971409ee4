"""The application: what each address answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cnrfmt.errors import CnrError
from cnrfmt.format.manifest import Manifest
from cnrfmt.serving.held_rows import ShardBy
from cnrfmt.serving.http import metrics, wire
from cnrfmt.serving.http.answering import held, rows_for, table_of
from cnrfmt.serving.http.guard import Guard
from cnrfmt.serving.http.metrics import Connections
from cnrfmt.serving.http.page import page
from cnrfmt.serving.http.refusals import broken, failed, gone, json_answer, not_here
from cnrfmt.serving.http.wire import JSON, ROWS, Call, Form, Limits, RequestError
from cnrfmt.serving.live import LiveTables
from cnrfmt.serving.snapshot import Snapshot

_FAILING_S = 30.0
"""Following may fail so long before the server calls itself unhealthy: a trainer may be putting a file in place."""
_KEPT = 240
"""Updates that the page shows."""
_PARSED_INLINE = 16 << 10
_INLINE = {JSON: 1 << 10, ROWS: 1 << 16}
"""Bytes of a body, and values of an answer, that take a millisecond at the most, and are worked on at once: to hand
them to a thread takes 0.1 ms more, of which look-ups in the binary form take less than that."""


class _Taken(NamedTuple):
    """A version that was taken in, for the page: `changed` is how many rows by table, None where that isn't known."""

    version: int
    step: int | None
    at: float
    seconds: float | None
    changed: Mapping[str, int] | None


class Service:
    """Tables that are served over HTTP. `application` is what a server of ASGI runs.

    Parameters
    ----------
    live
        The tables.
    limits
        What a request may ask for.
    token
        Whoever asks must have it; None lets everybody ask.
    hosts
        The names that the server is asked under; None for any.
    max_age
        The server calls itself unhealthy where what it serves was committed more than so many seconds ago.
    failing_s
        And where it couldn't take in a newer version for so long.
    body_s
        How long the body of a request may take to come.
    shard, shard_by
        What `live` holds, to be told.
    threads
        How many large requests are worked on at a time.
    connections
        Gives how many connections are open, and were refused, where somebody counts them.
    """

    def __init__(
        self,
        live: LiveTables,
        *,
        limits: Limits | None = None,
        token: str | None = None,
        hosts: Collection[str] | None = None,
        max_age: float | None = None,
        failing_s: float = _FAILING_S,
        body_s: float = 30.0,
        shard: tuple[int, int] | None = None,
        shard_by: ShardBy | None = None,
        threads: int = 2,
        connections: Callable[[], Connections] | None = None,
    ) -> None:
        self.live = live
        self._limits, self._max_age, self._failing_s = limits or Limits(), max_age, failing_s
        self._body_s, self._shard, self._shard_by = body_s, shard, shard_by
        self._started = time.time()
        self._taken: deque[_Taken] = deque(maxlen=_KEPT)
        self._before = live.snapshot().manifest
        self._is_hydrated = False
        self._pool = ThreadPoolExecutor(threads, "cnrfmt request")
        routes = [
            Route("/", _page, methods=["GET"]),
            Route("/lookup", self._answering(pooled=False), methods=["POST"]),
            Route("/pool", self._answering(pooled=True), methods=["POST"]),
            Route("/tables", self._tables, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/status", self._status, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        handlers: dict[Any, Any] = {
            CnrError: failed, HTTPException: not_here, ClientDisconnect: gone, Exception: broken
        }  # fmt: skip
        app = Starlette(routes=routes, exception_handlers=handlers)
        # Who is sent elsewhere may not post again.
        app.router.redirect_slashes = False
        self.metrics = metrics.Metrics([route.path for route in routes], live.status, connections)
        guarded = Guard(app, token, hosts)
        self.application: ASGIApp = metrics.Measured(guarded, self.metrics)

    def took(self, snapshot: Snapshot) -> dict[str, Any]:
        """Notes a version that was taken in, and gives what there is to say of it."""
        changed = _changed(self._before, snapshot)
        seconds = self.live.status().applied_s
        self._taken.append(_Taken(snapshot.version, snapshot.step, time.time(), seconds, changed))
        self._before = snapshot.manifest
        rows = None if changed is None else sum(changed.values())
        if rows:
            self.metrics.count_changed(rows)
        return {"version": snapshot.version, "step": snapshot.step, "changed_rows": rows, "seconds": seconds}

    def unhealthy(self) -> str | None:
        """Why this server shouldn't be asked; None where it may."""
        try:
            self.live.wait(0)
        except CnrError as error:
            return f"rows can't be read: {error}"
        status = self.live.status()
        if status.error is not None and status.failing_s >= self._failing_s:
            return f"no newer version could be taken in for {status.failing_s:.0f} s: {status.error}"
        if self._max_age is not None and status.age_s > self._max_age:
            return f"version {status.version} was committed {status.age_s:.3g} s ago, {self._max_age:g} are allowed"
        return None

    def close(self) -> None:
        """Ends the threads that work on requests."""
        self._pool.shutdown(cancel_futures=True)

    def _answering(self, *, pooled: bool) -> Callable[[Request], Awaitable[Response]]:
        async def answering(request: Request) -> Response:
            sent, wanted = _forms(request)
            body = await self._body(request)
            run = asyncio.get_running_loop().run_in_executor

            def read() -> Call:
                return wire.read_request(body, sent, self._limits, pooled=pooled)

            call = read() if len(body) <= _PARSED_INLINE else await run(self._pool, read)
            # One version for all that the request does.
            snapshot = self.live.snapshot(call.version)
            rows = table_of(snapshot, call.table)
            values = call.rows * rows.shape[1]
            self._check_answer(values, rows.dtype if call.mode is None else np.dtype(np.float32), wanted)

            def answer() -> bytes:
                return wire.answer(snapshot.version, rows_for(rows, call), wanted)

            few = values <= _INLINE[wanted] and len(call.ids) <= _INLINE[JSON]
            content = answer() if few and self._all_there() else await run(self._pool, answer)
            return Response(content, media_type=wanted)

        return answering

    def _all_there(self) -> bool:
        """Whether no row is still to be decoded, which takes its time."""
        if not self._is_hydrated:
            done, total = self.live.progress
            self._is_hydrated = done == total
        return self._is_hydrated

    async def _body(self, request: Request) -> bytearray:
        limit = self._limits.request_bytes
        message, advice = f"the body has more than the {limit} bytes that are allowed", "send several requests"
        declared = request.headers.get("content-length")
        if declared is not None and declared.isdecimal() and int(declared) > limit:
            raise RequestError(413, message, advice)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._body_s):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise RequestError(413, message, advice)
                    parts.append(part)
        except TimeoutError:
            late = f"the body didn't come within {self._body_s:g} s: {size} bytes did"
            raise RequestError(408, late, "send it at once, or in several requests") from None
        # Arrays of what may be written to need no kernels of their own.
        return bytearray().join(parts)

    def _check_answer(self, values: int, dtype: np.dtype[Any], form: Form) -> None:
        each = wire.JSON_VALUE if form == JSON else wire.elements_of(dtype).itemsize
        if values * each > self._limits.answer_bytes:
            raise RequestError(
                413,
                f"the answer would take up to {values * each} bytes, and {self._limits.answer_bytes} are allowed",
                "send several requests" + (f", or ask for the binary form: Accept: {ROWS}" if form == JSON else ""),
            )

    async def _tables(self, request: Request) -> Response:
        snapshot = self.live.snapshot()
        last = self._taken[-1] if self._taken else None
        changed = last.changed or {} if last is not None and last.version == snapshot.version else {}
        tables = [
            {
                "name": rows.name,
                "rows": len(rows),
                "dim": rows.shape[1],
                "dtype": rows.dtype.name,
                "keyed": rows.keyed,
                "bytes": len(rows) * rows.shape[1] * rows.dtype.itemsize,
                "changed_rows": changed.get(rows.name),
                "held": held(rows, self._shard, self._shard_by),
            }
            for rows in snapshot.values()
        ]
        return json_answer(200, {"version": snapshot.version, "step": snapshot.step, "tables": tables})

    async def _health(self, request: Request) -> Response:
        reason = await asyncio.get_running_loop().run_in_executor(self._pool, self.unhealthy)
        done, total = self.live.progress
        well = "ok" if done == total else "starting"
        found: dict[str, Any] = {"status": well if reason is None else "failing"}
        if request.scope["cnrfmt.trusted"]:
            status = self.live.status()
            found |= {"version": status.version, "step": status.step, "age_s": round(status.age_s, 3)}
            found |= {} if done == total else {"rows": done, "of_rows": total}
            found |= {} if reason is None else {"error": reason, "what to do": "look at GET /status, and at its log"}
        return json_answer(200 if reason is None else 503, found)

    async def _status(self, request: Request) -> Response:
        status, snapshot = self.live.status(), self.live.snapshot()
        found = {
            "path": self.live.path,
            "version": status.version,
            "versions": self.live.versions,
            "step": status.step,
            "created": status.created.astimezone(UTC).isoformat(),
            "age_s": round(status.age_s, 3),
            "max_age_s": self._max_age,
            "updates": status.updates,
            "update_s": status.applied_s,
            "hydrated": status.hydrated.rows,
            "rows_to_hydrate": status.hydrated.of_rows,
            "pinned": status.pinned,
            "error": None if status.error is None else str(status.error),
            "tables": len(snapshot),
            "up_s": round(time.time() - self._started, 3),
            "history": [
                {
                    "version": one.version,
                    "step": one.step,
                    "at": datetime.fromtimestamp(one.at, UTC).isoformat(),
                    "seconds": one.seconds,
                    "changed_rows": None if one.changed is None else sum(one.changed.values()),
                }
                for one in tuple(self._taken)
            ],
        }
        return json_answer(200, found)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=metrics.CONTENT_TYPE)


def _forms(request: Request) -> tuple[Form, Form]:
    """What a body is sent as, and what the answer is to be."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent not in (JSON, ROWS):
        found = f"the content type is {sent!r}" if sent else "the request has no content type"
        raise RequestError(415, found, f"send Content-Type: {JSON}, or {ROWS}")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise RequestError(415, f"the body is encoded by {coding!r}", "send it as it is")
    accepted = request.headers.get("accept", "")
    forms: tuple[Form, Form] = (JSON, ROWS)
    named = [form for form in forms if form in accepted.lower()]
    form = forms[sent == ROWS]
    return form, named[0] if len(named) == 1 else form


def _changed(before: Manifest, snapshot: Snapshot) -> dict[str, int] | None:
    """How many rows of each table that is served were changed since a version."""
    try:
        changes = snapshot.changed_since(before)
        return {name: len(changes[name].rows) for name in snapshot}
    except (CnrError, OSError):
        # One of the versions is gone by now: then nobody knows.
        return None


async def _page(request: Request) -> Response:
    return page()
