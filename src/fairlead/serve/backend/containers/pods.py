"""Finds and follows pods in the store, and says which of a pod's containers is meant."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from fairlead import errors
from fairlead.plan.pod import podstate
from fairlead.serve.closing import closing
from fairlead.store.port import Change, ChangeKind, Selector, Store
from fairlead.wire.kubernetes import core, names
from fairlead.wire.kubernetes.meta import Object

T = TypeVar("T", bound=Object)


async def find_pod(store: Store, name: str, namespace: str) -> core.Pod:
    """Return the pod of that name. Raises: NotFound (`ContainerNotFound`)."""
    try:
        return await store.get(core.Pod, name, namespace)
    except errors.NotFound as error:
        raise not_found(name, namespace, await _members(store, name, namespace)) from error


async def _members(store: Store, name: str, namespace: str) -> list[str]:
    """Return the containers of an array of that name; none where they may not be listed."""
    selector = Selector(namespace=namespace, labels={names.ARRAY: name})
    with contextlib.suppress(errors.Denied, errors.Invalid, errors.NotFound):
        return sorted((one.metadata.name for one in (await store.list(core.Pod, selector)).items), key=_natural)
    return []


def _natural(name: str) -> tuple[int, str]:
    return len(name), name


async def follow(store: Store, item: T) -> AsyncIterator[Change[T]]:
    """Yield the object as it is and every later change of it, its removal last; a namesake's are not its own.

    Nothing where it is gone already. One that is given another name is followed under that.
    """
    about, name = item.metadata, item.metadata.name
    while True:
        selector, renamed = Selector(namespace=about.namespace, fields={"metadata.name": name}), ""
        with contextlib.suppress(errors.Gone):
            async with closing(_own_changes(store, type(item), selector, about.uid)) as changes:
                async for change in changes:
                    if renamed := change.renamed_to:
                        break
                    yield change
                    if change.kind is ChangeKind.DELETED:
                        return
            if not renamed:
                return
            name = renamed


async def _own_changes(store: Store, kind: type[T], selector: Selector, uid: str) -> AsyncIterator[Change[T]]:
    listing = await store.list(kind, selector)
    present = next((item for item in listing.items if item.metadata.uid == uid), None)
    if present is None:
        return
    yield Change(kind=ChangeKind.ADDED, object=present)
    async with closing(store.watch(kind, selector, since=listing.resource_version)) as changes:
        async for change in changes:
            if change.object.metadata.uid == uid:
                yield change


def container_name(pod: core.Pod, wanted: str) -> str:
    """Return which container of the pod is meant: the named one, else its first.

    Raises: NotFound: the pod has none of that name; the message lists what it has.
    """
    spec = pod.spec
    every = [item.name for item in (*spec.containers, *spec.init_containers, *spec.ephemeral_containers)]
    if not wanted:
        return every[0]
    if wanted not in every:
        message = f'"{pod.metadata.name}" has no container "{wanted}" (it has: {", ".join(every)})'
        raise errors.NotFound(message, reason="ContainerNotFound", hint="leave the name out to mean the first")
    return wanted


def is_ephemeral(pod: core.Pod, container: str) -> bool:
    """Return whether a container joined the pod while that ran: it is not started again."""
    return any(item.name == container for item in pod.spec.ephemeral_containers)


def not_found(name: str, namespace: str, members: Sequence[str] = ()) -> errors.NotFound:
    """Say that no such container exists. Args: members: those of an array of that name, one of which may be meant."""
    if members:
        message = f'"{name}" is an array in namespace "{namespace}": {members[0]} to {members[-1]}'
        return errors.NotFound(message, reason="ContainerNotFound", hint=f"name one of them, as {members[0]}")
    message = f'container "{name}" not found in namespace "{namespace}"'
    return errors.NotFound(message, reason="ContainerNotFound", hint="`fairlead ps --all` lists them")


def taken(name: str, namespace: str, reason: str = "AlreadyExists") -> errors.Conflict:
    """Say that another container has a name."""
    message = f'container "{name}" already exists in namespace "{namespace}"'
    return errors.Conflict(message, reason=reason, hint=f"choose another name, or remove it: `fairlead rm {name}`")


def not_started(pod: core.Pod) -> errors.Conflict:
    """Say that a pod has no output, and where it stands."""
    about = _standing(pod)
    hint = None if podstate.is_final(pod) else f"`fairlead logs -f {pod.metadata.name}` waits for it"
    message = f'container "{pod.metadata.name}" has no output: it has not started ({about})'
    return errors.Conflict(message, reason="ContainerNotStarted", hint=hint)


def not_running(pod: core.Pod) -> errors.Conflict:
    """Say that a pod's container does not run, and where the pod stands."""
    message = f'container "{pod.metadata.name}" is not running (it is {_standing(pod)})'
    hint = f"`fairlead explain {pod.metadata.name}` says why"
    return errors.Conflict(message, reason="ContainerNotRunning", hint=hint)


def _standing(pod: core.Pod) -> str:
    """Return the state and why it is so; why a pod waits is `explain`'s to say in words for a person."""
    state, (reason, message) = podstate.state_of(pod), podstate.why(pod)
    if state == "pending":
        return "pending"
    return ", ".join(part for part in (state, ": ".join(part for part in (reason, message) if part)) if part)
