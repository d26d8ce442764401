"""Implements ETag, If-None-Match and If-Match: a change is refused if its object is not as the client saw it.

A tag has two parts: a digest of the object without the fields that change by themselves (`VOLATILE`: why it waits, what
it costs so far), and one of the whole answer. `If-None-Match` compares both, so that 304 never hides a change.
`If-Match` compares the first, so that a cost that has grown meanwhile refuses no change. Changes with `If-Match` of one
object are serialized: of two that name the same tag, one is carried out. A change takes the lock (by namespace and
path) only after its own body has arrived, and releases it before it waits for the outcome of the change (`let_go`).
Other writers (a kubelet, requests without a tag) are not waited for.  Source: RFC 9110, 8.8.3, 13.1.1, 13.1.2 and
13.2.1.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import weakref
from collections.abc import Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import connection, types

from fairlead import errors
from fairlead.wire.fairlead import problem

VOLATILE: Final = frozenset({"waiting", "cost", "phases", "last_used_at", "status", "used", "used_by"})
"""Fields that change while the object is the same."""
_NO_ROUTE: Final = frozenset({"RouteUnknown", "MethodNotAllowed"})
COMPARING: Final = "comparing"
"""Of the scope's state: the request reads for a change, and has the change's query."""
_FRAMEWORK: Final = "_ls_connection_state"
"""Of the scope's state: what Litestar has read of a request."""
_SAFE: Final = frozenset({"GET", "HEAD"})
_KEPT_BY_304: Final = frozenset({b"etag", b"cache-control", b"vary"})
_LONGEST: Final = 1 << 18
"""Bytes of an answer that is read again to leave out what is volatile; longer ones are lists."""

Message = MutableMapping[str, Any]


class Turn:
    """The lock on its object that one change holds."""

    def __init__(self, locks: MutableMapping[tuple[str, str], asyncio.Lock]) -> None:
        self._locks = locks
        self._held: asyncio.Lock | None = None

    async def take(self, namespace: str, path: str) -> None:
        lock = self._locks.setdefault((namespace, path), asyncio.Lock())
        await lock.acquire()
        self._held = lock

    def end(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None


_TURN: Final = contextvars.ContextVar[Turn | None]("turn", default=None)
"""Of the change that is under way."""


def conditional(inner: types.ASGIApp) -> types.ASGIApp:
    """Return an application that knows `ETag`, `If-None-Match` and `If-Match`."""
    locks: weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock] = weakref.WeakValueDictionary()

    async def called(scope: Any, receive: types.Receive, send: types.Send) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
        elif scope["method"] in _SAFE:
            await inner(scope, receive, _tagging(_header(scope, b"if-none-match") or "", send))
        else:
            turn = Turn(locks)
            before = _TURN.set(turn)
            try:
                await inner(scope, receive, send)
            finally:
                turn.end()
                _TURN.reset(before)

    return called


def let_go() -> None:
    """Release the lock on the object once the change is stored, before its outcome is waited for."""
    if (turn := _TURN.get()) is not None:
        turn.end()


def tag(body: bytes) -> str:
    """Return the tag of an answer, as it stands in its header."""
    whole = _digest(body)
    if len(body) > _LONGEST or body.startswith(b'{"items"'):
        return f'"{whole}"'
    found = msgspec.json.decode(body)
    if not isinstance(found, dict) or not VOLATILE & found.keys():
        return f'"{whole}"'
    steady = {name: value for name, value in found.items() if name not in VOLATILE}
    return f'"{_digest(msgspec.json.encode(steady))}.{whole}"'


def resource(path: str) -> str:
    """Return the path of the object that a request changes: without its verb, split off or not."""
    head, _, last = path.rpartition("/")
    return head if last.startswith(":") else f"{head}/{last.partition(':')[0]}"


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=10).hexdigest()


def _header(scope: Any, wanted: bytes) -> str | None:
    """Return a header's value; None: it is absent. An empty If-Match is not None: it matches no object."""
    values = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted]
    return ", ".join(values) if values else None


def _named(header: str) -> tuple[str, ...]:
    """Return the tags of a header; the service's own hold no comma."""
    return tuple(one.strip().removeprefix("W/") for one in header.split(",") if one.strip())


def _tagging(known: str, send: types.Send) -> types.Send:
    """Return what sends an answer with its tag, and without its body where the caller has it already."""
    held: list[Any] = []

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start" and _is_tagged(message):
            held.append(message)
        elif held:
            start = held.pop()
            if not message.get("more_body"):
                start, message = _conditioned(start, message, known)
            await send(start)
            await send(message)
        else:
            await send(message)

    return sent


def _is_tagged(start: Message) -> bool:
    kinds = [value for name, value in start["headers"] if name.lower() == b"content-type"]
    return start["status"] == HTTPStatus.OK and any(value.startswith(b"application/json") for value in kinds)


def _conditioned(start: Message, message: Message, known: str) -> tuple[Message, Message]:
    found = tag(message["body"])
    headers = [*start["headers"], (b"etag", found.encode())]
    if not any(name.lower() == b"cache-control" for name, _ in headers):
        headers.append((b"cache-control", b"private, no-cache"))  # clients may store it, and revalidate it each time
    if found in _named(known) or known.strip() == "*":
        kept = [(name, value) for name, value in headers if name.lower() in _KEPT_BY_304]
        return {**start, "status": HTTPStatus.NOT_MODIFIED, "headers": kept}, {**message, "body": b""}
    return {**start, "headers": headers}, message


async def check(asked: connection.ASGIConnection[Any, Any, Any, Any], *, aside: str) -> None:
    """Refuse a change whose object is not as `If-Match` names it; runs after the guard that checks permissions.

    Args:    aside: key of the scope's state that belongs to the change alone.
    Raises:  Stale (`PreconditionFailed`); RequestError (`IfMatchUnsupported`); what reading the object is refused with.
    """
    scope: Any = asked.scope
    if scope["type"] != "http" or scope["method"] in _SAFE or (wanted := _header(scope, b"if-match")) is None:
        return
    await connection.Request[Any, Any, Any](scope, asked.receive).body()  # kept in the scope for the route
    namespace = await _compare(asked, wanted, aside)
    if (turn := _TURN.get()) is not None:
        await turn.take(namespace, resource(scope["path"]))
    await _compare(asked, wanted, aside)  # what others have changed meanwhile


async def _compare(asked: connection.ASGIConnection[Any, Any, Any, Any], wanted: str, aside: str) -> str:
    """Return the namespace of the object that `If-Match` names ("": of none). Raises: as `check`."""
    scope: Any = asked.scope
    path = resource(scope["path"])
    state = {name: value for name, value in scope["state"].items() if name not in {aside, _FRAMEWORK}}
    state[COMPARING] = True
    status, body = await _read(asked.app.asgi_handler, {**scope, "method": "GET", "path": path, "state": state})
    if status != HTTPStatus.OK:
        found = msgspec.json.decode(body, type=problem.Problem)
        if found.reason not in _NO_ROUTE:
            raise problem.error_of(found)
        message = f"{scope['method']} {scope['path']} knows no If-Match: there is nothing to read at {path}"
        raise errors.RequestError(message, reason="IfMatchUnsupported", hint="leave it out")
    now = tag(body)
    if wanted.strip() != "*" and _steady(now) not in map(_steady, _named(wanted)):
        message = f"{path} does not match If-Match: its ETag is {now} now"
        raise errors.Stale(message, reason="PreconditionFailed", hint="read it again, and decide again", etag=now)
    read = msgspec.json.decode(body)
    return str(read.get("namespace", "")) if isinstance(read, dict) else ""


def _steady(name: str) -> str:
    return name.strip('"').partition(".")[0]


async def _read(inner: types.ASGIApp, scope: Any) -> tuple[int, bytes]:
    """Return status and body of an object as the caller may see it."""
    status, parts = 0, list[bytes]()

    async def sent(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    async def nothing() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope["headers"] = _without(scope["headers"], (b"content-length", b"content-type", b"transfer-encoding"))
    await inner(scope, nothing, sent)
    return status, b"".join(parts)


def _without(headers: Iterable[tuple[bytes, bytes]], names: tuple[bytes, ...]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in names]


def describe(method: str, operation: dict[str, Any]) -> None:
    """Add to the document's operation what every answer and every change knows of tags."""
    parameters, responses = operation.setdefault("parameters", []), operation["responses"]
    if method == "get" and "application/json" in responses.get("200", {}).get("content", {}):
        responses["200"].setdefault("headers", {})["ETag"] = {"schema": {"type": "string"}, "description": _ETAG}
        responses["304"] = {"description": "the answer is the one that If-None-Match names"}
        parameters.append(_parameter("If-None-Match", "tag of the answer that is known already"))
    elif method != "get":
        problems = responses["500"]
        responses["412"] = {**problems, "description": "the object is another one than If-Match names"}
        responses.setdefault("404", {**problems, "description": "it names something that does not exist"})
        responses.setdefault("400", {**problems, "description": "the request is malformed"})
        parameters.append(_parameter("If-Match", "tag of the object that is changed: another one is left as it is"))


_ETAG: Final = "tag of this answer, for If-None-Match and If-Match"


def _parameter(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": text}
