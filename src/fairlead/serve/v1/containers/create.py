"""Routes that make containers: of a request, of a manifest; each once for an `Idempotency-Key`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

import litestar
import msgspec
from litestar import params, response

from fairlead import errors, telemetry
from fairlead.plan.pod import admission, priority, volume
from fairlead.plan.tenancy import baseline
from fairlead.serve.api.change import DryRun, Wait, would_be
from fairlead.serve.api.failure import documented
from fairlead.serve.backend import idempotency
from fairlead.serve.backend.containers.pods import find_pod
from fairlead.serve.backend.port import find, require
from fairlead.serve.v1.budgets import routes as budgets
from fairlead.serve.v1.containers import pods, refusal, submission, view, waits
from fairlead.serve.v1.containers.parameters import IdempotencyKey
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.store.port import Selector
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, manifest, meta
from fairlead.wire.kubernetes.coordination import PriorityClass

_MANAGER: Final = "fairlead-api"
_MOST: Final = 500
"""Objects of one manifest: each is stored on its own, and quotas are counted each time."""
_OK: Final = 200
_REPLAYED: Final = "Idempotency-Replayed"
"""Header of an answer that was given before."""


Store = Callable[[idempotency.Once | None], Awaitable[core.Pod]]


def _answer(pod: core.Pod) -> str:
    return msgspec.json.encode(view.container_view(pod)).decode()


@litestar.post(
    "/v1/containers",
    summary="Run a container",
    responses=documented(400, 403, 404, 409, 422) | {_OK: would_be(ContainerView)},
    tags=["container"],
)
async def create_container(
    services: Dependencies,
    data: params.JSONBody[submission.ContainerRequest],
    body: params.RawBody,
    key: IdempotencyKey = "",
    wait: Wait = None,
    dry_run: DryRun = False,
) -> response.Response[ContainerView]:
    """Store a pod made from the request; a node's kubelet starts it once a scheduler has placed it.

    With `wait` the answer comes when it has started, or will not. With `dry_run` it says why it would wait.
    """
    with refusal.spoken():
        return await _create(services, data, body, key, wait_s=wait, is_dry=dry_run)


async def _create(
    services: Dependencies,
    data: submission.ContainerRequest,
    body: bytes,
    key: str,
    *,
    wait_s: float | None,
    is_dry: bool,
) -> response.Response[ContainerView]:
    placed = await _with_keys(services, await _placed(services, data))
    info, namespace = services.info, submission.namespace_of(placed)
    services.noted(namespace)
    pod = submission.pod_of(placed, resource=info.resource, scheduler_name=info.scheduler_name)

    if is_dry:
        await budgets.check(services, namespace)
        lifecycle, claims = services.backend.lifecycle, [named.name for named in placed.volumes]
        judged = await lifecycle.judge([pod], makes_namespace=bool(placed.tenancy), claims=claims)
        return response.Response((await _foreseen(services, judged))[0], status_code=_OK)

    async def store(once: idempotency.Once | None) -> core.Pod:
        await budgets.check(services, namespace)
        if claims := [named.name for named in placed.volumes]:
            # Volumes outlive a refusal: none is made for a pod that would be refused.
            await services.backend.lifecycle.judge([pod], makes_namespace=bool(placed.tenancy), claims=claims)
        for named in placed.volumes:
            await services.backend.volumes.create(
                named.name, namespace, labels={}, size="", is_tenants=bool(placed.tenancy)
            )
        telemetry.crash_point("submission.after-volumes")
        return await services.backend.lifecycle.submit(pod, makes_namespace=bool(placed.tenancy), once=once)

    once = idempotency.once(services.caller, key, body, answer=_answer)
    with services.backend.requests.under_way(once) if once else contextlib.nullcontext():
        made, is_replayed = await _once(services, once, namespace, store)
    made = await _started(services, made, wait_s)
    return response.Response(made, headers={_REPLAYED: "true"} if is_replayed else {})


async def _foreseen(services: Dependencies, judged: Sequence[core.Pod]) -> list[ContainerView]:
    """Return the views of pods that are not stored, with why each would wait if it were the only one."""
    numbered = (msgspec.structs.replace(pod.metadata, uid=str(number)) for number, pod in enumerate(judged))
    each = [msgspec.structs.replace(pod, metadata=about) for pod, about in zip(judged, numbered, strict=True)]
    why = await waits.waiting(services, each)
    shown = (msgspec.structs.replace(pod.metadata, uid="", resource_version="") for pod in judged)
    views = (
        view.container_view(msgspec.structs.replace(pod, metadata=about))
        for pod, about in zip(judged, shown, strict=True)
    )
    return [msgspec.structs.replace(one, waiting=why.get(str(number))) for number, one in enumerate(views)]


async def _started(services: Dependencies, made: ContainerView, wait_s: float | None) -> ContainerView:
    """Return a container that was made once it has started, or as it is when the time is over."""
    if wait_s is None:
        return made
    try:
        pod = await find_pod(services.store, made.name, made.namespace)
    except errors.NotFound:
        return view.gone(made)
    if pod.metadata.uid != made.uid:
        return view.gone(made)
    return await pods.wait_for(services.store, pod, state="started", timeout_s=wait_s)


async def _once(
    services: Dependencies, once: idempotency.Once | None, namespace: str, store: Store
) -> tuple[ContainerView, bool]:
    """Return the view of a pod that is stored now, or of the one that the request made before, and which it is."""
    if once is None:
        return view.container_view(await store(None)), False
    if (before := await services.backend.requests.find(once, namespace)) is not None:
        return msgspec.json.decode(before, type=ContainerView), True
    try:
        return view.container_view(await store(once)), False
    except errors.Conflict:
        # Another process of the service, or the API server, was first with the same request.
        if (before := await services.backend.requests.find(once, namespace)) is None:
            raise
        return msgspec.json.decode(before, type=ContainerView), True


async def _placed(services: Dependencies, data: submission.ContainerRequest) -> submission.ContainerRequest:
    """Return the request with the namespace of its tenancy. Where tenancies are not kept, it names a namespace.

    Raises: NotFound (`TenancyUnknown`): nothing of that name is isolated.
    """
    if not data.tenancy or find(services.backend.tenancies) is None:
        return data
    try:
        found = await services.store.get(Tenancy, data.tenancy)
    except errors.NotFound as error:
        raise baseline.unknown(data.tenancy) from error
    return msgspec.structs.replace(data, tenancy="", namespace=baseline.namespace_name(found))


async def _with_keys(services: Dependencies, data: submission.ContainerRequest) -> submission.ContainerRequest:
    """Return the request with the key of each secret that names none.

    Raises: Invalid (`SecretNotFound`, `SecretKeyUnknown`): a container would wait for it; a manifest's does.
    """
    found = []
    for one in data.secrets:
        try:
            keys = (await services.backend.secrets.find(one.name, submission.namespace_of(data))).note.digests
        except errors.NotFound as error:
            raise errors.Invalid(error.message, reason=error.reason, hint=error.hint) from error
        key = one.key or (next(iter(keys)) if len(keys) == 1 else "")
        if key not in keys:
            which = f'has no key "{errors.readable(key)}"' if key else "has several keys"
            message = f'secret "{one.name}" {which} (it has {", ".join(keys)})'
            raise errors.Invalid(message, reason="SecretKeyUnknown", hint=f"name one: `--secret {one.name}/KEY`")
        found.append(msgspec.structs.replace(one, key=key))
    return msgspec.structs.replace(data, secrets=tuple(found)) if found else data


@litestar.post(
    "/v1/pods",
    summary="Run a manifest",
    responses=documented(400, 403, 409, 422) | {_OK: would_be(view.ContainerList)},
    tags=["container"],
)
async def create_pods(
    services: Dependencies,
    body: params.RawBody,
    namespace: Annotated[str, params.QueryParameter(description="of the Pods that name none; empty: default")] = "",
    key: IdempotencyKey = "",
    wait: Wait = None,
    dry_run: DryRun = False,
) -> response.Response[view.ContainerList]:
    """Store the Pods of a Kubernetes manifest, YAML (one or more documents) or JSON, in their order: 500 at most.

    To the limits of a key each object is a request. PersistentVolumeClaims and PriorityClasses in it are made first; a
    claim that is there stays as it is. With `dry_run` each Pod is checked as if it were the only one; a PriorityClass
    has to be there already.
    """
    lifecycle = require(services.backend.manifests)
    name = services.info.scheduler_name
    wanted = manifest.parse(body, kinds=(core.Pod, core.PersistentVolumeClaim, PriorityClass))
    if len(wanted) > _MOST:
        message = f"the manifest holds {len(wanted)} objects, at most {_MOST} are taken at once; nothing was made"
        raise errors.Invalid(message, reason="ManifestTooLong", hint="send it in parts")
    for found in wanted:
        admission.refuse_own_names(found.item)
    services.owe(len(wanted) - 1)
    warnings = lifecycle.leave_out(manifest.check_carried_out(wanted))
    placed = [
        (submission.from_manifest(found.item, name, namespace=namespace), found.document)
        for found in wanted
        if isinstance(found.item, core.Pod)
    ]
    if dry_run:
        for one in wanted:
            await _judge_beside(services, one.item, namespace or "default")
        claims = [one.item.metadata.name for one in wanted if isinstance(one.item, core.PersistentVolumeClaim)]
        for where in dict.fromkeys(pod.metadata.namespace for pod, _ in placed):
            await budgets.check(services, where)
        pods_of, documents = [pod for pod, _ in placed], [document for _, document in placed]
        judged = await lifecycle.judge(pods_of, written=documents, claims=claims)
        items = tuple(await _foreseen(services, judged))
        return response.Response(view.ContainerList(items=items, warnings=warnings), status_code=_OK)
    whole = idempotency.once(services.caller, key, namespace.encode() + b"\0" + body, answer=_answer)
    made = []
    with services.backend.requests.under_way(whole) if whole else contextlib.nullcontext():
        for found in wanted:
            await _make_beside(services, found.item, namespace or "default")
        for number, (pod, document) in enumerate(placed):

            async def store(once: idempotency.Once | None, pod: core.Pod = pod, document: Any = document) -> core.Pod:
                await budgets.check(services, pod.metadata.namespace)
                return await lifecycle.submit(pod, written=document, once=once)

            part = whole.part(number) if whole else None
            made.append(await _once(services, part, pod.metadata.namespace, store))
    started = await asyncio.gather(*(_started(services, one, wait) for one, _ in made))
    listed = view.ContainerList(items=tuple(started), warnings=warnings)
    is_replayed = bool(made) and all(before for _, before in made)
    return response.Response(listed, headers={_REPLAYED: "true"} if is_replayed else {})


async def _make_beside(services: Dependencies, item: meta.Object, namespace: str) -> None:
    """Make what a manifest has beside its Pods."""
    if isinstance(item, core.PersistentVolumeClaim):
        about = item.metadata
        await services.backend.volumes.create(about.name, about.namespace or namespace, labels=about.labels, size="")
    elif isinstance(item, PriorityClass):
        priority.check(item)
        await services.store.apply(item, manager=_MANAGER)


async def _judge_beside(services: Dependencies, item: meta.Object, namespace: str) -> None:
    """Refuse what a manifest has beside its Pods as `_make_beside` would, where that may not be made by the asker."""
    if isinstance(item, core.PersistentVolumeClaim):
        volume.check_name(item.metadata.name)
        where = item.metadata.namespace or namespace
        await services.store.list(core.PersistentVolumeClaim, Selector(namespace=where))
    elif isinstance(item, PriorityClass):
        priority.check(item)
        services.refuse_writing(PriorityClass)


ROUTES = (create_container, create_pods)
