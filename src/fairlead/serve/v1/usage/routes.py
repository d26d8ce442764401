"""Serves usage: who held GPUs for how long, what that costs, and the same for an accountant's programs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead.plan.metering import focus, reconcile
from fairlead.plan.metering.usage import MICROS
from fairlead.serve.api.failure import documented
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.usage import view
from fairlead.serve.v1.usage.view import GPUCheck, UsageCheck, UsageReport
from fairlead.wire.text import timestamp

_LINES: Final = 512
"""Lines of a file that are made at a time, off the event loop."""

Since = Annotated[
    str | None, params.QueryParameter(description="begin, RFC 3339; default: the first of the month of the end, UTC")
]
Until = Annotated[str | None, params.QueryParameter(description="end, RFC 3339, exclusive; default: now")]


@litestar.get("/v1/usage", summary="Show usage", responses=documented(400, 404), tags=["usage"])
async def show_usage(
    services: Dependencies,
    since: Since = None,
    until: Until = None,
    group_by: Annotated[
        str,
        params.QueryParameter(description="tenancy, namespace, user, model, gpu, node, lease or day, joined by commas"),
    ] = "tenancy,model",
) -> UsageReport:
    """Return how long GPUs were held in a period, and what that costs; a user of the machine sees their own part."""
    begin, end = view.read_period(since, until, now=time.time())
    keys = view.read_keys(group_by)
    found = await services.backend.metering.measure(begin=begin, end=end)
    pricing = services.backend.metering.pricing
    rows, total = await asyncio.to_thread(view.add_up, found.charges, keys, pricing, found.tenancies)
    return UsageReport(
        since=timestamp.emit(begin / MICROS),
        until=timestamp.emit(end / MICROS),
        currency=pricing.currency,
        items=rows,
        total=total,
        unattributed_seconds=found.unattributed / MICROS,
        notes=found.notes,
    )


@litestar.get(
    "/v1/usage/focus",
    summary="Export usage",
    responses=documented(400, 404),
    media_type="text/csv",
    tags=["usage"],
)
async def export_usage(services: Dependencies, since: Since = None, until: Until = None) -> response.Stream:
    """Return usage as CSV in the columns of FOCUS 1.2: one row for each lease, namespace and hour."""
    begin, end = view.read_period(since, until, now=time.time())
    found = await services.backend.metering.measure(begin=begin, end=end)
    lines = focus.rows(found.charges, services.backend.metering.pricing, found.tenancies)
    return response.Stream(_pieces(lines), media_type="text/csv")


async def _pieces(lines: Iterator[str]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(lambda: "".join(islice(lines, _LINES))):
        yield piece.encode()


@litestar.get("/v1/usage/check", summary="Check usage", responses=documented(400, 403, 404), tags=["usage"])
async def check_usage(services: Dependencies, since: Since = None, until: Until = None) -> UsageCheck:
    """Return what all tenancies together are charged of each GPU, against the time that went by."""
    begin, end = view.read_period(since, until, now=time.time())
    found = await services.backend.metering.measure(begin=begin, end=end)
    items = await asyncio.to_thread(reconcile.reconcile, found.charges, begin=begin, end=end)
    return UsageCheck(
        since=timestamp.emit(begin / MICROS),
        until=timestamp.emit(end / MICROS),
        items=tuple(
            GPUCheck(
                gpu=one.gpu,
                charged_seconds=one.charged / MICROS,
                wall_seconds=one.wall / MICROS,
                excess_seconds=one.excess / MICROS,
            )
            for one in items
        ),
        notes=found.notes,
    )


ROUTES: Final = (show_usage, check_usage, export_usage)
