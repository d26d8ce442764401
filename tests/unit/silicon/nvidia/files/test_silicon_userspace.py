"""The driver's user space besides its own libraries: each table row is found, and under the name a container needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.model.driver import HostFile
from fairlead.silicon.nvidia.files import driver, library, userspace
from fairlead.silicon.sim import elf
from tests.unit.silicon.nvidia.files import moderoot

VERSION = moderoot.VERSION


def found(base: Path, kind: str, *, configs: tuple[Path, ...] = ()) -> dict[str, str]:
    """Return path in the container → path below the base, of one kind."""
    files = userspace.list_others(base, base, VERSION, configs)
    return {file.path: file.host_path.removeprefix(str(base)) for file in files if file.kind == kind}


@pytest.mark.parametrize("name", userspace.BINARIES)
def test_every_tool_is_found_in_its_first_folder(name: str, tmp_path: Path) -> None:
    moderoot.write(tmp_path / "usr/sbin" / name)
    moderoot.write(tmp_path / "usr/local/bin" / name)
    assert found(tmp_path, "binary") == {f"/usr/sbin/{name}": f"/usr/sbin/{name}"}


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("", "lib/firmware"),
        ("/opt/firmware\n", "opt/firmware"),
        ("", "lib/firmware/updates/6.1.0"),
        ("", "lib/firmware/updates"),
        ("", "lib/firmware/6.1.0"),
    ],
)
def test_firmware_comes_from_the_kernels_own_search(text: str, folder: str, tmp_path: Path) -> None:
    moderoot.write(tmp_path / "proc/sys/kernel/osrelease", "6.1.0\n")
    moderoot.write(tmp_path / "sys/module/firmware_class/parameters/path", text)
    path = moderoot.write(tmp_path / folder / "nvidia" / VERSION / "gsp_tu10x.bin")
    moderoot.write(tmp_path / folder / "nvidia/1.0/gsp_tu10x.bin")
    inside = f"/{path.relative_to(tmp_path)}"
    assert found(tmp_path, "firmware") == {inside: inside}


@pytest.mark.parametrize("name", userspace.CONFIGS)
def test_every_configuration_is_put_where_loaders_look(name: str, tmp_path: Path) -> None:
    moderoot.write(tmp_path / "usr/local/share" / name)
    assert found(tmp_path, "config") == {f"/usr/share/{name}": f"/usr/local/share/{name}"}
    moderoot.write(tmp_path / "etc" / name)
    assert found(tmp_path, "config") == {f"/etc/{name}": f"/etc/{name}"}
    moderoot.write(tmp_path / "opt/more" / name)
    assert found(tmp_path, "config", configs=(Path("/opt/more"),)) == {f"/usr/share/{name}": f"/opt/more/{name}"}


def test_sockets_are_found_once_under_either_name_and_the_folder_of_mps(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("../run")
    made = [moderoot.add_socket(tmp_path / name) for name in userspace.SOCKETS[:3:2]]
    (tmp_path / "tmp/nvidia-mps").mkdir(parents=True)
    moderoot.write(tmp_path / "usr/run/nvidia-persistenced/socket")
    assert list(found(tmp_path, "socket")) == [
        "/run/nvidia-persistenced/socket",
        "/run/nvidia-fabricmanager/socket",
        "/tmp/nvidia-mps",
    ]
    for one in made:
        one.close()


def test_modules_of_the_x_server_are_found(tmp_path: Path) -> None:
    names = ("drivers/nvidia_drv.so", f"extensions/libglxserver_nvidia.so.{VERSION}")
    for name in names:
        moderoot.write(tmp_path / "usr/lib/xorg/modules" / name)
    assert list(found(tmp_path, "library")) == [f"/usr/lib/xorg/modules/{name}" for name in names]


def libraries(base: Path, folders: list[Path]) -> dict[str, HostFile]:
    return {file.path: file for file in library.list_libraries(base, folders, VERSION)}


@pytest.mark.parametrize(
    "name",
    ["libnvidia-nvvm70.so.4", "libnvidia-egl-gbm.so.1.1.1", "libnvidia-egl-wayland2.so.1.0", f"libx.so.{VERSION}"],
)
def test_libraries_with_versions_of_their_own_are_the_drivers_too(name: str, tmp_path: Path) -> None:
    moderoot.write(tmp_path / moderoot.LIB / name)
    moderoot.write(tmp_path / moderoot.LIB / "libother.so.1.1.1")
    assert list(libraries(tmp_path, library.list_folders(tmp_path))) == [f"/{moderoot.LIB}/{name}"]


def test_dispatch_libraries_come_as_their_file_under_the_name_programs_ask_for(tmp_path: Path) -> None:
    moderoot.add_library(tmp_path, "libGL.so.1.7.0", "libGL.so.1")
    (tmp_path / moderoot.LIB / "libEGL.so.1").symlink_to("/etc/hostname")
    (file,) = libraries(tmp_path, library.list_folders(tmp_path)).values()
    assert (file.kind, file.path) == ("explicit", f"/{moderoot.LIB}/libGL.so.1")
    assert file.host_path == f"{tmp_path}/{moderoot.LIB}/libGL.so.1.7.0"


def test_folders_that_somebody_names_come_first(tmp_path: Path) -> None:
    moderoot.write(tmp_path / "opt/lib" / f"libcuda.so.{VERSION}")
    moderoot.write(tmp_path / moderoot.LIB / "libcuda.so.1.2.3")
    search = driver.Search(libraries=(Path("/opt/lib"),))
    found = driver.scan(tmp_path, Path("/"), search)
    assert found is not None
    assert (found.version, [file.path for file in found.files]) == (VERSION, [f"/opt/lib/libcuda.so.{VERSION}"])


def test_capabilities_of_instances_are_read_where_the_list_of_all_is_missing(tmp_path: Path) -> None:
    base = tmp_path / "proc/driver/nvidia/capabilities"
    for name, minor in (("gpu0/mig/gi1/access", 12), ("gpu0/mig/gi1/ci0/access", 13), ("mig/config", 1)):
        moderoot.write(base / name, f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
    assert driver.list_mig_minors(tmp_path) == [("gpu0/gi1/access", 12), ("gpu0/gi1/ci0/access", 13)]
    moderoot.write(tmp_path / "proc/driver/nvidia-caps/mig-minors", "gpu0/gi1/access 22\n")
    assert driver.list_mig_minors(tmp_path) == [("gpu0/gi1/access", 22)]


def test_a_program_goes_before_a_script_that_was_put_around_it(tmp_path: Path) -> None:
    script = moderoot.write(tmp_path / "usr/bin/nvidia-smi", '#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi "$@"\n')
    assert found(tmp_path, "binary") == {"/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi"}
    program = tmp_path / "usr/local/nvidia/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_bytes(elf.library("none.so"))
    assert script.exists()
    assert found(tmp_path, "binary") == {"/usr/local/nvidia/bin/nvidia-smi": "/usr/local/nvidia/bin/nvidia-smi"}


@pytest.mark.parametrize(
    ("start", "kind", "machine"),
    [
        (b"\x7fELF\x02\x01" + bytes(12) + b"\x3e\x00", "library", "x86_64"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\xb7\x00", "library", "aarch64"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\xf3\x00", "library", ""),  # RISC-V: no table of ours has it
        (b"\x7fELF\x01\x01" + bytes(12) + b"\x3e\x00", "library32", ""),  # x32
        (b"\x7fELF\x02", "library", ""),
        (b"", "library", ""),
    ],
)
def test_a_library_says_what_it_runs_on(start: bytes, kind: str, machine: str, tmp_path: Path) -> None:
    path = tmp_path / "usr/lib64" / f"libcuda.so.{VERSION}"
    path.parent.mkdir(parents=True)
    path.write_bytes(start)
    (one,) = library.list_libraries(tmp_path, [path.parent], VERSION)
    assert (one.kind, one.machine) == (kind, machine)
