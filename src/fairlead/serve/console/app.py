"""Builds the console around an API application: it serves `/console`, and passes everything else on unchanged.

The pages ask the API behind them through `client`, with the browser's own cookie, and hold nothing between two
requests. On TLS that API authenticates sessions; on the unix socket the kernel says who connects.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import litestar
from litestar import di, exceptions, params, response, types

from fairlead import errors, telemetry
from fairlead.serve.api import failure
from fairlead.serve.console import client, guard, render, static, visit
from fairlead.serve.console.pages import (
    audit,
    claims,
    containers,
    events,
    login,
    machine,
    metrics,
    opening,
    overview,
    queue,
    run,
    search,
    secrets,
    usage,
    volumes,
)
from fairlead.serve.console.pages.team import (
    accounts,
    budgets,
    keys,
    notices,
    queues,
    quotas,
    reservations,
    sshkeys,
    tenancies,
    webhooks,
)
from fairlead.wire.fairlead import problem

ROUTES: Final[Sequence[types.ControllerRouterHandler]] = (
    *overview.ROUTES,
    *containers.ROUTES,
    *opening.ROUTES,
    *run.ROUTES,
    *queue.ROUTES,
    *reservations.ROUTES,
    *tenancies.ROUTES,
    *queues.ROUTES,
    *quotas.ROUTES,
    *accounts.ROUTES,
    *usage.ROUTES,
    *budgets.ROUTES,
    *events.ROUTES,
    *claims.ROUTES,
    *volumes.ROUTES,
    *secrets.ROUTES,
    *keys.ROUTES,
    *sshkeys.ROUTES,
    *notices.ROUTES,
    *webhooks.ROUTES,
    *audit.ROUTES,
    *machine.ROUTES,
    *metrics.ROUTES,
    *search.ROUTES,
    *login.ROUTES,
)
_OUTER: Final = "fairlead.console"
"""Of the scope: the API, as this request may ask it."""
_STATUS: Final = {404: "NotFound", 405: "MethodNotAllowed"}


def create_app(inner: types.ASGIApp, *, has_login: bool, provider: str = "") -> types.ASGIApp:
    """Wrap an API application: console pages are answered here, all else by the API.

    Args: has_login: whether people log in there; False: the unix socket, where the kernel says who connects.
          provider: host of the identity provider by which they may; empty: by keys alone.
    """
    pages = _pages(has_login=has_login, provider=provider)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            if not has_login:
                guard.check_tunnel(scope["headers"])
            if scope["type"] != "http" or not _is_page(scope):
                await inner(scope, receive, login.explained(send, provider) if _is_return(scope) else send)
                return
            guard.check_form(scope["method"], scope["headers"])
        except errors.Denied as error:
            await failure.refuse(scope, send, problem.problem_of(error))
            return
        own: Any = {**scope, "state": {}, _OUTER: client.API(app=inner, scope=scope)}
        await pages(own, receive, _guarded(send))

    return app


def _is_page(scope: Any) -> bool:
    """Return whether a request is the console's: its paths, and the front page of a browser."""
    path = scope["path"]
    if path == "/console" or path.startswith("/console/"):
        return True
    return path == "/" and "text/html" in (guard.header(scope["headers"], "accept") or "")


def _is_return(scope: Any) -> bool:
    """Return whether a browser goes to the identity provider, or comes back from it."""
    is_there = scope["type"] == "http" and scope["path"] in {"/v1/oidc/login", "/v1/oidc/callback"}
    return is_there and "text/html" in (guard.header(scope["headers"], "accept") or "")


def _guarded(send: Any) -> Any:
    """Send each answer with what browsers may do with it."""

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            own = {**guard.HEADERS, "cache-control": "no-store"}
            added = [(name.encode(), value.encode()) for name, value in own.items() if name.encode() not in there]
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return sent


@functools.cache
def _pages(*, has_login: bool, provider: str) -> litestar.Litestar:
    """Return the pages; they keep no reference to an API: the scope of each request has it."""

    async def given(scope: types.Scope) -> Any:
        return await visit.of_request(_api(scope), has_login=has_login)

    async def api(scope: types.Scope) -> Any:
        return _api(scope)

    async def named() -> str:
        return provider

    return litestar.Litestar(
        [*ROUTES, front, asset],
        dependencies={"visit": di.Provide(given), "api": di.Provide(api), "provider": di.Provide(named)},
        exception_handlers={
            errors.FairleadError: _on_error,
            exceptions.HTTPException: _on_http_error,
            Exception: _on_bug,
        },
        openapi_config=None,
        logging_config=None,
        request_max_body_size=1 << 20,
    )


def _api(scope: Any) -> client.API:
    found = scope[_OUTER]
    assert isinstance(found, client.API)  # noqa: S101 `create_app` put it there
    return found


@litestar.get("/", include_in_schema=False)
async def front() -> response.Redirect:
    """Lead to the overview."""
    return response.Redirect("/console/", status_code=303)


@litestar.get("/console/static/{name:str}", include_in_schema=False)
async def asset(name: params.FromPath[str]) -> litestar.Response[bytes]:
    """Return one file."""
    found = static.find(name)
    kept = {"cache-control": "public, max-age=31536000, immutable"}
    return litestar.Response(found.body, media_type=found.media_type, headers=kept)


_Request = litestar.Request[Any, Any, Any]


def _on_error(request: _Request, error: errors.FairleadError) -> litestar.Response[Any]:
    if isinstance(error, errors.Unauthenticated):
        return login.redirect(request)
    return _shown(request, problem.problem_of(error))


def _on_http_error(request: _Request, error: exceptions.HTTPException) -> litestar.Response[Any]:
    reason = _STATUS.get(error.status_code, "RequestInvalid")
    return _shown(
        request,
        problem.Problem(
            type="about:blank",
            title=reason,
            status=error.status_code,
            detail=f'there is no page "{errors.readable(request.url.path)}"'
            if error.status_code == 404
            else errors.readable(error.detail),
            reason=reason,
        ),
    )


def _on_bug(request: _Request, error: Exception) -> litestar.Response[Any]:
    """Log what should not happen; the only place of this room that sees errors which are not ours."""
    telemetry.log.error("request failed by a bug", method=request.method, path=request.url.path, exc_info=error)
    detail = f"this is a bug in fairlead: {type(error).__name__}"
    hint = "the service's log has the traceback; please report it"
    return _shown(
        request, problem.Problem(type="about:blank", title="Bug", status=500, detail=detail, reason="Bug", hint=hint)
    )


def _shown(request: _Request, found: problem.Problem) -> litestar.Response[bytes]:
    text = render.page("problem", problem=found, path=request.url.path)
    return litestar.Response(text.encode("utf-8", "replace"), status_code=found.status, media_type=visit.HTML)
