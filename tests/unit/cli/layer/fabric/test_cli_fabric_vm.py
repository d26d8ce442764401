"""`fairlead fabric vm` prints what this machine has, and says what is not ready."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
import yaml
from click.testing import CliRunner

from fairlead import errors
from fairlead.cli.core import invocation
from fairlead.cli.layer.fabric import group
from tests.unit.silicon.vfio import pcitree

BOARD = ("0000:40:00.0", "0000:40:00.2", "0000:40:00.3", "0000:40:00.4")
BESIDE = "0000:40:00.1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = pcitree.Tree(tmp_path / "root")
    for address in BOARD:
        tree.add(address, ids=(0x10DE, 0x22A3), pci_class=0x068000, group=9, driver="vfio-pci")
    tree.add(BESIDE, ids=(0x11F8, 0x4128), pci_class=0x058000, group=9, driver="vfio-pci")
    return tree.root


def invoke(root: Path, *words: str, **env: str) -> str:
    call = invocation.Invocation(env={"FAIRLEAD_CONFIG": "/dev/null", "FAIRLEAD_SILICON_ROOT": str(root), **env})
    line = ["vm", *words]
    return CliRunner().invoke(group.group, line, obj=call, catch_exceptions=False, standalone_mode=False).output


def test_the_domain_has_the_whole_group_at_its_addresses(root: Path) -> None:
    said = ElementTree.fromstring(invoke(root, "--libvirt", "--disk", "/var/lib/fm.qcow2"))  # noqa: S314 - our own
    found = [one.attrib for one in said.findall("devices/hostdev/source/address")]
    assert [f"{int(one['bus'], 16):02x}:{int(one['slot'], 16):02x}.{int(one['function'], 16)}" for one in found] == [
        f"40:00.{number}" for number in range(5)
    ]


def test_the_pod_asks_for_as_many_switches_as_there_are(root: Path) -> None:
    env = {"FAIRLEAD_FABRIC_VM_NAMESPACE": "fabric", "FAIRLEAD_NODE_NAME": "n1"}
    made = yaml.safe_load(invoke(root, "--kata", "--image", "reg/fairlead:1", **env))
    assert made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/nvswitch"] == "4"
    assert made["metadata"]["namespace"] == "fabric"
    kata = {**env, "FAIRLEAD_NODE_VFIO_NAMES": "kata", "FAIRLEAD_NODE_VFIO_SWITCH_ALIAS": "nvswitch-h100"}
    made = yaml.safe_load(invoke(root, "--kata", "--image", "reg/fairlead:1", **kata))
    limits = made["spec"]["containers"][0]["resources"]["limits"]
    assert {name: count for name, count in limits.items() if "/" in name} == {"nvidia.com/nvswitch-h100": "4"}
    with pytest.raises(errors.Invalid, match='vfio_switch_alias "switches" has no "nvswitch" in it'):
        invoke(root, "--kata", "--image", "i", **{**kata, "FAIRLEAD_NODE_VFIO_SWITCH_ALIAS": "switches"})
    with pytest.raises(click.UsageError, match="names no namespace"):
        invoke(root, "--kata", "--image", "i")
    with pytest.raises(click.UsageError, match="--disk"):
        invoke(root, "--libvirt")
    with pytest.raises(click.UsageError, match="one of --libvirt and --kata"):
        invoke(root)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--libvirt", "--kata", "--disk", "/d", "--image", "i"), "one of --libvirt and --kata"),
        (("--libvirt", "--disk", "/d", "--image", "i"), "--image says nothing of a machine by --libvirt"),
        (("--libvirt", "--disk", "/d", "--runtime-class", "k"), "--runtime-class says nothing"),
        (("--kata", "--image", "i", "--disk", "/d"), "--disk says nothing of a machine by --kata"),
        (("--kata", "--image", "i", "--cid", "4"), "--cid says nothing"),
    ],
)
def test_no_option_is_dropped_without_a_word(root: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        invoke(root, *words, FAIRLEAD_FABRIC_VM_NAMESPACE="fabric")


def test_switches_that_are_not_bound_are_named_with_the_command(tmp_path: Path) -> None:
    tree = pcitree.Tree(tmp_path / "root")
    tree.add(BOARD[0], ids=(0x10DE, 0x22A3), pci_class=0x068000, group=9, driver="nvidia-nvswitch")
    said = invoke(tree.root, "--libvirt", "--disk", "/d")
    assert f"fairlead vfio bind {BOARD[0]}" in said
    with pytest.raises(errors.NotFound, match="no NVSwitches"):
        invoke(tmp_path, "--libvirt", "--disk", "/d")
