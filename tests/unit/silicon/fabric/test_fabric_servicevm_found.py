"""The Service VM is found by its emulator's command line, among processes that have the switches open."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.silicon.fabric import servicevm
from tests.unit.silicon.vfio import pcitree

SWITCHES = ("0000:40:00.0", "0000:40:00.2")


@pytest.fixture
def tree(tmp_path: Path) -> pcitree.Tree:
    made = pcitree.Tree(tmp_path / "root")
    for address in SWITCHES:
        made.add(address, ids=(0x10DE, 0x22A3), pci_class=0x068000, group=9, driver="vfio-pci")
    return made


def process(tree: pcitree.Tree, pid: int, *words: str, opened: str = "dev/vfio/9") -> None:
    path = tree.write(f"proc/{pid}/cmdline", b"\0".join(word.encode() for word in words) + b"\0")
    (path.parent / "fd").mkdir(exist_ok=True)
    (path.parent / "fd/3").unlink(missing_ok=True)
    (path.parent / "fd/3").symlink_to(tree.root / opened)


def qemu(cid: int, *addresses: str) -> list[str]:
    given = [word for one in addresses for word in ("-device", f"vfio-pci,host={one},bus=rp0")]
    return ["/opt/kata/bin/qemu", "-device", f"vhost-vsock-pci,vhostfd=3,id=v,guest-cid={cid}", *given]


def test_the_machine_with_every_switch_is_found_in_either_spelling(tree: pcitree.Tree) -> None:
    process(tree, 11, *qemu(7, SWITCHES[0]))
    process(tree, 12, *qemu(8, "0000:41:00.0"))
    process(tree, 13, *qemu(9, "40:00.0", "40:00.2"))
    assert servicevm.find_cid(tree.root) == 9
    process(tree, 13, "qemu", '{"driver":"vhost-vsock-pci","guest-cid":12}', *(f'"host":"{one}"' for one in SWITCHES))
    assert servicevm.find_cid(tree.root) == 12


def test_a_process_that_only_says_so_two_machines_or_none_are_no_answer(tree: pcitree.Tree, tmp_path: Path) -> None:
    tree.write("tenant/dev/vfio/9", "")  # by the same name in a container's own root
    process(tree, 10, *qemu(6, *SWITCHES), opened="tenant/dev/vfio/9")
    process(tree, 11, *qemu(7, *SWITCHES), opened="nowhere")
    with pytest.raises(errors.Unavailable, match="no machine has") as caught:
        servicevm.find_cid(tree.root)
    assert caught.value.reason == servicevm.UNKNOWN
    process(tree, 12, *qemu(8, *SWITCHES))
    assert servicevm.find_cid(tree.root) == 8
    process(tree, 13, *qemu(9, *SWITCHES))
    with pytest.raises(errors.Unavailable, match="2 machines"):
        servicevm.find_cid(tree.root)
    with pytest.raises(errors.Unavailable, match="no NVSwitches"):
        servicevm.find_cid(tmp_path / "empty")


@pytest.mark.parametrize(
    ("agent", "port"), [("nvswitch:6667", 6667), ("3:6667", None), ("/run/x", None), ("nvswitch:", None)]
)
def test_only_nvswitch_and_a_port_mean_that_machine(agent: str, port: int | None) -> None:
    assert servicevm.port_of(agent) == port
    with pytest.raises(errors.Invalid):
        servicevm.port_of("nvswitch:4294967296")
