"""Routes into running containers that carry no stream: a signal, the processes, what is used."""

from __future__ import annotations

import signal
import time
from typing import Annotated

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.model.container import stopsignal
from fairlead.plan.pod import podstate
from fairlead.plan.pod.life import restart
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.containers.pods import container_name, find_pod
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.access import view as accessview
from fairlead.serve.v1.containers.parameters import Name, Namespace
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.wire.kubernetes import core
from fairlead.wire.text import timestamp

Which = Annotated[str, params.QueryParameter(description="which container of the group; empty: the first")]


@litestar.post(
    "/v1/containers/{name:str}/:signal",
    summary="Send a signal to a container's first process",
    responses=documented(400, 404, 409, 422),
    status_code=status_codes.HTTP_202_ACCEPTED,
    tags=["container"],
)
async def signal_container(
    services: Dependencies,
    name: Name,
    number: Annotated[str, params.QueryParameter(name="signal", description="number or name: 15, TERM, SIGTERM")],
    namespace: Namespace = "default",
    container: Which = "",
) -> ContainerView:
    """Send it; what the process makes of it is its own affair.

    A SIGKILL on one machine is a stop without grace, so that a restart policy does not start the container again.
    """
    wanted = signal_number(number)
    pod = await find_pod(services.store, name, namespace)
    if wanted == signal.SIGKILL and services.info.node and _would_start_again(pod):
        return view.container_view(await services.backend.lifecycle.stop(name, namespace, grace_s=0))
    await services.backend.access.signal(pod, container_name(pod, container), wanted)
    return view.container_view(pod)


def _would_start_again(pod: core.Pod) -> bool:
    """Return whether a running container of one alone is started again after its end, as its policy says."""
    is_alone = len(pod.spec.containers) == 1
    return (
        is_alone
        and restart.may_restart(pod.spec, pod.spec.containers[0])
        and view.container_view(pod).state == "running"
    )


def signal_number(text: str) -> int:
    """Return the number of a signal. Raises: Invalid (`SignalUnknown`)."""
    found = stopsignal.number(text)
    if found is None:
        message = f'signal "{text}" is neither a name nor a number from 1 to {int(signal.SIGRTMAX)}'
        raise errors.Invalid(message, reason="SignalUnknown", hint="for example TERM, HUP, USR1 or 9")
    return found


@litestar.get(
    "/v1/containers/{name:str}/processes",
    summary="List a container's processes",
    responses=documented(404, 409),
    tags=["container"],
)
async def list_processes(
    services: Dependencies, name: Name, namespace: Namespace = "default", container: Which = ""
) -> accessview.ProcessTable:
    """Return the processes as the node sees them; on a cluster as the image's own `ps` does."""
    pod = await find_pod(services.store, name, namespace)
    titles, *rows = await services.backend.access.list_processes(pod, container_name(pod, container)) or ((),)
    return accessview.ProcessTable(titles=titles, rows=tuple(rows))


@litestar.get(
    "/v1/containers/{name:str}/usage",
    summary="Read what a container uses",
    responses=documented(400, 404, 409),
    tags=["container"],
)
async def read_usage(
    services: Dependencies, name: Name, namespace: Namespace = "default", container: Which = ""
) -> accessview.UsageView:
    """Return counters since the start: two readings make a rate."""
    pod = await find_pod(services.store, name, namespace)
    which = container_name(pod, container)
    used = await services.backend.access.usage(pod, which)
    return accessview.UsageView(
        name=name,
        namespace=namespace,
        container=which,
        at=timestamp.emit(time.time()),
        cpu_ns=used.cpu_ns,
        memory_bytes=used.memory_bytes,
        memory_limit_bytes=used.memory_limit_bytes,
        processes=used.processes,
        received_bytes=used.received_bytes,
        sent_bytes=used.sent_bytes,
        devices=podstate.granted_devices(pod),
        is_pods=used.is_pods,
    )


ROUTES = (signal_container, list_processes, read_usage)
