"""Discovery for passthrough: what is found on made-up machines, and that what is untrusted costs itself alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.model.gpu import Vendor
from fairlead.model.vfio import Function, FunctionKind, PCILink, SerialSource, Snapshot, UnreadableFunction
from fairlead.silicon.vfio import discovery
from tests.unit.silicon.vfio import pcitree

GPU = "0000:0f:00.0"
AUDIO = (0x10DE, 0x22BC)


@pytest.fixture
def tree(tmp_path: Path) -> pcitree.Tree:
    tree = pcitree.Tree(tmp_path / "root")
    pcitree.add_gpu(tree, GPU)
    return tree


def only(tree: pcitree.Tree) -> Function:
    (found,) = discovery.scan(tree.root).functions
    return found


def test_an_hgx_board_is_found_whole(tmp_path: Path) -> None:
    tree = pcitree.build_hgx(tmp_path / "root", driver="vfio-pci")
    found = discovery.scan(tree.root)
    assert [one.address for one in found.gpus] == list(pcitree.HGX_MODULES)
    kinds = {one.address: one.kind for one in found.functions if one.kind is not FunctionKind.GPU}
    assert kinds == {
        **dict.fromkeys(pcitree.HGX_SWITCHES, FunctionKind.NVSWITCH),
        "0000:08:00.1": FunctionKind.MEMORY_CONTROLLER,
    }
    assert (found.unreadable, found.problems) == ((), ())
    assert len({one.identity.key for one in found.functions}) == len(found.functions)


def test_a_bound_gpu_is_described_by_what_sysfs_says(tmp_path: Path) -> None:
    tree = pcitree.build_hgx(tmp_path / "root", driver="vfio-pci")
    found = discovery.scan(tree.root).find(GPU)
    assert found is not None
    assert (found.ids, found.subsystem_vendor, found.subsystem_device) == ("10de:2330", 0x10DE, 0x16C1)
    assert found.model == "GH100 [H100 SXM5 80GB]"
    assert (found.driver, found.is_bound_to_vfio, found.override) == ("vfio-pci", True, "")
    assert (found.group, [one.address for one in found.members]) == ("15", [GPU])
    assert [node.path for node in found.nodes] == ["/dev/vfio/15", "/dev/vfio/devices/vfio0"]
    assert found.device_name == "vfio0"
    assert found.link == PCILink(speed_gts=32.0, width=16, max_speed_gts=32.0, max_width=16)
    assert (found.reset_methods, found.has_flr, found.virtual_functions) == (("flr", "bus"), True, 0)
    assert (found.identity.source, found.identity.serial) == (SerialSource.PCIE, "48b02d000000000f")
    assert (found.identity.key, found.identity.path) == ("pcie-48b02d000000000f", "pci0000:0e/01.0/00.0")
    assert (found.bridge, found.neighbours, found.answers, found.problems) == ("0000:0e:01.0", (), True, ())


def test_the_machine_is_described(tmp_path: Path) -> None:
    host = discovery.scan(pcitree.build_hgx(tmp_path / "root", driver="vfio-pci").root).host
    assert (host.iommu_groups, host.kernel, host.processor) == (17, pcitree.KERNEL, Vendor.INTEL)
    assert host.container_node is not None
    assert host.iommufd_node is not None
    assert (host.modules, host.drivers) == (("vfio_pci",), ("vfio-pci",))
    assert host.variants is not None
    assert [one.module for one in host.variants] == ["vfio_pci", "nvgrace_gpu_vfio_pci", "mlx5_vfio_pci"]


def test_what_shares_a_bridge_is_known_at_any_depth(tmp_path: Path) -> None:
    tree = pcitree.build_hgx(tmp_path / "root")
    found = {one.address: one for one in discovery.scan(tree.root).functions}
    assert found["0000:08:00.0"].neighbours == ("0000:08:00.1",)
    assert found["0000:05:00.0"].neighbours == ()
    assert [one.address for one in found["0000:05:00.0"].members if not one.is_bridge] == [
        *pcitree.HGX_SWITCHES,
        "0000:08:00.1",
    ]


def test_a_machine_without_pci_has_nothing(tmp_path: Path) -> None:
    found = discovery.scan(tmp_path)
    assert (found.functions, found.unreadable, found.problems) == ((), (), ())
    assert (found.host.iommu_groups, found.host.variants) == (0, None)


@pytest.mark.parametrize(
    ("node", "expected"), [("-1\n", None), ("1\n", 1), ("2\n", None), ("7\n", None), ("x" * 9000, None)]
)
def test_a_numa_node_is_one_with_processors_or_none(tree: pcitree.Tree, node: str, expected: int | None) -> None:
    (tree.folder(GPU) / "numa_node").write_text(node)
    assert only(tree).numa_node == expected


def test_a_domain_may_have_five_digits(tmp_path: Path) -> None:
    tree = pcitree.Tree(tmp_path / "root")
    for address in ("10000:02:00.0", "0001:02:00.0"):
        pcitree.add_gpu(tree, address, group=None)
    assert [one.address for one in discovery.scan(tree.root).functions] == ["0001:02:00.0", "10000:02:00.0"]


def test_auxiliary_functions_go_with_their_gpu(tree: pcitree.Tree) -> None:
    above = "pci0000:0e/0000:0e:01.0"
    tree.add("0000:0f:00.1", ids=AUDIO, pci_class=0x040300, above=above, driver="snd_hda_intel", group=15)
    tree.add("0000:20:00.0", ids=AUDIO, pci_class=0x0C0330, driver="xhci_hcd", group=20)
    tree.add("0000:21:00.0", ids=AUDIO, pci_class=0x0C0330, driver="xhci_hcd", group=21)
    (tree.folder(GPU) / "consumer:pci:0000:20:00.0").symlink_to(tree.folder("0000:20:00.0"))
    found = {one.address: one for one in discovery.scan(tree.root).functions}
    assert set(found) == {GPU, "0000:0f:00.1", "0000:20:00.0"}
    assert {one.board for one in found.values() if one.kind is FunctionKind.AUXILIARY} == {GPU}
    assert [one.driver for one in found[GPU].members if one.is_in_the_way] == ["nvidia", "snd_hda_intel"]


def test_a_virtual_function_is_no_gpu_of_its_own(tree: pcitree.Tree) -> None:
    folder = pcitree.add_gpu(tree, "0000:0f:00.4", group=16)
    pcitree.link(folder / "physfn", tree.folder(GPU).resolve())
    found = discovery.scan(tree.root).find("0000:0f:00.4")
    assert found is not None
    assert (found.kind, found.board) == (FunctionKind.VIRTUAL, GPU)


@pytest.mark.parametrize(
    ("vpd", "is_bridge"),
    [
        (pcitree.vpd("ConnectX-7", PN="X", V1="SW_MNG"), True),
        (pcitree.vpd("ConnectX-7", PN="X"), False),
        (b"", False),
        (b"\xff" * 32768, False),
        (b"SW_MNG", False),
    ],
)
def test_a_network_card_is_a_switch_bridge_by_its_vpd_alone(tmp_path: Path, vpd: bytes, is_bridge: bool) -> None:
    tree = pcitree.Tree(tmp_path / "root")
    tree.add("0000:50:00.0", ids=(0x15B3, 0x1021), pci_class=0x020700, files={"vpd": vpd})
    expected = [FunctionKind.SWITCH_BRIDGE] if is_bridge else []
    assert [one.kind for one in discovery.scan(tree.root).functions] == expected


def test_without_a_serial_in_configuration_space_the_vpd_says_it(tree: pcitree.Tree) -> None:
    (tree.folder(GPU) / "config").write_bytes(pcitree.config_space((0x10DE, 0x2330), 0x030200))
    (tree.folder(GPU) / "vpd").write_bytes(pcitree.vpd("H100", PN="900-X", SN="1654922003211"))
    identity = only(tree).identity
    assert (identity.source, identity.key) == (SerialSource.VPD, "vpd-1654922003211")


def test_without_any_serial_place_and_hardware_say_who_it_is(tree: pcitree.Tree) -> None:
    folder = tree.folder(GPU)
    (folder / "config").write_bytes(pcitree.config_space((0x10DE, 0x2330), 0x030200))
    before = only(tree).identity
    tree.write("sys/bus/pci/slots/SXM 5/address", "0000:0f:00\n")
    in_slot = only(tree).identity
    (folder / "device").write_text("0x2335\n")
    other = only(tree).identity
    assert (before.serial, before.source, before.slot, in_slot.slot) == ("", None, "", "SXM 5")
    assert len({before.key, in_slot.key, other.key}) == 3
    assert GPU not in "".join((before.key, in_slot.key, other.key))


def test_the_same_board_elsewhere_on_the_bus_is_the_same(tmp_path: Path) -> None:
    keys = []
    for number, address in enumerate(("0000:0f:00.0", "0000:3a:00.0")):
        tree = pcitree.Tree(tmp_path / f"root{number}")
        space = pcitree.config_space((0x10DE, 0x2330), 0x030200, serial=77)
        pcitree.add_gpu(tree, address, files={"config": space})
        keys.append(only(tree).identity.key)
    assert keys == ["pcie-000000000000004d"] * 2


def test_two_gpus_with_one_serial_are_told_apart_and_it_is_said(tree: pcitree.Tree) -> None:
    space = pcitree.config_space((0x10DE, 0x2330), 0x030200, serial=0x48B02D000000000F)
    pcitree.add_gpu(tree, "0000:10:00.0", files={"config": space})
    found = discovery.scan(tree.root).functions
    assert [one.identity.is_shared for one in found] == [True, True]
    assert len({one.identity.key for one in found}) == 2
    assert {one.problems for one in found} == {('its serial number "48b02d000000000f" is another function\'s too',)}


def test_what_reads_as_ones_is_listed_as_not_answering(tree: pcitree.Tree) -> None:
    (tree.folder(GPU) / "config").write_bytes(b"\xff" * 4096)
    found = only(tree)
    assert (found.answers, found.identity.serial, found.identity.is_certain) == (False, "", False)
    assert found.problems == ("it does not answer on the bus: its configuration space reads as ones",)


def test_who_sees_the_header_alone_is_told_so(tree: pcitree.Tree) -> None:
    (tree.folder(GPU) / "config").write_bytes(pcitree.config_space((0x10DE, 0x2330), 0x030200, serial=1, size=64))
    found = only(tree)
    assert (found.identity.is_certain, found.has_flr) == (False, None)
    assert "root alone may read" in found.problems[0]


@pytest.mark.parametrize("name", ["vendor", "class", "device"])
@pytest.mark.parametrize("what", ["absent", "loop", "pipe", "words", "folder"])
def test_an_unreadable_function_costs_itself_alone(tree: pcitree.Tree, name: str, what: str) -> None:
    pcitree.add_gpu(tree, "0000:10:00.0")
    path = tree.folder("0000:10:00.0") / name
    path.unlink()
    if what == "loop":
        path.symlink_to(path.name)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "words":
        path.write_text("0x10de and more")
    elif what == "folder":
        path.mkdir()
    found = discovery.scan(tree.root)
    assert [one.address for one in found.functions] == [GPU]
    (lost,) = found.unreadable
    assert lost.address == "0000:10:00.0"
    assert lost.message.startswith("0000:10:00.0 does not say what it is: ")


def test_a_link_that_loops_is_unreadable_and_a_strange_name_is_said(tree: pcitree.Tree) -> None:
    (tree.root / "sys/bus/pci/devices/0000:11:00.0").symlink_to("0000:11:00.0")
    (tree.root / "sys/bus/pci/devices/not-one").mkdir()
    found = discovery.scan(tree.root)
    assert [one.address for one in found.functions] == [GPU]
    assert [one.address for one in found.unreadable] == ["0000:11:00.0"]
    assert found.problems == (f"not-one in {tree.root}/sys/bus/pci/devices is no PCI address",)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("numa_node", b"\0\xff"),
        ("current_link_speed", b"Unknown"),
        ("max_link_width", b"255"),
        ("reset_method", b"\xff" * 5000),
        ("driver_override", b"a" * 100_000),
        ("sriov_numvfs", b"many"),
        ("config", b""),
        ("vpd", b"\x82\xff\xff"),
    ],
)
def test_what_else_cannot_be_read_costs_no_function(tree: pcitree.Tree, name: str, content: bytes) -> None:
    (tree.folder(GPU) / name).write_bytes(content)
    assert only(tree).address == GPU


def test_a_group_or_vfio_device_with_a_made_up_name_is_none(tree: pcitree.Tree) -> None:
    folder = tree.folder(GPU)
    (folder / "iommu_group").unlink()
    (folder / "iommu_group").symlink_to("../../etc")
    (folder / "vfio-dev/..passwd").mkdir(parents=True)
    found = only(tree)
    assert (found.group, found.members, found.device_node) == (None, (), None)
    assert len(found.problems) == 2


def test_an_older_kernel_names_no_reset_methods(tree: pcitree.Tree) -> None:
    folder = tree.folder(GPU)
    (folder / "reset_method").unlink()
    assert only(tree).reset_methods is None
    (folder / "reset").unlink()
    assert only(tree).reset_methods == ()


def test_a_snapshot_compares_by_value(tree: pcitree.Tree) -> None:
    assert discovery.scan(tree.root) == discovery.scan(tree.root)
    assert Snapshot() == Snapshot()
    assert UnreadableFunction(address="a", message="b") != UnreadableFunction(address="a", message="c")
