"""Builds the ASGI application around given routes: errors, verbs in paths, the OpenAPI document.

Handlers are thin: they read the store, ask `plan` and hand out views. Three things the framework does not know are
added at its edge. Paths that end in a verb (`/v1/containers/NAME:stop`) are split before routing, since a name never
holds a colon; answers have tags (`etag`); and the document, generated from the handlers' types, is shown with those
paths and without the framework's own error forms, which no route answers with.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import litestar
import msgspec
from litestar import connection, di, exceptions, handlers, openapi, types

from fairlead import errors
from fairlead.serve import bodies
from fairlead.serve.api import etag, eventstream, failure, patience, query

DOCUMENT: Final = "/v1/openapi.json"
_MARK: Final = "/:"


def create_app(
    routes: Sequence[types.ControllerRouterHandler],
    services: Callable[[types.Scope], Awaitable[Any]],
    *,
    guard: types.AsyncAnyCallable,
) -> litestar.Litestar:
    """Return the application of these routes; it holds no state of its own.

    Args: services: makes what handlers get as their parameter of that name, for each request from its scope.
          guard: refuses requests before their route runs.
    """

    async def judged(asked: connection.ASGIConnection[Any, Any, Any, Any], handler: handlers.BaseRouteHandler) -> None:
        try:
            await query.resolve(asked, handler, services)
            await guard(asked, handler)
            query.check(asked, handler)
        except errors.FairleadError as error:
            asked.scope["state"][failure.REFUSAL] = error
            raise

    app = litestar.Litestar(
        [*routes, document],
        dependencies={"services": di.Provide(services)},
        guards=[judged],
        exception_handlers={
            errors.FairleadError: failure.on_error,
            exceptions.HTTPException: failure.on_http_error,
            RecursionError: failure.on_nesting,
            UnicodeDecodeError: failure.on_encoding,
            Exception: failure.on_bug,
        },
        openapi_config=openapi.OpenAPIConfig(
            title="Fairlead",
            version="1",
            summary="GPUs from silicon into containers",
            use_handler_docstrings=True,
            path="/v1/schema",
            operation_id_creator=lambda handler, *_: handler.handler_name,
        ),
        logging_config=None,
        request_max_body_size=bodies.LARGEST,
    )
    app.asgi_handler = _split_verbs(_unsniffed(patience.attending(etag.conditional(app.asgi_handler))))
    return app


def _unsniffed(inner: types.ASGIApp) -> types.ASGIApp:
    """Have no browser guess what an answer is: logs and exports are a tenant's bytes. Source: Fetch, "nosniff"."""

    async def called(scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        await inner(scope, receive, sent)

    return called


def _split_verbs(inner: types.ASGIApp) -> types.ASGIApp:
    async def routed(scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        scope["path"] = split_verb(scope["path"])
        await inner(scope, receive, send)

    return routed


def split_verb(path: str) -> str:
    """Return `/a/NAME:verb` as `/a/NAME/:verb`; other paths, and verbs of a whole collection, as they are."""
    head, slash, last = path.rpartition("/")
    name, colon, verb = last.partition(":")
    if not colon or not name or head == "/v1":
        return path
    return f"{head}{slash}{name}{_MARK}{verb}"


@litestar.get(DOCUMENT, include_in_schema=False)
async def document(request: litestar.Request[Any, Any, Any]) -> litestar.Response[bytes]:
    """Return the OpenAPI 3.1 document of this API; it is made once, for it takes as long as many requests."""
    state = request.app.state
    if DOCUMENT not in state:
        state[DOCUMENT] = msgspec.json.encode(describe(request.app))
    return litestar.Response(state[DOCUMENT], media_type="application/json")


def describe(app: litestar.Litestar) -> dict[str, Any]:
    """Return the application's OpenAPI document, generated from the handlers."""
    schema: dict[str, Any] = app.openapi_schema.to_schema()
    schema["paths"] = {
        path.replace(_MARK, ":"): {method: _tidy(method, operation) for method, operation in item.items()}
        for path, item in schema["paths"].items()
    }
    schema["components"]["securitySchemes"] = _SCHEMES
    schema["security"] = [{}, *({name: []} for name in _SCHEMES)]
    _mend(schema)
    return schema


_SCHEMES: Final = {
    "key": {"type": "http", "scheme": "bearer", "description": "an API key, flk_…"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-fairlead",
        "description": "a browser's session; changes show its token as X-CSRF-Token",
    },
}
"""How callers are known by TLS; on the unix socket, the `{}` of `security`, the kernel says who connects."""


def _mend(part: Any) -> None:
    """Make valid what the framework writes: headers without a schema, and unions of which 0 is two members."""
    if isinstance(part, list):
        for one in part:
            _mend(one)
    if not isinstance(part, dict):
        return
    for header in part["headers"].values() if isinstance(part.get("headers"), dict) else ():
        if isinstance(header, dict):
            header.setdefault("schema", {"type": "string"})
    kinds = [one.get("type") for one in part.get("oneOf", ()) if isinstance(one, dict)]
    if "number" in kinds and "integer" in kinds:
        part["anyOf"] = part.pop("oneOf")
    for one in part.values():
        _mend(one)


def _tidy(method: str, operation: dict[str, Any]) -> dict[str, Any]:
    """Describe a malformed request as what it is answered with here: a problem; and what is known of tags."""
    problems = operation["responses"]["500"]
    if "400" in operation["responses"]:
        operation["responses"]["400"] = {**problems, "description": "the request is malformed"}
    etag.describe(method, operation)
    eventstream.describe(operation)
    return operation
