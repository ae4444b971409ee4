"""What is answered before there is anything to serve, and how long it is waited for."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Collection

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cnrfmt.errors import DamagedError, StorageError
from cnrfmt.serving.http.guard import Guard
from cnrfmt.serving.http.page import page
from cnrfmt.serving.http.refusals import json_answer, refusal
from cnrfmt.serving.live import LiveTables

_LOOK_S = 0.1
"""Between looks for a container: nothing tells of a folder that isn't there yet."""
_AGAIN = "ask again in a while"


class Door:
    """The application, and before there is one, its stand-in: a server that listens and isn't ready.

    Attributes
    ----------
    application
        Is set once there is something to serve.
    hosts
        The names that the server is asked under; None for any.
    state, reason
        What it waits for until then.
    """

    def __init__(self, token: str | None, hosts: Collection[str] | None) -> None:
        self.application: ASGIApp | None = None
        self.hosts = hosts
        self.state, self.reason = "opening", "the container is being opened"
        self._stand_in = Guard(self._answer, token, hosts)

    def say(self, state: str, reason: str) -> None:
        """What it waits for from now on."""
        self.state, self.reason = state, reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or says that nothing is served yet."""
        await (self.application or self._stand_in)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._response(scope["path"], is_trusted=scope["cnrfmt.trusted"])(scope, receive, send)

    def _response(self, path: str, *, is_trusted: bool) -> Response:
        if path == "/":
            return page()
        later = {"Retry-After": "1"}
        if path == "/health":
            told = {"error": self.reason, "what to do": _AGAIN} if is_trusted else {}
            return json_answer(503, {"status": self.state, **told}, later)
        return refusal(503, f"nothing is served yet: {self.reason}", _AGAIN, later)


def wait_for(
    begin: Callable[[], LiveTables], seconds: float, over: threading.Event, tell: Callable[[str], None]
) -> LiveTables | None:
    """What `begin` gives once there is a container, or raises where there is none after so many seconds.

    `tell` is called once, with the reason, where it has to be waited for. None where it is over before.
    """
    end, is_told = time.monotonic() + seconds, False
    while not over.is_set():
        try:
            return begin()
        except (DamagedError, StorageError) as error:
            if time.monotonic() >= end or not _is_nothing_yet(error):
                raise
            if not is_told:
                tell(f"{error.filename}: {error.strerror}" if isinstance(error, StorageError) else str(error))
            is_told = True
        over.wait(_LOOK_S)
    return None


def _is_nothing_yet(error: DamagedError | StorageError) -> bool:
    """Whether there is no container, or the folder of one in which nothing was committed."""
    if isinstance(error, StorageError):
        return error.errno == errno.ENOENT
    return error.rule == "directory-layout"
