"""What doctor says of a machine that passes GPUs through, and that it says nothing of others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.cli.doctor.sharing import passthrough, verifier
from fairlead.model.vfio import PassthroughHost
from fairlead.node.vm import image
from tests.unit.plan.vfio.vfioworld import function, node, snapshot
from tests.unit.silicon.vfio import pcitree

GPU = "0000:0f:00.0"
GOOD = PassthroughHost(iommu_groups=3, drivers=("vfio-pci",), modules=("vfio_pci",), kernel="6.12.48+deb13-amd64")


def findings(host: PassthroughHost = GOOD, *, driver: str = "vfio-pci", **more: object) -> list[tuple[str, str, str]]:
    strangers = more.pop("strangers", ())
    facts = passthrough.Facts(
        snapshot=snapshot(function(GPU, driver=driver), host=host, strangers=strangers),  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )
    return [(one.level, one.what, one.fix) for one in passthrough.check(facts)]


def test_a_good_machine_is_one_line() -> None:
    assert findings() == [("ok", "1 of 1 GPUs are bound to VFIO", "")]


def test_a_machine_without_passthrough_is_not_judged() -> None:
    assert findings(PassthroughHost(modules=("nouveau",)), driver="nvidia") == []


@pytest.mark.parametrize(
    ("changes", "level", "what", "fix"),
    [
        ({"iommu_groups": 0}, "fail", "no IOMMU is on", "firmware"),
        ({"drivers": ()}, "fail", "no VFIO driver is registered", "modprobe vfio-pci"),
        ({"iommufd_node": node("iommu")}, "warn", "6.12.48", "6.19"),
        ({"modules": ("nouveau",)}, "warn", "nouveau", "blacklist nouveau"),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(changes: dict[str, object], level: str, what: str, fix: str) -> None:
    host = dataclasses.replace(GOOD, **changes)  # type: ignore[arg-type]
    found = findings(host, driver="nvidia", is_wanted=True)
    assert any(one[0] == level and what in one[1] and fix in one[2] for one in found)
    assert ("ok" in {one[0] for one in found}) is (level == "warn")


def test_passthrough_without_a_ledger_says_what_is_not_kept() -> None:
    facts = passthrough.Facts(snapshot=snapshot(function(GPU, driver="vfio-pci"), host=GOOD), is_wanted=True)
    without = dataclasses.replace(facts, has_ledger=False)
    (found,) = [one for one in passthrough.check(without) if one.level == "warn"]
    assert "no node kept open" in found.why
    assert "lease.ledger=on" in found.fix
    assert [one.level for one in passthrough.check(facts)] == ["ok"]


def test_a_kernel_that_maps_peers_is_not_warned_of() -> None:
    host = dataclasses.replace(GOOD, iommufd_node=node("iommu"), kernel="6.19.0")
    assert [one[0] for one in findings(host)] == ["ok"]


def test_a_group_that_is_not_viable_names_what_is_in_it() -> None:
    found = findings(strangers=[("15", "0000:20:00.0", "nvme")])
    assert [(one[0], "0000:20:00.0 is bound to nvme" in one[1]) for one in found] == [("fail", True)]


@pytest.mark.parametrize(
    ("name", "limit", "rights", "is_said"),
    [
        ("containerd", "65536", "0000000000000000", True),
        ("qemu-system-x86", "8388608", "0000000000000000", True),
        ("containerd", "unlimited", "0000000000000000", False),
        ("containerd", "65536", "0000000000004000", False),
        ("sshd", "65536", "0000000000000000", False),
    ],
)
def test_who_may_lock_little_memory_is_named(tmp_path: Path, name: str, limit: str, rights: str, is_said: bool) -> None:
    tree = pcitree.Tree(tmp_path)
    pcitree.add_gpu(tree, GPU, driver="vfio-pci")
    tree.write("proc/77/comm", f"{name}\n")
    tree.write("proc/77/limits", f"Max locked memory         {limit}                {limit}                bytes\n")
    tree.write("proc/77/status", f"Name:\t{name}\nCapEff:\t{rights}\n")
    config = settings.load(flags={}, env={"FAIRLEAD_SILICON_ROOT": str(tmp_path)}, file=None)
    found = list(passthrough.check(passthrough.collect(config)))
    assert any(f"process 77 ({name})" in one.what for one in found) is is_said


def test_switches_are_named_as_a_pod_asks_for_them_and_a_wrong_name_is_said(tmp_path: Path) -> None:
    tree = pcitree.build_hgx(tmp_path, driver="vfio-pci")
    for address in pcitree.HGX_SWITCHES:
        tree.bind(address, "vfio-pci")
    env = {
        "FAIRLEAD_SILICON_ROOT": str(tmp_path),
        "FAIRLEAD_NODE_VFIO": "bound",
        "FAIRLEAD_NODE_VFIO_NAMES": "kata",
        "FAIRLEAD_FABRIC_VM_NAMESPACE": "team",
    }
    for alias, level, words in (
        ("nvswitch-h100", "ok", "pods of team may have all of them, by nvidia.com/nvswitch-h100"),
        ("switches", "fail", 'node.vfio_switch_alias "switches" has no "nvswitch" in it'),
    ):
        config = settings.load(flags={}, env={**env, "FAIRLEAD_NODE_VFIO_SWITCH_ALIAS": alias}, file=None)
        found = list(passthrough.check(passthrough.collect(config)))
        assert any((one.level, words in one.what) == (level, True) for one in found), found


def test_a_verifiers_image_that_cannot_be_started_is_said_with_its_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "image"
    folder.mkdir(mode=0o700)
    for name in ("kernel", "initramfs"):
        (folder / name).write_text(name)
    named = f"{folder}@{image.digest_of(folder)}"

    def told(reference: str, emulator: str = "/bin/sh") -> list[tuple[str, str, str]]:
        lease = dataclasses.replace(settings.Settings().lease, verifier_image=reference, verifier_emulator=emulator)
        config = dataclasses.replace(settings.Settings(), lease=lease)
        facts = dataclasses.replace(verifier.collect(config), has_kvm=reference != "no kvm")
        return [(one.level, one.what, one.fix) for one in verifier.check(facts)]

    assert told("") == []
    ((level, what, _),) = told(named)
    assert (level, "sha256:" in what) == ("ok", True)
    (folder / "kernel").chmod(0o666)
    ((level, what, fix),) = told(named)
    assert (level, "can be changed by others" in what, "chmod" in fix) == ("fail", True, True)
    (folder / "kernel").chmod(0o600)
    ((level, what, fix),) = told(named, emulator="/nowhere")
    assert (level, "/nowhere" in what, "qemu-system-x86" in fix) == ("fail", True, True)
    (folder / "kernel").write_text("another")
    ((level, what, _),) = told(named)
    assert (level, "is asked for" in what) == ("fail", True)
    assert any("/dev/kvm" in what for _, what, _ in told("no kvm"))


def test_a_service_vm_that_cannot_be_started_is_said_with_its_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "image"
    folder.mkdir(mode=0o700)
    for name in ("kernel", "initramfs"):
        (folder / name).write_text(name)
    lease = dataclasses.replace(settings.Settings().lease, verifier_emulator="/bin/sh")
    silicon = dataclasses.replace(settings.Settings().silicon, root=tmp_path)

    def told(reference: str, *, has_vsock: bool = True) -> list[tuple[str, str, str]]:
        fabric = dataclasses.replace(settings.Settings().fabric, vm_image=reference)
        config = dataclasses.replace(settings.Settings(), lease=lease, fabric=fabric, silicon=silicon)
        facts = dataclasses.replace(verifier.collect_service(config), has_kvm=True, has_vsock=has_vsock)
        return [(one.level, one.what, one.fix) for one in verifier.check_service(facts)]

    named = f"{folder}@{image.digest_of(folder)}"
    assert told("") == []
    assert [one[0] for one in told(named)] == ["ok"]
    ((level, what, fix),) = told(named, has_vsock=False)
    assert (level, "vhost-vsock" in what, fix) == ("fail", True, "modprobe vhost_vsock")
    assert verifier.collect_service(settings.Settings()).is_wanted is False
    (folder / "kernel").write_text("another")
    assert [one[0] for one in told(named)] == ["fail"]
