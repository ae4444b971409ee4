"""The page that shows how the server stands."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from starlette.responses import Response

_PAGE = (files("cnrfmt.serving.http") / "page.html").read_text("utf-8")


def page() -> Response:
    """The page."""
    return Response(_PAGE, media_type="text/html", headers={"Content-Security-Policy": _POLICY})


def _hash_of(element: str) -> str:
    """The digest by which a browser knows the one script, or style, that the page has."""
    inner = _PAGE.split(f"<{element}>")[1].split(f"</{element}>")[0]
    return f"'sha256-{b64encode(sha256(inner.encode()).digest()).decode()}'"


_POLICY = (
    f"default-src 'none'; script-src {_hash_of('script')}; style-src {_hash_of('style')}; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
