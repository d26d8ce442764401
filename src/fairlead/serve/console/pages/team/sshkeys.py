"""Shows SSH keys: those of the account, or every account's to an administrator; adds and removes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts import sshkeys
from fairlead.serve.accounts.roles import Scope
from fairlead.serve.accounts.sshkeys import SSHKeyView
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.accounts.sshkeyview import SSHDoorView, SSHKeyList
from fairlead.serve.v1.accounts.view import DAY_S

Id = Annotated[str, params.PathParameter()]
_ALL: Final = "/console/sshkeys"
_LIFETIMES: Final[Mapping[str, str]] = {
    "": "as long as this login",
    "7": "a week",
    "30": "30 days",
    "365": "a year",
}
_FIELDS: Final[Mapping[str, str]] = {
    "SSHKeyInvalid": "public_key",
    "SSHKeyTaken": "public_key",
    "SSHKeysTooMany": "public_key",
    "NoteInvalid": "note",
    "AccountUnknown": "account",
}
"""By reason of a refusal: the field that it is about."""


@litestar.get(_ALL, include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List keys."""
    return await _page(visit)


@litestar.post(_ALL, include_in_schema=False)
async def add(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Add a public key."""
    fields = visits.form(body)
    days = fields.get("days", "")
    text = fields.get("public_key", "").strip()
    wanted = {
        "public_key": text,
        "account": fields.get("account", "").strip(),
        "note": fields.get("note", "").strip(),
        "lifetime_s": float(days) * DAY_S if days and days in _LIFETIMES else None,
    }
    try:
        sshkeys.parse(text)  # a private key stays in the browser's own request and goes no further
    except errors.Invalid as problem:
        is_secret = "PRIVATE KEY" in text
        return await _page(visit, fields={**fields, "public_key": "" if is_secret else text}, error=problem)
    csrf, confirm = fields.get("csrf", ""), fields.get("confirm", "").strip()
    answer = await visits.tried(visit.api.ask("POST", "/v1/sshkeys", body=wanted, csrf=csrf, confirm=confirm))
    if isinstance(answer, errors.FairleadError):
        kept = {name: value for name, value in fields.items() if name != "confirm"}
        return await _page(visit, fields=kept, error=answer)
    return response.Redirect(f"{_ALL}?done={client.part(answer.value(SSHKeyView).id)}", status_code=303)


@litestar.post("/console/sshkeys/{name:str}/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody, name: Id) -> response.Redirect:
    """Remove a key."""
    csrf = visits.form(body).get("csrf", "")
    await visit.api.ask("DELETE", f"/v1/sshkeys/{client.part(name)}", csrf=csrf)
    return response.Redirect(_ALL, status_code=303)


ROUTES: Final = (listing, add, remove)


async def _page(
    visit: Visit,
    *,
    fields: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    items, absent = tuple[SSHKeyView, ...](), None
    try:
        items = (await visit.api.get(SSHKeyList, "/v1/sshkeys")).items
    except errors.Unavailable as problem:
        absent = problem
    door = await visits.tried(visit.api.get(SSHDoorView, "/v1/ssh"))
    field = _FIELDS.get(error.reason, "") if error is not None else ""
    said = "; ".join(filter(None, (error.message, error.hint))) if error is not None else ""
    done = visit.query.get("done", "")[:80]
    return visit.page(
        "sshkeys",
        items=items,
        absent=absent,
        door=None if isinstance(door, errors.FairleadError) or not door.host else door,
        made=next((one for one in items if one.id == done), None),
        fields=fields or {},
        problems={field: said} if field else {},
        error=None if field else error,
        code=errors.row_of(error).http if error is not None else None,
        lifetimes=_LIFETIMES,
        may_add=Scope.RUN in visit.principal.scopes,
    )
