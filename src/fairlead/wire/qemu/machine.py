"""Writes QEMU's command line for a virtual machine that a node starts for itself: few devices, no network, no disk.

The machine boots a kernel with its initramfs. It gets PCI functions of the host, each on a root port of its own (CUDA
does not start for a GPU that lies flat on the first bus), and talks through two descriptors that its starter opened:
QMP, and one virtio-serial port whose bytes are the guest's report. What a line of text could break out of is written as
JSON.
Source: QEMU's manual, "Invocation" and "QEMU QMP Reference Manual"; docs/system/devices/vfio of QEMU 11.
"""

from __future__ import annotations

import enum
import json
import re
from typing import Any, Final

from fairlead import errors
from fairlead.frozen import frozen

REPORT_PORT: Final = "org.fairlead.report"
"""Name of the virtio-serial port on which a guest reports: `/dev/virtio-ports/org.fairlead.report`."""
MOST_FUNCTIONS: Final = 16
"""As many root ports as Kata gives at most; an HGX board has eight GPUs and a few switches."""
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]")
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")
_LEAST_CID: Final = 3
"""0 is the hypervisor, 1 the local machine, 2 the host."""
_LARGEST_CID: Final = (1 << 32) - 2
_CONFINED: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""seccomp: QEMU starts no program, changes no user and no priority."""


class Accelerator(enum.Enum):
    """How the machine's instructions are carried out, in QEMU's words."""

    KVM = "kvm"
    TCG = "tcg"
    """In software: some fifty times slower, for tests."""


@frozen
class Passed:
    """One PCI function of the host that the machine gets."""

    address: str
    """0000:18:00.0."""
    descriptor: int | None = None
    """Of its VFIO node, open already; None: QEMU opens its IOMMU group, or its node by iommufd."""


@frozen
class Machine:
    """One virtual machine."""

    name: str
    """Lower-case letters, digits and `-`, at most 48; `ps` shows it."""
    emulator: str
    """Path of QEMU."""
    kernel: str
    initramfs: str
    command_line: str
    """Of the kernel."""
    memory_mib: int
    processors: int
    qmp: int
    """Descriptor of our end's peer: QEMU speaks QMP on it."""
    report: int
    """Descriptor that gets what the guest writes on `REPORT_PORT`."""
    accelerator: Accelerator = Accelerator.KVM
    firmware: str = ""
    """Path of a firmware image; empty: SeaBIOS. Boards whose memory regions are large need OVMF."""
    functions: tuple[Passed, ...] = ()
    with_iommufd: bool = False
    """Whether functions go by one iommufd that they share; else by their IOMMU groups."""
    iommufd: int | None = None
    """Descriptor of /dev/iommu to which the functions' descriptors are bound; None: QEMU opens it."""
    cid: int | None = None
    """Context id of vsock; None: the machine has no vsock."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that QEMU must inherit."""
        own = (one.descriptor for one in self.functions)
        return tuple(one for one in (self.qmp, self.report, self.iommufd, *own) if one is not None)


def emit_line(machine: Machine) -> list[str]:
    """Return program and arguments. Raises: Invalid (`MachineInvalid`): a value that no machine has."""
    _check(machine)
    return [
        machine.emulator,
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-sandbox", _CONFINED),
        *("-name", f"guest={machine.name}"),
        *("-machine", f"q35,accel={machine.accelerator.value},usb=off,vmport=off"),
        *("-cpu", "host" if machine.accelerator is Accelerator.KVM else "max"),
        *("-smp", str(machine.processors), "-m", f"{machine.memory_mib}M"),
        *(("-bios", machine.firmware) if machine.firmware else ()),
        *("-kernel", machine.kernel, "-initrd", machine.initramfs, "-append", machine.command_line),
        *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=qmp,fd={machine.qmp}", "-mon", "chardev=qmp,mode=control"),
        *("-chardev", f"socket,id=report,fd={machine.report}"),
        *(word for one in _devices(machine) for word in ("-device", json.dumps(one, separators=(",", ":")))),
        *_iommufd(machine),
    ]


def _devices(machine: Machine) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"driver": "virtio-serial-pci", "id": "serial"},
        {"driver": "virtserialport", "bus": "serial.0", "chardev": "report", "name": REPORT_PORT},
        {"driver": "virtio-rng-pci", "rng": "random"},
    ]
    if machine.cid is not None:
        made.append({"driver": "vhost-vsock-pci", "guest-cid": machine.cid})
    for number, one in enumerate(machine.functions):
        port = {"driver": "pcie-root-port", "id": f"port{number}", "bus": "pcie.0", "chassis": number + 1}
        passed: dict[str, Any] = {"driver": "vfio-pci", "id": f"function{number}", "bus": f"port{number}"}
        # A descriptor stands for the function; QEMU refuses an address beside it.
        passed |= {"host": one.address} if one.descriptor is None else {"fd": str(one.descriptor)}
        made += [port, passed | ({"iommufd": "iommufd"} if machine.with_iommufd else {})]
    return made


def _iommufd(machine: Machine) -> list[str]:
    objects: list[dict[str, Any]] = [{"qom-type": "rng-random", "id": "random", "filename": "/dev/urandom"}]
    if machine.with_iommufd and machine.functions:
        given = {} if machine.iommufd is None else {"fd": str(machine.iommufd)}
        objects.append({"qom-type": "iommufd", "id": "iommufd"} | given)
    return [word for one in objects for word in ("-object", json.dumps(one, separators=(",", ":")))]


def _check(machine: Machine) -> None:
    wrong = next((text for text, is_wrong in _find_faults(machine) if is_wrong), "")
    if wrong:
        hint = "this is a fault of the program or of a setting of node.vm: report it with this line"
        raise errors.Invalid(f"no virtual machine can be made: {wrong}", reason="MachineInvalid", hint=hint)


def _find_faults(machine: Machine) -> list[tuple[str, bool]]:
    addresses = [one.address for one in machine.functions]
    paths = (machine.emulator, machine.kernel, machine.initramfs)
    cid = machine.cid
    return [
        (f"the name {machine.name!r}", not _NAME.fullmatch(machine.name)),
        (f"{machine.memory_mib} MiB of memory", not 64 <= machine.memory_mib <= 1 << 24),
        (f"{machine.processors} processors", not 1 <= machine.processors <= 1024),
        ("a path that is not absolute", not all(one.startswith("/") for one in paths)),
        ("a firmware that is not absolute", bool(machine.firmware) and not machine.firmware.startswith("/")),
        (
            f"the address {next((one for one in addresses if not _ADDRESS.fullmatch(one)), '')!r}",
            not all(map(_ADDRESS.fullmatch, addresses)),
        ),
        ("a function twice", len(set(addresses)) != len(addresses)),
        (f"{len(addresses)} functions of {MOST_FUNCTIONS}", len(addresses) > MOST_FUNCTIONS),
        (f"the context id {cid}", cid is not None and not _LEAST_CID <= cid <= _LARGEST_CID),
        ("a descriptor twice", len(set(machine.descriptors)) != len(machine.descriptors)),
        (
            "a function's descriptor without iommufd",
            not machine.with_iommufd and any(one.descriptor is not None for one in machine.functions),
        ),
    ]
