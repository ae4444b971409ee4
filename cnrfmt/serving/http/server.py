"""Runs the application: the address that it listens at, the version that it follows, and how it ends."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import uvicorn
from prometheus_client import disable_created_metrics

from cnrfmt.errors import UsageError
from cnrfmt.serving.held_rows import ShardBy
from cnrfmt.serving.http.app import Service
from cnrfmt.serving.http.connections import Listener, Protocol, Server, raise_descriptors
from cnrfmt.serving.http.starting import Door, wait_for
from cnrfmt.serving.http.warming import warm
from cnrfmt.serving.http.wire import Limits
from cnrfmt.serving.live import LiveTables
from cnrfmt.serving.snapshot import LiveStatus, Snapshot

Tell = Callable[[str, dict[str, Any]], None]
"""Is called, from any thread, with what happened: its name, and facts that JSON can say."""

_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_WARNED_S = 60.0
"""Between warnings that connections are refused."""
_SAID = 1500
"""Characters of something logged: a pipe takes a line of 4 KiB at once, or not."""


@dataclass(frozen=True)
class Settings:
    """How tables are served; as `Service` and `LiveTables.follow` have them."""

    token: str | None = None
    limits: Limits = field(default_factory=Limits)
    poll: float = 0.1
    max_age: float | None = None
    shard: tuple[int, int] | None = None
    shard_by: ShardBy | None = None
    max_connections: int = 1000
    wait_s: float = 0.0
    """How long a container may be waited for that isn't there yet."""
    patience_s: float = 30.0
    """How long a request may take to come."""
    grace_s: int = 9
    """How long requests that are under way are waited for at the end, which is promised within 10 seconds."""


def listen(host: str, port: int) -> Listener:
    """A socket at this address, where connections wait until they are served; port 0 takes a free one."""
    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port is a number from 0 to 65535, found {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = Listener(fileno=socket.create_server((str(address[0]), port), family=family, backlog=1024).detach())
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


def serve(begin: Callable[[], LiveTables], sock: Listener, settings: Settings, tell: Tell) -> None:
    """Serves until SIGTERM or SIGINT, and then answers what is under way. For a program's main thread.

    It listens at once. `begin` opens the tables, in a thread of its own; what it raises, this raises.
    """
    # A series more for each one, of when it began.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    local = is_local(sock)
    if not local and settings.token is None:
        tell("warning", {"warning": f"everybody who reaches {url_of(sock)} can read these tables; give --token-file"})
    # A quarter of the descriptors stays for segments, of which a version may have many.
    sock.most = max(1, min(settings.max_connections, 3 * raise_descriptors() // 4))
    if sock.most < settings.max_connections:
        few = f"only {sock.most} connections are let in at a time, for lack of descriptors; raise `ulimit -n`"
        tell("warning", {"warning": few})
    door = Door(settings.token, _LOCAL if local and settings.token is None else None)
    config = uvicorn.Config(
        door,
        # Others, where they are installed, accept connections by themselves.
        loop="asyncio",
        http=Protocol,
        log_config=None,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=settings.grace_s,
    )
    server = _Server(config, settings.patience_s, sock, tell)
    opening = _Opening(begin, door, server, sock, settings, tell)
    with _ending(server), _logging(tell), opening:
        server.run(sockets=[sock])
    opening.raise_error()
    tell("ended", {"version": opening.version})


class _Opening:
    """Opens the tables while the server answers already that nothing is there yet; at its end it closes them."""

    def __init__(
        self,
        begin: Callable[[], LiveTables],
        door: Door,
        server: uvicorn.Server,
        sock: Listener,
        settings: Settings,
        tell: Tell,
    ) -> None:
        self._begin, self._door, self._server, self._sock, self._settings = begin, door, server, sock, settings
        self._tell = tell
        self._over, self._stack = threading.Event(), contextlib.ExitStack()
        self._error: BaseException | None = None
        self._live: LiveTables | None = None
        self._thread = threading.Thread(target=self._run, name="cnrfmt opening")

    @property
    def version(self) -> int | None:
        """The version that was served last; None where none was."""
        return None if self._live is None else self._live.status().version

    def raise_error(self) -> None:
        """Raises why nothing could be served."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._stack.close()

    def _run(self) -> None:
        try:
            self._open()
        except BaseException as error:
            self._error, self._server.should_exit = error, True

    def _open(self) -> None:
        settings, tell = self._settings, self._tell
        live = wait_for(self._begin, settings.wait_s, self._over, self._waits)
        if live is None:
            return
        self._live = self._stack.enter_context(live)
        self._door.say("opening", "kernels are loaded, or compiled, which takes up to half a minute the first time")
        warm(live, self._over)
        service = Service(
            live,
            limits=settings.limits,
            token=settings.token,
            hosts=self._door.hosts,
            max_age=settings.max_age,
            body_s=settings.patience_s,
            shard=settings.shard,
            shard_by=settings.shard_by,
            threads=max(2, os.cpu_count() or 1),
            connections=self._sock.counts,
        )
        # What is under way ends before the tables do.
        self._stack.callback(service.close)

        def took(snapshot: Snapshot) -> None:
            facts = service.took(snapshot)
            # That nobody reads the log any more doesn't end following.
            with contextlib.suppress(OSError):
                tell("update", facts)

        def aged(status: LiveStatus) -> None:
            text = f"version {status.version} was committed {status.age_s:.3g} s ago, and nothing newer is there"
            with contextlib.suppress(OSError):
                tell("warning", {"warning": text})

        def failed(error: BaseException | None) -> None:
            text = "all is well again" if error is None else f"something goes wrong behind what is served: {error}"
            with contextlib.suppress(OSError):
                tell("warning", {"warning": text})

        if self._over.is_set():
            return
        facts = {"path": live.path, "version": live.version, "step": live.step, "tables": len(live)}
        self._door.application = service.application
        tell("serving", {"url": url_of(self._sock), **facts})
        on_age = None if settings.max_age is None else aged
        live.follow(poll=settings.poll, on_update=took, max_age=settings.max_age, on_age=on_age, on_error=failed)

    def _waits(self, reason: str) -> None:
        self._door.say("waiting", reason)
        self._tell("waiting", {"url": url_of(self._sock), "seconds": self._settings.wait_s, "reason": reason})


class _Server(Server):
    """Warns where connections are refused."""

    def __init__(self, config: uvicorn.Config, idle_s: float, sock: Listener, tell: Tell) -> None:
        super().__init__(config, idle_s)
        self._sock, self._tell, self._told, self._told_at = sock, tell, 0, float("-inf")

    async def on_tick(self, counter: int) -> bool:
        """Is called ten times a second."""
        refused, now = self._sock.refused - self._told, time.monotonic()
        if refused and now - self._told_at >= _WARNED_S:
            self._told, self._told_at = self._sock.refused, now
            text = f"{refused} connections were refused, as {self._sock.most} are open; see --max-connections"
            with contextlib.suppress(OSError):
                self._tell("warning", {"warning": text})
        return await super().on_tick(counter)


class _Telling(logging.Handler):
    """What uvicorn, asyncio and others log, told as all else is."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        facts = {"warning": record.getMessage().strip()[:_SAID]}
        if record.exc_info:
            # The last lines say what it was.
            facts["traceback"] = logging.Formatter().formatException(record.exc_info)[-_SAID:]
        with contextlib.suppress(OSError):
            self._tell("warning", facts)


@contextlib.contextmanager
def _logging(tell: Tell) -> Iterator[None]:
    handler, root = _Telling(tell), logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)


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
