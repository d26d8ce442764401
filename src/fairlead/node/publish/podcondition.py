"""Marks pods that hold an unhealthy GPU, and names the holders in each GPU's object.

The kubelet's list says who holds what; the agent's verdicts say how the GPUs are. A pod that runs on a GPU which is no
longer offered gets the condition `fairlead.dev/GPUHealthy`, False, and a Warning event that names GPU and reason; when
the GPU is offered again, the condition becomes True and an event says so. Holders go into `GPUDevice.status.holders`, a
part of that status no other writer has. `plan.gpu.podcondition` decides what to write; each pod and GPU is a key of a
work queue, so what could not be written is tried again from what is true then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.model.container.step import TraceStep
from fairlead.model.ids import GPUUUID
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest, pods
from fairlead.plan.gpu import attribution, deviceids, podcondition
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.supply import Supply
from fairlead.store import retry, tracerecorder
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice, Holder
from fairlead.workqueue import WorkQueue

_FIRST_WAIT_S: Final = 0.5
_LAST_WAIT_S: Final = 30.0
_AGAIN_S: Final = 1.0
_SOON_S: Final = 0.25
"""After this the holders of a GPU are named: not while the container starts that was just given it."""
_POD, _GPU = "pod/", "gpu/"


class PodConditions:
    """Keeps the marks of one node's pods and GPUs true."""

    def __init__(
        self,
        *,
        node: str,
        store: Store,
        pods: pods.Pods,
        holdings: podresources.Holdings,
        snapshots: latest.Latest[Snapshot],
        supply: latest.Latest[Supply],
        uids: latest.Latest[Mapping[str, str]],
    ) -> None:
        """Take the sources; nothing is read or written before `run`. Args: uids: of this node's GPUDevices, by name."""
        self._node, self._store, self._pods = node, store, pods
        self._holdings, self._snapshots, self._supply = holdings, snapshots, supply
        self._queue = WorkQueue("pod conditions", self._work)
        self._uids = uids
        self._written: dict[GPUUUID, tuple[str, tuple[Holder, ...]]] = {}
        """The uid of a GPU's object and the holders that were written into it."""
        self._waits: dict[GPUUUID, Backoff] = {}
        pods.listen(self._pod_changed)

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Keep marks true for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(meter), name="pod conditions")
            tasks.create_task(self._follow_health(), name="conditions: health")
            tasks.create_task(self._uids.follow(lambda _: self._check()), name="conditions: objects")
            async for _ in self._holdings.latest.changes():
                self._check()

    async def _follow_health(self) -> None:
        async for _ in self._snapshots.changes():
            self._check()

    def _pod_changed(self, pod: core.Pod, is_gone: bool) -> None:
        if not attribution.asks_devices(pod):
            return
        # A kubelet takes devices back a moment after a pod has ended.
        is_over = is_gone or pod.status.phase in core.ENDED_PHASES
        self._holdings.ask()
        if is_over and self._is_listed(pod):
            self._holdings.ask(after_s=_AGAIN_S)
        self._queue.add(f"{_POD}{pod.metadata.uid}")

    def _is_listed(self, pod: core.Pod) -> bool:
        about = (pod.metadata.namespace, pod.metadata.name)
        return any((one.namespace, one.pod) == about for one in self._holdings.latest.value or ())

    def _table(self) -> deviceids.Table:
        """Return the words for each GPU that this machine has, or had: also of those that are offered no more."""
        snapshot = self._snapshots.value
        advertised = (device for one in self._supply.value.resources for device in one.devices)
        return deviceids.make_table((*snapshot.known.values(), *snapshot.inventory.gpus), advertised)

    def _check(self) -> None:
        """Queue what may differ; no I/O."""
        holdings = self._holdings.latest.value
        if holdings is None or not self._pods.is_listed or not self._snapshots.value.is_scanned:
            return
        held = {(one.namespace, one.pod) for one in holdings}
        for pod in self._pods.all():
            if (pod.metadata.namespace, pod.metadata.name) in held:
                self._queue.add(f"{_POD}{pod.metadata.uid}")
        wanted = self._holders(holdings)
        for gpu in self._snapshots.value.known:
            if not self._is_named(gpu, wanted.get(gpu, ())):
                self._queue.add(f"{_GPU}{gpu}", after_s=_SOON_S)

    def _holders(self, holdings: tuple[attribution.Holding, ...]) -> Mapping[GPUUUID, tuple[Holder, ...]]:
        return podcondition.plan_holders(holdings, table=self._table(), pods=self._pods.all())

    def _is_named(self, gpu: GPUUUID, wanted: tuple[Holder, ...]) -> bool:
        """Return whether a GPU's object has these holders, as far as this agent wrote them into this very object."""
        uid, written = self._written.get(gpu, ("", None))
        return written == wanted and uid == self._uids.value.get(self._object(gpu), uid)

    def _object(self, gpu: GPUUUID) -> str:
        is_simulated = self._snapshots.value.inventory.is_simulated
        return gpudevice.object_name(gpu, self._node, simulated=is_simulated)

    async def _work(self, key: str) -> float | None:
        holdings = self._holdings.latest.value
        if holdings is None:
            return None
        if key.startswith(_POD):
            await self._mark_pod(key.removeprefix(_POD), holdings)
            return None
        return await self._name_holders(GPUUUID(key.removeprefix(_GPU)), holdings)

    # pods

    async def _mark_pod(self, uid: str, holdings: tuple[attribution.Holding, ...]) -> None:
        pod = self._pods.find(uid)
        # A kubelet that starts anew does not list its pods at once: what is not listed is not judged.
        if pod is None or pod.status.phase in core.ENDED_PHASES or not self._is_listed(pod):
            return
        verdicts = self._snapshots.value.verdicts
        ill = podcondition.find_unhealthy(pod, holdings, table=self._table(), verdicts=verdicts)
        if podcondition.plan_condition(pod, ill, now=meta.now()) is None:
            return
        written: list[meta.Condition] = []

        def mark(found: core.Pod) -> core.Pod | None:
            written.clear()
            condition = podcondition.plan_condition(found, ill, now=meta.now())
            if found.metadata.uid != uid or condition is None:
                return None
            written.append(condition)
            conditions = meta.with_condition(found.status.conditions, condition)
            status = msgspec.structs.replace(found.status, conditions=conditions)
            return msgspec.structs.replace(found, status=status)

        about = pod.metadata
        try:
            await retry.change_status(self._store, core.Pod, about.name, mark, namespace=about.namespace)
        except errors.NotFound:
            return
        for condition in written:
            await self._tell(pod, ill, condition)

    async def _tell(self, pod: core.Pod, ill: tuple[podcondition.UnhealthyGPU, ...], condition: meta.Condition) -> None:
        step = TraceStep(
            layer="silicon",
            reason="GPUUnhealthy" if ill else "GPURecovered",
            message=condition.message,
            at=time.time(),
            facts={"gpus": [{"gpu": one.gpu, "reason": one.reason} for one in ill]} if ill else {},
            is_warning=bool(ill),
        )
        await tracerecorder.record(self._store, tracerecorder.reference(pod), step, host=self._node)

    # GPUs

    async def _name_holders(self, gpu: GPUUUID, holdings: tuple[attribution.Holding, ...]) -> float | None:
        wanted = self._holders(holdings).get(gpu, ())
        if self._is_named(gpu, wanted):
            return None

        def name(found: GPUDevice) -> GPUDevice:
            held_by = gpudevice.name_pods(wanted)
            status = msgspec.structs.replace(found.status, holders=wanted, held_by=held_by)
            return msgspec.structs.replace(found, status=status)

        try:
            named = await retry.change_status(self._store, GPUDevice, self._object(gpu), name)
        except errors.NotFound:
            # Its object is made by `node.publish`, soon; where the kind is not installed, never.
            waits = self._waits.setdefault(gpu, Backoff(first_s=_FIRST_WAIT_S, last_s=_LAST_WAIT_S, jitter=0))
            return waits.next()
        self._waits.pop(gpu, None)
        self._written[gpu] = (named.metadata.uid, wanted)
        return None
