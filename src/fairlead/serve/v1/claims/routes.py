"""Serves the routes of claims of devices; they are made by manifests and with containers."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.plan.claim.life import lifecycle
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.claims import allocation, view
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

Name = Annotated[str, params.PathParameter(description="name of the claim")]
Namespace = Annotated[str, params.QueryParameter(description="namespace of the claim")]
Where = Annotated[str | None, params.QueryParameter(description="empty: all namespaces")]


@litestar.get(
    "/v1/claims", dependencies=pages.PAGE, summary="List claims of devices", responses=documented(404), tags=["claim"]
)
async def list_claims(
    services: Dependencies,
    page: pages.Paged,
    namespace: Where = None,
    gpu: Annotated[
        str | None, params.QueryParameter(description="UUID: only claims with a device of this GPU, and their devices")
    ] = None,
) -> view.ClaimList:
    """Return claims in the order of namespace and name, with what each holds and why it waits."""
    where = Selector(namespace=namespace)
    found, pods = await services.store.list(ResourceClaim, where), defaultdict[str, list[core.Pod]](list)
    for pod in (await services.store.list(core.Pod, where)).items if found.items else ():
        if lifecycle.has_claims(pod):
            pods[pod.metadata.namespace].append(pod)
    slices = None if gpu is None else await _slices(services, found.items)
    wanted = found.items if gpu is None else [one for one in found.items if _has(one, slices or (), gpu)]
    items, following = page.cut(wanted, lambda one: (one.metadata.namespace, one.metadata.name))
    shown = (view.claim_view(claim, pods[claim.metadata.namespace], slices) for claim in items)
    return view.ClaimList(items=tuple(shown), next=following)


@litestar.get("/v1/claims/{name:str}", summary="Show a claim of devices", responses=documented(404), tags=["claim"])
async def show_claim(services: Dependencies, name: Name, namespace: Namespace = "default") -> view.ClaimView:
    """Return one claim, with its devices: where they are, how they are shared, and what enforces that."""
    try:
        claim = await services.store.get(ResourceClaim, name, namespace)
    except errors.NotFound as error:
        raise _not_found(name, namespace) from error
    pods = await services.store.list(core.Pod, Selector(namespace=claim.metadata.namespace))
    return view.claim_view(claim, pods.items, await _slices(services, [claim]))


@litestar.delete(
    "/v1/claims/{name:str}",
    summary="Remove a claim of devices",
    responses=documented(400, 403, 404),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["claim"],
)
async def delete_claim(services: Dependencies, name: Name, namespace: Namespace = "default") -> None:
    """Remove it, or have it go with the last container that uses it."""
    place = services.backend.places.new(namespace)
    try:
        await require(services.backend.claims).remove(name, place)
    except errors.NotFound as error:
        raise _not_found(name, namespace) from error


def _has(claim: ResourceClaim, slices: Iterable[ResourceSlice], gpu: str) -> bool:
    return any(one.gpu == gpu for one in allocation.allocated(claim, slices))


async def _slices(services: Services, claims: Iterable[ResourceClaim]) -> Sequence[ResourceSlice]:
    """Return the slices that the devices of claims may stand in; none where they may not be read, or are not kept.

    Slices belong to no tenancy; only a claim's own devices are read of them.
    """
    if all(claim.status.allocation is None for claim in claims):
        return ()
    with contextlib.suppress(errors.Denied, errors.NotFound):
        return (await services.census.list(ResourceSlice)).items
    return ()


def _not_found(name: str, namespace: str) -> errors.NotFound:
    message = f'no claim "{name}" in namespace "{namespace}"'.replace("\0", "\\0")
    return errors.NotFound(message, reason="ClaimNotFound", hint="GET /v1/claims lists those that you may see")


ROUTES: Final = (list_claims, show_claim, delete_claim)
