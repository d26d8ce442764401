"""Serves tenancies: made, shown, tested, suspended and deleted. `control.tenancy` carries them out."""

from __future__ import annotations

import contextlib
from typing import Annotated, Final

import litestar
import msgspec
from litestar import params, response, status_codes

from fairlead import errors
from fairlead.plan.pod import podstate
from fairlead.plan.tenancy import baseline, export
from fairlead.plan.tenancy.matrix import Matrix
from fairlead.serve.api import etag, patience
from fairlead.serve.api import page as pages
from fairlead.serve.api.change import DryRun, Wait, would_be
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.closing import closing
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.quotas import routes as quotas
from fairlead.serve.v1.tenancies.view import (
    RegistryRequest,
    TenancyChange,
    TenancyList,
    TenancyRequest,
    TenancyView,
    view,
)
from fairlead.store import retry
from fairlead.store.port import ChangeKind, Selector
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.oci import registryauth

Name = Annotated[str, params.PathParameter(description="name of the tenancy")]
_STATES: Final = ("ready", "gone")


@litestar.post(
    "/v1/tenancies",
    summary="Make a tenancy",
    responses=documented(400, 403, 409, 422) | {200: would_be(TenancyView)},
    tags=["tenancy"],
)
async def create_tenancy(
    services: Dependencies, data: params.JSONBody[TenancyRequest], wait: Wait = None, dry_run: DryRun = False
) -> response.Response[TenancyView]:
    """Store a tenancy; with `wait` the answer comes when it is ready, which means isolated, and takes containers."""
    tenancies = require(services.backend.tenancies)
    network = kind.TenancyNetwork(
        mode=data.mode, internet=data.internet, dns=data.dns, publish=data.publish, egress=data.egress
    )
    item = Tenancy(
        metadata=meta.ObjectMeta(name=data.name, finalizers=(kind.FINALIZER,)),
        spec=kind.TenancySpec(
            display_name=data.display_name,
            quota=data.quota,
            network=network,
            images=data.images,
            host_users=data.host_users,
            isolation=data.isolation,
            storage=_storage(data),
        ),
    )
    baseline.check(item)
    tenancies.judge(item)
    if dry_run:
        return response.Response(await _judged(services, item), status_code=200)
    try:
        made = await services.store.create(item)
    except errors.Conflict as error:
        message = f'tenancy "{data.name}" is there already'
        there = await find_tenancy(services, data.name)
        hint = f"`fairlead tenancy show {data.name}`"
        if there.metadata.deletion_timestamp is not None:
            message, hint = f'tenancy "{data.name}" is still being deleted', "try again once it is gone"
        raise errors.Conflict(message, reason=error.reason, hint=hint) from error
    return response.Response(await _view(services, await _after(services, made, "ready", wait)))


def _storage(data: TenancyRequest) -> kind.TenancyStorage:
    """Return where volumes are to be. Raises: Invalid (`ExportInvalid`)."""
    if not data.nfs:
        if data.nfs_options:
            message = "nfs_options are given without nfs"
            raise errors.Invalid(message, reason="ExportInvalid", hint="nfs names the export, SERVER:/PATH")
        return kind.TenancyStorage()
    found = export.parse(data.nfs)
    return kind.TenancyStorage(nfs=msgspec.structs.replace(found, options=data.nfs_options))


async def _judged(services: Services, item: Tenancy) -> TenancyView:
    """Return a tenancy as it would be made. Raises: Conflict (`AlreadyExists`)."""
    try:
        await services.store.get(Tenancy, item.metadata.name)
    except errors.NotFound:
        return view(item, used={}, containers=0)
    message, hint = f'tenancy "{item.metadata.name}" is there already', f"`fairlead tenancy show {item.metadata.name}`"
    raise errors.Conflict(message, reason="AlreadyExists", hint=hint)


async def _after(services: Services, item: Tenancy, until: str, wait_s: float | None) -> Tenancy:
    """Return a tenancy that was just changed: as it is, or once it is ready or gone. Args: wait_s: None: not at all."""
    if wait_s is not None:
        etag.let_go()
        with contextlib.suppress(TimeoutError):
            async with patience.wait(wait_s):
                return await _followed(services, item, until)
        with contextlib.suppress(errors.NotFound):
            return await services.store.get(Tenancy, item.metadata.name)
    return item


@litestar.get(
    "/v1/tenancies", dependencies=pages.PAGE, summary="List tenancies", responses=documented(), tags=["tenancy"]
)
async def list_tenancies(services: Dependencies, page: pages.Paged) -> TenancyList:
    """Return tenancies in the order of their names."""
    require(services.backend.tenancies)
    found = (await services.store.list(Tenancy)).items
    items, following = page.cut(found, lambda one: (one.metadata.name,))
    return TenancyList(items=tuple([await _view(services, item) for item in items]), next=following)


@litestar.get("/v1/tenancies/{name:str}", summary="Show a tenancy", responses=documented(404), tags=["tenancy"])
async def show_tenancy(services: Dependencies, name: Name) -> TenancyView:
    """Return one tenancy as it stands."""
    require(services.backend.tenancies)
    return await _view(services, await find_tenancy(services, name))


@litestar.get(
    "/v1/tenancies/{name:str}/wait", summary="Wait for a tenancy", responses=documented(404, 422), tags=["tenancy"]
)
async def wait_tenancy(
    services: Dependencies,
    name: Name,
    until: Annotated[str, params.QueryParameter(name="state", description="ready or gone")] = "ready",
    timeout: Annotated[float, params.QueryParameter(ge=0, le=3600, description="seconds at most")] = 60,
) -> TenancyView:
    """Return the tenancy once it is ready or gone, or as it is when the time is over: compare `phase`."""
    require(services.backend.tenancies)
    if until not in _STATES:
        message = f'state "{until}" is not waited for'
        raise errors.Invalid(message, reason="StateInvalid", hint="one of ready, gone")
    item = await find_tenancy(services, name)
    with contextlib.suppress(TimeoutError):
        async with patience.wait(timeout):
            item = await _followed(services, item, until)
    return await _view(services, item)


async def _followed(services: Services, item: Tenancy, until: str) -> Tenancy:
    selector = Selector(fields={"metadata.name": item.metadata.name})
    async with closing(services.store.watch(Tenancy, selector)) as changes:
        async for change in changes:
            found = change.object
            if found.metadata.uid != item.metadata.uid:
                return item  # it is gone, and another has its name
            item = found
            if change.kind is ChangeKind.DELETED:
                return item
            if until == "ready" and found.metadata.deletion_timestamp is None and baseline.is_ready(found):
                return item
    return item


@litestar.patch(
    "/v1/tenancies/{name:str}",
    summary="Change a tenancy",
    responses=documented(400, 404, 409, 422),
    tags=["tenancy"],
)
async def change_tenancy(
    services: Dependencies, name: Name, data: params.JSONBody[TenancyChange], wait: Wait = None, dry_run: DryRun = False
) -> TenancyView:
    """Change its limits and its name for people; with `wait` the answer comes when the limits are in force.

    Containers that run go on, also where they are beyond the new limits; new ones are refused until they fit.
    """
    require(services.backend.tenancies)
    item = await find_tenancy(services, name)
    if item.metadata.deletion_timestamp is not None:
        message, hint = f'tenancy "{name}" is being deleted', "make another one once it is gone"
        raise errors.Conflict(message, reason="TenancyTerminating", hint=hint)
    changed = baseline.with_limits(item, data.quota, display_name=data.display_name)
    baseline.check(changed)
    if dry_run:
        return await _view(services, changed)
    stored = await retry.change(
        services.store,
        Tenancy,
        name,
        lambda fresh: baseline.with_limits(fresh, data.quota, display_name=data.display_name),
    )
    return await _view(services, await _after(services, stored, "ready", wait))


@litestar.post(
    "/v1/tenancies/{name:str}/:suspend",
    summary="Suspend a tenancy",
    responses=documented(404, 409),
    status_code=status_codes.HTTP_202_ACCEPTED,
    tags=["tenancy"],
)
async def suspend_tenancy(services: Dependencies, name: Name) -> TenancyView:
    """Stop its containers and accept no new ones; volumes and records stay. Idempotent."""
    return await _set_suspended(services, name, suspended=True)


@litestar.post(
    "/v1/tenancies/{name:str}/:resume",
    summary="Resume a tenancy",
    responses=documented(404, 409),
    status_code=status_codes.HTTP_202_ACCEPTED,
    tags=["tenancy"],
)
async def resume_tenancy(services: Dependencies, name: Name) -> TenancyView:
    """Accept containers again; those that were stopped are not started. Idempotent."""
    return await _set_suspended(services, name, suspended=False)


async def _set_suspended(services: Services, name: str, *, suspended: bool) -> TenancyView:
    require(services.backend.tenancies)
    await find_tenancy(services, name)
    changed = await retry.change(
        services.store, Tenancy, name, lambda item: baseline.with_suspended(item, suspended=suspended)
    )
    return await _view(services, changed)


@litestar.post(
    "/v1/tenancies/{name:str}/:test",
    summary="Try a tenancy's network",
    responses=documented(404),
    status_code=status_codes.HTTP_200_OK,
    tags=["tenancy"],
)
async def try_tenancy(
    services: Dependencies,
    name: Name,
    image: Annotated[
        str, params.QueryParameter(description="of the pods that do it, on a cluster; empty: Fairlead's own")
    ] = "",
) -> Matrix:
    """Send packets from inside its network, and into it, and return what was reached and what was not."""
    trial = require(services.backend.tenancies)
    item = await find_tenancy(services, name)
    return await trial.test(item, (await services.store.list(Tenancy)).items, image=image)


@litestar.put(
    "/v1/tenancies/{name:str}/registry",
    summary="Give a tenancy credentials for a registry",
    responses=documented(404, 422),
    tags=["tenancy"],
)
async def add_registry(services: Dependencies, name: Name, data: params.JSONBody[RegistryRequest]) -> TenancyView:
    """Keep a user name and password with which the tenancy's images are pulled, instead of those from before."""
    kept = require(services.backend.credentials)
    item = await find_tenancy(services, name)
    login = registryauth.Login(username=data.username, password=data.password)
    return await _with_registries(services, item, await kept.add(item, data.registry, login))


@litestar.delete(
    "/v1/tenancies/{name:str}/registry",
    summary="Take a tenancy's credentials for a registry back",
    responses=documented(404),
    status_code=status_codes.HTTP_200_OK,
    tags=["tenancy"],
)
async def drop_registry(
    services: Dependencies,
    name: Name,
    registry: Annotated[str, params.QueryParameter(description="as it was given")],
) -> TenancyView:
    """Forget them; images that they pulled stay the tenancy's. Idempotent."""
    kept = require(services.backend.credentials)
    item = await find_tenancy(services, name)
    return await _with_registries(services, item, await kept.drop(item, registry))


async def _with_registries(services: Services, item: Tenancy, registries: tuple[str, ...]) -> TenancyView:
    name = item.metadata.name
    changed = await retry.change(
        services.store, Tenancy, name, lambda fresh: baseline.with_registries(fresh, registries)
    )
    return await _view(services, changed)


@litestar.delete(
    "/v1/tenancies/{name:str}",
    summary="Delete a tenancy",
    responses=documented(404),
    status_code=status_codes.HTTP_202_ACCEPTED,
    tags=["tenancy"],
)
async def delete_tenancy(services: Dependencies, name: Name, wait: Wait = None) -> TenancyView:
    """End its containers, its volumes and its network; with `wait` the answer comes when it is over."""
    require(services.backend.tenancies)
    item = await find_tenancy(services, name)
    await services.store.delete(Tenancy, name, uid=item.metadata.uid)
    with contextlib.suppress(errors.NotFound):
        item = await _after(services, await services.store.get(Tenancy, name), "gone", wait)
    return await _view(services, item)


ROUTES: Final = (
    create_tenancy,
    list_tenancies,
    show_tenancy,
    wait_tenancy,
    change_tenancy,
    suspend_tenancy,
    resume_tenancy,
    try_tenancy,
    add_registry,
    drop_registry,
    delete_tenancy,
)


async def find_tenancy(services: Services, name: str) -> Tenancy:
    """Return a tenancy. Raises: NotFound (`TenancyUnknown`): there is none, or none that may be seen."""
    try:
        found = await services.store.get(Tenancy, name)
    except errors.NotFound as error:
        raise baseline.unknown(name) from error
    services.noted(baseline.namespace_name(found))
    return found


async def _view(services: Services, item: Tenancy) -> TenancyView:
    namespace = baseline.namespace_name(item)
    used = {}
    with contextlib.suppress(errors.NotFound):
        found = await services.store.get(core.ResourceQuota, baseline.QUOTA, namespace)
        used = dict((await quotas.view(services.store, found)).used)
    pods = (await services.store.list(core.Pod, Selector(namespace=namespace))).items
    return view(item, used=used, containers=sum(not podstate.is_final(pod) for pod in pods))
