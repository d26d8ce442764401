"""AMD and Intel from fake sysfs trees, all vendors as one, and the choice of silicon by settings."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPUEvent, Inventory, LinkKind, Vendor
from fairlead.model.sample import Sample
from fairlead.silicon import composite, eventbus, hardware, machine
from fairlead.silicon.pci import pci
from fairlead.silicon.sim import silicon as simulation
from fairlead.silicon.sim import trees


class Refusing:
    """A vendor whose driver does not start."""

    async def scan(self) -> Inventory:
        raise errors.Unavailable("nvml does not answer: Driver Not Loaded", reason="DriverNotLoaded")

    async def scan_driver(self) -> tuple[DriverFiles, ...]:
        return ()

    def watch_events(self) -> AsyncIterator[GPUEvent]:
        return eventbus.EventBus().subscribe()

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        return ()

    async def close(self) -> None:
        return


async def test_an_amd_gpu_is_read_whole(tmp_path: Path) -> None:
    addresses = trees.build_amd(tmp_path)
    inventory = await hardware.open_amd(tmp_path).scan()
    gpu = inventory.gpus[1]
    assert [g.pci_bus_id for g in inventory.gpus] == addresses
    assert (gpu.name, gpu.memory_bytes, gpu.serial) == ("AMD Instinct MI300X", 192 << 30, "692300000001")
    assert (gpu.minor, gpu.numa_node, gpu.compute_capability) == (129, 0, (9, 4))
    assert gpu.device_nodes == ("/dev/dri/card1", "/dev/dri/renderD129")
    assert (gpu.health.temperature_c, gpu.health.power_mw, gpu.health.ecc_uncorrected) == (41, 138_000, 0)


async def test_amd_gpus_are_joined_as_kfd_says(tmp_path: Path) -> None:
    trees.build_amd(tmp_path)
    shutil.rmtree(tmp_path / "sys/class/kfd/kfd/topology/nodes/4")
    links = (await hardware.open_amd(tmp_path).scan()).links
    assert [link.kind for link in links].count(LinkKind.XGMI) == 3
    assert {link.kind for link in links if link.b == "0000:35:00.0"} == {LinkKind.SYSTEM, LinkKind.SAME_NODE}


def _divided(root: Path, address: str, separator: str, first: int) -> None:
    """Divide one board into two compute partitions, the second one below a platform device."""
    minor = int(next((root / "sys/bus/pci/devices" / address / "drm").glob("renderD*")).name.removeprefix("renderD"))
    (root / "sys/bus/pci/devices" / address / "current_compute_partition").write_text("DPX\n")
    drm = root / f"sys/devices/platform/amdgpu_xcp{separator}0/drm"
    drm.mkdir(parents=True)
    (root / "sys/class/drm").mkdir(parents=True, exist_ok=True)
    for name, number in ((f"card{first - 100}", first - 100), (f"renderD{first}", first)):
        (drm / name).mkdir()
        (root / "sys/class/drm" / name).symlink_to(f"../../devices/platform/amdgpu_xcp{separator}0/drm/{name}")
        os.mknod(root / "dev/dri" / name, 0o666 | stat.S_IFCHR, os.makedev(226, number))
    bus = int(address.split(":")[1], 16)
    for number, (render, partition) in enumerate(((minor, 0), (first, 1))):
        node = root / f"sys/class/kfd/kfd/topology/nodes/{20 + number}"
        (node / "mem_banks/0").mkdir(parents=True)
        (node / "mem_banks/0/properties").write_text(f"size_in_bytes {96 << 30}\n")
        place = bus << 8 | partition << 28
        text = f"simd_count 608\ndrm_render_minor {render}\ngfx_target_version 90402\nlocation_id {place}\ndomain 0\n"
        (node / "properties").write_text(text)


@pytest.mark.parametrize("separator", [".", "_"])
async def test_each_compute_partition_of_an_amd_board_is_a_gpu(tmp_path: Path, separator: str) -> None:
    addresses = trees.build_amd(tmp_path)
    _divided(tmp_path, addresses[0], separator, 180)
    silicon = hardware.open_amd(tmp_path)
    inventory = await silicon.scan()
    first, second, third = inventory.gpus[:3]
    assert [gpu.uuid for gpu in inventory.gpus] == [addresses[0], f"{addresses[0]}.1", *addresses[1:]]
    assert [gpu.index for gpu in inventory.gpus] == list(range(len(inventory.gpus)))
    assert (second.pci_bus_id, second.minor, second.memory_bytes) == (addresses[0], 180, 96 << 30)
    assert second.device_nodes == ("/dev/dri/card80", "/dev/dri/renderD180")
    assert (first.name, third.name) == ("AMD Instinct MI300X DPX", "AMD Instinct MI300X")
    assert next(link.kind for link in inventory.links if link.b == second.uuid) is LinkKind.SAME_BOARD
    (files,) = await silicon.scan_driver()
    assert {"/dev/dri/renderD180", "/dev/dri/renderD128"} <= {node.path for node in files.nodes}


async def test_an_amd_gpu_without_memory_is_unreadable_alone(tmp_path: Path) -> None:
    addresses = trees.build_amd(tmp_path)
    (pci.folder(tmp_path, addresses[2]) / "mem_info_vram_total").unlink()
    inventory = await hardware.open_amd(tmp_path).scan()
    assert len(inventory.gpus) == 3
    assert [(gpu.index, gpu.uuid) for gpu in inventory.unreadable] == [(2, addresses[2])]


async def test_amds_shared_node_is_the_drivers_not_a_gpus(tmp_path: Path) -> None:
    trees.build_amd(tmp_path)
    (tmp_path / "dev/kfd").unlink()
    (files,) = await hardware.open_amd(tmp_path).scan_driver()
    assert any("/dev/kfd is missing" in line for line in files.problems)
    assert files.version == "6.8.5"


@pytest.mark.parametrize("driver", ["i915", "xe"])
async def test_intel_gpus_are_read_with_either_driver(tmp_path: Path, driver: str) -> None:
    addresses = trees.build_intel(tmp_path, driver=driver)
    inventory = await hardware.open_intel(tmp_path).scan()
    assert [gpu.pci_bus_id for gpu in inventory.gpus] == addresses
    assert {gpu.name for gpu in inventory.gpus} == {"Intel Data Center GPU Flex 170"}
    assert inventory.gpus[0].memory_bytes == 16 << 30
    assert [link.kind for link in inventory.links] == [LinkKind.SINGLE_SWITCH, LinkKind.SYSTEM, LinkKind.SYSTEM]


async def test_an_intel_gpu_given_away_in_parts_is_not_a_gpu(tmp_path: Path) -> None:
    addresses = trees.build_intel(tmp_path)
    (pci.folder(tmp_path, addresses[0]) / "sriov_numvfs").write_text("4\n")
    assert [gpu.pci_bus_id for gpu in (await hardware.open_intel(tmp_path).scan()).gpus] == addresses[1:]


async def test_machines_without_gpus_are_empty(tmp_path: Path) -> None:
    for silicon in (hardware.open_amd(tmp_path), hardware.open_intel(tmp_path)):
        assert await silicon.scan() == Inventory()
        assert await silicon.scan_driver() == ()


async def test_a_vendor_that_fails_hides_no_other(tmp_path: Path) -> None:
    trees.build_amd(tmp_path)
    joined = composite.CompositeSilicon([Refusing(), hardware.open_amd(tmp_path)])
    assert {gpu.vendor for gpu in (await joined.scan()).gpus} == {Vendor.AMD}
    assert [sample.power_mw for sample in await joined.sample(within_s=5)] == [138_000] * 4


async def test_a_vendor_that_fails_is_told_where_nothing_else_is(tmp_path: Path) -> None:
    joined = composite.CompositeSilicon([Refusing(), hardware.open_amd(tmp_path)])
    with pytest.raises(errors.Unavailable):
        await joined.scan()


async def test_a_reader_may_leave_joined_events(tmp_path: Path) -> None:
    source = eventbus.EventBus()

    class Telling(Refusing):
        def watch_events(self) -> AsyncIterator[GPUEvent]:
            source.listening()
            return source.subscribe()

    events = composite.CompositeSilicon([Telling(), Refusing()]).watch_events()
    assert (await anext(events)).uuid is None
    await events.aclose()  # type: ignore[attr-defined] # an async generator, behind the port's iterator
    with pytest.raises(StopAsyncIteration):
        await anext(events)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (
            "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0",
            "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0",
            "PIX",
        ),
        (
            "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:00.0",
            "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0",
            "PXB",
        ),
        ("pci0000:00/0000:00:01.0", "pci0000:00/0000:00:02.0", "PHB"),
        ("pci0000:00/0000:00:01.0", "pci0000:40/0000:40:01.0", "NODE"),
    ],
)
def test_the_kernels_tree_tells_how_near_two_devices_are(tmp_path: Path, one: str, other: str, kind: str) -> None:
    for address, under in (("0000:a0:00.0", one), ("0000:b0:00.0", other)):
        trees.add_device(tmp_path, address, under=under, driver="nvidia", attributes={"numa_node": "0"})
    assert pci.link_kind(tmp_path, "0000:a0:00.0", "0000:b0:00.0") is LinkKind(kind)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("00000000:1B:00.0", "0000:1b:00.0"), ("10000:01:00.0", "10000:01:00.0"), ("0001:AB:1f.7", "0001:ab:1f.7")],
)
def test_addresses_are_normalised(given: str, wanted: str) -> None:
    assert pci.normalise(given) == wanted


async def test_settings_without_simulation_look_at_the_hardware(tmp_path: Path) -> None:
    trees.build_intel(tmp_path)
    chosen = machine.open_silicon(settings.SiliconSettings(root=tmp_path), tmp_path / "state")
    inventory = await chosen.scan()
    assert (len(inventory.gpus), inventory.is_simulated) == (3, False)
    assert not (tmp_path / "state").exists()


async def test_a_machine_without_gpus_has_none(tmp_path: Path) -> None:
    chosen = machine.open_silicon(settings.SiliconSettings(root=tmp_path), tmp_path)
    inventory = await chosen.scan()
    assert (inventory.gpus, inventory.unreadable) == ((), ())
    assert await chosen.scan_driver() == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
async def test_settings_choose_simulation(tmp_path: Path) -> None:
    chosen = machine.open_silicon(settings.SiliconSettings(simulate="t4x4"), tmp_path)
    assert isinstance(chosen, simulation.SimulatedSilicon)
    assert (await chosen.scan()).is_simulated
    await chosen.close()


def test_an_unknown_profile_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match="offered"):
        machine.open_silicon(settings.SiliconSettings(simulate="h100x9"), tmp_path / "state")
    assert not (tmp_path / "state").exists()
