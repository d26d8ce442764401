"""Turns errors into answers, and documents the errors that routes give.

Whatever is not a `FairleadError` is a bug of ours: it is logged here with its traceback, and the client gets no more
than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import litestar
import msgspec
from litestar import exceptions, openapi

from fairlead import errors, telemetry
from fairlead.wire.fairlead import problem

REASON: Final = "reason"
"""Of the scope's state: the token of the problem that a request is answered with."""
REFUSAL: Final = "refusal"
"""Of the scope's state: the error that a guard refused a request with, which a WebSocket's upgrade is answered by."""
_ROUTING: Final = {404: "RouteUnknown", 405: "MethodNotAllowed", 413: "BodyTooLarge", 415: "MediaTypeUnknown"}
_WORDS: Final = {"'data'": "the request has no body, and needs one of JSON"}
"""What the framework's words mean that say nothing to a person."""


def _respond(request: litestar.Request[Any, Any, Any], answer: problem.Problem) -> litestar.Response[problem.Problem]:
    request.scope["state"][REASON] = answer.reason
    return litestar.Response(answer, status_code=answer.status, media_type=problem.MEDIA_TYPE)


async def refuse(scope: Any, send: Any, answer: problem.Problem, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Answer a request, or a WebSocket's upgrade, before any route is reached.  Args: headers: more of them."""
    body = msgspec.json.encode(answer)
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    own = [(b"content-type", problem.MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": f"{kind}.start", "status": answer.status, "headers": [*own, *headers]})
    await send({"type": f"{kind}.body", "body": body})


def on_error(
    request: litestar.Request[Any, Any, Any], error: errors.FairleadError
) -> litestar.Response[problem.Problem]:
    """Answer with the error's row."""
    return _respond(request, problem.problem_of(error))


def on_http_error(
    request: litestar.Request[Any, Any, Any], error: exceptions.HTTPException
) -> litestar.Response[problem.Problem]:
    """Answer for the framework: unknown routes, malformed bodies and parameters."""
    parts = error.extra if isinstance(error.extra, list) else []
    details = "; ".join(_part(item) for item in parts)
    status = error.status_code
    kind = errors.NotFound if status == HTTPStatus.NOT_FOUND else errors.RequestError
    return _respond(
        request,
        problem.Problem(
            type=problem.TYPE_PREFIX + kind.__name__,
            title=HTTPStatus(status).phrase,
            status=status,
            detail=errors.readable(details or _lower(error.detail)),
            reason=_ROUTING.get(status, "RequestInvalid"),
            hint="GET /v1/openapi.json describes every route",
        ),
    )


def _part(item: object) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    where = item.get("key")
    message = str(item.get("message", ""))
    text = _WORDS.get(message) or _lower(message)
    return f"{where}: {text}" if where and where != "data" else text


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def on_nesting(request: litestar.Request[Any, Any, Any], error: RecursionError) -> litestar.Response[problem.Problem]:
    """Answer a body that is nested more deeply than it can be read: the caller's fault, not a bug."""
    message = "the body is nested too deeply"
    refusal = errors.RequestError(message, reason="BodyUnreadable", hint="no request needs more than a few levels")
    refusal.__cause__ = error
    return on_error(request, refusal)


def on_encoding(
    request: litestar.Request[Any, Any, Any], error: UnicodeDecodeError
) -> litestar.Response[problem.Problem]:
    """Answer a body or a query that is not UTF-8, which the decoders report by an error of Python's own."""
    message = f"the request is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}"
    refusal = errors.RequestError(message, reason="BodyUnreadable", hint="send UTF-8")
    refusal.__cause__ = error
    return on_error(request, refusal)


def on_bug(request: litestar.Request[Any, Any, Any], error: Exception) -> litestar.Response[problem.Problem]:
    """Log what should not happen; the only place of this room that sees errors which are not ours."""
    telemetry.log.error("request failed by a bug", method=request.method, path=request.url.path, exc_info=error)
    return _respond(
        request,
        problem.Problem(
            type="about:blank",
            title=HTTPStatus.INTERNAL_SERVER_ERROR.phrase,
            status=500,
            detail=f"this is a bug in fairlead: {type(error).__name__}",
            reason="Bug",
            hint="the service's log has the traceback; please report it",
        ),
    )


_STATUS_TEXT: Final = {
    400: "the request is malformed",
    401: "no API key came, or one that is not in force",
    403: "a limit or a boundary says no",
    404: "it names something that does not exist",
    409: "another writer was first, nothing fits, or the device is broken: see `type`",
    410: "the history asked for is no longer kept",
    412: "the object is another one than If-Match names",
    413: "the body is too large",
    415: "the body is of another media type",
    422: "it breaks a rule of the object",
    429: "requests came too often: `Retry-After` says when to come again",
    500: "a bug of ours",
    502: "a dependency sent malformed bytes",
    503: "a dependency does not answer",
}


_ALWAYS: Final = (400, 401, 403, 429, 500, 503)
"""What every route may answer: at the door on TLS, for want of a role, and where a dependency is away."""


def documented(*statuses: int) -> dict[int, openapi.ResponseSpec]:
    """Describe, for the OpenAPI document, the problems a route may answer with beside those of every route."""
    return {
        status: openapi.ResponseSpec(
            problem.Problem, generate_examples=False, description=_STATUS_TEXT[status], media_type=problem.MEDIA_TYPE
        )
        for status in sorted({*statuses, *_ALWAYS})
    }
