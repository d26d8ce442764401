"""Routes that give a running container a GPU and take one from it; the backend has them carried out."""

from __future__ import annotations

import litestar
from litestar import params

from fairlead.plan.pod import podstate
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.containers import pods
from fairlead.serve.backend.deviceview import DeviceChanged, DeviceRequest
from fairlead.serve.backend.port import require
from fairlead.serve.v1.containers.parameters import Name, Namespace
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.wire.kubernetes import devicechange


@litestar.post(
    "/v1/containers/{name:str}/:attach",
    summary="Give a running container a GPU",
    responses=documented(404, 409, 422, 503),
    status_code=200,
    tags=["container"],
)
async def attach_device(
    services: Dependencies, name: Name, data: params.JSONBody[DeviceRequest], namespace: Namespace = "default"
) -> DeviceChanged:
    """Allow a free GPU and make its device nodes while the container runs; returns when the kernel confirms it."""
    return await _change(services, name, namespace, data, "attach")


@litestar.post(
    "/v1/containers/{name:str}/:detach",
    summary="Take a GPU from a running container",
    responses=documented(404, 409, 422, 503),
    status_code=200,
    tags=["container"],
)
async def detach_device(
    services: Dependencies, name: Name, data: params.JSONBody[DeviceRequest], namespace: Namespace = "default"
) -> DeviceChanged:
    """Deny a GPU and remove its nodes; refused while a process has it open, unless forced, which ends that process."""
    return await _change(services, name, namespace, data, "detach")


async def _change(
    services: Services, name: str, namespace: str, data: DeviceRequest, action: devicechange.Action
) -> DeviceChanged:
    devices = require(services.backend.devices)
    pod = await pods.find_pod(services.store, name, namespace)
    if podstate.state_of(pod) not in {"running", "crashed"}:
        raise pods.not_running(pod)
    wanted = devicechange.DeviceChangeSpec(
        pod_name=pod.metadata.name,
        pod_uid=pod.metadata.uid,
        action=action,
        container=pods.container_name(pod, data.container),
        resource=data.resource or services.info.resource,
        device=devices.device_id(data.gpu),
        force=data.force,
    )
    return await devices.carry_out(pod, wanted)


ROUTES = (attach_device, detach_device)
