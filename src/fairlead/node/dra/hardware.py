"""Carries out what a ResourceClaim's devices need of their GPUs, and undoes it: MIG devices, time slices, MPS daemons.

Each step looks at what is there first, so that it may be done twice: a preparation that was interrupted is undone and
done again. Whatever stands at a place that the journal does not own is left alone and named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from fairlead import errors, telemetry
from fairlead.model.driver import PassthroughGPU
from fairlead.model.gpu import GPU, MIGDevice
from fairlead.model.ids import GPUUUID
from fairlead.model.mig import GPUInstance, Partition, Slot
from fairlead.node.inventory import latest
from fairlead.node.mig import apply
from fairlead.plan.dra.offered import Kind
from fairlead.plan.dra.preparation import Preparation, PreparedDevice
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.mig.change import Act, Change, Step
from fairlead.plan.sharing import mps
from fairlead.plan.vfio import slotoffer
from fairlead.silicon.port import Partitioner, TimeSlices

SCAN_S: Final = 15.0
"""How long a MIG device that was made is waited for in the inventory."""
DAEMON_S: Final = 20.0
"""How long an MPS control daemon is waited for: with the rest it stays below the kubelet's 45 s."""

_NONE_STANDS: Final[Mapping[str, str]] = {}

T = TypeVar("T")
SetDaemons = Callable[[Mapping[GPUUUID, mps.Daemon]], None]
"""Has the control daemons that claims need kept from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a node has for it."""

    snapshots: latest.Latest[Snapshot]
    ask_scan: Callable[[], None]
    partitioner: Partitioner | None = None
    """None: no GPU here can be partitioned."""
    time_slices: TimeSlices | None = None
    """None: the driver's program for it is not there."""
    daemon_states: latest.Latest[Mapping[GPUUUID, mps.DaemonState]] | None = None
    """None: no GPU here can be shared by MPS."""
    set_daemons: SetDaemons = lambda _: None


class Hardware:
    """The GPUs of this node, as claims have them set up."""

    def __init__(self, parts: Parts) -> None:
        """Take the parts; nothing is changed yet."""
        self._parts = parts
        self._daemons: dict[str, tuple[mps.Daemon, ...]] = {}
        """By the claim's UID: those that claims share are one daemon."""
        self._foreign: set[tuple[str, Slot]] = set()
        """Places at which something stood that no claim made."""

    def keep(self, prepared: tuple[Preparation, ...]) -> None:
        """Have the daemons kept that these claims need: called once the journal is read."""
        self._daemons = {one.uid: daemons for one in prepared if (daemons := _daemons(one))}
        self._parts.set_daemons(_joined(self._daemons.values()))

    async def check(self, wanted: Preparation) -> Mapping[str, Partition]:
        """Refuse a claim whose places are taken, before anything is noted of it; returns what was read, by GPU.

        Raises: Conflict (`PlaceTaken`).   DeviceFault (`PassthroughUnusable`): a GPU that cannot be passed through now.
        """
        passed = {str(gpu.key): gpu for gpu in self._parts.snapshots.value.passthrough}
        for device in (one for one in wanted.devices if one.kind is Kind.VFIO):
            _assert_usable(device, passed.get(device.gpu))
        parts = [one for one in wanted.devices if one.kind is Kind.PARTITION and not one.is_admin]
        if not parts:
            return {}
        partitioner, standing = self._needs_partitioner(parts[0]), dict[str, Partition]()
        for device in parts:
            if device.gpu not in standing:
                standing[device.gpu] = await self._read(partitioner, device)
            self._assert_free(standing[device.gpu], _slot(device))
        return standing

    async def make(
        self,
        wanted: Preparation,
        read: Mapping[str, Partition] | None = None,
        *,
        standing: Mapping[str, str] = _NONE_STANDS,
    ) -> Mapping[str, str]:
        """Set up the GPUs of a claim; returns the UUIDs of its MIG devices, by device.

        Args:   read: MIG of its GPUs, as `check` has just read it.   standing: MIG devices that it has already.
        Raises: FairleadError: some of it may be done; `undo` takes it back.
        """
        made, fresh = dict[str, str](), dict(read or {})
        for device in wanted.devices:
            if device.is_admin:
                continue
            if device.kind is Kind.PARTITION and device.device in standing:
                made[device.device] = standing[device.device]
            elif device.kind is Kind.PARTITION:
                # What was read of a GPU is true until its first change.
                made[device.device] = await self._make_partition(device, fresh.pop(device.gpu, None))
            elif device.kind is Kind.GPU:
                await self._leave_mig(device)
            if device.share.time_slice is not None:
                await self._set_time_slice(device, device.share.time_slice)
        await self._start_daemons(wanted)
        return made

    async def renew(self, preparation: Preparation) -> Mapping[str, str]:
        """Set up again what of a claim's GPUs is not as it was, and leave the MIG devices that are; returns as `make`.

        Raises: FairleadError: some of it may be done; it may be called again.
        """
        snapshot, standing = self._parts.snapshots.value, dict[str, str]()
        partitions = [one for one in preparation.devices if one.kind is Kind.PARTITION and not one.is_admin]
        for device in partitions:
            found = find_instance(snapshot, device.gpu, _slot(device))
            if found is not None and str(found.uuid) == device.instance:
                standing[device.device] = device.instance
        for device in reversed(partitions):
            if device.device not in standing:
                await self._end_partition(device)  # half of it may stand there
        return await self.make(preparation, standing=standing)

    async def undo(self, preparation: Preparation) -> None:
        """Take back what `make` did, the last first; what is not there is done. Raises: FairleadError: some is left."""
        if ours := self._daemons.pop(preparation.uid, ()):
            left = _joined(self._daemons.values())
            self._parts.set_daemons(left)
            await self._until_ended([daemon.gpu for daemon in ours if daemon.gpu not in left])
        for device in reversed(preparation.devices):
            if device.is_admin:
                continue
            if device.share.time_slice is not None:
                await self._reset_time_slice(device)
            if device.kind is Kind.PARTITION:
                await self._end_partition(device)

    async def _make_partition(self, device: PreparedDevice, now: Partition | None) -> str:
        partitioner, slot = self._needs_partitioner(device), _slot(device)
        now = now or await self._read(partitioner, device)
        profile = now.find_profile(device.profile)
        if profile is None:
            message = f"GPU {device.gpu} has no MIG profile {device.profile}"
            raise errors.NotFound(message, reason="ProfileUnknown", hint="`fairlead mig list` shows its profiles")
        self._assert_free(now, slot)
        steps = () if now.is_enabled else (Step(act=Act.SET_MODE, is_enabled=True),)
        create = Step(act=Act.CREATE_INSTANCE, slot=slot)
        compute = Step(act=Act.CREATE_COMPUTE, slot=slot, slices=profile.slices)
        change = Change(gpu=now, steps=(*steps, create, compute))
        telemetry.crash_point("dra.before-partition")
        await apply.apply_changes(partitioner, (change,))
        telemetry.crash_point("dra.after-partition")
        return str((await self._await_device(device, slot)).uuid)

    def _assert_free(self, now: Partition, slot: Slot) -> None:
        place = (str(now.gpu), slot)
        self._foreign.discard(place)
        if standing := _standing(now, slot):
            self._foreign.add(place)
            message = f"a MIG device stands at {slot} of GPU {now.gpu} that no claim made"
            hint = f"instance {standing.id} is somebody's: `fairlead mig list`; destroy it, or drain the node"
            raise errors.Conflict(message, reason="PlaceTaken", hint=hint)

    async def _end_partition(self, device: PreparedDevice) -> None:
        partitioner = self._needs_partitioner(device)
        now = await self._read(partitioner, device)
        standing = _standing(now, _slot(device))
        if standing is None or (device.gpu, _slot(device)) in self._foreign:
            return
        computes = tuple(
            Step(act=Act.DESTROY_COMPUTE, instance=standing.id, compute=one.id) for one in standing.computes
        )
        end = Step(act=Act.DESTROY_INSTANCE, instance=standing.id)
        await apply.apply_changes(partitioner, (Change(gpu=now, steps=(*computes, end)),))
        # What stands there next is told from this one by the inventory, which must have seen this one go.
        await self._await(lambda snapshot: _without(snapshot, device), f"GPU {device.gpu} without {_slot(device)}")

    async def _leave_mig(self, device: PreparedDevice) -> None:
        """Switch MIG off on a GPU that a claim has as a whole. Raises: Conflict: an instance stands on it."""
        partitioner = self._parts.partitioner
        gpu = self._parts.snapshots.value.known.get(GPUUUID(device.gpu))
        if partitioner is None or gpu is None or not gpu.mig_enabled:
            return
        now = await self._read(partitioner, device)
        if now.instances:
            message = f"GPU {device.gpu} is wanted as a whole and has {len(now.instances)} MIG devices"
            hint = "no claim has them: `fairlead mig list`; destroy them, or configure the node's MIG"
            raise errors.Conflict(message, reason="PlaceTaken", hint=hint)
        await apply.apply_changes(partitioner, (Change(gpu=now, steps=(Step(act=Act.SET_MODE, is_enabled=False),)),))
        await self._await(lambda snapshot: _whole(snapshot, device.gpu), f"GPU {device.gpu} without MIG")

    async def _set_time_slice(self, device: PreparedDevice, interval: int) -> None:
        if self._parts.time_slices is None:
            message = f"the time slices of GPU {device.gpu} cannot be set: nvidia-smi is not on this node"
            hint = "install the driver's utilities, or leave timeSlicingConfig out of the claim"
            raise errors.Unavailable(message, reason="SharingUnsupported", hint=hint)
        await self._parts.time_slices.set_time_slice(GPUUUID(device.gpu), interval)

    async def _reset_time_slice(self, device: PreparedDevice) -> None:
        """Set the default; where that is refused, as it was when the claim asked for another, the GPU is free of it."""
        try:
            await self._set_time_slice(device, 0)
        except errors.FairleadError as error:
            telemetry.log.warning("time slice not reset", gpu=device.gpu, reason=error.reason, error=error.message)

    async def _start_daemons(self, wanted: Preparation) -> None:
        daemons = _daemons(wanted)
        if not daemons:
            return
        states = self._parts.daemon_states
        if states is None:
            message = f"claim {wanted.words} asks for MPS, and no GPU of this node can be shared by it"
            raise errors.Unavailable(message, reason="SharingUnsupported", hint="leave sharing out of the claim")
        self._daemons[wanted.uid] = daemons
        self._parts.set_daemons(_joined(self._daemons.values()))
        gpus = [daemon.gpu for daemon in daemons]

        def is_ready() -> bool:
            return all((state := states.value.get(gpu)) is not None and not state.reason for gpu in gpus)

        try:
            async with asyncio.timeout(DAEMON_S):
                while not is_ready():
                    await states.wait(states.version)
        except TimeoutError as error:
            said = next((one.message for gpu in gpus if (one := states.value.get(gpu)) and one.reason), "it is silent")
            message = f"the MPS control daemon of claim {wanted.words} is not ready after {DAEMON_S:g} s: {said}"
            hint = "the kubelet tries again; `fairlead doctor` looks at the daemon"
            raise errors.Unavailable(message, reason="DaemonNotReady", hint=hint) from error

    async def _until_ended(self, gpus: list[GPUUUID]) -> None:
        """Wait for control daemons to end and to give their GPU its compute mode back."""
        states = self._parts.daemon_states
        if states is None or not gpus:
            return
        try:
            async with asyncio.timeout(DAEMON_S):
                while any(gpu in states.value for gpu in gpus):
                    await states.wait(states.version)
        except TimeoutError as error:
            message = f"the MPS control daemon of GPU {gpus[0]} has not ended after {DAEMON_S:g} s"
            raise errors.Unavailable(message, reason="DaemonNotEnded", hint="the kubelet tries again") from error

    def _needs_partitioner(self, device: PreparedDevice) -> Partitioner:
        if self._parts.partitioner is None:
            message = f"GPU {device.gpu} cannot be partitioned by this node's driver"
            raise errors.Unavailable(message, reason="PartitionerMissing", hint="`fairlead mig list` says why")
        return self._parts.partitioner

    async def _read(self, partitioner: Partitioner, device: PreparedDevice) -> Partition:
        """Read MIG of a device's GPU alone. Raises: DeviceFault (`GPUSilent`), Unavailable."""
        found = await partitioner.read_partition(GPUUUID(device.gpu))
        if found.problem:
            message = f"GPU {device.gpu} does not answer: {found.problem}"
            raise errors.DeviceFault(message, reason="GPUSilent", hint="`fairlead doctor` looks at it")
        return found

    async def _await_device(self, device: PreparedDevice, slot: Slot) -> MIGDevice:
        """Wait for a MIG device that was made to be in the inventory, with its nodes."""
        return await self._await(lambda snapshot: find_instance(snapshot, device.gpu, slot), f"MIG device {slot}")

    async def _await(self, find: Callable[[Snapshot], T | None], what: str) -> T:
        snapshots = self._parts.snapshots
        try:
            async with asyncio.timeout(SCAN_S):
                seen = snapshots.version
                self._parts.ask_scan()
                while (found := find(snapshots.value)) is None:
                    seen = await snapshots.wait(seen)
                return found
        except TimeoutError as error:
            message = f"{what} is not in the inventory after {SCAN_S:g} s"
            raise errors.Unavailable(message, reason="InventorySlow", hint="`fairlead doctor` looks at it") from error


def _assert_usable(device: PreparedDevice, gpu: PassthroughGPU | None) -> None:
    """Refuse a GPU that no machine could use: off the bus, in a group that is not viable. Raises: DeviceFault."""
    problem = gpu.problem if gpu is not None else f"GPU {device.gpu} is not bound to VFIO any more"
    if problem:
        message = f"{device.device} cannot be passed through now: {problem}"
        hint = "`fairlead vfio check` on the node looks at it; the kubelet tries again"
        raise errors.DeviceFault(message, reason=slotoffer.UNUSABLE, hint=hint)


def find_instance(snapshot: Snapshot, gpu: str, slot: Slot) -> MIGDevice | None:
    """Return the MIG device at a place of a GPU; None: none stands there."""
    devices = (one for found in snapshot.inventory.gpus if str(found.uuid) == gpu for one in found.mig_devices)
    return next((one for one in devices if one.placement_start == slot.start and one.profile == slot.profile), None)


def _without(snapshot: Snapshot, device: PreparedDevice) -> Snapshot | None:
    return snapshot if find_instance(snapshot, device.gpu, _slot(device)) is None else None


def _whole(snapshot: Snapshot, gpu: str) -> GPU | None:
    return next((one for one in snapshot.inventory.gpus if str(one.uuid) == gpu and not one.mig_enabled), None)


def _slot(device: PreparedDevice) -> Slot:
    return Slot(profile=device.profile, start=device.start or 0)


def _standing(now: Partition, slot: Slot) -> GPUInstance | None:
    return next((one for one in now.instances if one.slot == slot), None)


def _daemons(preparation: Preparation) -> tuple[mps.Daemon, ...]:
    return tuple(
        mps.Daemon(gpu=GPUUUID(one.gpu), memory_mib=one.share.memory_mib, percent=one.share.thread_percentage)
        for one in preparation.devices
        if one.share.is_mps and not one.is_admin
    )


def _joined(wanted: Iterable[tuple[mps.Daemon, ...]]) -> dict[GPUUUID, mps.Daemon]:
    """Return one daemon for each GPU; of several claims' limits the largest, as each container has its own besides."""
    found = dict[GPUUUID, mps.Daemon]()
    for daemon in (one for daemons in wanted for one in daemons):
        other = found.get(daemon.gpu, daemon)
        found[daemon.gpu] = mps.Daemon(
            gpu=daemon.gpu,
            memory_mib=_largest(daemon.memory_mib, other.memory_mib),
            percent=_largest(daemon.percent, other.percent),
        )
    return found


def _largest(one: int | None, two: int | None) -> int | None:
    """Return the larger of two limits; None, no limit, is the largest."""
    return None if one is None or two is None else max(one, two)
