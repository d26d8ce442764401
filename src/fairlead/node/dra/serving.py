"""Composes the node's DRA driver: what is offered, how it is prepared, the sockets, and what is published.

Which GPUs claims get is in the supply. What the driver finds out goes back to the agent: the control daemons that
claims need, and the GPUs that the API server has allocated while they are to leave.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.model.ids import GPUUUID
from fairlead.model.mig import Partition
from fairlead.node.cdi import specfile
from fairlead.node.dra import adopter, claimfile, claimstatus, driver, hardware, journal, preparer, publisher, sockets
from fairlead.node.dra.around import Around
from fairlead.node.inventory import latest, monitor
from fairlead.plan.dra import offered, passthrough, preparation, share, taints
from fairlead.plan.dra.devicestatus import Progress
from fairlead.plan.dra.offered import DRIVER, OfferedDevice
from fairlead.plan.dra.preparation import Node
from fairlead.plan.gpu import door, health
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease.row import State
from fairlead.settings import Settings
from fairlead.silicon.port import Partitionable, TimeSliced
from fairlead.wire.kubernetes.resource.device import DeviceTaint
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

REAP_S: Final = 600.0
"""How often claims are looked for that are prepared and no longer exist."""
FIRST_REAP_S: Final = 30.0
_SETTLED: Final = frozenset({State.FREE, State.HELD})
"""States in which nothing is to be done for a GPU's last holder."""
LEAVING_S: Final = 5.0
"""How often the API server is asked for allocated claims while a GPU is to leave them for the device plugin."""


class Claims:
    """Gives GPUs away by ResourceClaims."""

    def __init__(
        self,
        settings: Settings,
        around: Around,
        *,
        set_daemons: hardware.SetDaemons,
        set_allocated: Callable[[frozenset[GPUUUID] | None], None],
    ) -> None:
        """Compose; nothing runs yet.

        Args: set_daemons: has the control daemons that claims need kept.   set_allocated: called with the GPUs that
              the API server has allocated, as long as one is to leave; None: it has not said.
        """
        self._settings, self._around = settings, around
        self._set_daemons, self._set_allocated = set_daemons, set_allocated
        silicon = around.silicon
        self._partitioner = silicon.partitioner() if isinstance(silicon, Partitionable) else None
        self._partitions: tuple[Partition, ...] = ()
        self._unpublished: tuple[str, ...] = ()
        self._hardware_read: object = None
        self._offered_of: object = None
        self._offered: latest.Latest[Mapping[str, OfferedDevice]] = latest.Latest({})
        self._health: latest.Latest[driver.States] = latest.Latest({})
        self._published: latest.Latest[tuple[OfferedDevice, ...] | None] = latest.Latest(None)
        self._effects = taints.choose_effects(settings.health.device_taint)
        self._tainted: latest.Latest[Mapping[str, tuple[DeviceTaint, ...]]] = latest.Latest({})
        self._publisher = publisher.Publisher(
            store=around.store, node=around.node_object, offered=self._published, tainted=self._tainted
        )
        self._sockets = sockets.Sockets(settings.kubelet_folder.parent, DRIVER)
        place = claimfile.Place(
            folder=settings.node.cdi_folder,
            recipe=specfile.allocation_recipe_of(settings.node),
            boot_id=around.boot_id,
            stamping=settings.node.cdi_stamp,
            host_mount=settings.node.host_mount,
            driver=DRIVER,
            plugin_folder=self._sockets.folder,
        )
        self._journal = journal.Journal(around.gate, Path(settings.lease_folder))
        made = claimfile.ClaimFiles(place, around.watch.snapshots, self._daemon_folders)
        self._adopter = adopter.Adopter(
            adopter.Parts(
                store=around.store,
                possession=around.gate,
                journal=self._journal,
                files=made,
                folder=self._sockets.folder,
                node=self._node,
                said=around.said,
            )
        )
        self._statuses = claimstatus.ClaimStatuses(around.store, DRIVER, around.node)
        self._preparer = preparer.Preparer(
            around.store,
            around.gate,
            self._journal,
            (made, hardware.Hardware(self._hardware())),
            preparer.Surroundings(node=self._node, pods=around.pods.all, said=around.said, told=self._tell),
        )

    async def run(self, meter: telemetry.Meter) -> None:
        """Give GPUs away, for ever; the ledger must be open."""
        while not self._around.watch.snapshots.value.is_scanned:
            await self._around.watch.snapshots.wait(self._around.watch.snapshots.version)
        await self._read_mig(monitor.without_readings(self._around.watch.snapshots.value.inventory))
        self._offer()
        is_left = await self._adopter.adopt()  # before the sweep, and before a kubelet can ask
        await self._preparer.start()
        served = driver.Driver(self._preparer, self._health, meter=meter, successor=self._sockets.successor)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_partitions(), name="dra: inventory")
            tasks.create_task(self._renew(), name="dra: nodes")
            tasks.create_task(self._around.supply.follow(lambda _: self._offer()), name="dra: supply")
            tasks.create_task(self._sockets.run(served, served), name="dra: sockets")
            tasks.create_task(self._preparer.restore(), name="dra: restoring")
            tasks.create_task(self._publish(meter), name="dra: slices")
            tasks.create_task(self._statuses.run(), name="dra: claims' statuses")
            tasks.create_task(self._around.gate.rows.follow(lambda _: self._judge()), name="dra: ledger")
            tasks.create_task(self._reap(is_left=is_left), name="dra: reaper")
            tasks.create_task(self._watch_leaving(), name="dra: leaving")

    def _tell(self, claim: preparer.ClaimRef, progress: Progress | None) -> None:
        self._statuses.tell((claim.namespace, claim.name, claim.uid), progress)

    async def _read_partitions(self) -> None:
        """Offer what there is, for ever: MIG is read whenever the hardware is another than before."""
        async for snapshot in self._around.watch.snapshots.changes():
            hardware = monitor.without_readings(snapshot.inventory)
            if hardware != self._hardware_read:
                await self._read_mig(hardware)
            self._offer()

    async def _read_mig(self, hardware: object) -> None:
        """Read MIG of all GPUs; a node that passes them through may have no driver to ask. Args: hardware: read now."""
        if self._partitioner is None:
            return
        try:
            self._partitions = await self._partitioner.list_partitions()
            self._hardware_read = hardware
        except errors.FairleadError as error:
            is_driven = bool(self._around.watch.snapshots.value.known)
            log = telemetry.log.warning if is_driven else telemetry.log.debug
            log("mig not read for claims", reason=error.reason, error=error.message)

    async def _renew(self) -> None:
        """Have claims' files follow GPUs that are bound anew, for ever: apart, since it waits for claims' locks."""
        async for _ in self._around.watch.snapshots.changes():
            await self._preparer.renew()

    def _choice(self, snapshot: Snapshot, claimed: frozenset[GPUUUID]) -> offered.Choice:
        is_served = self._settings.node.claim_shares_by == "mps" and self._around.daemons is not None
        enforced_by = share.Enforcement.MPS if is_served else share.Enforcement.NOTHING
        shares = share.parse_shares(self._settings.node.claim_shares, enforced_by)
        return offered.Choice(
            gpus=claimed,
            partitioned=claimed if self._settings.node.claim_partitions else frozenset(),
            made=preparation.find_made(self._journal.all(), snapshot.inventory.gpus),
            shares=dict.fromkeys(claimed, shares) if shares is not None else {},
        )

    def _offer(self) -> None:
        """Offer the GPUs that claims get, as they are now."""
        snapshot, claimed = self._around.watch.snapshots.value, self._around.supply.value.doors.claimed
        choice = self._choice(snapshot, claimed)
        passed = (snapshot.passthrough, snapshot.partition_ids)
        facts = (monitor.without_readings(snapshot.inventory), snapshot.known.keys(), passed, self._partitions, choice)
        if facts != self._offered_of:
            plan = offered.plan_offer(snapshot, self._partitions, choice)
            for text in plan.unpublished if plan.unpublished != self._unpublished else ():
                telemetry.log.warning("not offered to claims", error=text)
            self._unpublished, self._offered_of = plan.unpublished, facts
            self._offered.set({one.name: one for one in plan.devices})
        found = tuple(self._offered.value.values())
        leaving = self._around.supply.value.doors.leaving
        self._published.set(tuple(one for one in found if one.gpu not in leaving))
        self._judge()
        self._tell_health(snapshot, found)

    async def _publish(self, meter: telemetry.Meter) -> None:
        """Publish once the kubelet has the driver: one that does not know it makes a pod wait for up to 90 s."""
        problem = self._sockets.problem
        while problem.value != "":
            await problem.wait(problem.version)
        await self._publisher.run(meter)

    def _judge(self) -> None:
        """Keep claims off devices of GPUs that are ill, or in other hands, or not clean since the last ones."""
        snapshot, rows = self._around.watch.snapshots.value, self._around.gate.rows.value
        against = taints.Against(
            verdicts=_verdicts(snapshot),
            device_verdicts=snapshot.device_verdicts,
            standing=taints.find_standing(snapshot.known.values()),
            unverified={GPUUUID(key): row.state.value for key, row in rows.items() if row.state not in _SETTLED},
            other_doors={
                GPUUUID(key): door.PLUGIN
                for key, row in rows.items()
                if row.state is State.HELD and not any(one.holder for one in row.claims)
            },
        )
        self._tainted.set(taints.plan_taints(self._offered.value.values(), against, self._effects))

    def _tell_health(self, snapshot: Snapshot, found: tuple[OfferedDevice, ...]) -> None:
        """Tell kubelets how the devices are; one that was made for a claim by its own verdict, too."""
        against = taints.Against(
            verdicts=_verdicts(snapshot),
            device_verdicts=snapshot.device_verdicts,
            standing=taints.find_standing(snapshot.known.values()),
        )
        self._health.set(
            {
                (self._around.node, one.name): driver.DeviceState(
                    why=taints.find_illness(one, against), source=str(one.gpu)
                )
                for one in found
            }
        )

    def _node(self) -> Node:
        return Node(driver=DRIVER, pool=self._around.node, devices=self._offered.value, boot_id=self._around.boot_id)

    def _hardware(self) -> hardware.Parts:
        silicon = self._around.silicon
        return hardware.Parts(
            snapshots=self._around.watch.snapshots,
            ask_scan=functools.partial(self._around.watch.ask_scan, is_urgent=True),
            partitioner=self._partitioner,
            time_slices=silicon.time_slices() if isinstance(silicon, TimeSliced) else None,
            daemon_states=self._around.daemons,
            set_daemons=self._set_daemons,
        )

    def _daemon_folders(self) -> Mapping[str, tuple[str, str]]:
        return self._around.daemon_folders(self._around.watch.snapshots.value.known)

    async def _reap(self, *, is_left: bool) -> None:
        """Unprepare claims that are gone, and try again to take over what another driver left, for ever."""
        wait_s = FIRST_REAP_S
        while True:
            await asyncio.sleep(wait_s)
            is_left = is_left and await self._adopter.adopt()
            wait_s = FIRST_REAP_S if is_left else REAP_S
            for claim in await self._preparer.reap():
                self._around.said(claim, "ClaimReaped", "it was prepared and is gone; its GPUs were taken back")

    async def _watch_leaving(self) -> None:
        """Ask for allocated claims while a GPU that claims have is wanted by the device plugin."""
        while True:
            if self._around.supply.value.doors.leaving:
                try:
                    found = await self._around.store.list(ResourceClaim)
                except errors.FairleadError as error:
                    telemetry.log.warning(
                        "gpus stay with claims, which were not listed",
                        reason=error.reason,
                        error=errors.sentence(error),
                    )
                else:
                    self._set_allocated(self._allocated(found.items))
            else:
                self._set_allocated(None)
            await asyncio.sleep(LEAVING_S)

    def _allocated(self, claims: Iterable[ResourceClaim]) -> frozenset[GPUUUID]:
        """Return the GPUs that claims have, whole or in part, as the API server has them allocated."""
        named = {
            one.device
            for claim in claims
            if claim.status.allocation is not None
            for one in claim.status.allocation.devices.results
            if one.driver == DRIVER and one.pool == self._around.node
        }
        return frozenset(device.gpu for name, device in self._offered.value.items() if name in named)


def _verdicts(snapshot: Snapshot) -> Mapping[GPUUUID, health.Verdict]:
    """Return what is held against each GPU, those that are passed through too."""
    passed = {gpu.key: found for gpu in snapshot.passthrough if (found := passthrough.verdict(gpu)) is not None}
    return {**snapshot.verdicts, **passed} if passed else snapshot.verdicts
