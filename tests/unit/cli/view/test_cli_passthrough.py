"""GPUs bound to VFIO in `fairlead gpus`: beside the others, in every form, and never in a tenant's view."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from fairlead.model.gpu import Inventory
from fairlead.node.vfio import busevents, gpus, modules
from fairlead.serve.backend import hardware
from fairlead.serve.backend.tenancy import member
from tests.unit.cli.conftest import Service
from tests.unit.silicon.vfio import pcitree

GPU = "0000:0f:00.0"


class Hold:
    """A node that nobody else has."""

    def close(self) -> None: ...


async def _reset(address: str) -> None:
    raise AssertionError(f"{address} is only shown")


@pytest.fixture
def bound(service: Service, tmp_path: Path) -> Service:
    tree = pcitree.build_hgx(tmp_path / "root", driver="vfio-pci")
    for address, module in pcitree.HGX_MODULES.items():
        region = pcitree.registers(pcitree.module_registers(module), size=0x22000)
        (tree.folder(address) / "resource0").write_bytes(region)
    memory = modules.ModuleMemory(tmp_path / "state")
    bus = busevents.BusEvents(lambda: None)
    found = gpus.PassthroughGPUs(tree.root, memory, lambda _: Hold(), _reset, held=tuple, bus=bus)
    service.world.drivers = asyncio.run(found.scan())
    return service


def test_they_are_a_table_of_their_own(bound: Service) -> None:
    bound.env["COLUMNS"] = "120"
    lines = bound.fairlead("gpus").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("PASSED THROUGH"))
    assert lines[at + 1].split()[:6] == [GPU, "GH100", "[H100", "SXM5", "80GB]", "5"]
    assert len(lines) == at + 9


@pytest.mark.parametrize("columns", [60, 80])
def test_they_fit_a_narrow_terminal(bound: Service, columns: int) -> None:
    bound.env["COLUMNS"] = str(columns)
    assert max(map(len, bound.fairlead("gpus").stdout.splitlines())) <= columns


def test_programs_read_them_apart_from_gpus_that_containers_get(bound: Service) -> None:
    found = json.loads(bound.fairlead("gpus", "-o", "json").stdout)
    first = found["passthrough"][0]
    assert (first["address"], first["key"], first["module"]) == (GPU, "pcie-48b02d000000000f", 5)
    assert first["nodes"][:2] == ["/dev/vfio/vfio", "/dev/vfio/15"]
    assert [view["gpu"]["uuid"] for view in found["gpus"]] == [f"GPU-{index}" for index in range(4)]
    assert bound.fairlead("gpus", "-o", "name").stdout.splitlines() == [f"GPU-{index}" for index in range(4)]


def test_a_node_with_no_others_does_not_say_that_no_gpu_answers(bound: Service) -> None:
    bound.world.inventory = Inventory()
    printed = bound.fairlead("gpus")
    assert GPU in printed.stdout
    assert "no GPU answers" not in printed.stderr


@dataclasses.dataclass
class Machine:
    """Hardware that lists one GPU for virtual machines."""

    async def list_gpus(self) -> hardware.GPUListing:
        one = hardware.PassthroughView(key="pcie-1", node="n", address=GPU, vendor="nvidia")
        return hardware.GPUListing(gpus=(), unreadable=(), drivers=(), is_simulated=False, passthrough=(one,))


@dataclasses.dataclass
class User:
    """An account, with a role in some tenancy or without."""

    sees_any: bool


@pytest.mark.parametrize("has_role", [True, False])
def test_an_account_sees_none_since_keys_are_serial_numbers(has_role: bool) -> None:
    seen = member.MemberHardware(whole=Machine(), user=User(has_role))  # type: ignore[arg-type]
    assert asyncio.run(seen.list_gpus()).passthrough == ()
