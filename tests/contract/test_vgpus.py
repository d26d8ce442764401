"""vGPUs that a machine lends, from sysfs to the kubelet's checkpoint: by type, with their nodes, beside boards."""

# ruff: noqa: F811  (fixtures of another file)

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.model import cdikind
from fairlead.node.kubelet.devices import devicemanager
from fairlead.silicon.sim import silicon
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.contract.test_agent_contract import NVIDIA, PATIENCE_S, Home, home_folder  # noqa: F401 fixture

SMALL, LARGE, MEDIATED = "nvidia.com/NVIDIA_L40S-12Q", "nvidia.com/NVIDIA_L40S-24Q", "nvidia.com/GRID_T4-8Q"


async def until(home: Home, wanted: dict[str, tuple[int, int]]) -> None:
    """Wait until the kubelet's (capacity, allocatable) is this; a resource that is gone has no capacity."""
    async with asyncio.timeout(PATIENCE_S):
        while {name: home.devices.capacity().get(name, (0, 0)) for name in wanted} != wanted:
            await home.changes.wait(home.changes.version)


async def give(home: Home, resource: str) -> tuple[str, pb.ContainerAllocateResponse]:
    """Admit a pod with one of a resource; returns the device's id and the plugin's answer."""
    limits = {resource: "1"}
    box = core.Container(name="main", resources=core.ResourceRequirements(limits=limits))
    pod = core.Pod(
        metadata=meta.ObjectMeta(name="guest", namespace="team", uid="guest"),
        spec=core.PodSpec(containers=(box,)),
        status=core.PodStatus(phase="Running"),
    )

    async def forget(_: str, __: devicemanager.Choice) -> None:
        return

    [grant] = await home.devices.allocate(pod, forget)
    home.pods.append(pod)
    [name] = grant.device_ids
    return name, pb.ContainerAllocateResponse.FromString(grant.response)


@pytest.fixture
async def home(home_folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    """A simulated machine of the profile that the test names, with its silicon closed afterwards."""
    made = Home(home_folder, 0)
    simulated = silicon.SimulatedSilicon(home_folder / "silicon", request.param)
    made.silicon = simulated  # type: ignore[assignment]  # a Silicon in place of the bench's
    try:
        yield made
    finally:
        await simulated.close()


@pytest.mark.parametrize("home", ["l40sx2-vgpu"], indirect=True)
async def test_vgpus_reach_a_container_by_type_and_their_board_is_not_given_whole(home: Home) -> None:
    async with home.kubelet(), home.agent() as report:
        # The second board is all lent out: only NVML names the type of its functions.
        await until(home, {SMALL: (2, 2), LARGE: (2, 2)})
        assert NVIDIA not in home.devices.capacity()
        name, given = await give(home, SMALL)
        assert [one.name for one in given.cdi_devices] == [f"{cdikind.LENT}={name}"]
        assert dict(given.envs) == {"PCI_RESOURCE_NVIDIA_COM_NVIDIA_L40S-12Q": name}
        spec = json.loads((home.settings.node.cdi_folder / "fairlead.dev-vgpu.json").read_text())
        nodes = {
            one["name"]: [node["path"] for node in one["containerEdits"]["deviceNodes"]] for one in spec["devices"]
        }
        assert len(nodes[name]) == 1
        assert nodes[name][0].startswith("/dev/vfio/1")
        assert [node["path"] for node in spec["containerEdits"]["deviceNodes"]] == ["/dev/vfio/vfio"]
        assert "mounts" not in spec["containerEdits"]
        assert {ad.resource for ad in report.supply.value.resources} == {SMALL, LARGE}


@pytest.mark.parametrize("home", ["l40sx2-vgpu"], indirect=True)
async def test_a_vgpu_that_is_made_or_ended_while_the_agent_runs_is_offered_or_gone(home: Home) -> None:
    board = home.settings.silicon.root / "silicon/root/sys/bus/pci/devices"
    async with home.kubelet(), home.agent():
        await until(home, {SMALL: (2, 2), LARGE: (2, 2)})
        (board / "0000:07:00.6/nvidia/current_vgpu_type").write_text("1159\n")
        await until(home, {SMALL: (2, 2), LARGE: (3, 3)})
        for path in board.glob("0000:07:00.*/nvidia/current_vgpu_type"):
            path.write_text("0\n")
        await until(home, {SMALL: (0, 0), LARGE: (2, 2), NVIDIA: (1, 1)})


@pytest.mark.parametrize("home", ["t4x2-vgpu"], indirect=True)
async def test_mediated_devices_are_offered_beside_a_whole_gpu_that_lends_nothing(home: Home) -> None:
    async with home.kubelet(), home.agent():
        await until(home, {MEDIATED: (2, 2), NVIDIA: (1, 1)})
        name, given = await give(home, MEDIATED)
        assert dict(given.envs) == {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-8Q": name}


@pytest.mark.parametrize("home", ["t4x2-vgpu"], indirect=True)
async def test_a_fault_of_the_board_takes_its_vgpus_out_and_nobody_elses(home: Home) -> None:
    async with home.kubelet(), home.agent():
        await until(home, {MEDIATED: (2, 2), NVIDIA: (1, 1)})
        home.silicon.inject("xid", gpu=0, value="79")  # type: ignore[attr-defined]  # simulated silicon
        await until(home, {MEDIATED: (2, 0), NVIDIA: (1, 1)})


@pytest.mark.parametrize("home", ["t4x2-vgpu"], indirect=True)
async def test_strategies_of_nvidias_runtime_never_name_a_vgpu_as_a_gpu_to_see(home: Home) -> None:
    node = dataclasses.replace(home.settings.node, device_list_strategy="envvar")
    home.settings = dataclasses.replace(home.settings, node=node)
    async with home.kubelet(), home.agent():
        await until(home, {MEDIATED: (2, 2)})
        _, given = await give(home, MEDIATED)
        assert "NVIDIA_VISIBLE_DEVICES" not in given.envs
        assert len(given.cdi_devices) == 1
