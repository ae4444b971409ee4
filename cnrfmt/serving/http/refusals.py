"""How requests are refused: in JSON, with what was wrong and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cnrfmt.errors import CnrError, VersionNotFoundError
from cnrfmt.serving.http.wire import JSON, RequestError


def json_answer(status: int, found: Any, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(json.dumps(found, allow_nan=False), status, headers, JSON)


def refusal(status: int, message: str, advice: str, headers: Mapping[str, str] | None = None) -> Response:
    """What a request is refused with: what was wrong, and what to do about it."""
    return json_answer(status, {"error": message, "what to do": advice}, headers)


async def failed(request: Request, error: CnrError) -> Response:
    """What was wrong with a request, or with the container."""
    if isinstance(error, RequestError):
        # What is still on its way of a request that came too late isn't waited for.
        headers = {"Connection": "close"} if error.status == 408 else None
        return refusal(error.status, error.message, error.advice, headers)
    if isinstance(error, VersionNotFoundError):
        return refusal(404, str(error), "leave version out for the newest, or start the server with --hold")
    return refusal(500, str(error), "tell whoever runs the server; `cnrfmt verify` finds what is damaged")


async def not_here(request: Request, error: HTTPException) -> Response:
    """No such address, or none that takes this method."""
    path = json.dumps(request.scope["path"])
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return refusal(405, f"{path} doesn't take {request.method}", f"use {allowed}", error.headers)
    advice = "there are /lookup, /pool, /tables, /health, /status and /metrics"
    return refusal(error.status_code, f"there is no {path}", advice)


async def gone(request: Request, error: ClientDisconnect) -> Response:
    """Half a request, whose other half nobody will send."""
    # Nobody reads this; it is counted.
    return refusal(400, "the client went away", "send the whole request")


async def broken(request: Request, error: Exception) -> Response:
    """A fault of the server, of which those who ask learn nothing."""
    return refusal(500, "the server failed", "tell whoever runs it: its log says more")
