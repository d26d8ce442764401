"""Shows webhooks: where events are sent to, what was delivered, and what was not."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.webhooks.view import WebhookList
from fairlead.serve.webhooks.port import EVENTS, FAIRLEAD, NewWebhook, WebhookDetail, WebhookView

Id = Annotated[str, params.PathParameter()]


@litestar.get("/console/webhooks", include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List webhooks."""
    return await _page(visit)


@litestar.post("/console/webhooks", include_in_schema=False)
async def make(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes]:
    """Make a webhook, and show the secret of its signatures this once."""
    fields = visits.form(body)
    wanted = {
        "url": fields.get("url", "").strip(),
        "tenancy": fields.get("tenancy", ""),
        "format": fields.get("format", FAIRLEAD),
        "events": [one for one in EVENTS if fields.get(f"on-{one}")],
    }
    answer = await visits.tried(visit.api.ask("POST", "/v1/webhooks", body=wanted, csrf=fields.get("csrf", "")))
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, fields=fields, error=answer)
    return await _page(visit, made=answer.value(NewWebhook))


@litestar.get("/console/webhooks/{name:str}", include_in_schema=False)
async def detail(visit: Visitor, name: Id) -> litestar.Response[bytes]:
    """Show one webhook and the events on their way to it."""
    found = await visit.api.get(WebhookDetail, f"/v1/webhooks/{client.part(name)}")
    return visit.page(
        "webhook",
        one=found.webhook,
        deliveries=found.deliveries,
        here=_address(name),
        tone=tone,
        back=("/console/webhooks", "Webhooks"),
        of=found.webhook.tenancy or "the whole machine",
    )


@litestar.post("/console/webhooks/{name:str}/test", include_in_schema=False)
async def test(visit: Visitor, body: params.RawBody, name: Id) -> response.Redirect:
    """Send an event that says nothing but that it arrives."""
    await visit.api.ask("POST", f"/v1/webhooks/{client.part(name)}:test", csrf=visits.form(body).get("csrf", ""))
    return response.Redirect(_address(name), status_code=303)


@litestar.post("/console/webhooks/{name:str}/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody, name: Id) -> response.Redirect:
    """Remove it, with what was not delivered yet."""
    await visit.api.ask("DELETE", f"/v1/webhooks/{client.part(name)}", csrf=visits.form(body).get("csrf", ""))
    return response.Redirect("/console/webhooks", status_code=303)


ROUTES: Final = (listing, make, detail, test, remove)


def _address(name: str) -> str:
    return f"/console/webhooks/{urllib.parse.quote(name, safe='')}"


async def _page(
    visit: Visit,
    *,
    fields: Mapping[str, str] | None = None,
    made: NewWebhook | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    items, absent = await _webhooks(visit)
    return visit.page(
        "webhooks",
        items=items,
        absent=absent,
        made=made,
        error=error,
        fields=fields or {},
        events=EVENTS,
        tenancies=await visit.tenancies(Action.WEBHOOK_WRITE),
        address=_address,
    )


async def _webhooks(visit: Visit) -> tuple[tuple[WebhookView, ...], errors.FairleadError | None]:
    try:
        return (await visit.api.get(WebhookList, "/v1/webhooks")).items, None
    except errors.Unavailable as error:
        return (), error
