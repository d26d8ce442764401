"""Marks GPUDevices Unknown while their node is NotReady, and deletes them after the Node object is gone.

A node's agent writes its GPUDevices; when the node is cut off, they would go on calling themselves healthy. This
controller writes `Unknown` with the node's reason into the ones of a node that is not ready; the agent overwrites it
once the node is ready again. Where the Node object itself is gone for `GONE_S`, its devices are removed: a node that
comes back under its name in that time keeps them. (A cluster's garbage collector removes those that name their Node as
owner at once; this one also takes those that do not.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.store import retry
from fairlead.store.port import Change, ChangeKind, Store
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice

GONE_S: Final = 60.0
_NODE_GONE: Final = "NodeGone"
_NOT_READY: Final = "NodeNotReady"


class GPUDevices:
    """Keeps GPUDevices honest about nodes that cannot speak for themselves."""

    name = "gpudevice"

    def __init__(self, store: Store, *, gone_s: float = GONE_S) -> None:
        """Take the store, and how long a missing node's devices are kept."""
        self._store = store
        self._gone_s = gone_s
        self._nodes: dict[str, core.Node] = {}
        self._devices: dict[str, dict[str, GPUDevice]] = {}
        """By node, then by name."""
        self._missed_at: dict[str, float] = {}

    def watches(self) -> tuple[Watch, ...]:
        """Follow nodes and GPUs; both are keyed by the node."""
        return (
            Watch(kind=core.Node, keys=self._node_changed, reset=self._nodes.clear),
            Watch(kind=GPUDevice, keys=self._device_changed, reset=self._devices.clear),
        )

    def _node_changed(self, step: Change[core.Node]) -> Iterable[str]:
        name = step.object.metadata.name
        if step.kind is ChangeKind.DELETED:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = step.object
        return (name,)

    def _device_changed(self, step: Change[GPUDevice]) -> Iterable[str]:
        device = step.object
        siblings = self._devices.setdefault(device.spec.node_name, {})
        if step.kind is ChangeKind.DELETED:
            siblings.pop(device.metadata.name, None)
        else:
            siblings[device.metadata.name] = device
        if not siblings:
            del self._devices[device.spec.node_name]
        return (device.spec.node_name,)

    async def reconcile(self, key: str) -> float | None:
        """Mark or remove the devices of one node."""
        devices = tuple(self._devices.get(key, {}).values())
        node = self._nodes.get(key)
        if node is not None or not devices:
            self._missed_at.pop(key, None)
            reason, message = _why_silent(node)
            await self._mark(devices, reason, message)
            return None
        now = asyncio.get_running_loop().time()
        left_s = self._gone_s - (now - self._missed_at.setdefault(key, now))
        if left_s > 0:
            await self._mark(devices, _NODE_GONE, f"node {key} is gone")
            return left_s
        for device in devices:
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._store.delete(GPUDevice, device.metadata.name, uid=device.metadata.uid)
        telemetry.log.info("gpus of a node that is gone removed", node=key, count=len(devices))
        return None

    async def _mark(self, devices: Iterable[GPUDevice], reason: str, message: str) -> None:
        if not reason:
            return
        for device in devices:
            if _is_marked(device, reason):
                continue
            with contextlib.suppress(errors.NotFound):
                await retry.change_status(
                    self._store, GPUDevice, device.metadata.name, lambda found: _marked(found, reason, message)
                )
                telemetry.log.info("gpu unknown", gpu=device.spec.uuid, node=device.spec.node_name, reason=reason)


def _why_silent(node: core.Node | None) -> tuple[str, str]:
    """Return reason and message where the node cannot speak for its GPUs, two empty texts where it can."""
    if node is None:
        return "", ""
    ready = meta.find_condition(node.status.conditions, "Ready")
    if ready is not None and ready.status == "True":
        return "", ""
    said = ": ".join(part for part in (ready.reason, ready.message) if part) if ready is not None else ""
    return _NOT_READY, f"node {node.metadata.name} is not ready" + (f" ({said})" if said else "")


def _is_marked(device: GPUDevice, reason: str) -> bool:
    return device.status.health == gpudevice.UNKNOWN and device.status.reason == reason


def _marked(device: GPUDevice, reason: str, message: str) -> GPUDevice | None:
    """Return the device as unknown, its holders kept; None where it says so already."""
    if _is_marked(device, reason):
        return None
    condition = meta.Condition(
        type=gpudevice.HEALTHY,
        status="Unknown",
        reason=reason,
        message=message,
        last_transition_time=meta.now(),
        observed_generation=device.metadata.generation,
    )
    status = msgspec.structs.replace(
        device.status,
        health=gpudevice.UNKNOWN,
        reason=reason,
        message=message,
        conditions=meta.with_condition(device.status.conditions, condition),
    )
    return msgspec.structs.replace(device, status=status)
