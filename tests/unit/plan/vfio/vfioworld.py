"""Machines for the plans of passthrough: drawn at random, or made by name; and what a kernel makes of their steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from fairlead.model.driver import DeviceNode
from fairlead.model.vfio import Function, FunctionKind, GroupMember, Identity, PassthroughHost, Snapshot
from fairlead.plan.vfio.step import Act, Step

NATIVE = {FunctionKind.GPU: "nvidia", FunctionKind.AUXILIARY: "snd_hda_intel", FunctionKind.NVSWITCH: "nvidia-nvswitch"}
HOST = PassthroughHost(iommu_groups=3, drivers=("vfio-pci",), modules=("vfio_pci",))


def node(name: str) -> DeviceNode:
    """Return a node of VFIO."""
    return DeviceNode(path=f"/dev/{name}", host_path=f"/dev/{name}", major=511, minor=1, mode=0o600)


def function(
    address: str, *, kind: FunctionKind = FunctionKind.GPU, driver: str = "nvidia", **more: object
) -> Function:
    """Return a function: a GPU in a group of its own, behind a bridge of its own, unless it is said."""
    given: dict[str, Any] = {
        "vendor": 0x10DE,
        "device": 0x2330,
        "pci_class": 0x030200,
        "identity": Identity(path=address),
        "group": str(int(address.split(":")[1], 16)),
        "reset_methods": ("flr", "bus"),
        "bridge": f"{address.rpartition(':')[0]}:1e.0",
        "device_node": node(f"vfio/devices/{address}") if driver.endswith("vfio-pci") else None,
        **more,
    }
    return Function(address=address, kind=kind, driver=driver, **given)


def snapshot(
    *functions: Function, host: PassthroughHost = HOST, strangers: Iterable[tuple[str, str, str]] = ()
) -> Snapshot:
    """Return a scan in which each group knows its members.

    Args: strangers: functions that are none of passthrough's: group, address, driver.
    """
    groups: dict[str | None, list[GroupMember]] = {}
    for one in functions:
        groups.setdefault(one.group, []).append(GroupMember(address=one.address, driver=one.driver))
    for group, address, driver in strangers:
        groups.setdefault(group, []).append(GroupMember(address=address, driver=driver))
    whole = [
        dataclasses.replace(one, members=() if one.group is None else tuple(groups[one.group])) for one in functions
    ]
    return Snapshot(host=host, functions=tuple(whole))


@st.composite
def machines(draw: st.DrawFn) -> Snapshot:
    """Draw a machine of up to eight functions in up to four groups, with bridges that several share."""
    found = []
    for bus in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from([FunctionKind.GPU, FunctionKind.NVSWITCH]))
        for number in range(draw(st.integers(1, 2))):
            address = f"0000:{bus + 16:02x}:00.{number}"
            own = kind if number == 0 else FunctionKind.AUXILIARY
            if own is FunctionKind.AUXILIARY and kind is FunctionKind.NVSWITCH:
                own = FunctionKind.MEMORY_CONTROLLER
            found.append(_drawn(draw, address, own, bus))
    found = _with_neighbours(draw, found)
    strangers = draw(
        st.lists(
            st.tuples(st.sampled_from("0123"), st.just("0000:60:00.0"), st.sampled_from(["", "pcieport", "nvme"])),
            max_size=1,
        )
    )
    host = PassthroughHost(
        iommu_groups=draw(st.sampled_from([*[4] * 12, 0])),
        drivers=draw(st.sampled_from([*[("vfio-pci",)] * 12, ()])),
    )
    return snapshot(*found, host=host, strangers=strangers)


def _drawn(draw: st.DrawFn, address: str, kind: FunctionKind, bus: int) -> Function:
    driver = draw(st.sampled_from(["", "vfio-pci", NATIVE.get(kind, "native")]))
    bridge = draw(st.sampled_from(["0000:00:01.0", f"0000:00:{bus + 2:02x}.0", ""]))
    return function(
        address,
        kind=kind,
        driver=driver,
        override=draw(st.sampled_from(["", "vfio-pci", driver])),
        group=draw(st.sampled_from([*"0123" * 4, None])),
        reset_methods=draw(st.sampled_from([None, (), ("flr", "bus"), ("bus",), ("pm", "flr")])),
        bridge=bridge,
        board=f"{address[:-1]}0" if kind is FunctionKind.AUXILIARY else "",
        virtual_functions=draw(st.sampled_from([*[None, 0] * 6, 2])),
        answers=draw(st.sampled_from([*[True] * 12, False])),
        has_flr=draw(st.sampled_from([None, True, False])),
    )


def _with_neighbours(draw: st.DrawFn, functions: list[Function]) -> list[Function]:
    """Have the functions below one bridge know each other, as a scan does, and perhaps one that is none of theirs."""
    below: dict[str, list[str]] = {}
    for one in functions:
        below.setdefault(one.bridge, []).append(one.address)
    resets = {bridge: bool(bridge) and draw(st.booleans()) for bridge in below}
    for bridge in below:
        below[bridge] += draw(st.sampled_from([[], [], [f"0000:7{bridge[-3:-2] or 0}:00.0"]]))
    return [
        dataclasses.replace(
            one,
            neighbours=tuple(other for other in below[one.bridge] if one.bridge and other != one.address),
            bridge_resets=resets[one.bridge],
        )
        for one in functions
    ]


class Kernel:
    """What Linux makes of writes to sysfs, for functions whose vendor's driver is loaded."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.drivers = {one.address: one.driver for one in snapshot.functions}
        self.overrides = {one.address: one.override for one in snapshot.functions}
        self.native = {one.address: NATIVE.get(one.kind, "native") for one in snapshot.functions}
        self.registered = {*snapshot.host.drivers, *self.native.values()}

    def write(self, step: Step) -> None:
        """Carry out one step. Raises: AssertionError: the kernel would refuse, or a look finds something else."""
        at = step.address
        if step.act is Act.OVERRIDE:
            self.overrides[at] = step.text
        elif step.act is Act.UNBIND:
            assert self.drivers[at], "there is no driver/unbind"
            self.drivers[at] = ""
        elif step.act is Act.PROBE:
            wanted = self.overrides[at] or self.native[at]
            if not self.drivers[at] and wanted in self.registered:
                self.drivers[at] = wanted
        elif step.act is Act.VERIFY:
            found = self.drivers[at]
            assert found == step.text if step.text else not found.endswith("vfio-pci")
