"""Routes that make containers: of a request, of a manifest; each once for an `Idempotency-Key`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

import litestar
import msgspec
from litestar import params, response

from fairlead import errors
from fairlead.serve.admission import container, manifest
from fairlead.serve.admission.request import ContainerRequest
from fairlead.serve.api.change import DryRun, Wait, would_be
from fairlead.serve.api.failure import documented
from fairlead.serve.backend import idempotency
from fairlead.serve.backend.containers.pods import find_pod
from fairlead.serve.v1.containers import pods, refusal, view, waits
from fairlead.serve.v1.containers.parameters import IdempotencyKey
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.wire.kubernetes import core

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
    data: params.JSONBody[ContainerRequest],
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
    data: ContainerRequest,
    body: bytes,
    key: str,
    *,
    wait_s: float | None,
    is_dry: bool,
) -> response.Response[ContainerView]:
    context = services.admission
    asked = await container.complete(context, data)
    services.noted(asked.namespace)

    if is_dry:
        judged = await container.judge(context, asked)
        return response.Response((await _foreseen(services, [judged]))[0], status_code=_OK)

    once = idempotency.once(services.caller, key, body, answer=_answer)
    with services.backend.requests.under_way(once) if once else contextlib.nullcontext():
        made, is_replayed = await _once(
            services, once, asked.namespace, functools.partial(container.store, context, asked)
        )
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

    To the limits of a key each object is a request. PersistentVolumeClaims, PriorityClasses, and ResourceClaims with
    what they refer to are made first; a claim that is there stays as it is. With `dry_run` each Pod is checked as if
    it were the only one; a PriorityClass has to be there already.
    """
    context = services.admission
    wanted = manifest.parse(context, body)
    services.owe(len(wanted) - 1)
    asked = manifest.complete(context, wanted, namespace=namespace)
    if dry_run:
        judged, left_out = await manifest.judge(context, asked)
        warnings = (*asked.warnings, *left_out)
        listed = view.ContainerList(items=tuple(await _foreseen(services, judged)), warnings=warnings)
        return response.Response(listed, status_code=_OK)
    whole = idempotency.once(services.caller, key, namespace.encode() + b"\0" + body, answer=_answer)
    made = []
    with services.backend.requests.under_way(whole) if whole else contextlib.nullcontext():
        left_out = await manifest.make_beside(context, asked)
        for number, (pod, document) in enumerate(asked.pods):
            part = whole.part(number) if whole else None
            store = functools.partial(manifest.store, context, pod, document)
            made.append(await _once(services, part, pod.metadata.namespace, store))
    started = await asyncio.gather(*(_started(services, one, wait) for one, _ in made))
    listed = view.ContainerList(items=tuple(started), warnings=(*asked.warnings, *left_out))
    is_replayed = bool(made) and all(before for _, before in made)
    return response.Response(listed, headers={_REPLAYED: "true"} if is_replayed else {})


ROUTES = (create_container, create_pods)
