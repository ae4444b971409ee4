"""What a server tells Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cnrfmt.serving.http.refusals import refusal
from cnrfmt.serving.snapshot import LiveStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LAST_S = 0.5
"""How long one who doesn't read is waited for at the end."""
_OTHER = "other"
"""What requests for addresses that aren't there are counted under: whoever asks mustn't choose the labels."""


class Connections(NamedTuple):
    """How many connections are open, may be, and were refused as so many were."""

    open: int
    most: int
    refused: int


class Metrics:
    """Counts of requests, and how the server stands when it is asked."""

    def __init__(
        self,
        routes: Collection[str],
        status: Callable[[], LiveStatus],
        connections: Callable[[], Connections] | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._routes = frozenset(routes)
        self._requests = Counter(
            "cnrfmt_requests", "Requests that were answered.", ("route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "cnrfmt_request_seconds",
            "Seconds from the head of a request to the end of its answer.",
            ("route",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._changed = Counter(
            "cnrfmt_changed_rows", "Rows that versions changed which were taken in.", registry=self.registry
        )
        self._counters: dict[tuple[str, int], Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self.registry.register(_Standing(status, connections))
        ProcessCollector(registry=self.registry)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Counts a request."""
        route = path if path in self._routes else _OTHER
        # Finding a counter by its labels takes longer than counting.
        counter = self._counters.get((route, status))
        if counter is None:
            counter = self._counters[route, status] = self._requests.labels(route, str(status))
        histogram = self._histograms.get(route)
        if histogram is None:
            histogram = self._histograms[route] = self._seconds.labels(route)
        counter.inc()
        histogram.observe(seconds)

    def count_changed(self, rows: int) -> None:
        """Counts the rows that a version changed."""
        self._changed.inc(rows)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class Measured:
    """An application whose requests are counted, and those that the end of the server cancels refused."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        started, status, begun = time.perf_counter(), 500, False

        async def noting(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            # The server ends, which uvicorn would call an error of the application.
            if not begun:
                ends = refusal(503, "the server ends", "ask again, or another server", {"Connection": "close"})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_S):
                        await ends(scope, receive, noting)
        finally:
            self._metrics.count(scope["path"], status, time.perf_counter() - started)


class _Standing(Collector):
    """How the server stands."""

    def __init__(self, status: Callable[[], LiveStatus], connections: Callable[[], Connections] | None) -> None:
        self._status, self._connections = status, connections

    def collect(self) -> Iterator[Metric]:
        """As it is now."""
        status = self._status()
        yield GaugeMetricFamily("cnrfmt_version", "The version that is served.", status.version)
        if status.step is not None:
            yield GaugeMetricFamily("cnrfmt_step", "Its step.", status.step)
        yield GaugeMetricFamily(
            "cnrfmt_age_seconds", "Seconds since the version was committed, by its writer's clock.", status.age_s
        )
        yield CounterMetricFamily("cnrfmt_updates", "Versions that were taken in.", status.updates)
        if status.applied_s is not None:
            yield GaugeMetricFamily(
                "cnrfmt_update_seconds", "Seconds that the last version took to be taken in.", status.applied_s
            )
        yield GaugeMetricFamily("cnrfmt_rows_hydrated", "Rows of the first version there.", status.hydrated.rows)
        yield GaugeMetricFamily("cnrfmt_rows_to_hydrate", "Rows of the first version.", status.hydrated.of_rows)
        failing = 0 if status.error is None else 1
        yield GaugeMetricFamily("cnrfmt_following_fails", "1 where a newer version can't be taken in.", failing)
        if self._connections is not None:
            found = self._connections()
            yield GaugeMetricFamily("cnrfmt_connections", "Connections that are open.", found.open)
            yield GaugeMetricFamily("cnrfmt_connections_allowed", "Connections that may be open.", found.most)
            yield CounterMetricFamily(
                "cnrfmt_connections_refused", "Connections that were refused, as so many were open.", found.refused
            )

    def describe(self) -> Iterator[Metric]:
        """Nothing beforehand."""
        return iter(())
