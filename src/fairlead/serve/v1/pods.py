"""Pods behind the API's containers: finding, submitting, waiting for, stopping and deleting them in the store.

Nothing here starts or stops a process: the node's kubelet does, when it sees the object change.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec

from fairlead import errors
from fairlead.model.step import TraceStep
from fairlead.plan.pod import admission, quota
from fairlead.serve.api import stream
from fairlead.serve.v1 import view
from fairlead.serve.v1.view import ContainerView
from fairlead.store import tracerecorder
from fairlead.store.port import Change, ChangeKind, Selector, Store
from fairlead.wire.kubernetes import core, meta, names

_ATTEMPTS: Final = 8
_REACHED: Final = {"started": view.STARTED, "ended": view.ENDED, "gone": frozenset({"gone"})}
WAIT_STATES: Final = tuple(_REACHED)


async def find_pod(store: Store, name: str, namespace: str) -> core.Pod:
    """Return the pod of that name. Raises: NotFound (`ContainerNotFound`)."""
    try:
        return await store.get(core.Pod, name, namespace)
    except errors.NotFound as error:
        raise view.not_found(name, namespace) from error


async def submit(store: Store, pod: core.Pod, *, admission_lock: asyncio.Lock) -> core.Pod:
    """Admit a pod, store it and record that it was accepted.

    Args:    admission_lock: keeps two pods from being let in for the same rest of a quota.
    Raises:  Invalid: a rule is broken.   Denied: a quota of its namespace.   Conflict (`AlreadyExists`): its name.
    """
    started = time.monotonic()
    admitted = admission.admit(pod)
    # Taken before the pod can be seen: the scheduler may be done with it before `create` returns here.
    accepted_at = time.time()
    try:
        async with admission_lock:
            await _check_quotas(store, admitted)
            created = await store.create(admitted)
    except errors.Conflict as error:
        raise _taken(pod, error) from error
    devices = view.asked_devices(created)
    asked = ", ".join(f"{count} x {name}" for name, count in devices.items()) or "no devices"
    step = TraceStep(
        layer="api",
        reason="Accepted",
        message=f"accepted, asking for {asked}",
        at=accepted_at,
        duration_s=time.monotonic() - started,
        facts={
            "images": [item.image for item in created.spec.containers],
            "resources": devices,
            "scheduler": created.spec.scheduler_name,
        },
    )
    await tracerecorder.record(store, tracerecorder.reference(created), step)
    return created


async def ask_for(store: Store, pod: core.Pod) -> core.Pod:
    """Create a pod on an API server, which admits it by its own rules and says in the object when it did.

    Raises: Invalid, Denied: what the server refuses.   Conflict (`AlreadyExists`): its name is taken.
    """
    try:
        return await store.create(pod)
    except errors.Conflict as error:
        raise _taken(pod, error) from error


def _taken(pod: core.Pod, error: errors.Conflict) -> errors.Conflict:
    message = f'container "{pod.metadata.name}" already exists in namespace "{pod.metadata.namespace}"'
    hint = f"choose another name, or remove it: `fairlead rm {pod.metadata.name}`"
    return errors.Conflict(message, reason=error.reason, hint=hint)


async def _check_quotas(store: Store, pod: core.Pod) -> None:
    beside = Selector(namespace=pod.metadata.namespace)
    if quotas := (await store.list(core.ResourceQuota, beside)).items:
        quota.check(pod, quotas, (await store.list(core.Pod, beside)).items)


async def ensure_namespace(store: Store, name: str) -> None:
    """Create a namespace unless it is there."""
    with contextlib.suppress(errors.Conflict):
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=name)))


async def list_pods(store: Store, *, namespace: str | None, labels: Iterable[str]) -> tuple[core.Pod, ...]:
    """Return pods by namespace (None: all) and `key=value` labels. Raises: Invalid: a label of another form."""
    wanted: dict[str, str] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals:
            message = f'label "{label}" is not of the form key=value'
            raise errors.Invalid(message, reason="SelectorInvalid", hint="for example label=team=red")
        wanted[key] = value
    return (await store.list(core.Pod, Selector(namespace=namespace, labels=wanted))).items


async def follow_pod(store: Store, pod: core.Pod) -> AsyncIterator[Change[core.Pod]]:
    """Yield the present pod and every later change of it, its removal last; a namesake's changes are not its own."""
    about = pod.metadata
    selector = Selector(namespace=about.namespace, fields={"metadata.name": about.name})
    while True:
        with contextlib.suppress(errors.Gone):
            async with stream.closing(_own_changes(store, selector, about.uid)) as changes:
                async for change in changes:
                    yield change
                    if change.kind is ChangeKind.DELETED:
                        return
            return


async def _own_changes(store: Store, selector: Selector, uid: str) -> AsyncIterator[Change[core.Pod]]:
    listing = await store.list(core.Pod, selector)
    present = next((item for item in listing.items if item.metadata.uid == uid), None)
    if present is None:
        return
    yield Change(kind=ChangeKind.ADDED, object=present)
    async with stream.closing(store.watch(core.Pod, selector, since=listing.resource_version)) as changes:
        async for change in changes:
            if change.object.metadata.uid == uid:
                yield change


async def wait_for(store: Store, pod: core.Pod, *, state: str, timeout_s: float | None) -> ContainerView:
    """Return the view as soon as the pod is `started`, `ended` or `gone`, or as it is after `timeout_s`.

    A pod removed meanwhile is returned in state `gone`, which counts as every state.
    Raises: Invalid: an unknown state.
    """
    if state not in _REACHED:
        message = f'cannot wait for state "{state}" (offered: {", ".join(WAIT_STATES)})'
        raise errors.Invalid(message, reason="WaitStateUnknown")
    latest = view.container_view(pod)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            async with stream.closing(follow_pod(store, pod)) as changes:
                async for change in changes:
                    latest = view.container_view(change.object)
                    if change.kind is not ChangeKind.DELETED and latest.state in _REACHED[state]:
                        return latest
            return view.gone(latest)
    return latest


async def stop(store: Store, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
    """Ask for a stop and keep the object; a pod that no node has yet ends at once. Ended pods are left as they are.

    Raises: NotFound; Conflict: others kept changing the pod.
    """
    for _ in range(_ATTEMPTS):
        pod = await find_pod(store, name, namespace)
        if view.is_final(pod):
            return pod
        with contextlib.suppress(errors.Conflict):
            return await _mark_stopped(store, pod, grace_s)
    message = f'container "{name}" changed {_ATTEMPTS} times while it was to be stopped'
    raise errors.Conflict(message, reason="StaleVersion", hint="ask again")


async def remove(store: Store, name: str, namespace: str, *, grace_s: int | None, heeds_stop: bool = True) -> core.Pod:
    """Ask for a stop and for the object's removal once nothing of it runs; returns the pod as it was.

    A grace of 0 kills at once, but the object still stays until its node says that the process is gone: removing it
    first would hand its devices to the next pod while they are in use.

    Args:    heeds_stop: the node's kubelet knows our mark of a stop; others kill after a grace of 1 s.
    Raises:  NotFound; Conflict.
    """
    pod = await find_pod(store, name, namespace)
    if grace_s == 0 and heeds_stop:
        await stop(store, name, namespace, grace_s=0)
    wait_s = None if grace_s is None else max(1, grace_s)
    await store.delete(core.Pod, name, namespace, grace_s=wait_s, uid=pod.metadata.uid)
    return pod


async def _mark_stopped(store: Store, pod: core.Pod, grace_s: int | None) -> core.Pod:
    notes = {**pod.metadata.annotations, names.STOP: f"{time.time():.3f}"}
    if grace_s is not None:
        notes[names.STOP_GRACE] = str(grace_s)
    about = msgspec.structs.replace(pod.metadata, annotations=notes)
    marked = await store.update(msgspec.structs.replace(pod, metadata=about))
    if marked.spec.node_name:
        return marked
    ended = core.PodStatus(phase="Failed", reason="Stopped", message="stopped before any node took it")
    # Written with the version just made: a scheduler that binds meanwhile wins, and its kubelet honours the mark.
    return await store.update_status(msgspec.structs.replace(marked, status=ended))
