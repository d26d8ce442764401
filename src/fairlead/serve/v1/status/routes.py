"""Serves the routes of the service itself: how it is, whether it serves, whether containers can be run."""

from __future__ import annotations

import litestar

from fairlead.plan.pod import podstate
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import NO_HISTORY, Absent
from fairlead.serve.history.port import History
from fairlead.serve.history.view import HistoryView
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.nodes.taken import node_view
from fairlead.serve.v1.status.view import Status
from fairlead.wire.kubernetes import core
from fairlead.wire.text import timestamp


@litestar.get("/v1/status", summary="How the service is", responses=documented(), tags=["machine"])
async def show_status(services: Dependencies) -> Status:
    """Return what runs, on what, and what is missing; a broken engine is described here, not raised."""
    info, found = services.info, await services.backend.hardware.describe()
    every = (await services.census.list(core.Pod)).items
    nodes = (await services.store.list(core.Node)).items
    address, fingerprint = info.door()
    states: dict[str, int] = {}
    for pod in (await services.store.list(core.Pod)).items:
        state = podstate.state_of(pod)
        states[state] = states.get(state, 0) + 1
    return Status(
        version=info.version,
        node=info.node,
        started_at=timestamp.emit(info.started_at),
        socket=str(info.socket),
        address=address,
        fingerprint=fingerprint,
        state_folder=str(info.state_folder),
        cdi_folder=str(info.cdi_folder),
        scheduler=info.scheduler_name,
        resource=info.resource,
        profile=info.profile,
        is_simulated=found.is_simulated,
        engine=found.engine,
        cluster=found.cluster,
        gpus=found.gpus,
        nodes=tuple(node_view(node, every) for node in nodes),
        history=_history(services.backend.history),
        containers=states,
        problems=found.problems,
    )


def _history(found: History | Absent) -> HistoryView | None:
    """Return how figures are kept; one that is wanted and could not be opened has a problem, and no days."""
    if not isinstance(found, Absent):
        return found.describe()
    return None if found.reason == NO_HISTORY.reason else HistoryView(days=0, problem=found.message)


@litestar.get("/healthz", summary="Whether the process serves", responses=documented(), tags=["machine"])
async def healthz() -> dict[str, str]:
    """Answer at all."""
    return {"status": "ok"}


@litestar.get("/readyz", summary="Whether containers can be run", responses=documented(503), tags=["machine"])
async def readyz(services: Dependencies) -> dict[str, str]:
    """Answer once this machine's node has registered and is ready; a cluster is ready once it answers."""
    await services.backend.hardware.check_ready()
    return {"status": "ready"}


ROUTES = (show_status, healthz, readyz)
