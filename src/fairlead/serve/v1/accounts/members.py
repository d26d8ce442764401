"""Serves the routes of a tenancy's members: who has which role."""

from __future__ import annotations

from typing import Annotated, Final

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.serve.accounts.port import MemberView
from fairlead.serve.accounts.roles import Membership, check_grant, parse_role
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.accounts.view import MemberList, RoleRequest
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.tenancies.routes import find_tenancy

Name = Annotated[str, params.PathParameter(description="name of the tenancy")]
Account = Annotated[str, params.PathParameter(description="name of the account")]


@litestar.get(
    "/v1/tenancies/{name:str}/members",
    dependencies=pages.PAGE,
    summary="List a tenancy's members",
    responses=documented(403, 404, 503),
    tags=["account"],
)
async def list_members(services: Dependencies, page: pages.Paged, name: Name) -> MemberList:
    """Return who has which role in a tenancy, by account."""
    people = require(services.accounts).people
    item = await find_tenancy(services, name)
    items, following = page.cut(await people.members(item.metadata.uid), lambda one: (one.account,))
    return MemberList(items=items, next=following)


@litestar.get(
    "/v1/tenancies/{name:str}/members/{account:str}",
    summary="Show a member of a tenancy",
    responses=documented(403, 404, 503),
    tags=["account"],
)
async def show_member(services: Dependencies, name: Name, account: Account) -> MemberView:
    """Return the role that an account has in a tenancy."""
    people = require(services.accounts).people
    item = await find_tenancy(services, name)
    for one in await people.members(item.metadata.uid):
        if one.account == account:
            return one
    message = f'"{errors.readable(account)}" is no member of "{item.metadata.name}"'
    raise errors.NotFound(message, reason="MemberUnknown", hint="`fairlead user grant` makes it one")


@litestar.put(
    "/v1/tenancies/{name:str}/members/{account:str}",
    summary="Give an account a role in a tenancy",
    responses=documented(400, 403, 404, 422, 503),
    tags=["account"],
)
async def grant_role(
    services: Dependencies, name: Name, account: Account, data: params.JSONBody[RoleRequest]
) -> MemberView:
    """Give a role, in place of the one that the account has there. Only an owner gives or takes admin and owner."""
    people, role = require(services.accounts).people, parse_role(data.role)
    item = await find_tenancy(services, name)
    uid = item.metadata.uid
    await _check(services, uid, account, role)
    return await people.grant(account, Membership(tenancy=item.metadata.name, uid=uid, role=role))


@litestar.delete(
    "/v1/tenancies/{name:str}/members/{account:str}",
    summary="Take an account's role in a tenancy",
    responses=documented(403, 404, 503),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["account"],
)
async def revoke_role(services: Dependencies, name: Name, account: Account) -> None:
    """Take a role; it holds from the next request on. Containers that the account started go on."""
    people = require(services.accounts).people
    item = await find_tenancy(services, name)
    await _check(services, item.metadata.uid, account)
    await people.revoke(account, item.metadata.uid)


async def _check(services: Services, uid: str, account: str, *roles: str) -> None:
    """Refuse to give or change a role that the caller may not give. Raises: Denied."""
    if services.principal is None:
        return
    there = await require(services.accounts).people.members(uid)
    held = [one.role for one in there if one.account == account]
    check_grant(services.principal, uid, *map(parse_role, roles), *held)


ROUTES: Final = (list_members, show_member, grant_role, revoke_role)
