"""Shows the queue: who waits for what, why and behind whom, and what teams are due."""

from __future__ import annotations

from typing import Final

import litestar

from fairlead.serve.accounts.roles import Action
from fairlead.serve.console.draw import amounts, gpumap, tone
from fairlead.serve.console.visit import Visitor
from fairlead.serve.v1.containers.view import ContainerList, ContainerView
from fairlead.serve.v1.nodes.view import CapacityList
from fairlead.serve.v1.queues.view import QueueList


@litestar.get("/console/queue", include_in_schema=False)
async def queue(visit: Visitor) -> litestar.Response[bytes]:
    """Show what waits."""
    found = (await visit.api.get(ContainerList, "/v1/containers")).items
    queues = (await visit.api.get(QueueList, "/v1/queues")).items if visit.may(Action.MACHINE_READ) else ()
    return visit.page(
        "queue",
        waiting=sorted((one for one in found if one.state == "pending"), key=_order),
        capacity=(await visit.api.get(CapacityList, "/v1/capacity")).items,
        queues=[(one, amounts.meters(one.spec.limit or one.spec.deserved, one.status.allocated)) for one in queues],
        spaces=await visit.space_names(),
        tone=tone,
        amounts=amounts,
        address=gpumap.container_address,
    )


def _order(one: ContainerView) -> tuple[int, int, str, str]:
    place = one.waiting.place if one.waiting else 0
    return (place or 1 << 30, -one.priority, one.created_at or "", one.name)


ROUTES: Final = (queue,)
