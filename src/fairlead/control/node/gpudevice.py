"""Marks GPUDevices Unknown while no agent reports them, and deletes them after the Node object is gone.

A node's agent writes its GPUDevices; when the node is cut off or the agent ends, they would go on calling themselves
healthy. This controller writes `Unknown` with the reason where the node is not ready, or where its kubelet has offered
none of its GPUs for `AGENT_S` (a rolling update takes less). The agent overwrites that once it is back. Where the Node
object itself is gone for `GONE_S`, its devices are removed: a node that comes back under its name in that time keeps
them. (A cluster's garbage collector removes those that name their Node as owner at once; this one also takes those that
do not.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.plan.gpu import gpudevice as planner
from fairlead.store import retry
from fairlead.store.port import Change, ChangeKind, Store
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice

GONE_S: Final = 60.0
AGENT_S: Final = 30.0
_NODE_GONE: Final = "NodeGone"


class GPUDevices:
    """Reconciles the GPUDevices of one node with the state of its Node and its kubelet."""

    name = "gpudevice"

    def __init__(self, store: Store, *, gone_s: float = GONE_S, agent_s: float = AGENT_S) -> None:
        """Take the store, how long a missing node's devices are kept, and how long an agent may be away."""
        self._store = store
        self._gone_s, self._agent_s = gone_s, agent_s
        self._nodes: dict[str, core.Node] = {}
        self._devices: dict[str, dict[str, GPUDevice]] = {}
        """By node, then by name."""
        self._missed_at: dict[str, float] = {}
        self._unoffered_at: dict[str, float] = {}
        """Since when a node's kubelet has offered none of the GPUs that are called healthy."""

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
        if not devices or node is None:
            self._unoffered_at.pop(key, None)
        if node is not None or not devices:
            self._missed_at.pop(key, None)
            return await self._silence(node, devices) if node is not None else None
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

    async def _silence(self, node: core.Node, devices: tuple[GPUDevice, ...]) -> float | None:
        """Mark devices that no agent reports; returns seconds until a missing agent counts as gone, or None."""
        silence, name = planner.find_silence(node, devices), node.metadata.name
        now = asyncio.get_running_loop().time()
        left_s = 0.0
        if any(reason == planner.AGENT_GONE for reason, _ in silence.values()):
            left_s = self._agent_s - (now - self._unoffered_at.setdefault(name, now))
        else:
            self._unoffered_at.pop(name, None)
        for device in devices:
            reason, message = silence.get(device.metadata.name, ("", ""))
            if reason and (reason != planner.AGENT_GONE or left_s <= 0):
                await self._mark((device,), reason, message)
        return left_s if left_s > 0 else None

    async def _mark(self, devices: Iterable[GPUDevice], reason: str, message: str) -> None:
        for device in devices:
            if _is_marked(device, reason):
                continue
            with contextlib.suppress(errors.NotFound):
                await retry.change_status(
                    self._store, GPUDevice, device.metadata.name, lambda found: _marked(found, reason, message)
                )
                telemetry.log.info("gpu unknown", gpu=device.spec.uuid, node=device.spec.node_name, reason=reason)


def _is_marked(device: GPUDevice, reason: str) -> bool:
    return device.status.health == gpudevice.UNKNOWN and device.status.reason == reason


def _marked(device: GPUDevice, reason: str, message: str) -> GPUDevice | None:
    """Return the device as Unknown, its holders kept; None: it is marked already, or was not Healthy anyway."""
    is_outdated = reason == planner.AGENT_GONE and device.status.health != gpudevice.HEALTHY
    if _is_marked(device, reason) or is_outdated:
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
