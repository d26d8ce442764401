"""Publishes this node's GPUs to the cluster: GPUDevice objects, and labels on its Node.

The inventory's snapshots are followed, and no other part waits for this one. Everything else is level-triggered: the
Node (`inventory.nodeobject`) and this node's GPUDevices are followed, what should be is planned (`plan.gpu.gpudevice`,
`plan.gpu.label`), and each object that differs is a key of a work queue, brought up to date by its own worker with
back-off. While the API server is away nothing is lost, because nothing is queued but names: what is written after its
return is what is true then. Objects belong to their Node, so a cluster's garbage collector removes them with it.

Other writers are not fought: what another writer changed behind our back is put right after a pause, not
at once (two agents are alive for a moment in every rolling update), and the `Unknown` that the controller writes stands
until the node is ready again. Holders in the status are written by `podcondition`, events about health by `nodeevents`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors, telemetry, workqueue
from fairlead.model.ids import GPUUUID
from fairlead.node.inventory import latest, nodeobject
from fairlead.node.mig import configurator
from fairlead.node.publish import features
from fairlead.node.sandbox import gvisor
from fairlead.plan.gpu import gpudevice as planner
from fairlead.plan.gpu import health as rules
from fairlead.plan.gpu import label
from fairlead.plan.gpu.offer import advertise, migoffer
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.mig import label as miglabel
from fairlead.plan.supply import NOTHING, Supply
from fairlead.store import reflector, retry
from fairlead.store.port import Change, ChangeKind, Selector, Store
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice

DRIFT_S: Final = 5.0
"""How long another writer's change to our fields stands."""
NODE_WAIT_S: Final = 60.0
"""After this without its Node object an agent says so."""

_LABELS: Final = "/labels"
"""Key of the Node's labels; no object can have this name."""
_FEATURES: Final = "/features"
"""Key of the labels that node feature discovery sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """How labels reach the Node, and which ones there are beside those of the hardware."""

    features: features.Features | None = None
    """Who sets them in our place; None: we do."""
    started: int | None = None
    """Unix seconds for `gfd.timestamp`; None: no such label."""
    has_aliases: bool = False
    gvisor: str = ""
    """gVisor's program, whose drivers a label is about; empty: no such label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MIGPublication:
    """What the Node's labels say of MIG."""

    strategy: latest.Latest[str] = field(default_factory=lambda: latest.Latest(migoffer.NONE))
    """How MIG devices are offered now: configurations change while the agent runs."""
    state: latest.Latest[str] = field(default_factory=lambda: latest.Latest(""))
    """Of the chosen configuration; empty: none is chosen."""


class Publisher:
    """Keeps one node's publications true."""

    def __init__(  # noqa: PLR0913 (what is published, by name)
        self,
        node: nodeobject.NodeObject,
        store: Store,
        *,
        snapshots: latest.Latest[Snapshot],
        machine: str = "",
        nvidia_resource: str = "",
        mig: MIGPublication | None = None,
        supply: latest.Latest[Supply] | None = None,
        drift_s: float = DRIFT_S,
        labelling: Labelling | None = None,
        fabric_manager: latest.Latest[str] | None = None,
    ) -> None:
        """Prepare; nothing is read or written before `run`.

        Args: node: followed by its own part.   snapshots: what is to be published.
              machine: product name of the machine, for its label; empty: not known.
              nvidia_resource: under which NVIDIA's GPUs are offered; empty: under none.
              mig: what the Node's labels say of MIG; None: that there is none.
              supply: how they are offered, as soon as that is known; None: whole, under that name.
              labelling: which labels there are beside those of the GPUs, and where they go; None: to the Node.
              fabric_manager: version of the node's Fabric Manager, for its label; empty, or None: it is not known.
        """
        self._snapshots = snapshots
        self._known, self._name = node, node.name
        self._store = store
        self._machine = machine
        self._nvidia_resource = nvidia_resource
        self._mig = mig or MIGPublication()
        self._labelling = labelling or Labelling()
        self._fabric_manager: latest.Latest[str] = fabric_manager or latest.Latest("")
        self._gvisor: tuple[str, ...] | None = None
        """Drivers that the node's gVisor knows; None: it has none, or was not looked at."""
        self._features: dict[str, str] = {}
        """Labels that node feature discovery is to set."""
        self._handed: dict[str, str] | None = None
        self._supply: latest.Latest[Supply] = supply or latest.Latest(NOTHING)
        self._drift_s = drift_s
        self._queue = workqueue.WorkQueue("publish", self._work)
        self._snapshot = Snapshot()
        self._node: core.Node | None = None
        self.quarantines: latest.Latest[Mapping[str, str]] = latest.Latest({})
        """Why administrators want GPUs of this node out of service, by UUID, as their objects say."""
        self.uids: latest.Latest[Mapping[str, str]] = latest.Latest({})
        """Uid of each object of this node, by name: one that was made again is another object."""
        self._devices: dict[str, GPUDevice] | None = None
        """This node's objects as last seen; None: not listed yet."""
        self._wanted: dict[str, planner.Wanted] = {}
        self._labels: dict[str, str] = {}
        self._applied: dict[str, str] | None = None
        """The labels that this agent set last; None: none yet."""
        self._tried: dict[str, object] = {}
        """What the last write of each key was to bring about: the same still wanted and not there is another writer's
        doing, or a failure that the queue tries again by itself."""

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Keep publications true for ever."""
        if self._labelling.gvisor:
            try:
                self._gvisor = (await gvisor.look(self._labelling.gvisor)).drivers
            except errors.Unavailable as error:
                telemetry.log.warning("gVisor not looked at", reason=error.reason, error=error.message)
                self._gvisor = ()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(meter), name="publish")
            tasks.create_task(self._follow_snapshots(), name="publish: snapshots")
            tasks.create_task(self._supply.follow(lambda _: self._check()), name="publish: supply")
            tasks.create_task(self._mig.state.follow(lambda _: self._check()), name="publish: mig state")
            tasks.create_task(self._mig.strategy.follow(lambda _: self._check()), name="publish: mig strategy")
            tasks.create_task(self._fabric_manager.follow(lambda _: self._check()), name="publish: fabric manager")
            tasks.create_task(self._known.node.follow(self._take_node), name="publish: node")
            tasks.create_task(self._follow_devices(), name="publish: devices")
            await asyncio.sleep(NODE_WAIT_S)
            if self._node is None:
                telemetry.log.warning("no Node object of this name, nothing is published", node=self._name)

    # what is there

    async def _follow_snapshots(self) -> None:
        async for snapshot in self._snapshots.changes():
            self._snapshot = snapshot
            self._check()

    def _verdicts(self) -> Mapping[GPUUUID, rules.Verdict]:
        ill = {gpu: verdict for gpu, verdict in self._snapshot.verdicts.items() if not verdict.is_healthy}
        return {**self._snapshot.verdicts, **self._supply.value.withheld, **ill}

    def _take_node(self, node: core.Node | None) -> None:
        self._node = node
        self._check()

    async def _follow_devices(self) -> None:
        selector = Selector(fields={"spec.nodeName": self._name})
        await reflector.follow(
            self._store, GPUDevice, selector, listed=self._devices_listed, changed=self._device_changed
        )

    def _devices_listed(self, devices: tuple[GPUDevice, ...]) -> None:
        self._devices = {device.metadata.name: device for device in devices}
        self._check()

    def _device_changed(self, change: Change[GPUDevice]) -> None:
        if self._devices is None:
            return
        if change.kind is ChangeKind.DELETED:
            self._devices.pop(change.object.metadata.name, None)
        else:
            self._devices[change.object.metadata.name] = change.object
        self._check()

    # what should be

    def _check(self) -> None:
        """Plan anew and queue what differs; no I/O."""
        snapshot, devices = self._snapshot, self._devices
        if devices is not None:
            self.quarantines.set(planner.find_quarantines(devices.values()))
            self.uids.set({name: device.metadata.uid for name, device in devices.items()})
        if not snapshot.is_scanned or self._node is None or devices is None:
            return
        self._wanted = planner.plan_devices(
            self._name,
            snapshot.inventory,
            verdicts=self._verdicts(),
            known=snapshot.known,
            problem=snapshot.problem,
            kept=devices.values(),
            nvidia_resource=self._nvidia_resource,
            offers=advertise.offers_of(self._supply.value.resources),
            mig=advertise.mig_resources(self._supply.value.resources),
        )
        found = {
            **label.plan_labels((one.spec for one in self._wanted.values()), machine=self._machine),
            **miglabel.plan_mig_labels(tuple(snapshot.known.values()), self._mig.strategy.value),
        }
        found |= label.plan_gvisor((one.spec for one in self._wanted.values()), self._gvisor)
        found |= label.plan_fabric(self._fabric_manager.value)
        found |= label.plan_extras(found, started=self._labelling.started, has_aliases=self._labelling.has_aliases)
        state = {configurator.STATE_LABEL: self._mig.state.value} if self._mig.state.value else {}
        # The state answers a label of the Node, so it goes there in any case.
        self._labels, self._features = (state, found) if self._labelling.features else ({**found, **state}, {})
        if self._labelling.features and self._features != self._handed:
            self._ask(_FEATURES, self._features)
        for name in self._wanted.keys() | devices.keys():
            if self._is_due(name):
                self._ask(name, self._wanted.get(name))
        if not self._is_labelled(self._node):
            self._ask(_LABELS, self._labels)

    def _ask(self, key: str, wanted: object) -> None:
        is_repair = key in self._tried and self._tried[key] == wanted
        self._queue.add(key, after_s=self._drift_s if is_repair else 0.0)

    def _is_due(self, name: str) -> bool:
        wanted, device = self._wanted.get(name), (self._devices or {}).get(name)
        if wanted is None or device is None:
            return (wanted is None) is not (device is None)
        return not self._is_owned(device, wanted) or not self._is_told(device, wanted)

    def _is_owned(self, device: GPUDevice, wanted: planner.Wanted) -> bool:
        """Return whether the spec is right and the object goes with this Node."""
        owners = {owner.uid for owner in device.metadata.owner_references}
        return planner.own_spec(device) == wanted.spec and self._node is not None and self._node.metadata.uid in owners

    def _is_told(self, device: GPUDevice, wanted: planner.Wanted) -> bool:
        is_overruled = device.status.health == gpudevice.UNKNOWN and self._is_silent(device, wanted)
        return is_overruled or planner.is_current(device, wanted)

    def _is_silent(self, device: GPUDevice, wanted: planner.Wanted) -> bool:
        """Return whether the controller's Unknown is still right: this node cannot speak, or offers nothing to pods."""
        if self._node is None:
            return True
        if planner.is_silenced(device) and wanted.health != gpudevice.HEALTHY:
            return not _is_ready(self._node)
        return device.metadata.name in planner.find_silence(self._node, (device,))

    def _is_labelled(self, node: core.Node) -> bool:
        """Return whether the labels are there, and none that we set before and want no more.

        What an earlier agent set is not known here: the first apply of every agent lists all fields, and the server
        removes the rest.
        """
        if self._applied is None:
            return False
        there = node.metadata.labels
        gone = self._applied.keys() - self._labels.keys()
        return all(there.get(name) == value for name, value in self._labels.items()) and not gone & there.keys()

    # what is done

    async def _work(self, key: str) -> None:
        if self._node is None:
            return  # asked for again once it is there
        if key == _LABELS:
            await self._label(self._node)
        elif key == _FEATURES and self._labelling.features is not None:
            self._tried[key] = wanted_features = self._features
            await self._labelling.features.write(wanted_features, self._node)
            self._handed = wanted_features
        elif (wanted := self._wanted.get(key)) is not None:
            await self._keep(key, wanted, self._node)
        elif (device := (self._devices or {}).get(key)) is not None:
            self._tried.pop(key, None)
            with contextlib.suppress(errors.NotFound, errors.Conflict):  # gone, or another object by now
                await self._store.delete(GPUDevice, key, uid=device.metadata.uid)

    async def _keep(self, name: str, wanted: planner.Wanted, node: core.Node) -> None:
        self._tried[name] = wanted
        device = (self._devices or {}).get(name)
        if device is None or not self._is_owned(device, wanted):
            owner = meta.OwnerReference(
                api_version=node.API_VERSION, kind=node.KIND, name=self._name, uid=node.metadata.uid
            )
            about = meta.ObjectMeta(name=name, owner_references=(owner,))
            device = await self._store.apply(GPUDevice(metadata=about, spec=wanted.spec), manager=label.MANAGER)
        if not self._is_told(device, wanted):
            telling = functools.partial(planner.with_status, wanted=wanted, now=meta.now())
            await retry.change_status(self._store, GPUDevice, name, telling)

    async def _label(self, node: core.Node) -> None:
        """Set our labels and take back those we set before; the uid keeps us from making a Node that is gone."""
        wanted = self._tried[_LABELS] = self._labels
        if self._is_labelled(node):
            return
        about = meta.ObjectMeta(name=self._name, uid=node.metadata.uid, labels=wanted)
        await self._store.apply(core.Node(metadata=about), manager=label.MANAGER)
        self._applied = wanted


def _is_ready(node: core.Node | None) -> bool:
    conditions = node.status.conditions if node is not None else ()
    return any(one.type == "Ready" and one.status == "True" for one in conditions)
