"""Follows GPUDevices for a scheduler's cache: what agents say of how the GPUs of their nodes hang together.

It weighs between nodes and frees nothing, so no waiting pod is looked at again for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.control.manager import Watch
from fairlead.plan.schedule.cache import Cache
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes.gpudevice import GPUDevice


def watch(cache: Cache) -> Watch:
    """Return what keeps the cache's GPUs up to date; the kind may not be served, or not be ours to read."""

    def changed(change: Change[GPUDevice]) -> Iterable[str]:
        cache.note_device(change.object, is_gone=change.kind is ChangeKind.DELETED)
        return ()

    return Watch(kind=GPUDevice, keys=changed, reset=cache.forget_devices, is_optional=True)
