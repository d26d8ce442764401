"""Serves calls of a program on this machine: POST a JSON body to a path, get a JSON body, without the web framework.

The content type of a call must be JSON: a page in a browser may send other types to another origin, but not JSON
without a preflight.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Any, Final

from fairlead import errors

Call = Callable[[bytes], Awaitable[bytes]]
_MOST_BYTES: Final = 8 << 20
"""Room for a pod and the names of 100,000 nodes."""
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"


def create_app(calls: Mapping[str, Call], ready: Callable[[], str]) -> Callable[..., Awaitable[None]]:
    """Return the application.

    Args: calls: by path; each takes a body and returns a body.   ready: says why no call can be answered yet.
    """

    async def answer(scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]]) -> tuple[int, bytes, bytes]:
        if refused := _refusal(scope, calls, ready()):
            return refused
        body, is_more = bytearray(), True
        while is_more:
            part = await receive()
            body += part.get("body", b"")
            is_more = part.get("more_body", False)
            if len(body) > _MOST_BYTES:
                return 413, _TEXT, f"a call has at most {_MOST_BYTES} bytes\n".encode()
        try:
            return 200, _JSON, await calls[scope["path"]](bytes(body))
        except errors.FairleadError as error:
            return errors.row_of(error).http, _TEXT, f"{errors.sentence(error)}\n".encode()

    async def app(scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[..., Any]) -> None:
        status, kind, body = await answer(scope, receive)
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def _refusal(scope: Mapping[str, Any], calls: Container[str], problem: str) -> tuple[int, bytes, bytes] | None:
    """Return the answer to what is not a call; None: it is one, and its body may be read."""
    if problem:
        return 503, _TEXT, f"{problem}\n".encode()
    if scope["path"] not in calls:
        return 404, _TEXT, b"no such call\n"
    if scope["method"] != "POST":
        return 405, _TEXT, b"only POST\n"
    if _media_type(scope["headers"]) != _JSON:
        return 415, _TEXT, b"only application/json\n"
    return None


def _media_type(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    found = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    return found.partition(b";")[0].strip().lower()
