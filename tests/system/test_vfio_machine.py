"""Passing a GPU on, on a real kernel with a real IOMMU: a virtual machine without KVM, from sysfs to VFIO's ioctls.

The guest has two emulated AMD GPUs, one alone in its IOMMU group, one beside a function with a driver of its own, and
a third function that is not a GPU. Nothing of sysfs or /dev is made up. One boot; `vfio/guest.py` reports, tests judge.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import machine
import oci_bundle
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent / "vfio"
GPU, SHARED, SIBLING, OTHER = "0000:00:04.0", "0000:00:05.0", "0000:00:05.1", "0000:00:06.0"
DEVICES = (
    "ati-vga,addr=4,romfile=",
    "ati-vga,addr=5.0,multifunction=on,romfile=",
    "virtio-rng-pci,addr=5.1",
    "edu,addr=6",
)
MODULES = ("vfio_pci", "vfio_iommu_type1", "virtio_pci", "virtio_rng")
FILE = "amd.com-pgpu.json"
VIABLE = 1
"""VFIO_GROUP_FLAGS_VIABLE of linux/vfio.h."""
AMD, VGA = 0x1002, 0x030000
NOTHING = "no devices found: nothing is written\n"
POLICY = {"runtimes": ["/usr/sbin/runc"], "specDirs": ["/etc/cdi"], "cache": "/run/shim/cache.json"}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the guest reported, by name."""
    machine.require()
    folder = tmp_path_factory.mktemp("machine")
    probe = oci_bundle.compile_c((HERE / "probe.c").read_text(), folder / "probe", "-static")
    document = json.loads(oci_bundle.spec_template())
    document["process"]["terminal"] = False
    document["root"]["readonly"] = False
    for part in document["process"]["capabilities"].values():
        part.append("CAP_MKNOD")
    files = {
        "bundle/config.json": json.dumps(document).encode(),
        "bundle/rootfs/bin/probe": probe.read_bytes(),
        "bundle/rootfs/tmp/.keep": b"",
        "etc/fairlead/runtime.json": json.dumps(POLICY).encode(),
        "opt/bin/.keep": b"",
    }
    programs = ("/usr/sbin/runc", "/usr/bin/crun")
    contents = machine.Contents(guest=HERE / "guest.py", modules=MODULES, programs=programs, files=files)
    initramfs = machine.pack(folder / "initramfs", contents)
    try:
        return machine.boot(folder, initramfs, *DEVICES, limit_s=480)
    finally:
        initramfs.unlink()


def names(report: dict[str, Any]) -> list[str]:
    return [device["name"] for device in report["specs"][FILE]["devices"]]


def nodes(edits: dict[str, Any]) -> list[tuple[str, int, int, str]]:
    found = edits.get("deviceNodes", [])
    return [(each["path"], each["major"], each.get("minor", 0), each["permissions"]) for each in found]


def test_the_kernel_made_real_groups(told: dict[str, Any]) -> None:
    own = told["functions"][GPU]["group"]
    assert told["groups"][own] == [GPU]
    assert told["groups"][told["functions"][SHARED]["group"]] == [SHARED, SIBLING]
    drivers = {address: each["driver"] for address, each in told["functions"].items()}
    assert drivers == {GPU: "vfio-pci", SHARED: "vfio-pci", SIBLING: "virtio-pci", OTHER: "vfio-pci"}


@pytest.mark.parametrize("when", ["unbound", "unbound again"])
def test_with_nothing_bound_nothing_is_written_and_that_is_said(when: str, told: dict[str, Any]) -> None:
    assert told[when] == {"code": 0, "out": "", "err": NOTHING, "specs": {}}


def test_a_gpu_on_vfio_pci_is_described_with_its_kernels_numbers(told: dict[str, Any]) -> None:
    number = told["functions"][GPU]["group"]
    assert names(told["bound"]) == ["0", GPU, f"group{number}", "all"]
    spec = told["bound"]["specs"][FILE]
    expected = [(f"/dev/vfio/{number}", *told["numbers"][GPU], "rw")]
    assert [nodes(device["containerEdits"]) for device in spec["devices"]] == [expected] * 4
    assert nodes(spec["containerEdits"]) == [("/dev/vfio/vfio", 10, 196, "rw")]
    assert spec["containerEdits"].get("env", []) == []


def test_the_spec_is_one_that_engines_load(told: dict[str, Any]) -> None:
    assert told["validate"]["code"] == 0, told["validate"]


def test_a_gpu_is_left_out_exactly_where_the_kernel_says_that_its_group_is_not_viable(told: dict[str, Any]) -> None:
    assert told["kernel"][GPU]["status"]["value"] & VIABLE
    assert not told["kernel"][SHARED]["status"]["value"] & VIABLE
    number = told["functions"][SHARED]["group"]
    why = f"its IOMMU group {number} is not viable while {SIBLING} is bound to virtio-pci"
    assert f"vfio-amd: {SHARED} is left out: {why}" in told["bound"]["err"]


def test_it_is_there_once_its_sibling_is_unbound_and_the_kernel_agrees(told: dict[str, Any]) -> None:
    assert told["viable"]["kernel"]["status"]["value"] & VIABLE
    numbers = [f"group{told['functions'][address]['group']}" for address in (GPU, SHARED)]
    assert names(told["viable"]) == ["0", GPU, numbers[0], "1", SHARED, numbers[1], "all"]


def test_a_watcher_follows_viability_and_binding(told: dict[str, Any]) -> None:
    seen = {key: value for key, value in told["watch"].items() if key != "err"}
    wanted = {"before": True, "viable": True, "one unbound": True, "all unbound": True, "code": 0}
    assert seen == wanted, told["watch"]["err"]


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_container_drives_its_gpu_through_vfio(runtime: str, told: dict[str, Any]) -> None:
    """Through the shim into runc (asked for by annotation), through `cdi inject` into crun."""
    assert told["inject"] == {"code": 0, "err": ""}
    done = told[runtime]
    assert done["code"] == 0, done
    step = {name: each["value"] for name, each in done["steps"].items()}
    major, minor = told["numbers"][GPU]
    assert (step["numbers"], step["version"], step["type1"]) == (major * 1000 + minor, 0, 1)
    assert step["status"] & VIABLE
    assert (step["join"], step["iommu"], step["map"], step["region"]) == (0, 0, 0, 0)
    assert step["device"] >= 0
    assert (step["vendor"], step["class"]) == (AMD, VGA)


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_container_reaches_no_other_group(runtime: str, told: dict[str, Any]) -> None:
    assert told["kernel"][OTHER]["status"]["value"] & VIABLE  # who may, can open it
    codes = {name: each["errno"] for name, each in told[runtime]["steps"].items()}
    assert codes["mknod"] == 0
    assert (codes["other by name"], codes["other by number"]) == (errno.ENOENT, errno.EPERM)
