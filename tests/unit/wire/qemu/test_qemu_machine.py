"""QEMU's command line of a machine, and the machines that there are not."""

from __future__ import annotations

import dataclasses
import json

import pytest

from fairlead import errors
from fairlead.wire.qemu import machine as machines
from fairlead.wire.qemu.machine import Accelerator, Machine, Passed

PLAIN = Machine(
    name="verifier-3",
    emulator="/usr/bin/qemu-system-x86_64",
    kernel="/var/lib/image/kernel",
    initramfs="/var/lib/image/initramfs",
    command_line="console=ttyS0 panic=-1",
    memory_mib=8192,
    processors=4,
    qmp=7,
    report=8,
)


def _devices(line: list[str]) -> list[dict[str, object]]:
    return [json.loads(line[at + 1]) for at, word in enumerate(line) if word == "-device"]


def _objects(line: list[str]) -> list[dict[str, object]]:
    return [json.loads(line[at + 1]) for at, word in enumerate(line) if word == "-object"]


def test_a_machine_has_no_network_and_no_disk() -> None:
    line = machines.emit_line(PLAIN)
    assert line[0] == PLAIN.emulator
    assert [one["driver"] for one in _devices(line)] == ["virtio-serial-pci", "virtserialport", "virtio-rng-pci"]
    assert not {"-netdev", "-nic", "-drive", "-blockdev", "-hda"} & set(line)
    assert "spawn=deny" in line[line.index("-sandbox") + 1]
    assert PLAIN.descriptors == (7, 8)


def test_each_function_has_a_root_port_of_its_own() -> None:
    passed = tuple(Passed(address=f"0000:{bus:02x}:00.0") for bus in (0x18, 0x2A))
    line = machines.emit_line(dataclasses.replace(PLAIN, functions=passed))
    ports = [one for one in _devices(line) if one["driver"] == "pcie-root-port"]
    functions = [one for one in _devices(line) if one["driver"] == "vfio-pci"]
    assert [one["host"] for one in functions] == ["0000:18:00.0", "0000:2a:00.0"]
    assert [one["bus"] for one in functions] == [one["id"] for one in ports]
    assert len({one["chassis"] for one in ports}) == 2
    assert not any("iommufd" in one for one in functions)


def test_functions_share_one_iommufd_and_may_come_as_descriptors() -> None:
    passed = (Passed(address="0000:18:00.0", descriptor=11), Passed(address="0000:2a:00.0", descriptor=12))
    made = dataclasses.replace(PLAIN, functions=passed, with_iommufd=True, iommufd=10)
    line = machines.emit_line(made)
    functions = [one for one in _devices(line) if one["driver"] == "vfio-pci"]
    assert [(one["fd"], one["iommufd"]) for one in functions] == [("11", "iommufd"), ("12", "iommufd")]
    assert not any("host" in one for one in functions)
    assert [one for one in _objects(line) if one["qom-type"] == "iommufd"] == [
        {"qom-type": "iommufd", "id": "iommufd", "fd": "10"}
    ]
    assert made.descriptors == (7, 8, 10, 11, 12)


def test_software_and_firmware_and_vsock_are_as_asked() -> None:
    made = dataclasses.replace(PLAIN, accelerator=Accelerator.TCG, firmware="/usr/share/ovmf.fd", cid=9)
    line = machines.emit_line(made)
    assert line[line.index("-cpu") + 1] == "max"
    assert "accel=tcg" in line[line.index("-machine") + 1]
    assert line[line.index("-bios") + 1] == "/usr/share/ovmf.fd"
    assert {"driver": "vhost-vsock-pci", "guest-cid": 9} in _devices(line)


_WRONG = {
    "name": dataclasses.replace(PLAIN, name="a,guest=b"),
    "empty-name": dataclasses.replace(PLAIN, name=""),
    "memory": dataclasses.replace(PLAIN, memory_mib=1),
    "processors": dataclasses.replace(PLAIN, processors=0),
    "kernel": dataclasses.replace(PLAIN, kernel="-kernel"),
    "firmware": dataclasses.replace(PLAIN, firmware="ovmf"),
    "address": dataclasses.replace(PLAIN, functions=(Passed(address="0000:18:00.0,x-no-mmap=on"),)),
    "twice": dataclasses.replace(PLAIN, functions=(Passed(address="0000:18:00.0"),) * 2),
    "many": dataclasses.replace(PLAIN, functions=tuple(Passed(address=f"0000:{n:02x}:00.0") for n in range(17))),
    "host-cid": dataclasses.replace(PLAIN, cid=2),
    "descriptor-twice": dataclasses.replace(PLAIN, report=7),
    "descriptor-by-group": dataclasses.replace(PLAIN, functions=(Passed(address="0000:18:00.0", descriptor=9),)),
}


@pytest.mark.parametrize("wrong", _WRONG.values(), ids=_WRONG)
def test_what_no_machine_has_is_refused(wrong: Machine) -> None:
    with pytest.raises(errors.Invalid) as refused:
        machines.emit_line(wrong)
    assert refused.value.reason == "MachineInvalid"
