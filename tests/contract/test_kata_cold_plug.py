"""What Kata's stand-in does with a pod's devices before its machine boots: whom it asks, what it resolves and refuses.

The embedded kubelet answers over a real socket, as the real one does. `tests/cluster/test_kata_stand_in.py` has the
machine, `tests/system/test_hgx_kata.py` the GPUs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.node.kubelet.devices import checkpoint, devicemanager
from fairlead.node.kubelet.devices import podresources as served
from fairlead.wire.kubernetes import core, meta
from tests.katastandin import coldplug, guest

MARKS = {
    coldplug.NAME: "trainer",
    coldplug.NAMESPACE: "team",
    "cdi.k8s.io/mine": "example.com/other=1,example.com/more=2",
}
POD = core.Pod(
    metadata=meta.ObjectMeta(name="trainer", namespace="team", uid="u1"),
    spec=core.PodSpec(containers=(core.Container(name="main"), core.Container(name="side"))),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a unix socket's has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


def load(folder: Path, **machine: Any) -> coldplug.Config:
    path = folder / "configuration.toml"
    sock = str(folder / "kubelet.sock")
    path.write_text(guest.configuration(emulator="/q", kernel="/k", initrd="/i", sock=sock, **machine))
    return coldplug.load_config(path)


def grant(container: str, resource: str, *ids: str) -> checkpoint.Grant:
    return checkpoint.Grant(pod_uid="u1", container=container, resource=resource, device_ids=ids, response=b"")


async def ask(folder: Path, config: coldplug.Config, marks: dict[str, str], *grants: checkpoint.Grant) -> list[str]:
    devices = devicemanager.DeviceManager(checkpoint.Checkpoint(folder), grace_s=60, changed=lambda: None)
    devices.restore(grants)
    async with served.serve_pod_resources(devices, lambda: [POD], folder / "kubelet.sock"):
        return await asyncio.to_thread(coldplug.ask_devices, marks, config)


# Who is asked


async def test_the_kubelet_is_asked_for_the_pod_and_its_annotations_count_for_nothing(folder: Path) -> None:
    config = load(folder)
    found = await ask(
        folder,
        config,
        MARKS,
        grant("main", "nvidia.com/pgpu-x2", "x2-1.3"),
        grant("side", "example.com/fpga", "b", "a"),
    )
    assert found == ["nvidia.com/pgpu-x2=x2-1.3", "example.com/fpga=b", "example.com/fpga=a"]
    assert await ask(folder, config, MARKS) == []


async def test_a_pod_that_the_kubelet_does_not_know_gets_no_machine(folder: Path) -> None:
    with pytest.raises(coldplug.Refused, match="team/another has: NOT_FOUND"):
        await ask(folder, load(folder), {**MARKS, coldplug.NAME: "another"})


def test_without_the_kubelets_socket_a_pods_annotations_are_believed(folder: Path) -> None:
    """What `doctor` warns of, and admission denies tenants."""
    assert coldplug.ask_devices(MARKS, load(folder)) == ["example.com/other=1", "example.com/more=2"]


async def test_nothing_is_asked_where_cold_plug_is_off(folder: Path) -> None:
    found = await ask(folder, load(folder, cold_plug_vfio="no-port"), MARKS, grant("main", "nvidia.com/pgpu", "1"))
    assert found == []


# What is refused


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"hot_plug_vfio": "root-port"}, "only one of them can be set"),
        ({"hot_plug_vfio": "root-port", "cold_plug_vfio": "no-port"}, "cold and into root ports only"),
        ({"cold_plug_vfio": "switch-port"}, "cold and into root ports only"),
        ({"cold_plug_vfio": "any"}, "'any' is not one of"),
        ({"pcie_root_port": 17}, "16 at most"),
    ],
)
def test_configurations_with_hot_plug_or_too_many_ports_are_refused(
    machine: dict[str, Any], words: str, folder: Path
) -> None:
    with pytest.raises(coldplug.Refused, match=words):
        load(folder, **machine)


def test_annotations_of_katas_are_refused_unless_enabled(folder: Path) -> None:
    closed = load(folder)
    opened = load(folder, enable_annotations=["kernel_params"])
    coldplug.check_annotations(MARKS, closed)
    override = {"io.katacontainers.config.hypervisor.kernel_params": "quiet"}
    coldplug.check_annotations(override, opened)
    for marks, config in (
        (override, closed),
        ({"io.katacontainers.config.hypervisor.path": "/tmp/mine"}, opened),
        ({"io.katacontainers.config_path": "/tmp/mine.toml"}, opened),
    ):
        with pytest.raises(coldplug.Refused, match="is not enabled"):
            coldplug.check_annotations(marks, config)


def test_a_containers_device_must_be_one_that_the_machine_was_made_with() -> None:
    plugged = ["/dev/vfio/7", "/dev/vfio/vfio"]
    for path in ("/dev/vfio/7", "/dev/vfio/vfio", "/dev/null"):
        coldplug.check_container([{"path": path}], plugged)
    for path in ("/dev/vfio/8", "/dev/vfio/devices/vfio0"):
        with pytest.raises(coldplug.Refused, match=path):
            coldplug.check_container([{"path": "/dev/vfio/7"}, {"path": path}], plugged)


# What is resolved


def write_spec(folder: Path, name: str, kind: str, devices: dict[str, Sequence[str]]) -> str:
    folder.mkdir(exist_ok=True)
    listed = [
        {"name": each, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}
        for each, paths in devices.items()
    ]
    (folder / name).write_text(json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": listed}))
    return str(folder)


def test_names_are_resolved_by_cdis_rules(folder: Path) -> None:
    kind = "nvidia.com/pgpu-x2"
    low = write_spec(folder / "etc", "a.json", kind, {"x2-1.3": ["/dev/vfio/1"], "x2-5.7": ["/dev/vfio/5"]})
    high = write_spec(folder / "run", "a.json", kind, {"x2-1.3": ["/dev/vfio/vfio", "/dev/vfio/7", "/dev/vfio/9"]})
    (folder / "run" / "broken.json").write_text("{")
    assert coldplug.resolve([f"{kind}=x2-1.3", f"{kind}=x2-5.7"], (low, high)) == [
        *("/dev/vfio/vfio", "/dev/vfio/7", "/dev/vfio/9", "/dev/vfio/5"),
    ]
    write_spec(folder / "run", "b.json", kind, {"x2-5.7": ["/dev/vfio/6"]})
    write_spec(folder / "run", "c.json", kind, {"x2-5.7": ["/dev/vfio/6"]})
    for name in (f"{kind}=x2-5.7", f"{kind}=x2-2.4", "nvidia.com/pgpu=x2-1.3"):  # in conflict, withdrawn, another kind
        with pytest.raises(coldplug.Refused, match=f"unresolvable CDI devices {name}"):
            coldplug.resolve([f"{kind}=x2-1.3", name], (low, high))


def sysfs(folder: Path, group: int, functions: dict[str, str]) -> Path:
    """Make a group's functions. Args: functions: class by address."""
    for address, code in functions.items():
        function = folder / "sys/devices" / address
        function.mkdir(parents=True)
        for name, value in (("class", code), ("vendor", "0x10de"), ("device", "0x2330")):
            (function / name).write_text(f"{value}\n")
        link = folder / f"sys/kernel/iommu_groups/{group}/devices/{address}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(function)
    return folder / "sys"


def test_a_group_brings_all_its_functions_but_bridges(folder: Path) -> None:
    top = sysfs(folder, 7, {"0000:18:00.0": "0x068000", "0000:18:00.1": "0x058000", "0000:17:00.0": "0x060400"})
    found = coldplug.functions(["/dev/vfio/vfio", "/dev/vfio/7"], top)
    assert [one.address for one in found] == ["0000:18:00.0", "0000:18:00.1"]
    with pytest.raises(coldplug.Refused, match="/dev/vfio/8 is no device"):
        coldplug.functions(["/dev/vfio/8"], top)


def test_each_function_is_on_a_root_port_of_its_own_and_has_its_own_iommufd(folder: Path) -> None:
    top = sysfs(folder, 7, {"0000:18:00.0": "0x030200"}) and sysfs(folder, 8, {"0000:2a:00.0": "0x030200"})
    for number, address in enumerate(("0000:18:00.0", "0000:2a:00.0")):
        link = top / f"class/vfio-dev/vfio{number}/device"
        link.parent.mkdir(parents=True)
        link.symlink_to(top / "devices" / address)
    config = load(folder, pcie_root_port=1)
    by_group = " ".join(coldplug.device_words(config, coldplug.functions(["/dev/vfio/7", "/dev/vfio/8"], top)))
    assert "vfio-pci,host=0000:18:00.0,id=vfio0,x-pci-vendor-id=0x10de,x-pci-device-id=0x2330,bus=rp0 " in by_group
    assert by_group.endswith("host=0000:2a:00.0,id=vfio1,x-pci-vendor-id=0x10de,x-pci-device-id=0x2330,bus=rp1")
    assert "iommufd" not in by_group
    nodes = ["/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1"]
    by_device = coldplug.device_words(config, coldplug.functions(nodes, top))
    assert [word for word in by_device if word.startswith("iommufd,")] == ["iommufd,id=iommufd0", "iommufd,id=iommufd1"]
    many = [dataclasses.replace(coldplug.functions(nodes, top)[0], address=f"0000:{at:02x}:00.0") for at in range(17)]
    with pytest.raises(coldplug.Refused, match="17 root ports are needed"):
        coldplug.device_words(config, many)
