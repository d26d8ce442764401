"""Shows accounts: of people and of programs, in which tenancies they have which role; makes and deletes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.port import AccountView
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.accounts.view import AccountList

Name = Annotated[str, params.PathParameter()]
_ALL: Final = "/console/accounts"
_KINDS: Final[Mapping[str, str]] = {"person": "a person", "service": "a program"}


@litestar.get(_ALL, include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List accounts."""
    return await _page(visit)


@litestar.post(_ALL, include_in_schema=False)
async def make(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Make an account; it has no key yet."""
    fields = visits.form(body)
    wanted = {
        "name": fields.get("name", "").strip(),
        "kind": fields.get("kind", "person"),
        "is_administrator": bool(fields.get("is_administrator")),
    }
    asked = visit.api.ask(
        "POST", "/v1/users", body=wanted, csrf=fields.get("csrf", ""), confirm=fields.get("confirm", "").strip()
    )
    answer = await visits.tried(asked)
    if isinstance(answer, errors.FairleadError):
        kept = {name: value for name, value in fields.items() if name != "confirm"}
        return await _page(visit, fields=kept, error=answer)
    return response.Redirect(f"{_ALL}?done={client.part(answer.value(AccountView).name)}", status_code=303)


@litestar.post("/console/accounts/{name:str}/delete", include_in_schema=False)
async def delete(visit: Visitor, body: params.RawBody, name: Name) -> response.Redirect:
    """Delete an account with its keys and roles."""
    await visit.api.ask("DELETE", f"/v1/users/{client.part(name)}", csrf=visits.form(body).get("csrf", ""))
    return response.Redirect(_ALL, status_code=303)


ROUTES: Final = (listing, make, delete)


async def _page(
    visit: Visit,
    *,
    fields: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    items, absent = tuple[AccountView, ...](), None
    try:
        items = (await visit.api.get(AccountList, "/v1/users")).items
    except errors.Unavailable as problem:
        absent = problem
    done = visit.query.get("done", "")[:253]
    return visit.page(
        "accounts",
        items=items,
        absent=absent,
        error=error,
        fields=fields or {},
        kinds=_KINDS,
        made=done if any(one.name == done for one in items) else "",
    )
