"""A Jetson and a machine under Windows, from their own files to the kubelet's checkpoint and the spec of the device."""

# ruff: noqa: F811  (fixtures of another file)

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.silicon import hardware
from tests.contract.test_agent_contract import NVIDIA, Home, home_folder  # noqa: F401 fixture
from tests.contract.test_vgpus import give, until
from tests.unit.silicon.nvidia.files import moderoot
from tests.unit.silicon.test_silicon_integrated import tegra, windows


@pytest.mark.parametrize(
    ("make", "name", "nodes"),
    [(tegra, "tegra", {"/dev/nvmap", "/dev/nvhost-gpu"}), (windows, "all", {"/dev/dxg"})],
)
async def test_its_one_device_reaches_a_container(
    home_folder: Path, make: Callable[[Path], Path], name: str, nodes: set[str]
) -> None:
    make(home_folder)
    home = Home(home_folder, 0)
    home.silicon = hardware.open_hardware(home.settings.silicon)  # type: ignore[assignment]  # real in place of a bench's
    async with home.kubelet(), home.agent() as report:
        await until(home, {NVIDIA: (1, 1)})
        given, answer = await give(home, NVIDIA)
        assert (given, [one.name for one in answer.cdi_devices]) == (name, [f"fairlead.dev/gpu={name}"])
        spec = json.loads(home.spec.read_text())
        devices = {one["name"]: one["containerEdits"] for one in spec["devices"]}
        assert {node["path"] for node in devices[name]["deviceNodes"]} == nodes
        assert any("libcuda.so" in mount["containerPath"] for mount in spec["containerEdits"]["mounts"])
        assert [ad.resource for ad in report.supply.value.resources] == [NVIDIA]


async def test_a_broken_list_makes_it_unhealthy_and_a_mended_one_brings_it_back(home_folder: Path) -> None:
    path = tegra(home_folder) / moderoot.CSV / "l4t.csv"
    home = Home(home_folder, 0)
    home.silicon = hardware.open_hardware(home.settings.silicon)  # type: ignore[assignment]  # real in place of a bench's
    async with home.kubelet(), home.agent():
        await until(home, {NVIDIA: (1, 1)})
        path.write_text("nonsense\n")
        await until(home, {NVIDIA: (1, 0)})
        path.unlink()
        await until(home, {NVIDIA: (1, 1)})
