"""Judges the names in a request's query: one that its route does not know is refused, `tenancy` is a namespace's name.

What is left out in silence reads as done: `?tenancy=vision` listed the containers of all where only `namespace` was
known. People know tenancies by their names, and the hashed name of a namespace from nowhere; so `tenancy=NAME` stands
for `namespace=` wherever a route knows that.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import litestar
from litestar import connection, handlers, types

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.serve.api import etag
from fairlead.wire.fairlead.tenancy import Tenancy

_Asked = connection.ASGIConnection[Any, Any, Any, Any]
_TENANCY, _NAMESPACE = "tenancy", "namespace"
_OTHERS: Final = frozenset({"finish_login"})
"""Routes whose query another service writes: an identity provider may add what it likes."""
_KNOWN: Final = "known query parameters"
_DRY_RUN: Final = "dry_run"
"""Judged by the guard, which knows the routes that try."""


async def resolve(
    asked: _Asked, handler: handlers.BaseRouteHandler, services: Callable[[types.Scope], Awaitable[Any]]
) -> None:
    """Put a tenancy's namespace in place of its name, where the route knows namespaces.

    Raises: NotFound: there is no such tenancy; Invalid (`NamespaceAmbiguous`): both are given.
    """
    pairs, known = _pairs(asked), _known(asked.app, handler)
    named = [value for name, value in pairs if name == _TENANCY]
    if not named or known is None or _TENANCY in known or _NAMESPACE not in known:
        return
    if len(named) > 1 or any(name == _NAMESPACE for name, _ in pairs):
        message = f'tenancy "{errors.readable(named[0])}" is not the only namespace that is named'
        raise errors.Invalid(message, reason="NamespaceAmbiguous", hint="name one tenancy, or one namespace")
    given = await services(asked.scope)
    place = baseline.namespace_name(await given.store.get(Tenancy, named[0]))
    kept = [(name, value) for name, value in pairs if name != _TENANCY]
    asked.scope["query_string"] = urllib.parse.urlencode([*kept, (_NAMESPACE, place)]).encode()


def check(asked: _Asked, handler: handlers.BaseRouteHandler) -> None:
    """Refuse what the route does not know. Raises: RequestError (`ParameterUnknown`)."""
    if (known := _known(asked.app, handler)) is None or asked.scope["state"].get(etag.COMPARING):
        return
    for name, _ in _pairs(asked):
        if name in known or name == _DRY_RUN:
            continue
        offered = {*known, *((_TENANCY,) if _NAMESPACE in known else ())}
        near = errors.closest(name, offered)
        listed = f"there are {', '.join(sorted(offered))}" if offered else "the route has none"
        hint = f'did you mean "{near}"? {listed}' if near else listed
        message = f'unknown query parameter "{errors.readable(name)}"'
        raise errors.RequestError(message, reason="ParameterUnknown", hint=hint)


def _pairs(asked: _Asked) -> list[tuple[str, str]]:
    return urllib.parse.parse_qsl(asked.scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _known(app: litestar.Litestar, handler: handlers.BaseRouteHandler) -> frozenset[str] | None:
    """Return the parameters of a route's query, its dependencies' among them; None: it takes any."""
    if _KNOWN not in app.state:
        app.state[_KNOWN] = _table(app)
    found: Mapping[str, frozenset[str]] = app.state[_KNOWN]
    return found.get(handler.handler_name)


def _table(app: litestar.Litestar) -> dict[str, frozenset[str]]:
    """Return the known parameters by the name of the handler."""
    table = {}
    for route in app.routes:
        every = getattr(route, "route_handlers", None) or [getattr(route, "route_handler", None)]
        for one in every:
            if one is not None and hasattr(one, "create_kwargs_model") and one.handler_name not in _OTHERS:
                model = one.create_kwargs_model(route.path_parameters)
                table[one.handler_name] = frozenset(found.field_alias for found in model.expected_query_params)
    return table
