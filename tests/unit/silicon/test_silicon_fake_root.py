"""The generated device tree: numbers, majors that reach no driver of the host, and building again."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.silicon.nvidia.files import driver
from fairlead.silicon.sim import elf, fault, machine, profile, root, silicon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")


def numbers(path: Path) -> tuple[int, int]:
    state = path.stat()
    return os.major(state.st_rdev), os.minor(state.st_rdev)


def host_with(folder: Path, *lines: str) -> Path:
    (folder / "proc").mkdir(parents=True)
    (folder / "proc/devices").write_text("\n".join(["Character devices:", *lines, "", "Block devices:", "510 sd", ""]))
    return folder


def build(folder: Path, name: str = "mixed", *, host: Path = Path("/")) -> root.FakeRoot:
    tree = root.FakeRoot(folder, machine.Machine(profile.load(name)), host_root=host)
    tree.build()
    return tree


def test_nodes_carry_nvidias_numbers(tmp_path: Path) -> None:
    tree = build(tmp_path / "root", host=host_with(tmp_path / "host", "  1 mem"))
    for name, wanted in (("nvidia0", (195, 0)), ("nvidia7", (195, 7)), ("nvidiactl", (195, 255))):
        assert numbers(tree.path / "dev" / name) == wanted
    assert numbers(tree.path / "dev/nvidia-modeset") == (195, 254)
    assert numbers(tree.path / "dev/nvidia-uvm-tools") == (tree.majors["nvidia-uvm"], 1)


def test_without_a_driver_an_allowed_open_is_enxio(tmp_path: Path) -> None:
    tree = build(tmp_path / "root")
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"):
        with pytest.raises(OSError, match="No such device or address") as caught:
            os.open(tree.path / "dev" / name, os.O_RDWR)
        assert caught.value.errno == errno.ENXIO


def test_dynamic_majors_avoid_the_hosts(tmp_path: Path) -> None:
    tree = build(tmp_path / "root", host=host_with(tmp_path / "host", "511 one", "509 two"))
    assert tree.majors == {"nvidia": 195, "nvidia-uvm": 510, "nvidia-caps": 508}


def test_a_real_driver_on_the_host_is_never_reached(tmp_path: Path) -> None:
    tree = build(tmp_path / "root", host=host_with(tmp_path / "host", "195 nvidia"))
    assert tree.majors["nvidia"] == 511
    assert numbers(tree.path / "dev/nvidia0") == (511, 0)


def test_majors_stay_while_they_are_free(tmp_path: Path) -> None:
    first = build(tmp_path / "root", host=host_with(tmp_path / "a", "511 one"))
    second = build(tmp_path / "root", host=host_with(tmp_path / "b", "  1 mem"))
    third = build(tmp_path / "root", host=host_with(tmp_path / "c", "510 late"))
    assert first.majors == second.majors
    assert third.majors == {"nvidia": 195, "nvidia-uvm": 511, "nvidia-caps": 509}


def test_building_again_touches_nothing(tmp_path: Path) -> None:
    tree = build(tmp_path / "root")
    files = sorted(path for path in tree.path.rglob("*") if "capabilities" not in path.parts)
    before = [(path, path.lstat().st_ino) for path in files]
    build(tmp_path / "root")
    assert [(path, path.lstat().st_ino) for path in files] == before


def test_another_profile_replaces_the_tree(tmp_path: Path) -> None:
    build(tmp_path / "root", "h100x8")
    build(tmp_path / "root", "t4x4")
    assert sorted(p.name for p in (tmp_path / "root/dev").glob("nvidia[0-9]")) == [f"nvidia{n}" for n in range(4)]


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/precious").touch()
    with pytest.raises(errors.Unavailable) as caught:
        build(tmp_path / "root")
    assert caught.value.reason == "SimulationFolderTaken"
    assert (tmp_path / "root/precious").exists()


def test_without_the_right_to_make_nodes_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", refuse)
    with pytest.raises(errors.Unavailable, match=r"may not make the device node .*nvidia") as caught:
        build(tmp_path / "root")
    assert caught.value.hint is not None
    assert "root" in caught.value.hint


def test_our_own_driver_scan_finds_nothing_missing(tmp_path: Path) -> None:
    tree = build(tmp_path / "root", "h100x8")
    files = driver.scan(tree.path, Path("/"))
    assert files is not None
    assert files.problems == ()
    assert files.version == "550.163.01"
    assert {"libcuda.so", "libcuda.so.1"} == set(next(f.links for f in files.files if "libcuda.so" in f.path))
    assert [f.path for f in files.files if f.kind == "binary"] == ["/usr/bin/nvidia-smi"]


def test_capability_nodes_follow_the_instances(tmp_path: Path) -> None:
    made = silicon.SimulatedSilicon(tmp_path, "h100x8")
    caps = tmp_path / "root/dev/nvidia-caps"
    made.inject("mig-mode", gpu=1, value="on")
    made.inject("mig-create", gpu=1, value="7g.80gb")
    assert {path.name for path in caps.iterdir()} == {"nvidia-cap1", "nvidia-cap2", "nvidia-cap138", "nvidia-cap139"}
    assert (tmp_path / "root/proc/driver/nvidia/capabilities/gpu1/mig/gi0/ci0/access").exists()
    made.inject("mig-destroy", gpu=1, value="all")
    assert {path.name for path in caps.iterdir()} == {"nvidia-cap1", "nvidia-cap2"}


async def test_a_restart_finds_the_same_machine(tmp_path: Path) -> None:
    first = silicon.SimulatedSilicon(tmp_path, "h100x8")
    first.inject("mig-mode", gpu=0, value="on")
    first.inject("mig-create", gpu=0, value="2g.20gb@2")
    first.inject("lost", gpu=5, value=None)
    before = await first.scan()
    await first.close()
    second = silicon.SimulatedSilicon(tmp_path, "h100x8")
    after = await second.scan()
    await second.close()
    assert after.gpus == before.gpus
    assert [gpu.index for gpu in after.unreadable] == [5]


async def test_damaged_state_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text('{"uuids": ')
    made = silicon.SimulatedSilicon(tmp_path, "t4x4")
    assert len((await made.scan()).gpus) == 4
    await made.close()
    assert (tmp_path / "machine.json.unreadable-1").exists()


def test_the_stand_in_libraries_are_libraries(tmp_path: Path) -> None:
    path = tmp_path / "libanything.so.9.9"
    path.write_bytes(elf.library("libanything.so.9", remark="simulated"))
    if shutil.which("ldconfig"):
        subprocess.run(["ldconfig", "-n", tmp_path], check=True, capture_output=True)
        assert (tmp_path / "libanything.so.9").readlink() == Path(path.name)
    assert not hasattr(ctypes.CDLL(str(path)), "cuInit")


@pytest.mark.parametrize(
    ("name", "gpu", "value", "part"),
    [
        ("melt", 0, None, "offered: xid, lost"),
        ("xid", 8, "79", "0 to 7"),
        ("xid", None, "79", "0 to 7"),
        ("xid", 0, "many", "XID"),
        ("slow", 0, "-1", "seconds"),
        ("utilization", 0, "101", "percent"),
        ("remap", 0, "perhaps", "pending, failed or none"),
        ("ecc", 0, "0", "from 1 to 1000"),
        ("mig-create", 0, "1g.10gb", "mig is off"),
        ("mig-mode", 6, "on", "cannot be partitioned"),
        ("mig-mode", 0, "maybe", "on or off"),
        ("mig-destroy", 0, "3", "no gpu instance 3"),
    ],
)
def test_a_fault_that_cannot_be_says_what_can(name: str, gpu: int | None, value: str | None, part: str) -> None:
    host = machine.Machine(profile.load("mixed"))
    with pytest.raises(errors.Invalid, match=part):
        fault.inject(host, name, gpu=gpu, value=value)


def test_a_mig_device_without_room_is_insufficient() -> None:
    host = machine.Machine(profile.load("h100x8"))
    fault.inject(host, "mig-mode", gpu=0, value="on")
    fault.inject(host, "mig-create", gpu=0, value="3g.40gb@0")
    with pytest.raises(errors.Insufficient, match="free starts: 4"):
        fault.inject(host, "mig-create", gpu=0, value="3g.40gb@0")
    with pytest.raises(errors.Invalid, match="mig-destroy all first"):
        fault.inject(host, "mig-mode", gpu=0, value="off")
