"""Serves the routes of named volumes: Kubernetes' PersistentVolumeClaims, by namespace."""

from __future__ import annotations

from typing import Annotated, Final

import litestar
from litestar import params, status_codes

from fairlead.plan.pod import volume
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.volumes import view
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core

Name = Annotated[str, params.PathParameter(description="name of the volume")]
Namespace = Annotated[str, params.QueryParameter(description="namespace of the volume")]
Where = Annotated[str | None, params.QueryParameter(description="empty: all namespaces")]


@litestar.get(
    "/v1/volumes", dependencies=pages.PAGE, summary="List named volumes", responses=documented(404), tags=["volume"]
)
async def list_volumes(services: Dependencies, page: pages.Paged, namespace: Where = None) -> view.VolumeList:
    """Return volumes in the order of namespace and name."""
    found = await services.store.list(core.PersistentVolumeClaim, Selector(namespace=namespace))
    items, following = page.cut(found.items, lambda one: (one.metadata.namespace, one.metadata.name))
    return view.VolumeList(items=tuple([await _view(services, claim) for claim in items]), next=following)


@litestar.get("/v1/volumes/{name:str}", summary="Show a named volume", responses=documented(404), tags=["volume"])
async def show_volume(services: Dependencies, name: Name, namespace: Namespace = "default") -> view.VolumeView:
    """Return one volume and the containers that mount it."""
    return await _view(services, await services.backend.volumes.find(name, namespace))


@litestar.post(
    "/v1/volumes", summary="Make a named volume", responses=documented(400, 403, 404, 409, 422), tags=["volume"]
)
async def create_volume(services: Dependencies, data: params.JSONBody[view.VolumeRequest]) -> view.VolumeView:
    """Make one; a volume of that name is returned as it is."""
    place = services.backend.places.new(data.namespace or "default")
    made = await services.backend.volumes.create(data.name, place, labels=data.labels, size=str(data.size))
    return await _view(services, made)


@litestar.delete(
    "/v1/volumes/{name:str}",
    summary="Remove a named volume with its files",
    responses=documented(403, 404, 409),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["volume"],
)
async def delete_volume(services: Dependencies, name: Name, namespace: Namespace = "default") -> None:
    """Remove it, unless a container mounts it, an ended one too."""
    await services.backend.volumes.remove(name, namespace)


@litestar.post(
    "/v1/volumes:prune",
    summary="Remove named volumes that no container mounts",
    responses=documented(403, 404),
    status_code=status_codes.HTTP_200_OK,
    tags=["volume"],
)
async def prune_volumes(services: Dependencies, namespace: Where = None) -> view.PrunedVolumes:
    """Remove the volumes made here that no container mounts, and return their names."""
    return view.PrunedVolumes(names=await services.backend.volumes.prune(namespace))


async def _view(services: Services, claim: core.PersistentVolumeClaim) -> view.VolumeView:
    pods = await services.store.list(core.Pod, Selector(namespace=claim.metadata.namespace))
    return view.volume_view(
        claim,
        used_by=volume.users(pods.items).get(claim.metadata.name, ()),
        path="" if services.part is not None else services.backend.volumes.path(claim),
    )


ROUTES: Final = (list_volumes, show_volume, create_volume, delete_volume, prune_volumes)
