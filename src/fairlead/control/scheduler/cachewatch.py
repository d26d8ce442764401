"""Follows what a scheduler's cache is made of: pods, nodes, namespaces, claims, and GPUDevices.

GPUDevices say how the GPUs of a node hang together: they weigh between nodes and free nothing, so no waiting pod is
looked at again for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fairlead.control.manager import Watch
from fairlead.plan.schedule.cache import Cache
from fairlead.plan.schedule.volume import claims
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import GPUDevice

Changed = Callable[[], Iterable[str]]
"""Is called after the cache took a change in; returns what to reconcile."""


def watches(cache: Cache, changed: Changed) -> tuple[Watch, ...]:
    """Return what keeps a cache up to date."""
    return (
        Watch(kind=core.Pod, keys=_keys(cache.note_pod, changed), reset=cache.forget_pods),
        Watch(kind=core.Node, keys=_keys(cache.note_node, changed), reset=cache.forget_nodes),
        Watch(kind=core.Namespace, keys=_keys(cache.note_namespace, changed), is_optional=True),
        devices(cache),
        *(_claims(cache, kind, changed) for kind in claims.KINDS),
    )


def _claims(cache: Cache, kind: type[claims.Object], changed: Changed) -> Watch:
    def reset() -> None:
        cache.claims.forget(kind)

    return Watch(kind=kind, keys=_keys(cache.note_claim, changed), reset=reset, is_optional=True)


def devices(cache: Cache) -> Watch:
    """Return what keeps the cache's GPUs up to date; the kind may not be served, or not be ours to read."""
    keys = _keys(cache.note_device, lambda: ())
    return Watch(kind=GPUDevice, keys=keys, reset=cache.forget_devices, is_optional=True)


def _keys(note: Callable[..., None], changed: Changed) -> Callable[[Change[Any]], Iterable[str]]:
    def take(change: Change[Any]) -> Iterable[str]:
        note(change.object, is_gone=change.kind is ChangeKind.DELETED)
        return changed()

    return take
