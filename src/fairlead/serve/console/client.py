"""Asks the API in this process, as the browser that asks the console: its cookie goes along, and so do its rights.

The console knows nothing but what `/v1` answers. So a page shows what its caller may see and no more, each change is
judged and written into the audit log as any other, and there is no second place where a rule could be forgotten.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from litestar import types

from fairlead import errors
from fairlead.serve import peer
from fairlead.wire.fairlead import problem

T = TypeVar("T")

_PASSED: Final = frozenset({b"cookie", b"host", b"origin"})
_MOST: Final = 64 << 20
"""Bytes of one answer. Listings are far below; output is read by the browser itself, not through here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the API answered."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes

    def value(self, kind: type[T]) -> T:
        """Return the body as a value."""
        return msgspec.json.decode(self.body, type=kind, strict=False)

    def cookies(self) -> list[str]:
        """Return the cookies that it sets."""
        return [value.decode("latin-1") for name, value in self.headers if name.lower() == b"set-cookie"]


@dataclass(slots=True)
class _Received:
    """What an application sent so far."""

    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], tuple(message["headers"])
        elif message["type"] == "http.response.body":
            piece = bytes(message.get("body", b""))
            self.size += len(piece)
            if self.size > _MOST:
                text = "the API's answer is too large for a page"
                raise errors.ProtocolError(text, reason="AnswerTooLarge", hint="`fairlead` reads it in pieces")
            self.pieces.append(piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class API:
    """The API, asked for one request of a browser."""

    app: types.ASGIApp
    scope: Mapping[str, Any]
    """Of the browser's request."""

    async def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        body: object = None,
        csrf: str = "",
        confirm: str = "",
    ) -> Answer:
        """Ask, and return what is answered.

        Args:   csrf: the token of the session's pages.   confirm: a key, for what no session alone may do.

        Raises: what a problem document says.
        """
        data = b"" if body is None else msgspec.json.encode(body)
        heard, given = _Received(), [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Any:
            return given.pop() if given else {"type": "http.disconnect"}

        shown = {b"x-csrf-token": csrf, b"x-confirm-key": confirm}
        await self.app(self._scope(method, path, query or {}, shown, len(data)), receive, heard.send)
        answer = Answer(status=heard.status, headers=heard.headers, body=b"".join(heard.pieces))
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise problem.error_of(answer.value(problem.Problem))
        return answer

    async def get(self, kind: type[T], path: str, **query: object) -> T:
        """Return what is at a path. Raises: as `ask`."""
        return (await self.ask("GET", path, query)).value(kind)

    def _scope(self, method: str, path: str, query: Mapping[str, object], shown: Mapping[bytes, str], size: int) -> Any:
        mine = self.scope
        headers = [(name, value) for name, value in mine["headers"] if name.lower() in _PASSED]
        headers += [(b"accept", b"application/json"), (b"content-length", str(size).encode())]
        if size:
            headers.append((b"content-type", b"application/json"))
        headers += [(name, value.encode("latin-1", "replace")) for name, value in shown.items() if value]
        asked = [(name, _text(value)) for name, value in query.items() if value is not None and value != ""]
        return {
            "type": "http",
            "asgi": mine.get("asgi", {"version": "3.0"}),
            "http_version": mine.get("http_version", "1.1"),
            "method": method,
            "scheme": mine.get("scheme", "http"),
            "path": path,
            "raw_path": urllib.parse.quote(path, safe="/:").encode(),
            "query_string": urllib.parse.urlencode(asked).encode(),
            "root_path": "",
            "headers": headers,
            "client": mine.get("client"),
            "server": mine.get("server"),
            "state": {peer.KEY: (mine.get("state") or {}).get(peer.KEY)},
        }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def part(text: str) -> str:
    """Return a name as one part of a path. Raises: NotFound: no object has such a name."""
    if not text or "/" in text or ":" in text or "\0" in text or text in {".", ".."}:
        raise errors.NotFound(f'there is no "{errors.readable(text)}"', reason="NotFound")
    return text
