"""Tegra's integrated GPU and those of Windows: one device each, as NVIDIA's plugin names them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.cli.doctor import machine_facts
from fairlead.model.cdikind import ALLOCATED
from fairlead.model.gpu import Inventory, Vendor
from fairlead.plan.cdi import driverprofile, generate
from fairlead.serve.backend.hardware import GPUListing, GPUView
from fairlead.silicon import hardware, integrated
from fairlead.silicon.nvidia.files import modefiles
from tests.unit.silicon.nvidia.files import moderoot


def tegra(root: Path) -> Path:
    """Make a Jetson."""
    for name in ("nvmap", "nvhost-gpu"):
        moderoot.add_node(root, name)
    moderoot.add_library(root, f"libcuda.so.{moderoot.VERSION}", "libcuda.so.1")
    moderoot.write(root / "etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n")
    moderoot.write(root / "sys/firmware/devicetree/base/model", "NVIDIA Jetson AGX Orin Developer Kit\0")
    moderoot.write(root / "sys/firmware/devicetree/base/compatible", "nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0")
    moderoot.write(root / "sys/module/nvgpu/version", "1")
    moderoot.write(root / moderoot.CSV / "devices.csv", "dev, /dev/nvmap\ndev, /dev/nvhost-gpu\ndev, /dev/gone\n")
    moderoot.write(root / moderoot.CSV / "drivers.csv", f"lib, /{moderoot.LIB}/libcuda.so.550*\n")
    return root


def windows(root: Path) -> Path:
    """Make a Linux machine under WSL2."""
    moderoot.add_node(root, "dxg")
    for name in ("libcuda.so.1.1", "libcuda_loader.so", "nvcubins.bin", "nvidia-smi"):
        moderoot.write(root / moderoot.STORE / name)
    for name in ("libdxcore.so", "libnvidia-ml.so.1"):
        moderoot.write(root / "usr/lib/wsl/lib" / name)
    return root


def scan(platform: str, root: Path) -> Inventory:
    return integrated.scan(platform, modefiles.Place(root=root), root)


@pytest.mark.parametrize(("make", "id_"), [(tegra, "tegra"), (windows, "all")])
async def test_the_machine_says_itself_what_it_is(make: Callable[[Path], Path], id_: str, tmp_path: Path) -> None:
    silicon = hardware.open_nvidia(settings.SiliconSettings(root=make(tmp_path)))
    inventory = await silicon.scan()
    assert [(gpu.uuid, gpu.vendor, gpu.index) for gpu in inventory.gpus] == [(id_, Vendor.NVIDIA, 0)]
    [files] = await silicon.scan_driver()
    assert {node.path for node in files.nodes} == set(inventory.gpus[0].device_nodes)
    assert [sample.gpu for sample in await silicon.sample(within_s=5)] == [id_]
    await silicon.close()


async def test_a_setting_says_it_against_the_machine(tmp_path: Path) -> None:
    silicon = hardware.open_nvidia(settings.SiliconSettings(root=tegra(tmp_path), discovery="nvml"))
    assert (await silicon.scan()).gpus == ()
    await silicon.close()


def test_a_jetson_is_named_by_its_own_files(tmp_path: Path) -> None:
    inventory = scan("csv", tegra(tmp_path))
    [gpu] = inventory.gpus
    assert (gpu.name, gpu.compute_capability) == ("NVIDIA Jetson AGX Orin Developer Kit", (8, 7))
    assert inventory.drivers[0].version == "36.4.3"


@pytest.mark.parametrize(("make", "platform", "id_"), [(tegra, "csv", "tegra"), (windows, "wsl", "all")])
@pytest.mark.parametrize("has_all", [True, False])
def test_its_spec_has_each_name_once(
    make: Callable[[Path], Path], platform: str, id_: str, has_all: bool, tmp_path: Path
) -> None:
    root = make(tmp_path)
    place = modefiles.Place(root=root)
    driver = integrated.scan_driver(platform, place, root)
    assert driver is not None
    profile = dataclasses.replace(driverprofile.TENANT, has_all=has_all)
    recipe = generate.Recipe(kinds=ALLOCATED, strategies=("uuid",), profile=profile)
    [spec] = generate.generate(scan(platform, root), [driver], recipe=recipe, vendors=[Vendor.NVIDIA]).specs
    assert [one.name for one in spec.devices] == list(dict.fromkeys([id_, *(["all"] * has_all)]))
    assert {node.path for node in spec.devices[0].edits.device_nodes} == {node.path for node in driver.nodes}


def test_lists_that_lead_to_nothing_are_a_gpu_that_does_not_answer_and_name_the_next_step(tmp_path: Path) -> None:
    moderoot.write(tmp_path / "etc/nv_tegra_release", "# R36 (release), REVISION: 4.3\n")
    [gone] = scan("csv", tmp_path).unreadable
    assert gone.uuid == "tegra"
    assert "host-files-for-container.d" in gone.message
    assert "install JetPack's container packages" in gone.message


def test_doctor_asks_it_for_no_node_that_it_does_not_have(tmp_path: Path) -> None:
    for make, platform in ((tegra, "csv"), (windows, "wsl")):
        root = make(tmp_path / platform)
        views = tuple(GPUView(gpu=gpu, node="n", holders=()) for gpu in scan(platform, root).gpus)
        listing = GPUListing(gpus=views, unreadable=(), drivers=(), is_simulated=False)
        assert (len(views), machine_facts._bad_nodes(listing, root)) == (1, ())


def test_windows_without_a_gpu_has_none_and_without_its_driver_says_so(tmp_path: Path) -> None:
    assert scan("wsl", tmp_path) == Inventory()
    moderoot.add_node(tmp_path, "dxg")
    [gone] = scan("wsl", tmp_path).unreadable
    assert "install NVIDIA's driver in Windows" in gone.message


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("dev, /dev/../etc/shadow", "line 1 is not"),
        ("lib, /**", "line 1 is not"),
        ("dir, /", "line 1 is not"),
        ("sym, /lib/\0x", "line 1 is not"),
        ("dev /dev/nvmap", "line 1 is not"),
        ("# " + "x" * (1 << 20), "bytes, at most 1048576 are read"),
    ],
)
def test_a_hostile_list_is_refused_whole_with_its_name_and_the_agent_goes_on(
    line: str, said: str, tmp_path: Path
) -> None:
    path = moderoot.write(tegra(tmp_path) / moderoot.CSV / "l4t.csv", f"{line}\n")
    inventory = scan("csv", tmp_path)
    assert inventory.gpus == ()
    [gone] = inventory.unreadable
    assert (gone.reason, str(path) in gone.message, said in gone.message) == ("MountListMalformed", True, True)
    driver = integrated.scan_driver("csv", modefiles.Place(root=tmp_path), tmp_path)
    assert driver is not None
    assert str(path) in driver.problems[0]


def test_a_list_that_is_a_pipe_or_leads_out_of_the_root_is_not_read(tmp_path: Path) -> None:
    root, outside = tegra(tmp_path / "root"), moderoot.write(tmp_path / "secret", "root:x:0:0\n")
    path = root / moderoot.CSV / "l4t.csv"
    os.mkfifo(path)
    assert "not a regular file" in scan("csv", root).unreadable[0].message
    path.unlink()
    path.symlink_to(outside)
    said = scan("csv", root).unreadable[0].message
    assert "leads out of" in said
    assert "root:x" not in said
    path.unlink()
    path.symlink_to(path)
    assert scan("csv", root).unreadable[0].reason == "MountListMalformed"


def test_links_in_circles_and_pipes_among_the_files_are_left_out(tmp_path: Path) -> None:
    root = tegra(tmp_path)
    (root / "usr/lib/loop.so").symlink_to("loop.so")
    os.mkfifo(root / "usr/lib/pipe.so")
    moderoot.write(root / moderoot.CSV / "l4t.csv", "lib, /usr/lib/loop.so\nlib, /usr/lib/pipe.so\n")
    driver = integrated.scan_driver("csv", modefiles.Place(root=root), root)
    assert driver is not None
    assert [Path(file.path).name for file in driver.files] == [f"libcuda.so.{moderoot.VERSION}"]
