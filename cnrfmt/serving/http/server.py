"""Runs the application: the address that it listens at, the version that it follows, and how it ends."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import uvicorn
from prometheus_client import disable_created_metrics

from cnrfmt.errors import UsageError
from cnrfmt.serving.http.app import Service
from cnrfmt.serving.http.wire import Limits
from cnrfmt.serving.live import LiveTables
from cnrfmt.serving.snapshot import LiveStatus, Snapshot

Tell = Callable[[str, dict[str, Any]], None]
"""Is called, from any thread, with what happened: its name, and facts that JSON can say."""

_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_GRACE_S = 10
"""How long requests that are under way are waited for at the end."""


@dataclass(frozen=True)
class Settings:
    """How tables are served; as `Service` and `LiveTables.follow` have them."""

    token: str | None = None
    limits: Limits = field(default_factory=Limits)
    poll: float = 0.1
    max_age: float | None = None


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address, where connections wait until they are served; port 0 takes a free one."""
    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port is a number from 0 to 65535, found {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.create_server((str(address[0]), port), family=family, backlog=1024)
    except OSError as error:
        why = error.strerror or str(error)
        text = f"can't listen at {host}, port {port}: {why.lower()}; give another --port (0 takes a free one) or --host"
        raise UsageError(text) from error
    # Connections inherit it: the rows of an answer mustn't wait until its head was acknowledged, 40 ms later.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def is_local(sock: socket.socket) -> bool:
    """Whether this machine alone reaches it."""
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def url_of(sock: socket.socket) -> str:
    """Its address in the web."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(live: LiveTables, sock: socket.socket, settings: Settings, tell: Tell) -> None:
    """Serves until SIGTERM or SIGINT, and then answers what is under way. For a program's main thread."""
    # A series more for each one, of when it began.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    local = is_local(sock)
    service = Service(
        live,
        limits=settings.limits,
        token=settings.token,
        hosts=_LOCAL if local and settings.token is None else None,
        max_age=settings.max_age,
        threads=max(2, os.cpu_count() or 1),
    )
    if not local and settings.token is None:
        tell("warning", {"warning": f"everybody who reaches {url_of(sock)} can read these tables; give --token-file"})
    config = uvicorn.Config(
        service.application,
        log_config=None,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = uvicorn.Server(config)

    def took(snapshot: Snapshot) -> None:
        facts = service.took(snapshot)
        # That nobody reads the log any more doesn't end following.
        with contextlib.suppress(OSError):
            tell("update", facts)

    def aged(status: LiveStatus) -> None:
        text = f"version {status.version} was committed {status.age_s:.3g} s ago, and nothing newer is there"
        with contextlib.suppress(OSError):
            tell("warning", {"warning": text})

    try:
        with _ending(server):
            live.follow(poll=settings.poll, on_update=took, max_age=settings.max_age, on_age=aged)
            facts = {"path": live.path, "version": live.version, "step": live.step, "tables": len(live)}
            tell("serving", {"url": url_of(sock), **facts})
            server.run(sockets=[sock])
    finally:
        service.close()
        live.close()
    tell("ended", {"version": live.status().version})


@contextlib.contextmanager
def _ending(server: uvicorn.Server) -> Iterator[None]:
    """Signals that end a program end the server within.

    Once it has ended, uvicorn raises the signal that ended it again: then it finds this handler, and not death.
    """

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
