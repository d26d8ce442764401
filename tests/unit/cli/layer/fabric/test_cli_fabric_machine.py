"""`fairlead fabric machine` refuses what cannot run, and what an agent's settings say of the same switches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.cli.layer.fabric import machine
from fairlead.node import vfioparts
from fairlead.node.vm import image
from fairlead.silicon.vfio import discovery
from tests.unit.silicon.vfio import pcitree


def config(folder: Path, **fabric: object) -> settings.Settings:
    secret = folder / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o600)
    base = settings.Settings()
    chosen = dataclasses.replace(base.fabric, **{"secret": secret, **fabric})  # type: ignore[arg-type]  # its own
    return dataclasses.replace(base, fabric=chosen)


def named(folder: Path) -> str:
    made = folder / "image"
    made.mkdir(mode=0o700, exist_ok=True)
    for name in ("kernel", "initramfs"):
        (made / name).write_text(name)
    return f"{made}@{image.digest_of(made)}"


def test_a_machine_is_composed_of_the_settings(tmp_path: Path) -> None:
    assert machine.compose(config(tmp_path, vm_image=named(tmp_path))).starts == 0


@pytest.mark.parametrize(
    ("fabric", "says"),
    [
        ({"vm_image": ""}, "names no image"),
        ({"vm_image": "/somewhere"}, "sha256"),
        ({"vm_silence_s": 0.0}, "vm_silence_s"),
        ({"vm_start_s": 1e9}, "vm_start_s"),
        ({"vm_namespace": "fabric"}, "both set"),
        ({"secret": Path("/nowhere")}, "cannot be read"),
    ],
)
def test_a_setting_that_cannot_be_carried_out_is_refused_at_the_start(
    tmp_path: Path, fabric: dict[str, object], says: str
) -> None:
    with pytest.raises(errors.FairleadError) as caught:
        machine.compose(config(tmp_path, **{"vm_image": named(tmp_path), **fabric}))
    assert says in f"{caught.value.message} {caught.value.hint}"


def test_switches_go_with_their_group_and_none_before_all_are_bound(tmp_path: Path) -> None:
    tree = pcitree.Tree(tmp_path / "root")
    for number, driver in ((0, "vfio-pci"), (2, "nvidia-nvswitch")):
        address = f"0000:40:00.{number}"
        tree.add(address, ids=(0x10DE, 0x22A3), pci_class=0x068000, group=9, driver=driver)
    tree.add("0000:40:00.1", ids=(0x11F8, 0x4128), pci_class=0x058000, group=9, driver="vfio-pci")
    found = machine.switches_of(discovery.scan(tree.root))
    assert found.addresses == ("0000:40:00.0", "0000:40:00.1", "0000:40:00.2")
    assert "0000:40:00.2 not bound to VFIO" in found.problem
    tree.bind("0000:40:00.2", "vfio-pci")
    assert machine.switches_of(discovery.scan(tree.root)).problem == ""
    assert machine.switches_of(discovery.scan(tmp_path / "empty")).problem == "this machine has no NVSwitches"


@pytest.mark.parametrize(
    ("namespace", "vfio", "image_", "says"),
    [
        ("fabric", "bound", "", ""),
        ("", "off", "", ""),
        ("Fabric", "bound", "", "no name of a namespace"),
        ("fabric", "off", "", "node.vfio is off"),
        ("fabric", "bound", "/x@sha256:0", "both set"),
    ],
)
def test_an_agent_refuses_to_offer_switches_that_no_pod_would_get(
    tmp_path: Path, namespace: str, vfio: str, image_: str, says: str
) -> None:
    made = config(tmp_path, vm_namespace=namespace, vm_image=image_)
    made = dataclasses.replace(made, node=dataclasses.replace(made.node, vfio=vfio))
    if not says:
        vfioparts.check_switches(made)
        return
    with pytest.raises(errors.Invalid, match=says):
        vfioparts.check_switches(made)


def test_agent_and_machine_say_the_same_of_switches_that_two_machines_would_have(tmp_path: Path) -> None:
    made = config(tmp_path, vm_namespace="fabric", vm_image=named(tmp_path))
    made = dataclasses.replace(made, node=dataclasses.replace(made.node, vfio="bound"))
    said = list[tuple[str, str | None]]()
    for refuse in (machine.compose, vfioparts.check_switches):
        with pytest.raises(errors.Invalid) as caught:
            refuse(made)
        said.append((caught.value.message, caught.value.hint))
    assert said[0] == said[1]
    assert '"fabric"' in said[0][0]
    assert made.fabric.vm_image in said[0][0]
