"""Routes that give a running container a GPU and take one from it.

Nothing is done here: the wish becomes an annotation of the pod, its node's kubelet decides and acts (only its books say
what is free), and its answer is the step that names the wish. A kubelet that does not know such wishes (a real one)
leaves it lying; then it is taken back and said so.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import Annotated, Final

import litestar
import msgspec
from litestar import params

from fairlead import errors
from fairlead.model.gpu import GPU
from fairlead.model.step import TraceStep
from fairlead.serve.api import stream
from fairlead.serve.api.dependencies import Dependencies, Services
from fairlead.serve.api.failure import documented
from fairlead.serve.backend import attempt
from fairlead.serve.v1 import pods, view
from fairlead.serve.v1.deviceview import DeviceChanged, DeviceRequest
from fairlead.store import tracerecorder
from fairlead.store.port import ChangeKind
from fairlead.wire.kubernetes import core, devicechange, names

ANSWER_S: Final = 45.0
"""Longer than a kubelet takes to ask a plugin and to end whoever has the device open."""
_TRIES: Final = 8

Name = Annotated[str, params.PathParameter(description="name of the container")]
Namespace = Annotated[str, params.QueryParameter(description="namespace of the container")]


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
    instead = f"on the node of the pod: `fairlead {action} --pid PID GPU`"
    inventory = services.home.machine(action, instead=instead).inventory()
    pod = await pods.find_pod(services.store, name, namespace)
    if view.state_of(pod) not in {"running", "crashed"}:
        message = f'container "{name}" is not running (it is {view.state_of(pod)})'
        raise errors.Conflict(message, reason="ContainerNotRunning", hint=f"`fairlead explain {name}` says why")
    change = devicechange.Change(
        id=uuid.uuid4().hex[:16],
        action=action,
        container=attempt.container_name(pod, data.container),
        resource=data.resource or services.info.resource,
        device=device_id(inventory.gpus, data.gpu),
        force=data.force,
    )
    await _wish(services, pod, change)
    try:
        await _carried_out(services, pod, change)
    except TimeoutError as error:
        await _take_back(services, pod, change)
        message = f"the kubelet of {pod.spec.node_name} did not take up the wish within {ANSWER_S:g} s"
        hint = "only Fairlead's own kubelet can; `fairlead attach --pid` works on the node itself"
        raise errors.Unavailable(message, reason="KubeletCannot", hint=hint) from error
    return _outcome(await _answer(services, pod, change))


def device_id(gpus: tuple[GPU, ...], text: str) -> str:
    """Return the device id of a GPU by index, PCI address, UUID or the beginning of one; others stand for themselves.

    Raises: Invalid: it is the beginning of several.
    """
    if text.isdecimal():
        found = [gpu for gpu in gpus if gpu.index == int(text)]
    else:
        exact = [gpu for gpu in gpus if text in {gpu.uuid, gpu.pci_bus_id}]
        found = exact or [gpu for gpu in gpus if gpu.uuid.startswith(text)]
    if len(found) > 1:
        message = f'"{text}" are {len(found)} GPUs: {", ".join(gpu.uuid for gpu in found)}'
        raise errors.Invalid(message, reason="GPUAmbiguous", hint="write more of the UUID")
    return found[0].uuid if found else text


async def _wish(services: Services, pod: core.Pod, change: devicechange.Change) -> None:
    """Write the wish. Raises: Conflict (`ChangePending`): another one waits."""

    def wished(notes: dict[str, str]) -> dict[str, str]:
        if names.DEVICE_CHANGE in notes:
            message = f'a change of the devices of "{pod.metadata.name}" is under way already'
            raise errors.Conflict(message, reason="ChangePending", hint="ask again when it is done")
        return {**notes, names.DEVICE_CHANGE: devicechange.emit(change)}

    await _annotate(services, pod, wished)


async def _take_back(services: Services, pod: core.Pod, change: devicechange.Change) -> None:
    text = devicechange.emit(change)
    with contextlib.suppress(errors.NotFound):
        await _annotate(
            services,
            pod,
            lambda notes: {k: v for k, v in notes.items() if (k, v) != (names.DEVICE_CHANGE, text)},
        )


async def _annotate(services: Services, pod: core.Pod, edit: Callable[[dict[str, str]], dict[str, str]]) -> None:
    for left in reversed(range(_TRIES)):
        fresh = await pods.find_pod(services.store, pod.metadata.name, pod.metadata.namespace)
        if fresh.metadata.uid != pod.metadata.uid:
            raise view.not_found(pod.metadata.name, pod.metadata.namespace)
        about = msgspec.structs.replace(fresh.metadata, annotations=edit(dict(fresh.metadata.annotations)))
        try:
            await services.store.update(msgspec.structs.replace(fresh, metadata=about))
        except errors.Conflict:
            if not left:
                raise
        else:
            return


async def _carried_out(services: Services, pod: core.Pod, change: devicechange.Change) -> None:
    """Return once the wish is gone from the pod, or the pod is. Raises: TimeoutError."""
    async with asyncio.timeout(ANSWER_S), stream.closing(pods.follow_pod(services.store, pod)) as changes:
        async for seen in changes:
            note = seen.object.metadata.annotations.get(names.DEVICE_CHANGE)
            if seen.kind is ChangeKind.DELETED or note is None or devicechange.parse(note).id != change.id:
                return


async def _answer(services: Services, pod: core.Pod, change: devicechange.Change) -> TraceStep:
    for step in reversed(await tracerecorder.list_steps(services.store, uid=pod.metadata.uid)):
        if step.facts.get("change") == change.id:
            return step
    message = f'container "{pod.metadata.name}" went away before its devices were changed'
    raise errors.Conflict(message, reason="ContainerGone", hint=f"`fairlead trace {pod.metadata.name}`")


def _outcome(step: TraceStep) -> DeviceChanged:
    """Return what a step says was done. Raises: what it says was in the way."""
    problem = step.facts.get("problem")
    if problem is not None:
        raise devicechange.error_of(msgspec.convert(problem, devicechange.Problem))
    return msgspec.convert(dict(step.facts), DeviceChanged)


ROUTES = (attach_device, detach_device)
