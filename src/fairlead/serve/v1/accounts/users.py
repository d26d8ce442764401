"""Serves the routes of accounts: made, listed and deleted by the machine's administrators; and who one is oneself."""

from __future__ import annotations

from typing import Annotated, Final

import litestar
import msgspec
from litestar import params, status_codes

from fairlead import errors
from fairlead.serve.accounts.port import AccountView, MemberView
from fairlead.serve.accounts.roles import Scope
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.accounts.view import AccountList, Self, UserRequest
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.wire.fairlead.tenancy import Tenancy

Name = Annotated[str, params.PathParameter(description="name of the account")]


@litestar.post("/v1/users", summary="Make an account", responses=documented(400, 403, 409, 422, 503), tags=["account"])
async def create_user(services: Dependencies, data: params.JSONBody[UserRequest]) -> AccountView:
    """Make an account of a person or of a program; it has no key and is a member of no tenancy yet."""
    people = require(services.accounts).people
    return await people.create(data.name, kind=data.kind, is_administrator=data.is_administrator)


@litestar.get(
    "/v1/users", dependencies=pages.PAGE, summary="List accounts", responses=documented(403, 503), tags=["account"]
)
async def list_users(services: Dependencies, page: pages.Paged) -> AccountList:
    """Return accounts in the order of their names, with their roles in the tenancies that there are."""
    found, following = page.cut(await require(services.accounts).people.list(), lambda one: (one.name,))
    living = await _living(services)
    return AccountList(items=tuple(_shown(one, living) for one in found), next=following)


@litestar.get("/v1/users/{name:str}", summary="Show an account", responses=documented(403, 404, 503), tags=["account"])
async def show_user(services: Dependencies, name: Name) -> AccountView:
    """Return an account, with its roles in the tenancies that there are."""
    living = await _living(services)
    for one in await require(services.accounts).people.list():
        if one.name == name:
            return _shown(one, living)
    message = f'there is no account "{errors.readable(name)}"'
    raise errors.NotFound(message, reason="AccountUnknown", hint="`fairlead user list` lists them")


def _shown(one: AccountView, living: frozenset[str]) -> AccountView:
    return msgspec.structs.replace(one, memberships=tuple(item for item in one.memberships if item.uid in living))


async def _living(services: Services) -> frozenset[str]:
    """Return the uids of the tenancies that there are: a role in one that is gone is a role no more."""
    return frozenset(item.metadata.uid for item in (await services.store.list(Tenancy)).items)


@litestar.delete(
    "/v1/users/{name:str}",
    summary="Delete an account",
    responses=documented(403, 404, 503),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["account"],
)
async def delete_user(services: Dependencies, name: Name) -> None:
    """Remove an account with its keys and memberships; its containers go on."""
    await require(services.accounts).people.delete(name)


@litestar.get("/v1/self", summary="Say who asks", responses=documented(403), tags=["account"])
async def show_self(services: Dependencies) -> Self:
    """Return whose key came with the request, what it is good for, and where its account is a member."""
    one = services.principal
    if one is None:
        return Self(account="", is_administrator=services.whole is None, key="", scopes=tuple(Scope), memberships=())
    living = await _living(services)
    members = (
        MemberView(account=one.account, tenancy=item.tenancy, uid=item.uid, role=item.role)
        for item in one.memberships
        if item.uid in living
    )
    return Self(
        account=one.account,
        is_administrator=one.is_administrator,
        key=one.key,
        scopes=tuple(sorted(one.scopes)),
        memberships=tuple(members),
    )


ROUTES: Final = (create_user, list_users, show_user, delete_user, show_self)
