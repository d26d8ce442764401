"""Scans this machine for GPUs that are passed through, and resets them.

One scan is one pass over sysfs in a thread, beside the silicon's own. A GPU that is bound to VFIO is listed with what
stands in its way; one that vanished, or reads as ones, stays listed with that for as long as the agent lives, so that
the kubelet keeps its capacity; one that somebody bound to another driver is gone from here at once.

Registers are read while nobody has the GPU: with its node in our hands, the third gate's or one taken for the reading.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.model.driver import DeviceNode, DriverFiles, PassthroughGPU, PassthroughSwitch
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.model.vfio import SWITCHES, Function, FunctionKind, ModuleReading, ModuleUnknown, Snapshot
from fairlead.node.inventory import health
from fairlead.node.vfio import busevents, modules, numbers, thirdgate
from fairlead.plan.vfio import unit, verdict
from fairlead.plan.vfio.slotoffer import UNUSABLE
from fairlead.silicon.vfio import discovery, registers

_NVIDIA: Final = 0x10DE
_NVLINK5: Final = re.compile(r"GB1[0-9]{2}\b")
"""Begins the names of Blackwell's data-centre GPUs in the list of PCI ids: GB100 [B200]."""
_VENDORS: Final = {_NVIDIA: Vendor.NVIDIA, 0x1002: Vendor.AMD, 0x8086: Vendor.INTEL}
MODULE_MOVED: Final = "ModuleMoved"
CC_CHANGED: Final = "CCModeChanged"
"""Reason of a GPU whose last tenant left it in another mode of confidential computing."""
_LASTING: Final = frozenset({None, ModuleUnknown.NOT_SXM, ModuleUnknown.GENERATION, ModuleUnknown.BOARD})
"""Answers that another reading would not change: a number, or that there is none to be read."""
_MUTE: Final = frozenset({ModuleUnknown.GENERATION, ModuleUnknown.BOARD})
"""Answers of a board that has a number which only its driver can ask for."""


class Loss(enum.Enum):
    """How a GPU was lost."""

    REMOVED = "removed"
    """The kernel took it off the bus."""
    SILENT = "silent"
    """It reads as ones."""


Reset = Callable[[str], Awaitable[None]]
"""Resets the function at an address, whose node is in our hands. Raises: FairleadError: why it is not clean."""


class PassthroughGPUs:
    """This machine's GPUs that are bound to VFIO."""

    def __init__(
        self,
        root: Path,
        memory: modules.ModuleMemory,
        take_hold: thirdgate.TakeHold,
        reset: Reset,
        *,
        held: Callable[[], Collection[str]],
        bus: busevents.BusEvents,
    ) -> None:
        """Read nothing yet.

        Args: root: has /dev and /sys.   held: returns the keys of the GPUs whose nodes are in our hands.
              bus: knows which functions have reported errors.
        """
        self.partitions: Callable[[], tuple[tuple[int, ...], ...]] = tuple
        """Returns the module numbers of each NVLink partition of several GPUs."""
        self.offers_switches = False
        """Whether NVSwitches are listed, for a Service VM's pod."""
        self.asks_modules = True
        """Whether boards are asked which module they are: that takes their nodes, as agents with a ledger may."""
        self.partition_ids: Callable[[], tuple[tuple[int, tuple[int, ...]], ...]] = tuple
        """Returns id and module numbers of each NVLink partition."""
        self.numbers: numbers.GPUNumbers | None = None
        """What numbers GPUs for claims; None: none can have one here."""
        self.learned: Callable[[], None] = lambda: None
        """Called whenever a GPU's module became known by another way than its registers."""
        self.changed: Callable[[health.Change], None] = lambda _: None
        """Called whenever a GPU can be handed out no more, or again."""
        self._root, self._memory, self._take_hold, self._held = root, memory, take_hold, held
        self._reset, self._bus = reset, bus
        self._known: dict[GPUUUID, PassthroughGPU] = {}
        self._switches: tuple[PassthroughSwitch, ...] = ()
        self._lost: dict[str, Loss] = {}
        """By address what was lost since the last scan began, which may have read it before."""
        self._has_bridges = False
        """Whether functions that manage switches of NVLink 5 were ever seen: they tell so by VPD, while they answer."""

    def addresses(self) -> tuple[str, ...]:
        """Return where the GPUs are, as they were last scanned."""
        return tuple(one.address for one in self._known.values())

    async def scan(self) -> tuple[DriverFiles, ...]:
        """Return the GPUs that are passed through, a value a vendor."""
        held, self._lost = frozenset(self._held()), {}
        found, self._switches = await asyncio.to_thread(self._scan, held, self._known)
        before, self._known = self._known, {key: _after(one, self._lost.get(one.address)) for key, one in found.items()}
        self._tell(before)
        return self._describe_all()

    def lose(self, losses: Mapping[str, Loss]) -> tuple[DriverFiles, ...] | None:
        """Take GPUs for lost, until a scan that begins later says otherwise.

        Args:    losses: by address; others' are left out.
        Returns: what a scan would; None: no GPU that was well is among them.
        """
        self._lost |= losses
        known = {key: _after(one, losses.get(one.address)) for key, one in self._known.items()}
        if known == self._known:
            return None
        before, self._known = self._known, known
        self._tell(before)
        return self._describe_all()

    def _describe_all(self) -> tuple[DriverFiles, ...]:
        switches = self._switches
        return tuple(
            DriverFiles(
                vendor=vendor,
                version=None,
                passthrough=found,
                partitions=self.partitions() if vendor is Vendor.NVIDIA else (),
                partition_ids=self.partition_ids() if vendor is Vendor.NVIDIA else (),
                switches=switches if vendor is Vendor.NVIDIA else (),
            )
            for vendor in Vendor
            if (found := tuple(gpu for gpu in self._known.values() if gpu.vendor is vendor))
            or (switches and vendor is Vendor.NVIDIA)
        )

    def _tell(self, before: Mapping[GPUUUID, PassthroughGPU]) -> None:
        """Log and pass on which GPUs began or ceased to be ones that can be handed out."""
        for key, one in self._known.items():
            was = before[key].problem if key in before else ""
            if one.problem == was:
                continue
            if one.problem:
                telemetry.log.warning("gpu cannot be passed through", gpu=str(key), pci=one.address, error=one.problem)
            else:
                telemetry.log.info("gpu can be passed through again", gpu=str(key), pci=one.address)
            message = one.problem or was
            self.changed(health.Change(uuid=key, is_healthy=not one.problem, reason=UNUSABLE, message=message))

    def _scan(
        self, held: frozenset[str], known: Mapping[GPUUUID, PassthroughGPU]
    ) -> tuple[dict[GPUUUID, PassthroughGPU], tuple[PassthroughSwitch, ...]]:
        snapshot = discovery.scan(self._root)
        self._has_bridges |= any(one.kind is FunctionKind.SWITCH_BRIDGE for one in snapshot.functions)
        found = dict[GPUUUID, PassthroughGPU]()
        earlier = {one.address: one for one in known.values()}
        bus = list[str]()
        for gpu in snapshot.gpus:
            if not gpu.is_bound_to_vfio and gpu.identity.is_certain and gpu.vendor == _NVIDIA:
                bus.append(gpu.identity.key)
            if gpu.is_bound_to_vfio and gpu.vendor in _VENDORS:
                silent = None if gpu.answers else earlier.get(gpu.address)
                one = self._describe(snapshot, gpu, held) if silent is None else _as_silent(silent, snapshot, gpu)
                problem = one.problem or self._bus.problem(one.address)
                found[one.key] = dataclasses.replace(one, problem=problem)
                bus.append(str(one.key))
        there = {gpu.address for gpu in snapshot.gpus}
        for key, before in known.items():
            if key not in found and before.address not in there:
                found[key] = _as_removed(before)
        return self._numbered(found, bus), tuple(_switches(snapshot)) if self.offers_switches else ()

    def _numbered(self, found: dict[GPUUUID, PassthroughGPU], bus: Sequence[str]) -> dict[GPUUUID, PassthroughGPU]:
        """Return NVIDIA's GPUs with their numbers; without, where they cannot be kept.

        Args: bus: keys in the order of the bus, those of GPUs that have a driver too: NVIDIA's driver counts them all.
        """
        ours = {str(key) for key, one in found.items() if one.vendor is Vendor.NVIDIA}
        others = {str(key) for key in found} - ours
        if self.numbers is None or not ours:
            return found
        try:
            given = self.numbers.assign([key for key in dict.fromkeys([*bus, *sorted(ours)]) if key not in others])
        except errors.FairleadError as error:
            telemetry.log.warning("gpus without number", reason=error.reason, error=errors.sentence(error))
            return found
        return {
            key: dataclasses.replace(one, number=given[str(key)]) if str(key) in ours else one
            for key, one in found.items()
        }

    def _describe(self, snapshot: Snapshot, gpu: Function, held: frozenset[str]) -> PassthroughGPU:
        judged, host = verdict.judge(snapshot, gpu), snapshot.host
        (whole,) = unit.list_units(snapshot, [gpu.address])
        first = judged.first
        one = PassthroughGPU(
            key=GPUUUID(gpu.identity.key),
            vendor=_VENDORS[gpu.vendor],
            address=gpu.address,
            model=gpu.model,
            group=gpu.group or "",
            members=tuple(other.address for other in whole if other.address != gpu.address),
            group_nodes=_pair(host.container_node, gpu.group_node),
            iommufd_nodes=_pair(host.iommufd_node, gpu.device_node),
            numa_node=gpu.numa_node,
            is_card=registers.is_card(gpu),
            is_nvlink5=gpu.vendor == _NVIDIA and (self._has_bridges or bool(_NVLINK5.match(gpu.model))),
            driver=gpu.driver,
            problem="" if first is None else first.sentence,
            is_lost=not gpu.answers,
            vendor_id=gpu.vendor,
            device_id=gpu.device,
            pcie_root=gpu.pcie_root,
            addressable_bytes=gpu.addressable_bytes,
        )
        return self._with_module(one, gpu, held)

    def _with_module(self, one: PassthroughGPU, gpu: Function, held: frozenset[str]) -> PassthroughGPU:
        """Return the GPU with its module number, which is asked of the board once in its life here."""
        key = str(one.key)
        if key in self._memory.known():
            return dataclasses.replace(one, module=self._memory.known()[key])
        if not self.asks_modules:
            return one
        try:
            found = self._read_module(one, gpu, is_held=key in held)
            if found.why in _LASTING:
                self._memory.note(key, found.number)
                return dataclasses.replace(one, module=found.number)
            why = found.why.value if found.why is not None else ""
            return dataclasses.replace(one, problem=one.problem or f"{one.address}: {why}")
        except errors.FairleadError as error:
            problem = f"which module {one.address} is was never read: {error.message}"
            return dataclasses.replace(one, problem=one.problem or problem)

    def _read_module(self, one: PassthroughGPU, gpu: Function, *, is_held: bool) -> ModuleReading:
        """Read the registers of a GPU that nobody has. Raises: Conflict: somebody has it; FairleadError."""
        if is_held:
            return registers.read_module(self._root, gpu)
        hold = self._take_hold(one)
        try:
            return registers.read_module(self._root, gpu)
        finally:
            hold.close()

    async def reset(self, one: PassthroughGPU) -> None:
        """Reset a GPU whose node is in our hands, wait for its memory, and ask it again who it is.

        Raises: FairleadError: it is not clean, or not the GPU that it was.
        """
        snapshot = await asyncio.to_thread(discovery.scan, self._root)
        found = next((gpu for gpu in snapshot.gpus if gpu.identity.key == one.key and gpu.is_bound_to_vfio), None)
        if found is None:
            hint = "`fairlead vfio list` shows what is bound"
            raise errors.NotFound(f"{one.address} is not bound to VFIO any more", reason="GPUGone", hint=hint)
        await self._reset(found.address)
        await asyncio.to_thread(self._check_module, found)
        await asyncio.to_thread(self._check_cc_mode, found)
        self._bus.forget(found.address)
        telemetry.log.debug("gpu reset and scrubbed", gpu=str(one.key), pci=found.address)

    async def note_module(self, one: PassthroughGPU, module: int | None) -> None:
        """Note which module a driver says that a GPU is, whose registers do not say it: from Blackwell on.

        Raises: Unavailable: the disk refuses.
        """
        if module is not None and self._memory.known().get(str(one.key), 0) is None:
            await asyncio.to_thread(self._memory.note, str(one.key), module)
            telemetry.log.info("gpu's module learned", gpu=str(one.key), pci=one.address, count=module)
            self.learned()

    def _check_module(self, gpu: Function) -> None:
        known = self._memory.known().get(gpu.identity.key)
        reading = registers.read_module(self._root, gpu)
        if known is not None and reading.number != known and reading.why not in _MUTE:
            now = reading.number if reading.number is not None else reading.why.value if reading.why else "unknown"
            message = f"{gpu.address} was module {known} and now says {now}: NVLink's partitions would be another GPU's"
            hint = f"look at the board, then remove {modules.FILE} from the agent's state folder and release it"
            raise errors.DeviceFault(message, reason=MODULE_MOVED, hint=hint)

    def _check_cc_mode(self, gpu: Function) -> None:
        """Hold a GPU's mode against that in which it was first seen, which is noted. Raises: DeviceFault: another."""
        key = gpu.identity.key
        known = self._memory.cc_modes().get(key)
        try:
            with registers.opened(self._root, gpu.address) as opened:
                now = registers.find_cc_mode(opened)
        except OSError:
            now = None
        if known is None:
            if now is not None:
                self._memory.note_cc_mode(key, now)
        elif now != known:
            message = (
                f"{gpu.address} was in the mode {known} of confidential computing, and its last tenant left it in "
                f"{now or 'one that cannot be read'}"
            )
            hint = (
                f"nvidia_gpu_tools.py --gpu-bdf={gpu.address} --set-cc-mode={known} --reset-after-cc-mode-switch "
                f"(NVIDIA's gpu-admin-tools); to keep the new one, remove {modules.FILE} from the agent's state folder"
            )
            raise errors.DeviceFault(message, reason=CC_CHANGED, hint=hint)


def _switches(snapshot: Snapshot) -> Iterator[PassthroughSwitch]:
    """Yield the functions of a board's switches, each with what keeps it from a Service VM."""
    for one in snapshot.functions:
        if one.kind in SWITCHES:
            first = verdict.judge(snapshot, one).first
            unbound = "" if one.is_bound_to_vfio else f"{one.address} is not bound to VFIO: `fairlead vfio bind` it"
            yield PassthroughSwitch(
                key=one.identity.key,
                address=one.address,
                group_nodes=_pair(snapshot.host.container_node, one.group_node),
                iommufd_nodes=_pair(snapshot.host.iommufd_node, one.device_node),
                numa_node=one.numa_node,
                problem=unbound or ("" if first is None else first.sentence),
            )


def _as_silent(before: PassthroughGPU, snapshot: Snapshot, gpu: Function) -> PassthroughGPU:
    """Return a GPU that stopped answering as it was known: its serial, and so its key, cannot be read any more."""
    first = verdict.judge(snapshot, gpu).first
    problem = f"{gpu.address} does not answer on the bus" if first is None else first.sentence
    return dataclasses.replace(before, driver=gpu.driver, problem=problem, is_lost=True)


def _as_removed(before: PassthroughGPU) -> PassthroughGPU:
    problem = f"{before.address} is not on the bus any more"
    return dataclasses.replace(before, problem=problem, group_nodes=(), iommufd_nodes=(), is_lost=True)


def _after(one: PassthroughGPU, loss: Loss | None) -> PassthroughGPU:
    """Return a GPU as it is known once it was lost; what a scan says of one that is lost is kept: it says more."""
    if loss is None or one.is_lost:
        return one
    if loss is Loss.REMOVED:
        return _as_removed(one)
    return dataclasses.replace(one, problem=f"{one.address} does not answer on the bus", is_lost=True)


def _pair(shared: DeviceNode | None, own: DeviceNode | None) -> tuple[DeviceNode, ...]:
    """Return what a user of a GPU opens in one of the two ways, its own node last; empty: it cannot go that way."""
    return () if shared is None or own is None else (shared, own)
