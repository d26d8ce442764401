"""Serves webhooks: where a tenancy's owners and admins, and the machine's administrators, have events sent."""

from __future__ import annotations

from typing import Annotated, Final

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.tenancies.routes import find_tenancy
from fairlead.serve.v1.webhooks.view import TestView, WebhookList, WebhookRequest
from fairlead.serve.webhooks.port import EMAIL, NewWebhook, Spec, WebhookDetail, Webhooks, Whose
from fairlead.wire.fairlead.tenancy import Tenancy

Id = Annotated[str, params.PathParameter(description="id of the webhook, whk_…")]


@litestar.post(
    "/v1/webhooks", summary="Make a webhook", responses=documented(400, 403, 404, 409, 422, 503), tags=["webhook"]
)
async def create_webhook(services: Dependencies, data: params.JSONBody[WebhookRequest]) -> NewWebhook:
    """Have events sent to an address; this answer is the only one that holds the secret of the signatures."""
    kept, principal = _kept(services), services.principal
    if not data.tenancy and principal is not None and not principal.is_administrator:
        message = "a webhook of the whole machine is for its administrators"
        raise errors.Denied(message, reason="RoleForbids", hint="name a tenancy of yours")
    if data.format == EMAIL and principal is not None and not principal.is_administrator:
        message = "an e-mail address is written to once its owner has confirmed it"
        hint = f"each adds their own: `fairlead notify add ADDRESS -T {errors.readable(data.tenancy[:63])}`"
        raise errors.Denied(message, reason="RoleForbids", hint=hint)
    uid = (await find_tenancy(services, data.tenancy)).metadata.uid if data.tenancy else ""
    account = principal.account if principal else ""
    spec = Spec(
        url=data.url,
        events=data.events,
        tenancy=data.tenancy,
        uid=uid,
        account=account,
        format=data.format,
        token=data.token,
        is_trusted=principal is None or principal.is_administrator,
    )
    return await kept.create(spec)


@litestar.get(
    "/v1/webhooks",
    dependencies=pages.PAGE,
    summary="List webhooks",
    responses=documented(400, 403, 503),
    tags=["webhook"],
)
async def list_webhooks(services: Dependencies, page: pages.Paged) -> WebhookList:
    """Return webhooks without their secrets, in the order of their making."""
    found = await _kept(services).list(await _whose(services))
    items, following = page.cut(found, lambda one: (one.created_at, one.id))
    return WebhookList(items=items, next=following)


@litestar.get(
    "/v1/webhooks/{name:str}", summary="Show a webhook", responses=documented(403, 404, 503), tags=["webhook"]
)
async def show_webhook(services: Dependencies, name: Id) -> WebhookDetail:
    """Return a webhook and the last events on their way to it, with their attempts."""
    kept = _kept(services)
    return await kept.show(name, await _whose(services))


@litestar.delete(
    "/v1/webhooks/{name:str}",
    summary="Delete a webhook",
    responses=documented(403, 404, 503),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["webhook"],
)
async def delete_webhook(services: Dependencies, name: Id) -> None:
    """Remove a webhook; what was not delivered to it is not any more."""
    kept = _kept(services)
    await kept.delete(name, await _whose(services))


@litestar.post(
    "/v1/webhooks/{name:str}/:test",
    summary="Try a webhook",
    responses=documented(403, 404, 429, 503),
    tags=["webhook"],
)
async def try_webhook(services: Dependencies, name: Id) -> TestView:
    """Send an event `webhook.test`; GET /v1/webhooks/NAME says how it went."""
    kept = _kept(services)
    return TestView(id=await kept.test(name, await _whose(services)))


ROUTES: Final = (create_webhook, list_webhooks, show_webhook, delete_webhook, try_webhook)


def _kept(services: Services) -> Webhooks:
    return require(services.accounts).webhooks


async def _whose(services: Services) -> Whose:
    """Return which webhooks the caller may read and change."""
    principal = services.principal
    if principal is None or principal.is_administrator:
        return Whose()
    return Whose(uids=tuple(item.metadata.uid for item in (await services.store.list(Tenancy)).items))
