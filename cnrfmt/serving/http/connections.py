"""How many connections are open, and for how long: who sends nothing mustn't keep others out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import sys
import time
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cnrfmt.serving.http.metrics import Connections

_AT_ONCE = 100
"""Connections that are refused before others have their turn."""
_SCARCE_S = 0.01
_BEGINS, _GOES_ON = b"HTTP/1.1 ", b"HTTP/1.1 1"
"""How the head of an answer begins; those of 100 to 199 are waited for before anything follows."""
_JOINED = 1 << 16
"""Bytes that are copied rather than written by themselves."""
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _refusal(status: str, message: str, advice: str, *headers: str) -> bytes:
    body = json.dumps({"error": message, "what to do": advice})
    lines = (f"HTTP/1.1 {status}", "content-type: application/json", *headers, "connection: close")
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", body]).encode()


_FULL = _refusal(
    "503 Service Unavailable", "as many connections are open as are allowed", "ask again in a while", "retry-after: 1"
)
_NO_REQUEST = _refusal(
    "400 Bad Request", "what came is no request of HTTP/1.1", "mend its head, or how its body is sent"
)


def raise_descriptors() -> int:
    """Allows this process as many descriptors as it may have, and gives how many are left."""
    if sys.platform == "win32":
        # It has no such limit.
        return 1 << 16
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems call the limit infinite, and take less.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return 1 << 16
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:
        used = 64
    return max(0, soft - used)


class Listener(socket.socket):
    """A socket that listens, and lets in no more than `most` connections at a time; others are answered 503.

    It is asyncio that calls `accept`, and does so for all who wait before it looks at any, so that they are counted
    here.
    """

    most = 1000
    refused = 0

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._open: WeakSet[_Connection] = WeakSet()

    def counts(self) -> Connections:
        """How many there are."""
        return Connections(len(self._open), self.most, self.refused)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that may stay."""
        for _ in range(_AT_ONCE):
            try:
                descriptor, address = self._accept()  # type: ignore[attr-defined]
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                # Asyncio would log each of those who wait, again and again.
                time.sleep(_SCARCE_S)
                break
            found = _Connection(self.family, self.type, self.proto, fileno=descriptor)
            if len(self._open) < self.most:
                found.among = self._open
                self._open.add(found)
                return found, address
            self.refused += 1
            _refuse(found)
        raise BlockingIOError(errno.EAGAIN, "nobody may come in")


class _Connection(socket.socket):
    among: WeakSet[_Connection] | None = None

    def close(self) -> None:
        if self.among is not None:
            self.among.discard(self)
        super().close()


def _refuse(connection: socket.socket) -> None:
    connection.setblocking(False)
    with contextlib.suppress(OSError), connection:
        connection.send(_FULL)
        # With something left to read, closing it would take the answer back.
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1 << 16)


class Protocol(H11Protocol):
    """Sends the head of an answer together with what follows: each call of the system takes longer than a look-up."""

    def connection_made(self, transport: Any) -> None:
        """A connection begins."""
        super().connection_made(_Joining(transport))  # type: ignore[arg-type]

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP, as all else is refused, and closes."""
        # Where an answer is under way already, another one would be taken for a part of it.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_NO_REQUEST)
        self.transport.close()


class _Joining:
    """A transport that keeps what begins an answer until more is written, or it is closed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._kept = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes, or keeps until the next call."""
        if self._kept:
            kept, self._kept = self._kept, b""
            if len(data) > _JOINED:
                self._transport.write(kept)
            else:
                data = kept + data
        elif data.startswith(_BEGINS) and not data.startswith(_GOES_ON):
            self._kept = data
            return
        self._transport.write(data)

    def close(self) -> None:
        """Writes what was kept, and closes."""
        if self._kept:
            self.write(b"")
        self._transport.close()


class Server(uvicorn.Server):
    """Closes connections on which nothing went on for `idle_s`: no head of a request came, or an answer isn't read.

    The body of a request is the application's to wait for.
    """

    def __init__(self, config: uvicorn.Config, idle_s: float) -> None:
        super().__init__(config)
        self._idle_s = idle_s
        self._seen: WeakKeyDictionary[Any, tuple[tuple[int, bool, int], float]] = WeakKeyDictionary()

    async def on_tick(self, counter: int) -> bool:
        """Is called ten times a second."""
        if counter % 10 == 0:
            self.close_idle()
        return await super().on_tick(counter)

    def close_idle(self) -> None:
        """Closes those of them that there are."""
        now = time.monotonic()
        connections: list[Any] = list(self.server_state.connections)
        for one in connections:
            cycle, unread = one.cycle, one.transport.get_write_buffer_size()
            is_over = cycle is None or cycle.response_complete
            state = (id(cycle), is_over, unread)
            before, since = self._seen.get(one, (None, now))
            if state != before:
                self._seen[one] = (state, now)
            elif now - since >= self._idle_s and (is_over or unread):
                one.transport.abort()
