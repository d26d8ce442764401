"""Gives simulated GPUs the load of those who hold them; real GPUs notice by themselves.

Who holds what is in the kubelet's list. A kubelet that was killed lists a pod until its claims are unprepared, although
its containers are dead, and no driver refuses to destroy a MIG device that no process uses. So a pod that ends holds a
GPU only as long as one of its processes could open one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from fairlead import telemetry
from fairlead.kernel import openfiles
from fairlead.model.driver import SHARED_NODES
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest, pods
from fairlead.node.lease.gpuholders import FindOpeners
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.metrics import holder
from fairlead.silicon.port import Workloads
from fairlead.wire.kubernetes import core

LOOK_S: Final = 0.5
"""How often pods that hold GPUs are looked at."""
_SHARED: Final = frozenset(path for paths in SHARED_NODES.values() for path in paths)

Name = tuple[str, str]
"""Namespace and name of a pod."""


class DeadPods:
    """Finds the pods that end and have no process left that could use a GPU."""

    def __init__(self, known: pods.Pods, find_openers: FindOpeners) -> None:
        """Take the node's pods and who looks through its processes, which must be in cgroups of their pods."""
        self._pods, self._find_openers = known, find_openers
        self._uids: Mapping[Name, str] = {}
        """UIDs of the pods that were listed last, also of those that the store no longer has."""

    async def find(self, listed: Collection[Name], snapshot: Snapshot) -> frozenset[Name]:
        """Return which of the pods that a kubelet lists hold nothing; a pod that no store has named holds."""
        if not self._pods.is_listed:
            return frozenset()
        stored = {(one.metadata.namespace, one.metadata.name): one.metadata.uid for one in self._pods.all()}
        uids = {**self._uids, **stored}
        self._uids = {name: uids[name] for name in listed if name in uids}
        ending = {name: uid for name, uid in self._uids.items() if self._is_ending(uid)}
        numbers = _numbers(snapshot)
        if not ending or not numbers:
            return frozenset()
        groups = frozenset(form for uid in ending.values() for form in _groups(uid))
        openers = await asyncio.to_thread(self._find_openers, numbers, groups)
        return frozenset(name for name, uid in ending.items() if not any(_is_user(one, uid) for one in openers))

    def _is_ending(self, uid: str) -> bool:
        pod = self._pods.find(uid)
        return pod is None or pod.metadata.deletion_timestamp is not None or pod.status.phase in core.ENDED_PHASES


async def run(
    workloads: Workloads | None,
    holdings: podresources.Holdings,
    snapshots: latest.Latest[Snapshot],
    meter: telemetry.Meter,
    dead: DeadPods | None = None,
) -> None:
    """Follow the kubelet's list, for ever.

    Args: workloads: of the silicon; None: it is real.   dead: finds who holds nothing; None: all that are listed hold.
    """
    if workloads is None:
        return
    meter.heartbeat("simulated load", None)
    while True:
        seen, snapshot = holdings.latest.version, snapshots.value
        found = holder.find_holders(holdings.latest.value or (), deviceids.make_table(snapshot.known.values()))
        listed = {(one.namespace, one.pod) for holders in found.values() for one in holders}
        gone = await dead.find(listed, snapshot) if dead is not None else frozenset[Name]()
        workloads.hold({uuid: _names(holders, gone) for uuid, holders in found.items()})
        try:
            async with asyncio.timeout(LOOK_S if dead is not None and listed else None):
                await holdings.latest.wait(seen)
        except TimeoutError:
            continue


def _names(holders: Iterable[holder.Holder], gone: Collection[Name]) -> tuple[str, ...]:
    return tuple(one.name for one in holders if (one.namespace, one.pod) not in gone)


def _numbers(snapshot: Snapshot) -> frozenset[openfiles.Number]:
    """Return the device numbers of the GPUs' own nodes: a pod's sandbox has none of them."""
    nodes = (node for driver in snapshot.drivers for node in driver.nodes if node.path not in _SHARED)
    return frozenset(("c", node.major, node.minor) for node in nodes)


def _groups(uid: str) -> tuple[str, str]:
    """Return what a pod's cgroup is called below its class, by either cgroup driver."""
    return f"pod{uid}", f"pod{uid.replace('-', '_')}"


def _is_user(one: openfiles.Opener, uid: str) -> bool:
    """Return whether a process is of a pod and could open a GPU."""
    is_own = any(form in path for path in one.cgroups for form in _groups(uid))
    return is_own and bool(one.devices or one.reachable)
