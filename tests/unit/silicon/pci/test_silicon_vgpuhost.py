"""vGPUs that a machine lends, in both frameworks, from trees of files; what is damaged or foreign is not lent."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.silicon.pci import vgpuhost
from tests.unit.silicon.nvidia.files import moderoot

BOARD, FUNCTION = "0000:07:00.0", "0000:07:00.4"
NAMES = "1157 : NVIDIA L40S-12Q\n1159 : NVIDIA  L40S-24Q\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with one board and the nodes of three groups."""
    for name in ("vfio/vfio", "vfio/21", "vfio/31", "vfio/32"):
        moderoot.add_node(tmp_path, name)
    moderoot.add_pci(tmp_path, BOARD, driver="nvidia", group="15")
    moderoot.write(tmp_path / "sys/bus/pci/devices" / BOARD / "numa_node", "1\n")
    return tmp_path


def test_a_function_with_a_type_is_lent_and_one_without_is_not(root: Path) -> None:
    moderoot.add_function(root, BOARD, FUNCTION, current=1159, group="31")
    moderoot.add_function(root, BOARD, "0000:07:00.5", current=0, group="32", creatable=NAMES)
    [found] = vgpuhost.list_vgpus(root, root)
    assert (found.id, found.parent, found.type, found.type_id) == (FUNCTION, BOARD, "NVIDIA L40S-24Q", 1159)
    assert ([node.path for node in found.nodes], found.group, found.problem) == (["/dev/vfio/31"], "31", "")


def test_a_type_that_no_function_of_the_board_lists_has_a_number_and_no_name(root: Path) -> None:
    """Names of another board are another board's: a number means something on its own board only."""
    moderoot.add_pci(root, "0000:87:00.0", driver="nvidia", group="16")
    moderoot.add_function(root, BOARD, FUNCTION, current=1157, group="31")
    moderoot.add_function(root, "0000:87:00.0", "0000:87:00.4", current=0, group="32", creatable=NAMES)
    [found] = vgpuhost.list_vgpus(root, root)
    assert (found.type, found.type_id) == ("", 1157)


def test_a_mediated_device_has_its_type_its_group_and_its_boards_node(root: Path) -> None:
    moderoot.add_mediated(root, BOARD, moderoot.MEDIATED, group="32")
    [found] = vgpuhost.list_vgpus(root, root)
    assert (found.id, found.parent, found.type, found.type_id) == (moderoot.MEDIATED, BOARD, "GRID T4-4Q", 232)
    assert ([node.path for node in found.nodes], found.numa_node) == (["/dev/vfio/32"], 1)


def test_a_vgpu_without_a_node_is_there_with_what_is_missing(root: Path) -> None:
    moderoot.add_function(root, BOARD, FUNCTION, current=1157, group="99")
    [found] = vgpuhost.list_vgpus(root, root)
    assert found.nodes == ()
    assert "/dev/vfio/99" in found.problem


def test_a_stranger_in_its_group_keeps_a_function_from_being_lent(root: Path) -> None:
    moderoot.add_function(root, BOARD, FUNCTION, current=1157, group="31")
    moderoot.add_pci(root, "0000:07:00.1", driver="snd_hda_intel", group="31", ids=("0x10de", "0x040300"))
    [found] = vgpuhost.list_vgpus(root, root)
    assert "0000:07:00.1 is bound to snd_hda_intel" in found.problem


@pytest.mark.parametrize("text", ["", "garbage", "-1", "0x", "9" * 5000, "\0"])
def test_a_current_type_that_is_none_lends_nothing_or_nothing_with_a_name(text: str, root: Path) -> None:
    moderoot.add_function(root, BOARD, FUNCTION, current=0, group="31")
    (root / "sys/bus/pci/devices" / FUNCTION / "nvidia/current_vgpu_type").write_text(text)
    assert [one.type for one in vgpuhost.list_vgpus(root, root)] == []


def test_another_vendors_and_misnamed_devices_are_not_lent(root: Path) -> None:
    moderoot.add_pci(root, "0000:a1:00.0", driver="i915", ids=("0x8086", "0x030000"))
    moderoot.add_mediated(root, "0000:a1:00.0", moderoot.MEDIATED, group="32")
    folder = root / "sys/bus/mdev/devices"
    (folder / "..no uuid..").symlink_to(root / "sys/bus/pci/devices" / BOARD)
    assert vgpuhost.list_vgpus(root, root) == []


def test_a_board_says_what_it_can_still_lend(root: Path) -> None:
    folder = root / "sys/bus/pci/devices" / BOARD
    moderoot.write(folder / "sriov_totalvfs", "32\n")
    moderoot.write(folder / "sriov_numvfs", "1\n")
    moderoot.add_function(root, BOARD, FUNCTION, current=0, group="31", creatable=NAMES)
    moderoot.add_mediated(root, BOARD, moderoot.MEDIATED, group="32")
    [found] = vgpuhost.list_lenders(root)
    assert (found.address, found.functions, found.most_functions) == (BOARD, 1, 32)
    assert dict(found.creatable) == {"GRID T4-4Q": 3, "NVIDIA L40S-12Q": None, "NVIDIA L40S-24Q": None}
