"""Routes of what is below the containers: GPUs, topology, nodes, images, faults, and how the service is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Final

import litestar
from litestar import openapi, params, response, status_codes

from fairlead import errors
from fairlead.engine.port import Image, Images
from fairlead.serve.api import stream
from fairlead.serve.api.dependencies import Dependencies, Services
from fairlead.serve.api.failure import documented
from fairlead.serve.v1 import machineview, view
from fairlead.serve.v1.view import EventView
from fairlead.wire.kubernetes import core

_LINES: Final = openapi.ResponseSpec(
    str, generate_examples=False, description="one JSON value a line", media_type=stream.LINES
)


@litestar.get("/v1/status", summary="How the service is", responses=documented(), tags=["machine"])
async def show_status(services: Dependencies) -> machineview.Status:
    """Return what runs, on what, and what is missing; a broken engine is described here, not raised."""
    info, home = services.info, await services.home.describe()
    pods = (await services.store.list(core.Pod)).items
    nodes = (await services.store.list(core.Node)).items
    states: dict[str, int] = {}
    for pod in pods:
        state = view.state_of(pod)
        states[state] = states.get(state, 0) + 1
    return machineview.Status(
        version=info.version,
        node=info.node,
        started_at=info.started_at,
        socket=str(info.socket),
        state_folder=str(info.state_folder),
        cdi_folder=str(info.cdi_folder),
        scheduler=info.scheduler_name,
        resource=info.resource,
        profile=info.profile,
        is_simulated=home.is_simulated,
        engine=home.engine,
        cluster=home.cluster,
        gpus=home.gpus,
        nodes=tuple(view.node_view(node, pods) for node in nodes),
        containers=states,
        problems=home.problems,
    )


@litestar.get("/v1/gpus", summary="List GPUs", responses=documented(404), tags=["machine"])
async def list_gpus(services: Dependencies) -> machineview.GPUListing:
    """Return GPUs, how each is and who holds it; on a cluster those of all nodes, as their agents publish them."""
    return await services.home.list_gpus()


@litestar.get("/v1/topology", summary="Show how GPUs are linked", responses=documented(404), tags=["machine"])
async def show_topology(services: Dependencies) -> machineview.TopologyList:
    """Return, node by node, GPUs and the closest way between each two of them."""
    return await services.home.list_topologies()


@litestar.get("/v1/nodes", summary="List nodes", responses=documented(), tags=["machine"])
async def list_nodes(services: Dependencies) -> view.NodeList:
    """Return nodes with what they have and what is taken."""
    pods = (await services.store.list(core.Pod)).items
    nodes = (await services.store.list(core.Node)).items
    return view.NodeList(items=tuple(view.node_view(node, pods) for node in nodes))


@litestar.get(
    "/v1/events",
    summary="List or follow events",
    responses=documented(400) | {200: openapi.ResponseSpec(view.EventList, generate_examples=False)},
    tags=["machine"],
)
async def list_events(
    services: Dependencies,
    object_: Annotated[
        str, params.QueryParameter(name="object", description="`pod/NAME`, `node/NAME`, `NAME`; empty: all")
    ] = "",
    follow: Annotated[bool, params.QueryParameter(description="go on for ever, one JSON value a line")] = False,
) -> litestar.Response[Any]:
    """Return events, oldest first; with `follow` those to come as well, as `application/x-ndjson`."""
    listing = await services.store.list(core.Event)
    past = [view.event_view(event) for event in listing.items if view.matches_object(event, object_)]
    past.sort(key=lambda item: item.at or "")
    if not follow:
        return litestar.Response(view.EventList(items=tuple(past)))
    events = _follow_events(services, object_, past, listing.resource_version)
    return response.Stream(stream.as_lines(events), media_type=stream.LINES)


async def _follow_events(
    services: Services, wanted: str, past: list[EventView], version: str
) -> AsyncIterator[EventView]:
    for item in past:
        yield item
    async with stream.closing(services.store.watch(core.Event, since=version)) as changes:
        async for change in changes:
            if change.kind.value == "ADDED" and view.matches_object(change.object, wanted):
                yield view.event_view(change.object)


@litestar.get("/v1/images", summary="List images", responses=documented(503), tags=["image"])
async def list_images(services: Dependencies) -> machineview.ImageList:
    """Return the images containers can be run from without a pull."""
    found = await _images(services).list_images()
    return machineview.ImageList(items=tuple(_image_view(image) for image in found))


def _images(services: Services) -> Images:
    instead = "a cluster's nodes have images of their own: `crictl images` there, or a registry"
    return services.home.machine("image", instead=instead).images


def _image_view(image: Image) -> machineview.ImageView:
    return machineview.ImageView(
        id=image.id, names=image.names, size_bytes=image.size_bytes, created_at=image.created_at
    )


@litestar.post(
    "/v1/images:import", summary="Import a root file system", responses=documented(400, 422, 503), tags=["image"]
)
async def import_image(
    services: Dependencies, data: params.JSONBody[machineview.ImportRequest]
) -> machineview.ImageView:
    """Make an image of a folder or a tar."""
    image = await _images(services).import_root(_path(data.path), data.name, command=data.command)
    return machineview.ImageView(
        id=image.id, names=image.names, size_bytes=image.size_bytes, created_at=image.created_at
    )


@litestar.post(
    "/v1/images:build",
    summary="Build an image",
    responses=documented(400, 422, 503) | {200: _LINES},
    status_code=status_codes.HTTP_200_OK,
    tags=["image"],
)
async def build_image(services: Dependencies, data: params.JSONBody[machineview.BuildRequest]) -> response.Stream:
    """Build from a Containerfile; lines are `{"output": …}`, the last `{"image": NAME}` or `{"problem": …}`."""
    file = _path(data.containerfile) if data.containerfile else None
    lines = _build(services, _path(data.context), data.name, file)
    return response.Stream(stream.as_lines(lines), media_type=stream.LINES)


async def _build(services: Services, context: Path, name: str, file: Path | None) -> AsyncIterator[dict[str, str]]:
    async with stream.closing(_images(services).build(context, name, containerfile=file)) as chunks:
        async for chunk in chunks:
            yield {"output": chunk.decode(errors="replace")}
    yield {"image": name}


@litestar.delete("/v1/images", summary="Remove an image's name", responses=documented(400, 503), tags=["image"])
async def remove_image(services: Dependencies, name: params.FromQuery[str]) -> None:
    """Remove a name; one that is unknown is no error."""
    await _images(services).remove_image(name)


def _path(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        message = f'path "{text}" is not absolute'
        raise errors.Invalid(message, reason="PathNotAbsolute", hint="the service does not know your working folder")
    return path


@litestar.post(
    "/v1/faults",
    summary="Break simulated silicon",
    responses=documented(400, 409, 422),
    status_code=status_codes.HTTP_200_OK,
    tags=["machine"],
)
async def inject_fault(
    services: Dependencies, data: params.JSONBody[machineview.FaultRequest]
) -> machineview.FaultDone:
    """Apply one fault to the simulated silicon this service runs on; real silicon is refused."""
    faults = services.home.machine("simulate", instead="break silicon where it is simulated, on its node").faults
    if faults is None:
        hint = "start one with `fairlead up --simulate h100x8`"
        raise errors.Conflict("the silicon is real: it is not broken on command", reason="SiliconReal", hint=hint)
    return machineview.FaultDone(
        message=await asyncio.to_thread(faults.inject, data.fault, gpu=data.gpu, value=data.value)
    )


@litestar.get("/healthz", summary="Whether the process serves", responses=documented(), tags=["machine"])
async def healthz() -> dict[str, str]:
    """Answer at all."""
    return {"status": "ok"}


@litestar.get("/readyz", summary="Whether containers can be run", responses=documented(503), tags=["machine"])
async def readyz(services: Dependencies) -> dict[str, str]:
    """Answer once this machine's node has registered and is ready; a cluster is ready once it answers.

    Raises: Unavailable (`NodeNotReady`), and whatever the store raises.
    """
    name = services.info.node
    if not name:
        await services.store.list(core.Node)
        return {"status": "ready"}
    try:
        node = await services.store.get(core.Node, name)
    except errors.NotFound as error:
        message = f'node "{name}" has not registered yet'
        raise errors.Unavailable(message, reason="NodeNotReady", hint="`fairlead status`") from error
    shown = view.node_view(node, ())
    if shown.state != "ready":
        message = f'node "{name}" is {shown.state}: {shown.reason or "no reason given"}'
        raise errors.Unavailable(message, reason="NodeNotReady", hint="`fairlead doctor`")
    return {"status": "ready"}


ROUTES = (
    show_status,
    list_gpus,
    show_topology,
    list_nodes,
    list_events,
    list_images,
    import_image,
    build_image,
    remove_image,
    inject_fault,
    healthz,
    readyz,
)
