"""Who may ask."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cnrfmt.serving.http.refusals import refusal

_OPEN = ("/", "/health")
"""What needs no token: the page knows nothing by itself, and those who look after health seldom have one."""


class Guard:
    """Lets only those ask who may."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str] | None) -> None:
        self._app, self._token = app, None if token is None else token.encode()
        self._hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        heads: dict[bytes, bytes] = dict(scope["headers"])
        host = heads.get(b"host", b"").decode("latin-1")
        name = (host if host.endswith("]") else host.rpartition(":")[0] or host).lower()
        scope["cnrfmt.trusted"] = self._has_token(heads.get(b"authorization", b""))
        refused: Response | None = None
        # A page of the web may have its own name lead here, and ask as if it were at home.
        if self._hosts is not None and name not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            refused = refusal(421, f"this server isn't {host!r}", f"ask it as {names}, or start it with a token")
        elif not scope["cnrfmt.trusted"] and scope["path"] not in _OPEN:
            advice = "send Authorization: Bearer and the token that the server was started with"
            refused = refusal(401, "the token is missing or wrong", advice, {"WWW-Authenticate": "Bearer"})
        await (self._app if refused is None else refused)(scope, receive, send)

    def _has_token(self, authorization: bytes) -> bool:
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(b" ")
        # However long the right beginning of a wrong one is, this takes the same time.
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token)
