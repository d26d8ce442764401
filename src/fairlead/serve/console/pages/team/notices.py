"""Shows notices: which events a person gets, and where; adds, confirms, tries and removes them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.webhooks.notices import FOR_PEOPLE
from fairlead.serve.v1.webhooks.view import WebhookList
from fairlead.serve.webhooks.port import EMAIL, EVENTS, FAIRLEAD, MATRIX, SLACK, NewWebhook, WebhookDetail, WebhookView

Id = Annotated[str, params.PathParameter()]
_ALL: Final = "/console/notices"
_MAIL: Final = "mailto:"
_MACHINE: Final = "*"
"""Value of the choice of the whole machine; no tenancy has such a name."""
_FORMS: Final[Mapping[str, str]] = {
    EMAIL: "an e-mail",
    SLACK: "words in a Slack-compatible chat",
    MATRIX: "words in a Matrix room",
    FAIRLEAD: "signed JSON, for a program",
}
_FIELDS: Final[Mapping[str, str]] = {
    "WebhookURLInvalid": "url",
    "WebhookAddressRefused": "url",
    "MailAddressInvalid": "url",
    "MailDomainRefused": "url",
    "MailOff": "format",
    "WebhookFormatUnknown": "format",
    "WebhookTokenInvalid": "token",
    "TenancyUnknown": "tenancy",
    "CodeWrong": "code",
}
"""By reason of a refusal: the field that it is about."""


@litestar.get(_ALL, include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List notices."""
    return await _page(visit)


@litestar.post(_ALL, include_in_schema=False)
async def add(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Add a notice; a program's secret is shown this once."""
    fields = visits.form(body)
    answer = await visits.tried(visit.api.ask("POST", "/v1/notices", body=_wanted(fields), csrf=fields.get("csrf", "")))
    if isinstance(answer, errors.FairleadError):
        kept = {name: value for name, value in fields.items() if name != "token"}
        return await _page(visit, fields=kept, error=answer)
    made = answer.value(NewWebhook)
    if made.webhook.format == FAIRLEAD:
        return await _page(visit, made=made)
    return response.Redirect(f"{_ALL}?done={client.part(made.webhook.id)}", status_code=303)


def _wanted(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the request of a form; the API judges it."""
    form, url = fields.get("format", ""), fields.get("url", "").strip()
    if form == EMAIL:
        url = f"{_MAIL}{url.removeprefix(_MAIL)}"
    room = fields.get("room", "").strip()
    if form == MATRIX and room:
        path = f"/_matrix/client/v3/rooms/{urllib.parse.quote(room, safe='')}/send/m.room.message"
        url = f"{url.rstrip('/')}{path}"
    of = fields.get("tenancy", "")
    return {
        "url": url,
        "format": form,
        "token": fields.get("token", "").strip() if form == MATRIX else "",
        "tenancy": "" if of == _MACHINE else of,
        "machine": of == _MACHINE,
        "events": [one for one in EVENTS if fields.get(f"on-{one}")],
    }


@litestar.get("/console/notices/{name:str}", include_in_schema=False)
async def detail(visit: Visitor, name: Id) -> litestar.Response[bytes]:
    """Show one notice, what was sent, and what was not."""
    found = await visit.api.get(WebhookDetail, f"/v1/notices/{client.part(name)}")
    return visit.page(
        "webhook",
        one=found.webhook,
        deliveries=found.deliveries,
        here=_address(name),
        tone=tone,
        back=(_ALL, "Notices"),
        of=_of(found.webhook),
    )


@litestar.post("/console/notices/{name:str}/confirm", include_in_schema=False)
async def confirm(visit: Visitor, body: params.RawBody, name: Id) -> litestar.Response[bytes] | response.Redirect:
    """Confirm an e-mail address by the code that was sent there."""
    fields = visits.form(body)
    asked = visit.api.ask(
        "POST",
        f"/v1/notices/{client.part(name)}:confirm",
        body={"code": fields.get("code", "").strip()},
        csrf=fields.get("csrf", ""),
    )
    answer = await visits.tried(asked)
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, error=answer)
    return response.Redirect(f"{_ALL}?done={client.part(name)}", status_code=303)


@litestar.post("/console/notices/{name:str}/test", include_in_schema=False)
async def test(visit: Visitor, body: params.RawBody, name: Id) -> litestar.Response[bytes] | response.Redirect:
    """Send a notice of no meaning."""
    asked = visit.api.ask("POST", f"/v1/notices/{client.part(name)}:test", csrf=visits.form(body).get("csrf", ""))
    answer = await visits.tried(asked)
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, error=answer)
    return response.Redirect(_address(name), status_code=303)


@litestar.post("/console/notices/{name:str}/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody, name: Id) -> response.Redirect:
    """Remove it, with what was not sent yet."""
    await visit.api.ask("DELETE", f"/v1/notices/{client.part(name)}", csrf=visits.form(body).get("csrf", ""))
    return response.Redirect(_ALL, status_code=303)


ROUTES: Final = (listing, add, detail, confirm, test, remove)


def _address(name: str) -> str:
    return f"{_ALL}/{urllib.parse.quote(name, safe='')}"


def _of(one: WebhookView) -> str:
    """Return which events a person gets."""
    if one.tenancy:
        return f"all containers of {one.tenancy}"
    return "everything on the machine" if one.reach != "own" else "containers you started"


async def _page(
    visit: Visit,
    *,
    fields: Mapping[str, str] | None = None,
    made: NewWebhook | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    items, absent = tuple[WebhookView, ...](), None
    try:
        items = (await visit.api.get(WebhookList, "/v1/notices")).items
    except errors.Unavailable as problem:
        absent = problem
    field = _FIELDS.get(error.reason, "") if error is not None else ""
    said = "; ".join(filter(None, (error.message, error.hint))) if error is not None else ""
    done = visit.query.get("done", "")[:80]
    return visit.page(
        "notices",
        items=items,
        absent=absent,
        made=made,
        done=next((one for one in items if one.id == done), None),
        fields=fields or {},
        problems={field: said} if field and field != "code" else {},
        error=None if field and field != "code" else error,
        code=errors.row_of(error).http if error is not None else None,
        forms=_FORMS,
        events=EVENTS,
        usual=FOR_PEOPLE,
        tenancies=await visit.tenancies(Action.CONTAINER_READ),
        machine=_MACHINE,
        address=_address,
        of=_of,
    )
