"""Serves the routes of images."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final

import litestar
from litestar import openapi, params, response, status_codes

from fairlead import errors
from fairlead.engine.port import ImageStore, Recipe
from fairlead.serve.api import page as pages
from fairlead.serve.api import stream
from fairlead.serve.api.failure import documented
from fairlead.serve.backend import hardware
from fairlead.serve.backend.port import ImageBuilding, require
from fairlead.serve.closing import closing
from fairlead.serve.v1.containers.access import carry
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.images import view as imageview
from fairlead.store.subresource import Session

_LINES: Final = openapi.ResponseSpec(
    str, generate_examples=False, description="one JSON value a line", media_type=stream.LINES
)


@litestar.get("/v1/images", dependencies=pages.PAGE, summary="List images", responses=documented(503), tags=["image"])
async def list_images(services: Dependencies, page: pages.Paged) -> hardware.ImageList:
    """Return the images containers can be run from without a pull."""
    items, following = page.cut(await services.backend.images.list_images(), lambda one: (one.id, *one.names[:1]))
    return hardware.ImageList(items=items, next=following)


@litestar.post(
    "/v1/images:import", summary="Import a root file system", responses=documented(400, 422, 503), tags=["image"]
)
async def import_image(services: Dependencies, data: params.JSONBody[imageview.ImportRequest]) -> hardware.ImageView:
    """Make an image of a folder or a tar."""
    building = require(services.backend.image_building)
    return await building.import_root(_path(data.path), data.name, command=data.command)


@litestar.post(
    "/v1/images:build",
    summary="Build an image",
    responses=documented(400, 422, 503) | {200: _LINES},
    status_code=status_codes.HTTP_200_OK,
    tags=["image"],
)
async def build_image(services: Dependencies, data: params.JSONBody[imageview.BuildRequest]) -> response.Stream:
    """Build from a Containerfile; lines are `{"output": …}`, the last `{"image": NAME}` or `{"problem": …}`."""
    file = _path(data.containerfile) if data.containerfile else None
    recipe = Recipe(containerfile=file, args=data.args, target=data.target)
    building = require(services.backend.image_building)
    lines = _build(building, _path(data.context), data.name, recipe)
    return response.Stream(stream.as_lines(lines), media_type=stream.LINES)


async def _build(building: ImageBuilding, context: Path, name: str, recipe: Recipe) -> AsyncIterator[dict[str, str]]:
    async with closing(building.build(context, name, recipe)) as chunks:
        async for chunk in chunks:
            yield {"output": chunk.decode(errors="replace")}
    yield {"image": name}


@litestar.delete("/v1/images", summary="Remove an image's name", responses=documented(400, 503), tags=["image"])
async def remove_image(services: Dependencies, name: params.FromQuery[str]) -> None:
    """Remove a name; one that is unknown is not an error."""
    await require(services.backend.image_building).remove_image(name)


@litestar.post(
    "/v1/images:pull",
    summary="Pull an image",
    responses=documented(400, 404, 422, 503) | {200: _LINES},
    status_code=status_codes.HTTP_200_OK,
    tags=["image"],
)
async def pull_image(services: Dependencies, data: params.JSONBody[imageview.PullRequest]) -> response.Stream:
    """Fetch it; lines are `{"output": …}`, the last `{"image": NAME}` or `{"problem": …}`."""
    kept = require(services.backend.image_building).kept
    return response.Stream(stream.as_lines(_pull(kept, data.name)), media_type=stream.LINES)


async def _pull(kept: ImageStore, name: str) -> AsyncIterator[dict[str, str]]:
    async with closing(kept.pull_lines(name)) as chunks:
        async for chunk in chunks:
            yield {"output": chunk.decode(errors="replace")}
    yield {"image": name}


@litestar.post("/v1/images:tag", summary="Name an image", responses=documented(400, 404, 422, 503), tags=["image"])
async def tag_image(services: Dependencies, data: params.JSONBody[imageview.TagRequest]) -> imageview.TagRequest:
    """Give an image one more name."""
    await require(services.backend.image_building).kept.tag(data.name, data.new)
    return data


@litestar.post(
    "/v1/images:prune",
    summary="Remove images that nothing needs",
    responses=documented(400, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["image"],
)
async def prune_images(
    services: Dependencies,
    every: Annotated[
        bool, params.QueryParameter(name="all", description="also those with a name that no container is made from")
    ] = False,
) -> imageview.PrunedImages:
    """Remove images without a name, and return the ids of those removed."""
    removed = await require(services.backend.image_building).kept.prune_images(every=every)
    return imageview.PrunedImages(ids=removed)


@litestar.websocket("/v1/images/archive")
async def carry_archive(
    socket: carry.Socket,
    services: Dependencies,
    name: Annotated[list[str] | None, params.QueryParameter(description="images to write; none: one is read")] = None,
) -> None:
    """Carry an archive of images in the frames of `cp`: with names it exports, without it imports."""

    async def opened() -> Session:
        kept = require(services.backend.image_building).kept
        return await (kept.save(tuple(name)) if name else kept.load())

    await carry.carry(socket, opened, is_split=True)


def _path(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        message = f'path "{text}" is not absolute'
        raise errors.Invalid(message, reason="PathNotAbsolute", hint="the service does not know your working folder")
    return path


ROUTES = (
    list_images,
    import_image,
    build_image,
    remove_image,
    pull_image,
    tag_image,
    prune_images,
    carry_archive,
)
