"""A vGPU is told by the capability of its configuration space, and nothing in one that lies breaks the reader."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.gpu import HostDriver
from fairlead.silicon.pci import vgpu

AT = 0x68


def space(*capabilities: bytes, listed: bool = True) -> bytes:
    """Return a configuration space with these capabilities one after another; their next pointers are set here."""
    made = bytearray(256)
    made[0x06] = 0x10 if listed else 0
    made[0x34] = AT if capabilities else 0
    at = AT
    for number, data in enumerate(capabilities):
        after = (at + len(data) + 3) & ~3
        made[at : at + len(data)] = data
        made[at + 1] = after if number + 1 < len(capabilities) else 0
        at = after
    return bytes(made)


def vendor(data: bytes) -> bytes:
    return bytes((0x09, 0, 3 + len(data))) + data


def record(number: int, data: bytes) -> bytes:
    return bytes((number, 2 + len(data))) + data


DRIVER = record(0, b"580.95.02\0" + b"r581_36\0\0\0")
POWER = bytes((0x01, 0, 0, 0))


def test_a_vgpu_says_which_driver_its_host_runs() -> None:
    found = vgpu.parse(space(POWER, vendor(b"VF" + record(3, b"abc") + DRIVER)))
    assert found == (True, HostDriver(version="580.95.02", branch="r581_36"))


def test_a_gpu_is_not_one() -> None:
    assert vgpu.parse(space(POWER, vendor(b"xx"))) == (False, None)
    assert vgpu.parse(space(POWER)) == (False, None)
    assert vgpu.parse(space(vendor(b"VF" + DRIVER), listed=False)) == (False, None)


def test_what_an_unprivileged_reader_is_shown_decides_nothing() -> None:
    assert vgpu.parse(space(vendor(b"VF" + DRIVER))[:64]) == (None, None)
    assert vgpu.parse(b"") == (None, None)


def test_records_that_never_end_are_not_followed() -> None:
    assert vgpu.parse(space(vendor(b"VF" + b"\x03\x00" * 8))) == (True, None)
    circle = bytearray(space(POWER))
    circle[AT + 1] = AT
    assert vgpu.parse(bytes(circle)) == (False, None)


def test_a_device_without_a_configuration_space_is_not_virtual(tmp_path: Path) -> None:
    assert vgpu.read(tmp_path, "0000:01:00.0") == (False, None)
    folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "config").write_bytes(space(vendor(b"VF" + DRIVER)))
    assert vgpu.read(tmp_path, "0000:01:00.0")[0] is True


@given(st.binary(min_size=256, max_size=256))
def test_any_bytes_are_judged(data: bytes) -> None:
    assert vgpu.parse(data)[0] in {True, False}
