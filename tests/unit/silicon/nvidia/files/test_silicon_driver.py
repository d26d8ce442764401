"""The driver as files: what is found below a root, what is said to be missing, and no way out of the root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.model.driver import DriverFiles
from fairlead.silicon.nvidia.files import driver, library
from fairlead.wire.text import ldcache

VERSION = "550.163.01"


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def kernel(root: Path, version: str = VERSION) -> None:
    write(
        root / "proc/devices",
        "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n  7 nvidia-not\n",
    )
    write(
        root / "proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Wed Apr 1\nGCC version: 12\n",
    )
    write(root / "proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0\n")
    write(root / "sys/module/nvidia/version", f"{version}\n")


def user(base: Path, version: str = VERSION, folder: str = "usr/lib/x86_64-linux-gnu") -> Path:
    place = base / folder
    for name in ("libcuda", "libnvidia-ml"):
        write(place / f"{name}.so.{version}")
        (place / f"{name}.so.1").symlink_to(f"{name}.so.{version}")
        (place / f"{name}.so").symlink_to(f"{name}.so.1")
    write(base / "usr/bin/nvidia-smi")
    return place


def scan(root: Path, driver_root: str = "/") -> DriverFiles:
    found = driver.scan(root, Path(driver_root))
    assert found is not None
    return found


def names(files: DriverFiles, kind: str = "library") -> list[str]:
    return [file.path for file in files.files if file.kind == kind]


def test_a_machine_without_the_driver_has_none(tmp_path: Path) -> None:
    write(tmp_path / "proc/devices", "Character devices:\n  1 mem\n")
    assert driver.scan(tmp_path, Path("/")) is None


def test_majors_and_modules_are_the_drivers_own(tmp_path: Path) -> None:
    kernel(tmp_path)
    files = scan(tmp_path)
    assert files.majors == (("nvidia", 195), ("nvidia-caps", 510), ("nvidia-uvm", 511))
    assert [(m.name, m.is_loaded, m.version) for m in files.modules] == [
        ("nvidia", True, VERSION),
        ("nvidia_uvm", True, None),
    ]


def test_libraries_come_with_every_link_that_leads_to_them(tmp_path: Path) -> None:
    kernel(tmp_path)
    user(tmp_path)
    file = scan(tmp_path).files[0]
    assert file.path == f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    assert (file.soname, file.links) == ("libcuda.so.1", ("libcuda.so", "libcuda.so.1"))


def test_libraries_of_another_version_are_not_the_drivers(tmp_path: Path) -> None:
    kernel(tmp_path)
    place = user(tmp_path)
    write(place / "libcuda.so.470.1.1")
    assert all(name.endswith(VERSION) for name in names(scan(tmp_path)))


def test_a_folder_only_the_linkers_cache_knows_is_searched(tmp_path: Path) -> None:
    kernel(tmp_path)
    user(tmp_path, folder="opt/driver/lib")
    entry = ldcache.Entry(soname="libcuda.so.1", path="/opt/driver/lib/libcuda.so.1")
    write(tmp_path / "etc/ld.so.cache").write_bytes(ldcache.emit_ldcache([entry]))
    assert f"/opt/driver/lib/libnvidia-ml.so.{VERSION}" in names(scan(tmp_path))


def test_a_damaged_cache_leaves_the_fixed_folders(tmp_path: Path) -> None:
    kernel(tmp_path)
    user(tmp_path)
    write(tmp_path / "etc/ld.so.cache", "nonsense")
    assert len(names(scan(tmp_path))) == 2


def test_one_real_folder_under_two_names_is_read_once(tmp_path: Path) -> None:
    kernel(tmp_path)
    user(tmp_path)
    (tmp_path / "lib").symlink_to("usr/lib")
    assert len(names(scan(tmp_path))) == 2


def test_no_link_leads_out_of_the_root(tmp_path: Path) -> None:
    kernel(tmp_path / "root")
    user(tmp_path / "outside")
    (tmp_path / "root/usr/lib").mkdir(parents=True)
    (tmp_path / "root/usr/lib64").symlink_to(tmp_path / "outside/usr/lib/x86_64-linux-gnu")
    assert names(scan(tmp_path / "root")) == []


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    kernel(tmp_path)
    place = user(tmp_path)
    (place / "liba.so").symlink_to("libb.so")
    (place / "libb.so").symlink_to("liba.so")
    assert len(names(scan(tmp_path))) == 2


def test_a_32_bit_library_is_told_apart(tmp_path: Path) -> None:
    kernel(tmp_path)
    user(tmp_path)
    write(tmp_path / f"usr/lib/i386-linux-gnu/libcuda.so.{VERSION}").write_bytes(b"\x7fELF\x01\x01")
    assert names(scan(tmp_path), "library32") == [f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}"]


def test_a_driver_in_a_container_is_read_below_its_root(tmp_path: Path) -> None:
    kernel(tmp_path)
    user(tmp_path / "run/nvidia/driver")
    files = scan(tmp_path, "/run/nvidia/driver")
    assert not any("not found" in line for line in files.problems)
    assert names(files, "binary") == ["/usr/bin/nvidia-smi"]
    assert files.files[0].host_path.startswith(f"{tmp_path}/run/nvidia/driver/usr/lib")
    found = driver.find_nvml(tmp_path, Path("/run/nvidia/driver"))
    assert found == tmp_path / "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


@pytest.mark.parametrize("is_full", [False, True])
def test_nvml_is_found_in_the_folders_that_are_searched_too(tmp_path: Path, is_full: bool) -> None:
    kept = tmp_path / "opt/nvidia/lib"
    write(kept / "libnvidia-ml.so.1")
    search = driver.Search(libraries=(kept if is_full else Path("/opt/nvidia/lib"),))
    assert driver.find_nvml(tmp_path, Path("/"), search) == kept / "libnvidia-ml.so.1"


def test_beside_the_linkers_own_folders_those_that_are_searched_count_on_the_host(tmp_path: Path) -> None:
    assert driver.find_nvml(Path("/"), Path("/"), driver.Search(libraries=(tmp_path,))) is None
    write(tmp_path / "libnvidia-ml.so.1")
    found = driver.find_nvml(Path("/"), Path("/"), driver.Search(libraries=(tmp_path,)))
    assert found == tmp_path / "libnvidia-ml.so.1"


def test_another_root_never_falls_back_to_the_hosts_library(tmp_path: Path) -> None:
    assert driver.find_nvml(Path("/"), Path("/")) is None
    found = driver.find_nvml(tmp_path, Path("/"))
    assert found is not None
    assert found.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (
            lambda root: (root / "proc/modules").write_text("nvidia 1 0 - Live 0x0\n"),
            "nvidia_uvm is not loaded: modprobe",
        ),
        (lambda _root: None, "/dev/nvidiactl is missing: nvidia-modprobe"),
        (lambda _root: None, "no GPU has a device node"),
        (lambda root: (root / "usr/bin/nvidia-smi").unlink(), "nvidia-smi not found below"),
        (lambda root: kernel(root, "570.1.2"), f"kernel module is 570.1.2 but libraries are {VERSION}"),
        (lambda root: (root / f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{VERSION}").unlink(), "libnvidia-ml.so.550"),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(tmp_path: Path, prepare: object, problem: str) -> None:
    kernel(tmp_path)
    user(tmp_path)
    assert callable(prepare)
    prepare(tmp_path)
    assert any(problem in line for line in scan(tmp_path).problems)


def test_a_kernel_driver_without_libraries_says_so(tmp_path: Path) -> None:
    kernel(tmp_path)
    assert any("libcuda.so and libnvidia-ml.so not found" in line for line in scan(tmp_path).problems)


def test_libraries_without_a_kernel_driver_say_so(tmp_path: Path) -> None:
    user(tmp_path)
    assert any("kernel module nvidia is not loaded" in line for line in scan(tmp_path).problems)


def test_mig_minors_are_read_by_name(tmp_path: Path) -> None:
    kernel(tmp_path)
    write(tmp_path / "proc/driver/nvidia-caps/mig-minors", "config 1\ngpu0/gi1/access 12\nodd line here\n")
    assert scan(tmp_path).mig_minors == (("config", 1), ("gpu0/gi1/access", 12))


def test_only_character_devices_are_nodes(tmp_path: Path) -> None:
    kernel(tmp_path)
    write(tmp_path / "dev/nvidia0")
    assert scan(tmp_path).nodes == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_nodes_come_with_numbers_mode_and_owner(tmp_path: Path) -> None:
    kernel(tmp_path)
    path = write(tmp_path / "dev/keep").parent / "nvidia10"
    os.mknod(path, 0o020660, os.makedev(195, 10))
    path.chmod(0o660)
    os.chown(path, 0, 44)
    (node,) = scan(tmp_path).nodes
    assert (node.path, node.major, node.minor, node.mode, node.uid, node.gid) == (
        "/dev/nvidia10",
        195,
        10,
        0o660,
        0,
        44,
    )


def test_firmware_of_this_version_is_found(tmp_path: Path) -> None:
    kernel(tmp_path)
    user(tmp_path)
    write(tmp_path / f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    write(tmp_path / "lib/firmware/nvidia/1.2/gsp_ga10x.bin")
    assert names(scan(tmp_path), "firmware") == [f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"]


def test_a_version_is_read_from_the_libraries_where_no_module_tells(tmp_path: Path) -> None:
    user(tmp_path, "580.65.06")
    assert library.find_version(library.list_folders(tmp_path)) == "580.65.06"
