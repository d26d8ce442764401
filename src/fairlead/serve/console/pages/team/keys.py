"""Shows API keys: those of the account, or every account's to an administrator; makes, replaces and ends them.

A new key is in the answer that made it and nowhere else: no redirect follows, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.port import KeyView, NewKey
from fairlead.serve.accounts.roles import Action, Scope
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.accounts.view import DAY_S, KeyList

Id = Annotated[str, params.PathParameter()]

LIFETIMES: Final[Mapping[str, str]] = {"7": "a week", "30": "30 days", "90": "90 days", "365": "a year", "": "for ever"}
OVERLAPS: Final[Mapping[str, str]] = {"0": "at once", "3600": "in an hour", "86400": "in a day", "604800": "in a week"}
_WHAT: Final[Mapping[Scope, str]] = {
    Scope.READ: "look at everything that the account may see",
    Scope.RUN: "run, stop and enter containers",
    Scope.MANAGE: "members, keys and webhooks",
}


@litestar.get("/console/keys", include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List keys, without their secrets."""
    return await _page(visit)


@litestar.post("/console/keys", include_in_schema=False)
async def make(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes]:
    """Make a key, and show it this once."""
    fields = visits.form(body)
    days = fields.get("days", "30")
    wanted = {
        "account": fields.get("account", "").strip(),
        "note": fields.get("note", "").strip(),
        "scopes": [one for one in Scope if fields.get(f"scope-{one}")],
        "lifetime_s": float(days) * DAY_S if days in LIFETIMES and days else None,
    }
    return await _made(visit, "/v1/keys", wanted, fields)


@litestar.post("/console/keys/{name:str}/rotate", include_in_schema=False)
async def rotate(visit: Visitor, body: params.RawBody, name: Id) -> litestar.Response[bytes]:
    """Make a key like an old one, which ends after a while, and show it this once."""
    fields = visits.form(body)
    overlap = fields.get("overlap", "")
    asked = {"overlap_s": float(overlap) if overlap in OVERLAPS else DAY_S}
    return await _made(visit, f"/v1/keys/{client.part(name)}:rotate", asked, fields)


@litestar.post("/console/keys/{name:str}/revoke", include_in_schema=False)
async def revoke(visit: Visitor, body: params.RawBody, name: Id) -> response.Redirect:
    """End a key."""
    csrf = visits.form(body).get("csrf", "")
    await visit.api.ask("POST", f"/v1/keys/{client.part(name)}:revoke", csrf=csrf)
    return response.Redirect("/console/keys", status_code=303)


ROUTES: Final = (listing, make, rotate, revoke)


async def _made(visit: Visit, path: str, body: object, fields: Mapping[str, str]) -> litestar.Response[bytes]:
    asked = visit.api.ask(
        "POST", path, body=body, csrf=fields.get("csrf", ""), confirm=fields.get("confirm", "").strip()
    )
    answer = await visits.tried(asked)
    if isinstance(answer, errors.FairleadError):
        kept = {name: value for name, value in fields.items() if name != "confirm"}
        return await _page(visit, fields=kept, error=answer)
    return await _page(visit, made=answer.value(NewKey))


async def _page(
    visit: Visit,
    *,
    fields: Mapping[str, str] | None = None,
    made: NewKey | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    account = visit.query.get("account", "")[:253]
    items, absent = await _keys(visit, account)
    return visit.page(
        "keys",
        items=sorted(items, key=lambda one: (one.state != "active", one.account)),
        account=account,
        absent=absent,
        made=made,
        error=error,
        fields=fields or {"days": "30", **{f"scope-{one}": "on" for one in visit.principal.scopes or Scope}},
        scopes=[(one, what) for one, what in _WHAT.items() if one in (visit.principal.scopes or frozenset(Scope))],
        lifetimes=LIFETIMES,
        overlaps=OVERLAPS,
        sees_all=visit.may(Action.ACCOUNT_WRITE),
        tone=tone,
    )


async def _keys(visit: Visit, account: str) -> tuple[tuple[KeyView, ...], errors.FairleadError | None]:
    try:
        return (await visit.api.get(KeyList, "/v1/keys", account=account)).items, None
    except errors.Unavailable as error:
        return (), error
