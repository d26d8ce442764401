"""Bytes that a device says of itself: whatever they are, reading them ends, in few steps and without an error."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairlead.model.vfio import Function, Identity, SerialSource
from fairlead.silicon.vfio import attribute, configspace, discovery, pciids, vpd
from tests.unit.silicon.vfio import pcitree

ANY = st.binary(max_size=5000)
ALLOWED = frozenset(string.ascii_lowercase + string.digits + "-.")
GPU = "0000:0f:00.0"
NAMES = (
    "vendor",
    "device",
    "class",
    "subsystem_vendor",
    "numa_node",
    "config",
    "vpd",
    "driver_override",
    "reset_method",
    "current_link_speed",
    "max_link_width",
    "sriov_numvfs",
    "boot_vga",
)


class Bytes:
    """A file of these bytes that counts how often it is read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads = 0

    def __call__(self, at: int, size: int) -> bytes:
        self.reads += 1
        assert size >= 0
        return self.data[at : at + size]


@given(data=ANY)
@example(data=b"\x82\x00\x00" * 2000)
@example(data=b"\x70" * 5000)
@example(data=b"\x90\x10\x00SN\xff")
def test_any_vpd_ends(data: bytes) -> None:
    read = Bytes(data)
    found = vpd.parse(read)
    assert read.reads <= 2 * 32
    assert len(found.data) <= 4096
    assert found.serial == found.serial.lower()
    assert found.serial.isprintable()


@given(data=st.binary(min_size=4, max_size=4096))
@example(data=b"\x00" * 0x34 + b"\x40" + b"\x10" * 0x200)
@example(data=b"\x01" * 4096)
def test_any_configuration_space_ends(data: bytes) -> None:
    read = Bytes(data)
    found = configspace.parse(read)
    assert read.reads <= 1 + (4096 - 256) // 4 + 1
    assert len(found.serial) in {0, 16}


def test_an_empty_configuration_space_is_an_error() -> None:
    with pytest.raises(OSError, match="empty"):
        configspace.parse(Bytes(b"\x10"))


@pytest.mark.parametrize("serial", [0, (1 << 64) - 1])
def test_a_serial_number_of_zeros_or_ones_is_none(serial: int) -> None:
    assert configspace.parse(Bytes(pcitree.config_space((1, 2), 3, serial=serial))).serial == ""


@pytest.mark.parametrize("serial", ["N/A", "0000000000", "ffff", "   ", "a\x1b[31m"])
def test_a_placeholder_in_the_vpd_is_no_serial_number(serial: str) -> None:
    assert vpd.parse(Bytes(pcitree.vpd("H100", SN=serial))).serial == ""


def test_a_field_that_is_cut_off_is_not_taken() -> None:
    whole = pcitree.vpd("H100", SN="1654922003211")
    assert vpd.parse(Bytes(whole)).serial == "1654922003211"
    cut = vpd.parse(Bytes(whole[:-5]))
    assert (cut.serial, bool(cut.problem)) == ("", True)


SERIALS = st.text(max_size=80)


@given(serial=SERIALS, slot=SERIALS, path=SERIALS, hardware=SERIALS, is_shared=st.booleans())
def test_a_key_is_a_name_whatever_the_serial_is(
    serial: str, slot: str, path: str, hardware: str, is_shared: bool
) -> None:
    identity = Identity(
        serial=serial,
        source=SerialSource.VPD if serial else None,
        slot=slot,
        path=path,
        hardware=hardware,
        is_shared=is_shared,
    )
    assert 0 < len(identity.key) <= 63
    assert set(identity.key) <= ALLOWED
    assert identity.key[0].isalnum()
    assert identity.key[-1].isalnum()
    assert not identity.key.startswith("gpu-")


@given(one=st.tuples(SERIALS, SERIALS, SERIALS), other=st.tuples(SERIALS, SERIALS, SERIALS), is_shared=st.booleans())
def test_other_serials_and_other_places_have_other_keys(
    one: tuple[str, str, str], other: tuple[str, str, str], is_shared: bool
) -> None:
    def identity(values: tuple[str, str, str]) -> Identity:
        serial, slot, path = values
        source = SerialSource.PCIE if serial else None
        return Identity(serial=serial, source=source, slot=slot, path=path, is_shared=is_shared)

    same = one == other or (bool(one[0]) and one[0] == other[0] and not is_shared)
    assert (identity(one).key == identity(other).key) is same


@given(content=st.dictionaries(st.sampled_from(NAMES), ANY))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_content_of_a_function_stops_the_scan(tmp_path: Path, content: dict[str, bytes]) -> None:
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    tree = pcitree.Tree(root)
    pcitree.add_gpu(tree, "0000:10:00.0")
    pcitree.add_gpu(tree, GPU)
    for name, data in content.items():
        (tree.folder(GPU) / name).write_bytes(data)
    found = discovery.scan(root)
    assert "0000:10:00.0" in {one.address for one in found.functions}
    for one in found.functions:
        _is_sane(one)


def _is_sane(one: Function) -> None:
    assert set(one.identity.key) <= ALLOWED
    assert one.link.width is None or 0 < one.link.width <= 32
    assert len(one.override) <= 4096


def test_a_file_without_end_is_read_no_further_than_a_page(tmp_path: Path) -> None:
    assert attribute.text("/dev/zero") == "\0" * 4096
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="symbolic"):
        attribute.text(str(link))


def test_addresses_sort_as_domains_count() -> None:
    found = ["10000:00:00.0", "ffff:00:00.0", "0001:00:00.0"]
    assert sorted(found, key=attribute.order) == found[::-1]
    assert not any(map(attribute.is_address, ("00:00.0", "0000:00:20.0", "0000:00:00.8", "0000:00:00.0\n", "")))


def test_names_come_from_the_vendors_own_part_of_the_list(tmp_path: Path) -> None:
    tree = pcitree.Tree(tmp_path / "root")
    names = pciids.find_names(tree.root, [(0x10DE, 0x2330), (0x10DE, 0x1021), (0x15B3, 0x1021), (1, 1)])
    assert names == {
        (0x10DE, 0x2330): "GH100 [H100 SXM5 80GB]",
        (0x15B3, 0x1021): "MT2910 Family [ConnectX-7]",
    }
    (tree.root / "usr/share/misc/pci.ids").write_bytes(b"")
    assert pciids.find_names(tree.root, [(0x10DE, 0x2330)]) == {}


def test_a_function_that_does_not_say_what_it_is_is_a_neighbour_all_the_same(tmp_path: Path) -> None:
    tree = pcitree.Tree(tmp_path)
    pcitree.add_gpu(tree, GPU)
    tree.add("0000:0f:00.1", ids=(0x10DE, 0x22BA), pci_class=0x040300, above="pci0000:0e/0000:0e:01.0")
    (tree.folder("0000:0f:00.1") / "vendor").unlink()
    (gpu,) = discovery.scan(tmp_path).gpus
    assert gpu.neighbours == ("0000:0f:00.1",)
