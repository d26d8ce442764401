"""Serves the ledger: who has which GPU, which GPUs a person quarantined, and the firmware that they may have."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.plan.lease import baseline, intent
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.leases.view import (
    BaselineList,
    BaselineRequest,
    BaselineView,
    LeaseList,
    LeaseRequest,
    LeaseView,
    baseline_view,
    baseline_views,
    view_of,
)


@litestar.get("/v1/leases", summary="List the ledger", responses=documented(400, 403, 503), tags=["machine"])
async def list_leases(services: Dependencies) -> LeaseList:
    """Return each GPU of this machine's ledger: its state between tenants, who has it, why it is withheld."""
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
    """Release a GPU from quarantine: it is cleaned and verified before a tenant gets it."""
    return await _asked(services, intent.RELEASE, data)


@litestar.get("/v1/baselines", summary="List firmware baselines", responses=documented(403, 503), tags=["machine"])
async def list_baselines(services: Dependencies) -> BaselineList:
    """Return each kind of board that was seen on this machine: what is approved, by whom, and what is not."""
    return BaselineList(items=baseline_views(*await require(services.backend.ledger).baselines()))


@litestar.post(
    "/v1/baselines:approve",
    summary="Approve a baseline",
    responses=documented(400, 403, 404, 422, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["machine"],
)
async def approve_baseline(services: Dependencies, data: params.JSONBody[BaselineRequest]) -> BaselineView:
    """Allow every firmware that was seen on a kind of board; a second account must too, unless one is enough here."""
    if services.principal is None:
        message = "who approves is not known on this socket: root is not a person"
        hint = "by an account on TLS, or with `fairlead lease baseline approve`"
        raise errors.Denied(message, reason="AccountRequired", hint=hint)
    by = services.principal.account
    return await _decided(
        services, data, lambda known, before: baseline.approve(before, known, data.board, by=by, at=time.time())
    )


@litestar.post(
    "/v1/baselines:forget",
    summary="Take a baseline back",
    responses=documented(400, 403, 404, 422, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["machine"],
)
async def forget_baseline(services: Dependencies, data: params.JSONBody[BaselineRequest]) -> BaselineView:
    """Forget what was approved for a kind of board: its GPUs are not given away from their next verification on."""
    return await _decided(services, data, lambda _, before: baseline.forget(before, data.board))


ROUTES: Final = (list_leases, quarantine_gpu, release_gpu, list_baselines, approve_baseline, forget_baseline)


async def _decided(
    services: Services, data: BaselineRequest, act: Callable[[baseline.Learned, baseline.Decided], baseline.Decided]
) -> BaselineView:
    ledger = require(services.backend.ledger)
    await ledger.decide(act)
    return baseline_view(baseline.standing(data.board, *await ledger.baselines()))


async def _asked(services: Services, verb: str, data: LeaseRequest) -> LeaseView:
    if not data.why.isprintable():
        raise errors.Invalid("`why` holds a control character", reason="TextInvalid", hint="write one plain line")
    by = "root" if services.principal is None else services.principal.account
    return view_of(await require(services.backend.ledger).ask(verb, data.gpu, by=by, why=data.why))
