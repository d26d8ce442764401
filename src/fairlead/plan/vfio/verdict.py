"""Judges whether a GPU can be given to a tenant's machine: what stands in the way, each with what mends it.

Some obstacles must be mended before it can be bound (`Stage.BIND`); some are mended by binding it (`Stage.USE`); some
stop nothing and are better known (`Stage.NOTE`). A GPU is ready where the first two are absent. What cannot be told,
such as a process that may have it open, counts as an obstacle.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.gpu import Vendor
from fairlead.model.vfio import Function, FunctionKind, GroupMember, Holder, PassthroughHost, Snapshot
from fairlead.plan.vfio import unit, variant

Holders = Mapping[str, Sequence[Holder]]
"""Who has which function open, by address; a function without an entry is open nowhere."""
NOBODY: Final[Holders] = {}
PERSISTENCE: Final = "nvidia-persiste"
"""What the kernel shows of the name of NVIDIA's persistence daemon: 15 characters."""
_IOMMU_OPTIONS: Final = {
    Vendor.INTEL: 'turn VT-d on in the firmware, add "intel_iommu=on iommu=pt" to the kernel\'s command line, reboot',
    Vendor.AMD: "turn the IOMMU (AMD-Vi) on in the firmware, reboot",
    None: "turn the IOMMU on in the firmware, reboot",
}


class Stage(enum.Enum):
    """When an obstacle has to be out of the way."""

    BIND = "bind"
    USE = "use"
    NOTE = "note"


class Why(enum.Enum):
    """What an obstacle is."""

    IOMMU_OFF = "IOMMUOff"
    NO_GROUP = "NoGroup"
    GROUP_NOT_VIABLE = "GroupNotViable"
    GROUP_SHARED = "GroupShared"
    MODULE_MISSING = "ModuleMissing"
    HELD = "Held"
    PERSISTENCE = "Persistence"
    VIRTUAL_FUNCTIONS = "VirtualFunctions"
    IS_VIRTUAL = "IsVirtual"
    SILENT = "Silent"
    OTHER_DRIVER = "OtherDriver"
    UNBOUND = "Unbound"
    SIBLING_NOT_BOUND = "SiblingNotBound"
    NODE_MISSING = "NodeMissing"
    CONSOLE = "Console"
    NO_RESET = "NoReset"
    LINK_NARROW = "LinkNarrow"
    SERIAL_SHARED = "SerialShared"


@frozen
class Obstacle:
    """One thing in the way, or worth knowing."""

    why: Why
    stage: Stage
    message: str
    mend: str = ""
    """The command, or what to do by hand; empty: the message says it."""

    @property
    def sentence(self) -> str:
        """Both in one line."""
        return f"{self.message}; {self.mend}" if self.mend else self.message


@frozen
class Verdict:
    """What is to be said of one function."""

    function: Function
    obstacles: tuple[Obstacle, ...] = ()
    """Those that come first must be mended first."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be given to a machine now."""
        return all(one.stage is Stage.NOTE for one in self.obstacles)

    @property
    def can_be_bound(self) -> bool:
        """Whether binding is all that is missing, if anything is."""
        return all(one.stage is not Stage.BIND for one in self.obstacles)

    @property
    def first(self) -> Obstacle | None:
        """What has to be mended first; None: it is ready."""
        return next((one for one in self.obstacles if one.stage is not Stage.NOTE), None)


def judge(snapshot: Snapshot, function: Function, holders: Holders = NOBODY) -> Verdict:
    """Judge one function, with all that goes where it goes."""
    (whole,) = unit.list_units(snapshot, [function.address]) or [(function,)]
    found = [
        *_of_machine(snapshot.host, function),
        *_of_board(function),
        *(obstacle for one in whole for obstacle in _held(one, holders)),
        *_of_drivers(snapshot.host, whole),
        *_of_group(whole),
        *_of_binding(function, whole),
        *_of_shared_group(function, whole),
        *_notes(function),
    ]
    return Verdict(function=function, obstacles=tuple(dict.fromkeys(found)))


def judge_gpus(snapshot: Snapshot, holders: Holders = NOBODY) -> tuple[Verdict, ...]:
    """Judge every GPU, in address order."""
    return tuple(judge(snapshot, gpu, holders) for gpu in snapshot.gpus)


def _of_machine(host: PassthroughHost, one: Function) -> Iterator[Obstacle]:
    if not host.iommu_groups:
        mend = _IOMMU_OPTIONS[host.processor if host.processor in _IOMMU_OPTIONS else None]
        yield Obstacle(why=Why.IOMMU_OFF, stage=Stage.BIND, message="no IOMMU is on", mend=mend)
    elif one.group is None:
        message = f"{one.address} is in no IOMMU group: no IOMMU translates for it"
        mend = "put it in another slot, or look for its host bridge in the kernel's log (DMAR, AMD-Vi)"
        yield Obstacle(why=Why.NO_GROUP, stage=Stage.BIND, message=message, mend=mend)


def _of_board(one: Function) -> Iterator[Obstacle]:
    if not one.answers:
        message = f"{one.address} does not answer on the bus: its configuration space reads as ones"
        mend = f"remove and rescan it (echo 1 > {_file(one, 'remove')}; echo 1 > /sys/bus/pci/rescan), or reboot"
        yield Obstacle(why=Why.SILENT, stage=Stage.BIND, message=message, mend=mend)
    if one.kind is FunctionKind.VIRTUAL:
        message = f"{one.address} is a virtual function of {one.board or 'another'}, which is what is passed on whole"
        yield Obstacle(why=Why.IS_VIRTUAL, stage=Stage.BIND, message=message, mend="name the board instead")
    if one.virtual_functions:
        message = f"{one.address} has {one.virtual_functions} virtual functions, and is never given away beside them"
        mend = f"echo 0 > {_file(one, 'sriov_numvfs')}"
        yield Obstacle(why=Why.VIRTUAL_FUNCTIONS, stage=Stage.BIND, message=message, mend=mend)


def list_held(one: Function, holders: Holders) -> list[Obstacle]:
    """Return an obstacle for each process that has a function open, or may have."""
    return list(_held(one, holders))


def _held(one: Function, holders: Holders) -> Iterator[Obstacle]:
    for holder in holders.get(one.address, ()):
        who = f"process {holder.pid} ({holder.name})" if holder.pid else "a process that is not seen from here"
        if holder.name == PERSISTENCE and not one.is_bound_to_vfio:
            message = f"{one.address} is kept open by the driver's persistence daemon, {who}"
            mend = f"nvidia-smi -i {one.address} -pm 0"
            yield Obstacle(why=Why.PERSISTENCE, stage=Stage.BIND, message=message, mend=mend)
        else:
            does = f"may have {one.address} open: {holder.what}" if holder.is_doubt else f"has {holder.what} open"
            message = f"{one.address} is in use: {who} {does}"
            yield Obstacle(why=Why.HELD, stage=Stage.BIND, message=message, mend="end it first")


def _of_drivers(host: PassthroughHost, whole: Sequence[Function]) -> Iterator[Obstacle]:
    for one in whole:
        choice = variant.choose_driver(one, host)
        if not one.is_bound_to_vfio and not choice.is_registered:
            message = f"the kernel has no driver {choice.driver} for {one.address}"
            mend = f"modprobe {choice.module}"
            yield Obstacle(why=Why.MODULE_MISSING, stage=Stage.BIND, message=message, mend=mend)


def _of_group(whole: Sequence[Function]) -> Iterator[Obstacle]:
    for member in unit.list_strangers(whole):
        message = f"its IOMMU group is not viable while {member.address} is bound to {member.driver}"
        mend = (
            f"unbind it if the machine can do without (echo {member.address} > "
            f"/sys/bus/pci/devices/{member.address}/driver/unbind), or use a slot that the chipset isolates (ACS)"
        )
        yield Obstacle(why=Why.GROUP_NOT_VIABLE, stage=Stage.BIND, message=message, mend=mend)


def _of_binding(function: Function, whole: Sequence[Function]) -> Iterator[Obstacle]:
    bind = f"fairlead vfio bind {function.address}"
    if not function.driver:
        yield Obstacle(why=Why.UNBOUND, stage=Stage.USE, message=f"{function.address} is bound to no driver", mend=bind)
    elif not function.is_bound_to_vfio:
        message = f"{function.address} is bound to {function.driver}"
        yield Obstacle(why=Why.OTHER_DRIVER, stage=Stage.USE, message=message, mend=bind)
    elif not function.nodes:
        node = f"/dev/vfio/{function.group}" if function.group else "/dev/vfio/devices/…"
        message = f"{function.address} is bound to {function.driver}, and there is no {node}"
        mend = "modprobe vfio; in a container, mount /dev/vfio"
        yield Obstacle(why=Why.NODE_MISSING, stage=Stage.USE, message=message, mend=mend)
    for one in whole:
        if one.address != function.address and GroupMember(address=one.address, driver=one.driver).is_in_the_way:
            message = f"{one.address} ({one.kind.value}) goes with it and is bound to {one.driver}"
            stage = Stage.USE if one.group == function.group else Stage.NOTE
            yield Obstacle(why=Why.SIBLING_NOT_BOUND, stage=stage, message=message, mend=bind)


def _of_shared_group(function: Function, whole: Sequence[Function]) -> Iterator[Obstacle]:
    """Yield that VFIO hands out groups, where another GPU is in this one: two tenants would have both."""
    others = [
        one.address
        for one in whole
        if one.kind is FunctionKind.GPU and one.address != function.address and one.is_bound_to_vfio
        if one.group == function.group and function.group is not None
    ]
    if others and function.kind is FunctionKind.GPU:
        message = (
            f"{function.address} is in IOMMU group {function.group} with {', '.join(others)}: who opens the group has "
            "all of them"
        )
        mend = f"use slots that the chipset isolates (ACS), or give one up: fairlead vfio release {others[0]}"
        yield Obstacle(why=Why.GROUP_SHARED, stage=Stage.USE, message=message, mend=mend)


def _notes(one: Function) -> Iterator[Obstacle]:
    if one.is_console and not one.is_bound_to_vfio:
        message = f"{one.address} is the machine's display: its console goes dark when it is bound"
        yield Obstacle(why=Why.CONSOLE, stage=Stage.NOTE, message=message)
    if one.reset_methods == ():
        message = f"nothing resets {one.address}: it cannot be cleaned between tenants"
        yield Obstacle(why=Why.NO_RESET, stage=Stage.NOTE, message=message)
    if one.link.is_degraded:
        message = f"{one.address} has {one.link.width} of {one.link.max_width} lanes"
        yield Obstacle(why=Why.LINK_NARROW, stage=Stage.NOTE, message=message, mend="reseat it")
    if one.identity.is_shared:
        message = f"{one.address} says a serial number that another function says too; its place tells them apart"
        yield Obstacle(why=Why.SERIAL_SHARED, stage=Stage.NOTE, message=message)


def _file(one: Function, name: str) -> str:
    return f"/sys/bus/pci/devices/{one.address}/{name}"
