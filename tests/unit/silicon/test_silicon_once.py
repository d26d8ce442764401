"""One reading without an event loop finds what the silicon port finds, and fails as it does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.model.gpu import Inventory, Vendor
from fairlead.silicon import hardware, once
from fairlead.silicon.sim import elf, trees
from fairlead.silicon.sim import fault as faults
from fairlead.silicon.sim import host as simhost
from fairlead.silicon.sim import silicon as simulation

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[simhost.SimulatedHost]:
    made = simhost.SimulatedHost(tmp_path / "sim", "h100x8")
    yield made
    made.machine.close()


def reader(host: simhost.SimulatedHost, *, call_timeout_s: float = 10.0) -> once.SimulatedReader:
    return once.SimulatedReader(host.tree.path, host.library, call_timeout_s=call_timeout_s)


@needs_root
async def test_a_simulated_machine_is_read_as_through_the_port(host: simhost.SimulatedHost, tmp_path: Path) -> None:
    silicon = simulation.SimulatedSilicon(tmp_path / "sim", "h100x8")
    found = reader(host)
    assert found.scan() == await silicon.scan()
    assert found.scan_driver() == await silicon.scan_driver()
    await silicon.close()


@pytest.mark.parametrize(("build", "vendor"), [(trees.build_amd, Vendor.AMD), (trees.build_intel, Vendor.INTEL)])
async def test_every_vendor_is_read_as_through_the_port(
    tmp_path: Path, build: Callable[[Path], list[str]], vendor: Vendor
) -> None:
    build(tmp_path)
    chosen = settings.SiliconSettings(root=tmp_path)
    found, silicon = once.HardwareReader(chosen), hardware.open_hardware(chosen)
    inventory = found.scan()
    assert {gpu.vendor for gpu in inventory.gpus} == {vendor}
    assert inventory == await silicon.scan()
    assert found.scan_driver() == await silicon.scan_driver()


@needs_root
def test_a_gpu_that_hangs_is_unreadable_and_the_others_are_read(host: simhost.SimulatedHost) -> None:
    faults.inject(host.machine, "slow", gpu=2, value="30")
    inventory = reader(host, call_timeout_s=0.5).scan()
    assert (len(inventory.gpus), [gpu.reason for gpu in inventory.unreadable]) == (7, ["Timeout"])


@needs_root
def test_a_library_that_refuses_to_start_is_reported(host: simhost.SimulatedHost) -> None:
    host.machine.init_code = 18
    with pytest.raises(errors.Unavailable) as caught:
        reader(host).scan()
    assert caught.value.reason == "DriverVersionMismatch"


def broken_driver(root: Path) -> settings.SiliconSettings:
    """Return a root whose libnvidia-ml has no functions."""
    path = root / "usr/lib/libnvidia-ml.so.1"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf.library(path.name))
    (root / "proc/driver/nvidia").mkdir(parents=True)
    return settings.SiliconSettings(root=root)


def test_a_driver_that_fails_hides_no_other_vendor(tmp_path: Path) -> None:
    trees.build_amd(tmp_path)
    found = once.HardwareReader(broken_driver(tmp_path))
    assert {gpu.vendor for gpu in found.scan().gpus} == {Vendor.AMD}
    assert [type(error) for error in found.failed] == [errors.Unavailable]


def test_a_driver_that_fails_alone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable):
        once.HardwareReader(broken_driver(tmp_path)).scan()


def test_a_machine_without_gpus_has_none(tmp_path: Path) -> None:
    found = once.HardwareReader(settings.SiliconSettings(root=tmp_path))
    assert (found.scan(), found.scan_driver(), found.failed) == (Inventory(), (), [])
