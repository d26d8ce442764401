"""Serves the routes of API keys: an account makes and ends its own, an administrator those of every account."""

from __future__ import annotations

from typing import Annotated, Final

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.serve.accounts.port import KeySpec, KeyView, NewKey
from fairlead.serve.accounts.roles import Scope, parse_scopes
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.accounts.view import KeyList, KeyRequest, RotateRequest
from fairlead.serve.v1.dependencies import Dependencies, Services

Id = Annotated[str, params.PathParameter(description="id of the key, the twelve letters after flk_")]


@litestar.post("/v1/keys", summary="Make an API key", responses=documented(400, 403, 404, 422, 503), tags=["account"])
async def create_key(services: Dependencies, data: params.JSONBody[KeyRequest]) -> NewKey:
    """Make a key; this answer is the only one that holds it. It ends no later than the key that makes it."""
    kept = require(services.accounts).keys
    account = account_of(services, data.account)
    scopes = parse_scopes(data.scopes, within=_scopes(services))
    spec = KeySpec(account=account, scopes=scopes, lifetime_s=data.lifetime_s, note=data.note, until=end_of(services))
    return await kept.create(spec)


@litestar.get(
    "/v1/keys", dependencies=pages.PAGE, summary="List API keys", responses=documented(403, 503), tags=["account"]
)
async def list_keys(
    services: Dependencies,
    page: pages.Paged,
    account: Annotated[str, params.QueryParameter(description="whose; empty: all that may be seen")] = "",
) -> KeyList:
    """Return keys without their secrets, in the order of their making."""
    kept = require(services.accounts).keys
    found = await kept.list(own_of(services) or account or None)
    items, following = page.cut(found, lambda one: (one.created_at, one.id))
    return KeyList(items=items, next=following)


@litestar.get("/v1/keys/{name:str}", summary="Show an API key", responses=documented(403, 404, 503), tags=["account"])
async def show_key(services: Dependencies, name: Id) -> KeyView:
    """Return a key without its secret."""
    for one in await require(services.accounts).keys.list(own_of(services)):
        if one.id == name:
            return one
    message = f'there is no key "{errors.readable(name)}"'
    raise errors.NotFound(message, reason="KeyUnknown", hint="`fairlead key list` lists them")


@litestar.post(
    "/v1/keys/{name:str}/:revoke",
    summary="End an API key",
    responses=documented(403, 404, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["account"],
)
async def revoke_key(services: Dependencies, name: Id) -> KeyView:
    """End a key; no later request is accepted with it, streams that are open go on. Idempotent."""
    return await require(services.accounts).keys.revoke(name, own_of(services))


@litestar.post(
    "/v1/keys/{name:str}/:rotate",
    summary="Replace an API key",
    responses=documented(400, 403, 404, 409, 422, 503),
    tags=["account"],
)
async def rotate_key(services: Dependencies, name: Id, data: params.JSONBody[RotateRequest]) -> NewKey:
    """Make a key of the same scopes and lifetime; the old one ends after the overlap.

    The new one ends no later than the key that asks.
    """
    kept, until = require(services.accounts).keys, end_of(services)
    return await kept.rotate(name, own_of(services), overlap_s=data.overlap_s, within=_scopes(services), until=until)


ROUTES: Final = (create_key, list_keys, show_key, revoke_key, rotate_key)


def own_of(services: Services) -> str | None:
    """Return whose keys alone may be touched; None: of every account."""
    one = services.principal
    return None if one is None or one.is_administrator else one.account


def end_of(services: Services) -> float | None:
    """Return the end of what asks, which nothing that it makes outlives; None: it has none."""
    return None if services.principal is None else services.principal.ends_at


def _scopes(services: Services) -> frozenset[Scope]:
    return frozenset(Scope) if services.principal is None else services.principal.scopes


def account_of(services: Services, named: str) -> str:
    """Return whose key is to be made. Raises: Invalid: root has no account; Denied: another's."""
    own, principal = own_of(services), services.principal
    if own is not None and named not in {"", own}:
        message = f'"{own}" makes keys for itself alone'
        raise errors.Denied(message, reason="RoleForbids", hint="the machine's administrators make keys for others")
    if not named and principal is None:
        message = "root has no account of its own, and no key"
        raise errors.Invalid(message, reason="AccountRequired", hint="name one: --user NAME")
    return named or (principal.account if principal else "")
