"""Serves notices: which events a person gets by e-mail, in a chat or at an address; each has their own."""

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
from fairlead.serve.v1.webhooks.view import ConfirmRequest, NoticeRequest, TestView, WebhookList
from fairlead.serve.webhooks import port
from fairlead.serve.webhooks.port import NewWebhook, Spec, WebhookDetail, Webhooks, WebhookView, Whose

Id = Annotated[str, params.PathParameter(description="id of the notice, whk_…")]
FOR_PEOPLE: Final = (
    "container.running",
    "container.crashed",
    "container.succeeded",
    "container.failed",
    "container.stopped",
    port.WAITS,
    port.ENDS_SOON,
    port.SICK,
    port.GPU_SICK,
    port.GPU_WELL,
    "gpu.quarantined",
)
"""The events of a person who names no kinds."""


@litestar.post(
    "/v1/notices", summary="Make a notice", responses=documented(400, 403, 404, 409, 422, 429, 503), tags=["notice"]
)
async def create_notice(services: Dependencies, data: params.JSONBody[NoticeRequest]) -> NewWebhook:
    """Get notices of your containers, of a tenancy of yours or, as an administrator, of the machine.

    An e-mail address is written to once it is confirmed by the code that is sent there; one of an administrator is at
    once. Root, who has no account, makes a webhook of the machine, or of the tenancy.
    """
    kept, principal = _kept(services), services.principal
    is_root = principal is None or principal.is_administrator
    if data.machine and (data.tenancy or not is_root):
        message = "machine: everything on the machine is for its administrators, and is no tenancy's"
        raise errors.Denied(message, reason="RoleForbids", hint="name a tenancy of yours, or none for your containers")
    uid = (await find_tenancy(services, data.tenancy)).metadata.uid if data.tenancy else ""
    spec = Spec(
        url=data.url,
        events=data.events or FOR_PEOPLE,
        tenancy=data.tenancy,
        uid=uid,
        account=principal.account if principal else "",
        format=data.format,
        token=data.token,
        person=principal.account if principal else "",
        reach=port.TENANCY if uid else port.MACHINE if data.machine else port.OWN,
        is_trusted=is_root,
    )
    return await kept.create(spec)


@litestar.get(
    "/v1/notices",
    dependencies=pages.PAGE,
    summary="List notices",
    responses=documented(400, 403, 503),
    tags=["notice"],
)
async def list_notices(
    services: Dependencies,
    page: pages.Paged,
    everybody: Annotated[bool, params.QueryParameter(description="of all people, for administrators")] = False,
) -> WebhookList:
    """Return your notices, without secrets, in the order of their making."""
    found = await _kept(services).list(_whose(services, everybody=everybody))
    items, following = page.cut(found, lambda one: (one.created_at, one.id))
    return WebhookList(items=items, next=following)


@litestar.get("/v1/notices/{name:str}", summary="Show a notice", responses=documented(403, 404, 503), tags=["notice"])
async def show_notice(services: Dependencies, name: Id) -> WebhookDetail:
    """Return a notice and the last events on their way to it, with their attempts."""
    return await _kept(services).show(name, _whose(services, everybody=True))


@litestar.delete(
    "/v1/notices/{name:str}",
    summary="Remove a notice",
    responses=documented(403, 404, 503),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["notice"],
)
async def delete_notice(services: Dependencies, name: Id) -> None:
    """Remove a notice; what was not delivered is not any more."""
    await _kept(services).delete(name, _whose(services, everybody=True))


@litestar.post(
    "/v1/notices/{name:str}/:test",
    summary="Try a notice",
    responses=documented(403, 404, 409, 429, 503),
    tags=["notice"],
)
async def try_notice(services: Dependencies, name: Id) -> TestView:
    """Send a notice of no meaning; GET /v1/notices/NAME says how it went."""
    return TestView(id=await _kept(services).test(name, _whose(services, everybody=True)))


@litestar.post(
    "/v1/notices/{name:str}/:confirm",
    summary="Confirm an e-mail address",
    responses=documented(400, 403, 404, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["notice"],
)
async def confirm_notice(services: Dependencies, name: Id, data: params.JSONBody[ConfirmRequest]) -> WebhookView:
    """Confirm a notice's address by the code that was sent there; five wrong ones remove the notice."""
    return await _kept(services).confirm(name, data.code, _whose(services, everybody=False))


ROUTES: Final = (create_notice, list_notices, show_notice, delete_notice, try_notice, confirm_notice)


def _kept(services: Services) -> Webhooks:
    return require(services.accounts).webhooks


def _whose(services: Services, *, everybody: bool) -> Whose:
    """Return whose notices are meant: the caller's own, or all where the caller may read them."""
    principal = services.principal
    if principal is None or (everybody and principal.is_administrator):
        return Whose(person="")
    return Whose(person=principal.account)
