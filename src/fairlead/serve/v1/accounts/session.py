"""Serves the routes of browsers' sessions: a key is shown once, and a cookie stands for it from then on."""

from __future__ import annotations

from typing import Annotated, Any, Final

import litestar
import msgspec
from litestar import datastructures, params, status_codes

from fairlead import errors
from fairlead.serve.accounts import keys, roles, sessions
from fairlead.serve.accounts.sessions import SessionView
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.limits import address
from fairlead.serve.v1.dependencies import Dependencies, Services

_COOKIE: Final = datastructures.ResponseHeader(
    name="set-cookie", description="the session, of no use to a page's scripts", documentation_only=True
)


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who logs in."""

    key: Annotated[str, msgspec.Meta(description="an API key; empty: the one of the Authorization header")] = ""


@litestar.post(
    "/v1/session",
    summary="Log a browser in",
    responses=documented(400, 401, 403, 503),
    response_headers=[_COOKIE],
    tags=["account"],
)
async def open_session(
    request: litestar.Request[Any, Any, Any], services: Dependencies, data: params.JSONBody[SessionRequest]
) -> litestar.Response[SessionView]:
    """Begin a session for a key, and answer with its cookie; it may what the key may, and ends with it."""
    return answer(await begin(services, await _who(services, data.key), request.scope))


@litestar.get("/v1/session", summary="Show a browser's session", responses=documented(401, 404), tags=["account"])
async def show_session(services: Dependencies) -> SessionView:
    """Return whose session the cookie is."""
    principal = services.principal
    found = principal.session if principal else None
    if principal is None or found is None:
        message = "this request did not come with a browser's session"
        raise errors.NotFound(message, reason="SessionUnknown", hint="POST /v1/session begins one")
    return SessionView(account=principal.account, expires_at=found.expires_at)


@litestar.delete(
    "/v1/session",
    summary="Log a browser out",
    responses=documented(401, 403, 503),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    response_headers=[_COOKIE],
    tags=["account"],
)
async def close_session(services: Dependencies) -> litestar.Response[None]:
    """End the session and take the cookie away; a key goes on."""
    if services.principal is not None and services.principal.session is not None:
        await require(services.accounts).sessions.close(services.principal.session.id)
    return litestar.Response(None, headers={"set-cookie": sessions.cookie("", lifetime_s=0)})


ROUTES: Final = (open_session, show_session, close_session)


async def _who(services: Services, text: str) -> roles.Principal:
    """Return who logs in, by the key in the body or the one that the request came with."""
    principal = services.principal
    if not text and principal is not None and principal.key and principal.session is None:
        return principal
    if principal is None:
        message = "root needs no session by the socket"
        raise errors.Denied(message, reason="RootOnly", hint="browsers come by TLS, where api.listen says")
    if (key := keys.parse(text)) is None:
        message = "what was sent is not an API key"
        hint = "one begins with flk_; `fairlead key create` makes one"
        raise errors.Unauthenticated(message, reason="KeyMalformed", hint=hint)
    if services.recording is not None:
        services.recording.tell(key=key.id)
    return await require(services.accounts).keys.authenticate(key)


async def begin(services: Services, who: roles.Principal, scope: Any) -> sessions.Opened:
    """Begin a session, which is written into the audit log first. Raises: Unavailable."""
    await note(services, who)
    return await require(services.accounts).sessions.open(
        who.account, key=who.key or None, address=address.of_scope(scope)
    )


async def note(services: Services, who: roles.Principal) -> None:
    """Write into the audit log whose login a request is. Raises: Unavailable."""
    if services.recording is not None:
        services.recording.tell(account=who.account, key=who.key)
        await services.recording.begin()


def answer(opened: sessions.Opened) -> litestar.Response[SessionView]:
    """Return the answer that gives a browser its cookie."""
    headers = {"set-cookie": sessions.cookie(opened.text), "cache-control": "no-store"}
    return litestar.Response(opened.view, headers=headers)
