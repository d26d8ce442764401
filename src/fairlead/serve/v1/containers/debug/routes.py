"""Routes that change a container that is there: another one joins it, it is said to be ready, its size, its name."""

from __future__ import annotations

import functools

import litestar
from litestar import params, status_codes

from fairlead.serve.api.failure import documented
from fairlead.serve.backend.containers.pods import find_pod
from fairlead.serve.backend.port import require
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.debug import request
from fairlead.serve.v1.containers.parameters import Name, Namespace
from fairlead.serve.v1.containers.view import ContainerPart, ContainerView
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.wire.kubernetes import meta


@litestar.post(
    "/v1/containers/{name:str}/ephemeralcontainers",
    summary="Join a running container with another one",
    responses=documented(400, 403, 404, 409, 422, 503),
    status_code=status_codes.HTTP_201_CREATED,
    tags=["container"],
)
async def debug_container(
    services: Dependencies, name: Name, data: params.JSONBody[request.DebugRequest], namespace: Namespace = "default"
) -> ContainerPart:
    """Add an ephemeral container, which shares network, host name and shared memory; it ends with the container.

    It is started by the node, stays in the record when it has ended, and is read, joined and entered by its name:
    `logs`, `attach` and `exec` with `container`.
    """
    pod = await find_pod(services.store, name, namespace)
    item = request.container(data, pod)
    joining = require(services.backend.changes)
    changed = await joining.add(pod, item, services.backend.places.again(pod))
    return next(part for part in view.container_view(changed).containers if part.name == item.name)


@litestar.patch(
    "/v1/containers/{name:str}/status",
    summary="Set what a container's readiness gates wait for",
    responses=documented(400, 403, 404, 409, 422),
    tags=["container"],
)
async def set_status(
    services: Dependencies, name: Name, data: params.JSONBody[request.StatusRequest], namespace: Namespace = "default"
) -> ContainerView:
    """Set conditions of the types in `spec.readinessGates`: it is ready once all are True. Others are its node's."""
    pod = await find_pod(services.store, name, namespace)
    asked = [
        meta.Condition(type=one.type, status=one.status, reason=one.reason, message=one.message)
        for one in data.conditions
    ]
    return view.container_view(await require(services.backend.changes).set_conditions(pod, asked))


@litestar.patch(
    "/v1/containers/{name:str}/resize",
    summary="Change a container's CPU and memory while it runs",
    responses=documented(400, 403, 404, 409, 422),
    tags=["container"],
)
async def resize_container(
    services: Dependencies, name: Name, data: params.JSONBody[request.ResizeRequest], namespace: Namespace = "default"
) -> ContainerView:
    """Change the limits, and the requests that follow them, as docker's update does; its node carries that out.

    `resize` of the answer says what is not carried out yet, and why. GPUs stay as they are. On one machine alone.
    """
    pod = await find_pod(services.store, name, namespace)
    wanted = functools.partial(request.amounts, data)
    return view.container_view(await require(services.backend.changes).resize(pod, wanted))


@litestar.post(
    "/v1/containers/{name:str}/:rename",
    summary="Give a container another name",
    responses=documented(400, 403, 404, 409, 422),
    status_code=status_codes.HTTP_200_OK,
    tags=["container"],
)
async def rename_container(
    services: Dependencies, name: Name, data: params.JSONBody[request.RenameRequest], namespace: Namespace = "default"
) -> ContainerView:
    """Return the container under its new name; uid, record, output and what it used stay. On one machine alone.

    One that runs keeps its name, and one that a Deployment or a Job made. To watchers the old one is deleted and the
    new one added.
    """
    changes = require(services.backend.changes)
    pod = await find_pod(services.store, name, namespace)
    services.backend.places.again(pod)  # raises where nothing new may be made
    return view.container_view(await changes.rename(pod, data.name))


ROUTES = (debug_container, set_status, resize_container, rename_container)
