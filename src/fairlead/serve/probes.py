"""Answers those who watch a long-lived process: `/healthz`, `/readyz`, `/metrics`.

`/healthz` answers whether the process should be left alone: it answers at all, and no loop missed its heartbeat.
`/readyz` asks the check that the process was given. The application is three paths of bare ASGI: the framework of the
API would double the agent's memory for them.

Source: Kubernetes probes (any status from 200 to 399 is success).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fairlead.wire.text import exposition

Check = Callable[[], str]
"""Returns what is wrong, or nothing."""
Expose = Callable[[], Awaitable[bytes]]
"""Returns figures in Prometheus' text format."""
Scope = Mapping[str, Any]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, object, Send], Awaitable[None]]

_METRICS: Final = exposition.CONTENT_TYPE.encode()
_TEXT: Final = b"text/plain; charset=utf-8"


def create_app(stalled: Check, ready: Check, expose: Expose) -> App:
    """Return the application.

    Args:    stalled: says which loop hangs.   ready: says why this process cannot do its work yet.
    """
    verdicts: Mapping[str, Check] = {"/healthz": stalled, "/readyz": ready}

    async def page_of(path: str) -> tuple[int, bytes, bytes]:
        if (check := verdicts.get(path)) is not None:
            problem = check()
            return (503, _TEXT, f"{problem}\n".encode()) if problem else (200, _TEXT, b"ok\n")
        if path == "/metrics":
            return 200, _METRICS, await expose()
        return 404, _TEXT, f"there are: {', '.join((*verdicts, '/metrics'))}\n".encode()

    async def app(scope: Scope, _receive: object, send: Send) -> None:
        if scope["method"] in {"GET", "HEAD"}:
            status, kind, body = await page_of(scope["path"])
        else:
            status, kind, body = 405, _TEXT, b"only GET and HEAD\n"
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app
