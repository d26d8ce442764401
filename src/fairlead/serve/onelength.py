"""Refuses a request with both Content-Length and Transfer-Encoding.

h11 goes by Transfer-Encoding; a proxy that goes by Content-Length would see a second request in the body (smuggling).
Source: RFC 9112 section 6.1.
"""

from __future__ import annotations

from typing import Any, Final

_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})


def ensure(app: Any) -> Any:
    """Return an application that answers such a request with 400 and ends its connection; others reach `app`."""

    async def judged(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not {name for name, _ in scope["headers"]} >= _LENGTHS:
            await app(scope, receive, send)
            return
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return judged
