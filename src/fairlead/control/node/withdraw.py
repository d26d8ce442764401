"""Takes back what agents published in a cluster: GPUDevices, leases, baselines, taint rules, and what is on Nodes.

An agent that ends leaves them in place, since it cannot tell a rolling update from the removal of Fairlead.
An operator who removes Fairlead runs this afterwards. Each node's ledger stays on it, and an agent that is installed
again shows them as before. Labels are given up as their field manager, so that a label which others set as well
stays. GPULeases go last and several at a time: there is one for each possession of months.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.plan.dra import devicetaint
from fairlead.plan.gpu import label, nodecondition
from fairlead.store import retry
from fairlead.store.port import ChangeKind, Selector, Store
from fairlead.wire.fairlead.firmwarebaseline import FirmwareBaseline
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.gpulease import GPULease
from fairlead.wire.kubernetes.node import nodefeature
from fairlead.wire.kubernetes.resource import devicetaintrule

_AT_ONCE: Final = 8
"""GPULeases that are being deleted."""
_TESTS: Final = {"app.kubernetes.io/part-of": "fairlead", "app.kubernetes.io/component": "test"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """What was taken back."""

    devices: tuple[str, ...] = ()
    leases: int = 0
    """How many GPULeases."""
    nodes: tuple[str, ...] = ()
    """Nodes whose labels were given up."""


async def until_ended(store: Store, agents: Selector, *, within_s: float) -> None:
    """Wait until no pod of the agents is left: one that lives would publish again.

    Raises: Unavailable (`AgentsLeft`): some are left after `within_s` seconds.
    """
    listing = await store.list(core.Pod, agents)
    left = {pod.metadata.name for pod in listing.items}
    try:
        async with asyncio.timeout(within_s if left else None):
            await _follow_to_the_end(store, agents, left, since=listing.resource_version)
    except TimeoutError as error:
        message = f"agents are left after {within_s:g} s: {', '.join(sorted(left))}"
        hint = "remove the agent's DaemonSet first (helm uninstall does)"
        raise errors.Unavailable(message, reason="AgentsLeft", hint=hint) from error


async def _follow_to_the_end(store: Store, agents: Selector, left: set[str], *, since: str) -> None:
    if not left:
        return
    async for change in store.watch(core.Pod, agents, since=since):
        if change.kind is ChangeKind.DELETED:
            left.discard(change.object.metadata.name)
        else:
            left.add(change.object.metadata.name)
        if not left:
            return


async def remove_tests(store: Store, namespace: str) -> None:
    """Remove the pods that `helm test` left, which helm does not; they stay until now for their output."""
    with contextlib.suppress(errors.Denied):  # a role from before there was that right
        for pod in (await store.list(core.Pod, Selector(namespace=namespace, labels=_TESTS))).items:
            with contextlib.suppress(errors.NotFound):
                await store.delete(core.Pod, pod.metadata.name, namespace, uid=pod.metadata.uid)


async def withdraw(store: Store) -> Withdrawn:
    """Take everything back; what is gone meanwhile is not an error, and neither is a kind that is. Idempotent."""
    devices = list[GPUDevice]()
    with contextlib.suppress(errors.NotFound):  # the kind was removed first, and its objects with it
        devices += (await store.list(GPUDevice)).items
    for device in devices:
        with contextlib.suppress(errors.NotFound):
            await store.delete(GPUDevice, device.metadata.name)
    with contextlib.suppress(errors.NotFound, errors.Denied):  # no such kind, or a role from before there was one
        for baseline in (await store.list(FirmwareBaseline)).items:
            await store.delete(FirmwareBaseline, baseline.metadata.name)
    with contextlib.suppress(errors.NotFound, errors.Denied):  # no node feature discovery, or no right to its objects
        for one in (await store.list(nodefeature.NodeFeature)).items:
            if one.metadata.name == nodefeature.object_name(one.metadata.labels.get(nodefeature.NODE_LABEL, "")):
                await store.delete(nodefeature.NodeFeature, one.metadata.name, one.metadata.namespace)
    for kind in devicetaintrule.SERVED:
        with contextlib.suppress(errors.NotFound, errors.Denied):  # no such kind, or no right to it: no agent wrote any
            for rule in filter(devicetaint.is_ours, (await store.list(kind)).items):
                await store.delete(kind, rule.metadata.name)
    every = (await store.list(core.Node)).items
    for node in every:
        with contextlib.suppress(errors.NotFound):
            await _clear(store, node)
    nodes = [node for node in every if label.may_be_ours(node.metadata.labels)]
    for node in nodes:
        about = meta.ObjectMeta(name=node.metadata.name, uid=node.metadata.uid)
        with contextlib.suppress(errors.NotFound, errors.Conflict):  # gone, or another machine of that name by now
            await store.apply(core.Node(metadata=about), manager=label.MANAGER)
    return Withdrawn(
        devices=tuple(device.metadata.name for device in devices),
        leases=await _remove_leases(store),
        nodes=tuple(node.metadata.name for node in nodes),
    )


async def _remove_leases(store: Store) -> int:
    """Remove every GPULease; returns how many there were."""
    leases = list[GPULease]()
    with contextlib.suppress(errors.NotFound, errors.Denied):  # no such kind, or a role from before there was the right
        leases += (await store.list(GPULease)).items
    left = iter(leases)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(_remove_each(store, left))
    return len(leases)


async def _remove_each(store: Store, leases: Iterator[GPULease]) -> None:
    for one in leases:
        with contextlib.suppress(errors.NotFound):
            await store.delete(GPULease, one.metadata.name)


async def _clear(store: Store, node: core.Node) -> None:
    """Take the condition and the taint away, where they are."""
    name = node.metadata.name
    if nodecondition.without_condition(node) != node:
        await retry.change_status(store, core.Node, name, nodecondition.without_condition)
    if nodecondition.plan_taint(node, None, effect="") is not node:
        await retry.change(store, core.Node, name, lambda found: nodecondition.plan_taint(found, None, effect=""))
