"""A machine that loses its power with containers running: what comes back, what is lost and why, and what was promised.

The service runs in a virtual machine with a unified cgroup v2, on a disk without a volatile cache; QEMU is killed, and
the machine booted again from that disk. `reboot/guest.py` reports, tests judge.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import machine
import oci_bundle
import pytest
from packaging.requirements import Requirement

import fairlead
import fairlead_cdi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2000)]

UNUSED = frozenset({"faker"})
"""Required by a library's tests alone."""
STORAGE = b"""[storage]
driver="vfs"
runroot="/run/containers"
graphroot="/state/containers"
"""
ENGINE = b"""[engine]
no_pivot_root=true
cgroup_manager="cgroupfs"
events_logger="file"
[network]
network_backend="cni"
"""
DISK_BYTES = 1 << 30


def packages(*extras: str) -> list[str]:
    """Return what lies in the site's folder of Fairlead's requirements, and of theirs."""
    wanted, seen, found = [("fairlead", frozenset(extras))], set[tuple[str, frozenset[str]]](), set[str]()
    while wanted:
        name, given = one = wanted.pop()
        if one in seen:
            continue
        seen.add(one)
        installed = metadata.distribution(name)
        tops = {path.parts[0] for path in installed.files or ()} if name != "fairlead" else set()
        found |= {top for top in tops if top != ".." and not top.endswith(".pth")}
        asked = (
            each
            for each in map(Requirement, installed.requires or ())
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *given))
        )
        wanted += [(each.name, frozenset(each.extras)) for each in asked]
    return sorted(found - {*machine.PACKAGES, *UNUSED, "typing_extensions.py", "__pycache__"})


def make_disk(folder: Path) -> Path:
    """Return the machine's disk with an image in podman's storage, made here: podman is slow there."""
    root, stage, disk = folder / "root", folder / "stage", folder / "disk"
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", root / "bin/busybox")
    for name in ("sh", "sleep", "echo", "cat", "head", "sync"):
        (root / "bin" / name).symlink_to("busybox")
    subprocess.run(("tar", "-C", root, "-cf", folder / "root.tar", "."), check=True)
    own = ("--root", stage / "containers", "--runroot", folder / "runroot", "--storage-driver", "vfs")
    subprocess.run(("podman", *own, "import", "-q", folder / "root.tar", "localhost/box:1"), check=True)
    # Podman believes its database about where its folders are, and there they are others.
    shutil.rmtree(stage / "containers/libpod", ignore_errors=True)
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(("mkfs.ext4", "-q", "-d", stage, disk), check=True)
    return disk


@pytest.fixture(scope="module")
def boots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What the guest reported before the power was lost, and in the boot after it."""
    machine.require()
    oci_bundle.require("podman", "conmon")
    folder = tmp_path_factory.mktemp("machine")
    places = [str(machine.SITE), *(str(Path(str(one.__file__)).parents[1]) for one in (fairlead, fairlead_cdi))]
    contents = machine.Contents(
        guest=Path(__file__).parent / "reboot/guest.py",
        modules=("virtio_pci", "virtio_blk"),
        programs=(
            "/usr/bin/podman",
            "/usr/bin/conmon",
            "/usr/bin/crun",
            "/usr/bin/setpriv",
            *map(str, machine.SITE.glob("_cffi_backend*.so")),
        ),
        files={
            # The kubelet's process is given no PYTHONPATH: its interpreter finds Fairlead as where it is installed.
            f"{sysconfig.get_path('stdlib')}/site-packages/here.pth": "\n".join(places).encode(),
            "etc/passwd": b"root:x:0:0::/root:/bin/sh\n",
            "etc/group": b"root:x:0:\n",
            "etc/hosts": b"127.0.0.1 localhost\n",
            "etc/containers/policy.json": b'{"default": [{"type": "insecureAcceptAnything"}]}',
            "etc/containers/registries.conf": b"",
            "etc/containers/storage.conf": STORAGE,
            "etc/containers/containers.conf": ENGINE,
            "usr/share/containers/seccomp.json": Path("/usr/share/containers/seccomp.json").read_bytes(),
        },
        packages=packages("server"),
    )
    initramfs, disk = machine.pack(folder / "initramfs", contents), make_disk(folder)
    board = machine.Board(disk=disk, cpus=2, memory_mib=2048)
    try:
        before = machine.boot(folder, initramfs, limit_s=900, board=board, last="running")
        yield before, machine.boot(folder, initramfs, limit_s=900, board=board)
    finally:
        initramfs.unlink()
        disk.unlink()


def test_it_is_another_boot_of_a_machine_with_a_unified_cgroup(boots: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, after = boots
    assert before["boot"] != after["boot"]
    assert {"cpu", "memory"} <= set(after["cgroup"])
    assert before["applied"]["code"] == 0, before["applied"]


def test_what_restarts_always_comes_back_as_it_was_with_a_gpu_and_its_volume(
    boots: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    before, after = boots
    was, found = before["before"]["lasting"], after["after"]["lasting"]
    assert (found["uid"], found["state"], found["restarts"]) == (was["uid"], "running", was["restarts"] + 1)
    assert len(_gpus(found)) == 1
    assert after["ups"]["out"] == "up\nup\n"
    assert after["after limits"]["memory.max"] == str(512 << 20), "its size outlives the boot, as update left it"


def test_what_was_not_promised_is_lost_with_the_reason_and_can_be_started_again(
    boots: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    _, after = boots
    found = after["after"]["single"]
    assert (found["state"], found["reason"]) == ("failed", "MachineRestarted")
    assert "the machine was restarted" in after["explain single"]["out"]
    assert (after["again"]["code"], after["started again"]["state"]) == (0, "running")
    assert set(_gpus(after["started again"])).isdisjoint(_gpus(after["after"]["lasting"]))


def test_what_had_ended_keeps_its_output(boots: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, after = boots
    assert after["after"]["done"] == before["before"]["done"]
    assert after["output"]["out"] == "before\n"


def test_a_deployment_has_its_pod_and_a_job_another_one(boots: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, after = boots
    (web,) = _of(after["after"], "web-")
    assert web["state"] == "running"
    assert [one["uid"] for one in _of(before["before"], "web-")] == [web["uid"]]
    tried = sorted(_of(after["after"], "sweep-"), key=lambda one: one["created_at"])
    assert [one["state"] for one in tried] == ["failed", "running"]
    assert tried[0]["reason"] == "MachineRestarted"
    assert tried[0]["uid"] == _of(before["before"], "sweep-")[0]["uid"]


def test_sizes_change_on_cgroup_v2_while_the_process_goes_on(boots: tuple[dict[str, Any], dict[str, Any]]) -> None:
    told, _ = boots
    was, found = told["sized"], told["resized"]
    assert (was["memory.max"], was["cpu.max"]) == (str(256 << 20), "100000 100000")
    assert (told["update"]["code"], told["update"]["err"]) == (0, "")
    assert (found["memory.max"], found["cpu.max"]) == (str(512 << 20), "150000 100000")
    assert found["pid"] == was["pid"]
    assert (told["too much"]["code"], "Infeasible" in told["too much"]["err"]) == (5, True)


def test_memory_in_use_is_not_taken_away_on_cgroup_v2(boots: tuple[dict[str, Any], dict[str, Any]]) -> None:
    told, _ = boots
    assert "below current usage" in told["below use"]["err"]
    assert told["eater"]["memory.max"] == str(128 << 20)
    assert told["grown"]["code"] == 0
    assert told["eater grown"]["memory.max"] == str(160 << 20)


def _of(listed: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    return [one for name, one in listed.items() if name.startswith(prefix)]


def _gpus(shown: dict[str, Any]) -> list[str]:
    return [name for ids in shown["devices"].values() for name in ids]
