"""Routes of the ledger: who has which GPU, and GPUs kept back from tenants by hand."""

from __future__ import annotations

from typing import Final

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.plan.lease import intent
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.leases.view import LeaseList, LeaseRequest, LeaseView, view_of


@litestar.get("/v1/leases", summary="List the ledger", responses=documented(400, 403, 503), tags=["machine"])
async def list_leases(services: Dependencies) -> LeaseList:
    """Return each GPU of this machine's ledger: its state between tenants, who has it, why it is kept back."""
    rows = await require(services.backend.ledger).rows()
    return LeaseList(items=tuple(view_of(row) for _, row in sorted(rows.items())))


@litestar.post(
    "/v1/leases:quarantine",
    summary="Keep a GPU back",
    responses=documented(400, 403, 404, 409, 422, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["machine"],
)
async def quarantine_gpu(services: Dependencies, data: params.JSONBody[LeaseRequest]) -> LeaseView:
    """Give a GPU to no tenant until it is released by hand; one that is held, as soon as it comes back."""
    return await _asked(services, intent.QUARANTINE, data)


@litestar.post(
    "/v1/leases:release",
    summary="Give a GPU back",
    responses=documented(400, 403, 404, 409, 422, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["machine"],
)
async def release_gpu(services: Dependencies, data: params.JSONBody[LeaseRequest]) -> LeaseView:
    """Give a GPU back that was kept back: it is cleaned and verified before a tenant gets it."""
    return await _asked(services, intent.RELEASE, data)


ROUTES: Final = (list_leases, quarantine_gpu, release_gpu)


async def _asked(services: Services, verb: str, data: LeaseRequest) -> LeaseView:
    if not data.why.isprintable():
        raise errors.Invalid("`why` holds a control character", reason="TextInvalid", hint="write one plain line")
    by = "root" if services.principal is None else services.principal.account
    return view_of(await require(services.backend.ledger).ask(verb, data.gpu, by=by, why=data.why))
