"""Serves the routes of queues: what teams are due, on this machine or on a cluster."""

from __future__ import annotations

from typing import Annotated, Any, Final

import litestar
import msgspec
from litestar import params, status_codes

from fairlead import errors
from fairlead.plan.idle import policy
from fairlead.plan.schedule.fairshare import tree
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.queues.view import IdleRequest, QueueList, QueueRequest, QueueView, view
from fairlead.settings.idling import ACTIONS
from fairlead.store import retry
from fairlead.store.port import Store
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.scheduling import queue

_EXEMPT, _NAME = 100, 200
"""Names that a queue exempts, and characters of one."""
Name = Annotated[str, params.PathParameter(description="name of the queue")]


@litestar.put("/v1/queues/{name:str}", summary="Set a queue", responses=documented(400, 404, 409, 422), tags=["queue"])
async def set_queue(
    services: Dependencies,
    name: Name,
    data: params.JSONBody[QueueRequest],
    create: Annotated[bool, params.QueryParameter(description="only make a new one")] = False,
) -> QueueView:
    """Make a queue, or change the fields that are given. What runs already is left alone."""
    _check_idle(data, is_machine=bool(services.info.node))
    if create:
        item = queue.Queue(metadata=meta.ObjectMeta(name=name), spec=_changed(queue.QueueSpec(), data))
        await _check(services.store, item)
        try:
            return view(await services.store.create(item))
        except errors.Conflict as error:
            message, hint = f'queue "{name}" is there already', f"`fairlead queue set {name}` changes it"
            raise errors.Conflict(message, reason=error.reason, hint=hint) from error
    found = await _find(services.store, name)
    await _check(services.store, msgspec.structs.replace(found, spec=_changed(found.spec, data)))

    def changed(fresh: queue.Queue) -> queue.Queue:
        return msgspec.structs.replace(fresh, spec=_changed(fresh.spec, data))

    return view(await retry.change(services.store, queue.Queue, name, changed))


@litestar.get("/v1/queues", dependencies=pages.PAGE, summary="List queues", responses=documented(), tags=["queue"])
async def list_queues(services: Dependencies, page: pages.Paged) -> QueueList:
    """Return queues in the order of their names, those below others after them."""
    found = {item.metadata.name: item for item in (await services.store.list(queue.Queue)).items}
    order = sorted(found, key=lambda name: _path(found, name))
    names, following = page.cut(order, lambda name: _path(found, name))
    return QueueList(items=tuple(view(found[name]) for name in names), next=following)


@litestar.get("/v1/queues/{name:str}", summary="Show a queue", responses=documented(404), tags=["queue"])
async def show_queue(services: Dependencies, name: Name) -> QueueView:
    """Return one queue."""
    return view(await _find(services.store, name))


@litestar.delete(
    "/v1/queues/{name:str}",
    summary="Remove a queue",
    responses=documented(404, 409),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["queue"],
)
async def delete_queue(services: Dependencies, name: Name) -> None:
    """Remove a queue; its pods go on in the default one. One that has queues below it stays."""
    await _find(services.store, name)
    below = [item.metadata.name for item in (await services.store.list(queue.Queue)).items if item.spec.parent == name]
    if below:
        message = f'queue "{name}" has queues below it: {", ".join(below)}'
        raise errors.Conflict(message, reason="QueueInUse", hint="remove those first, or set their parent")
    await services.store.delete(queue.Queue, name)


ROUTES: Final = (set_queue, list_queues, show_queue, delete_queue)


async def _find(store: Store, name: str) -> queue.Queue:
    try:
        return await store.get(queue.Queue, name)
    except errors.NotFound as error:
        message, hint = f'there is no queue "{name}"', "`fairlead queue ls` lists them; `queue create` makes one"
        raise errors.NotFound(message, reason="QueueUnknown", hint=hint) from error


async def _check(store: Store, item: queue.Queue) -> None:
    """Refuse what would not be carried out as written. Raises: Invalid."""
    others = [one for one in (await store.list(queue.Queue)).items if one.metadata.name != item.metadata.name]
    specs = [tree.spec_of(item)]
    for one in others:
        try:
            specs.append(tree.spec_of(one))
        except errors.Invalid:
            continue  # that one says so itself
    if problem := tree.Tree(specs).problems.get(item.metadata.name):
        message = f'queue "{item.metadata.name}": {problem}'
        raise errors.Invalid(message, reason="QueueInvalid", hint="`fairlead queue ls` shows the others")
    for resource in {**item.spec.guarantee, **item.spec.deserved, **item.spec.limit}:
        if "/" not in resource and resource not in {"cpu", "memory", "ephemeral-storage"}:
            message = f'queue "{item.metadata.name}": "{resource}" is not a resource that is shared'
            raise errors.Invalid(message, reason="QueueInvalid", hint="cpu, memory, or a device as nvidia.com/gpu")


def _check_idle(data: QueueRequest, *, is_machine: bool) -> None:
    """Refuse a policy for idle GPUs that would not be carried out. Raises: Invalid (`IdlePolicyInvalid`)."""
    if (idle := data.idle) is None:
        return
    if not is_machine:
        message = "idle: nothing watches idle GPUs on a cluster, only on one machine"
        raise errors.Invalid(message, reason="IdlePolicyInvalid", hint="leave it out")
    if idle.action is not None and idle.action not in {"", *ACTIONS}:
        message = f'idle.action: "{errors.readable(idle.action[:40])}" is none'
        raise errors.Invalid(message, reason="IdlePolicyInvalid", hint=f"one of {', '.join(ACTIONS)}")
    if idle.after_seconds is not None and 0 < idle.after_seconds < policy.LEAST_S:
        message = f"idle.after_seconds: {idle.after_seconds} is too short to be measured"
        raise errors.Invalid(message, reason="IdlePolicyInvalid", hint=f"{policy.LEAST_S:g} or more")
    if idle.exempt is not None and (len(idle.exempt) > _EXEMPT or any(len(one) > _NAME for one in idle.exempt)):
        message = f"idle.exempt: at most {_EXEMPT} names of {_NAME} characters"
        raise errors.Invalid(message, reason="IdlePolicyInvalid", hint="exempt a namespace as a whole")


def _changed(spec: queue.QueueSpec, data: QueueRequest) -> queue.QueueSpec:
    given = _given(data)
    if data.idle is not None:
        given["idle"] = msgspec.structs.replace(spec.idle or queue.IdleSpec(), **_given(data.idle))
    return msgspec.structs.replace(spec, **given)


def _given(data: QueueRequest | IdleRequest) -> dict[str, Any]:
    return {name: value for name in data.__struct_fields__ if (value := getattr(data, name)) is not None}


def _path(found: dict[str, queue.Queue], name: str) -> tuple[str, ...]:
    """Return the names from the top to a queue; a circle is cut."""
    path = [name]
    while (parent := found[path[0]].spec.parent) in found and parent not in path:
        path.insert(0, parent)
    return tuple(path)
