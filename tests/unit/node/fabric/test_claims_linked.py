"""ResourceClaims of several GPUs that are passed through: their partition is active before a machine may start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.lease import gate
from fairlead.plan.lease import change, row
from fairlead.plan.lease.row import State
from tests.unit.node.fabric.fabricnode import FabricNode, library

UID = "uid-of-vm"


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.compile_library(tmp_path_factory.mktemp("nvfm"))


@pytest.fixture
def node(tmp_path: Path, stub: Path) -> Iterator[FabricNode]:
    made = FabricNode(folder=tmp_path, stub=stub)
    made.start_manager()
    yield made
    made.manager.stop()
    assert made.violations == []


def asks(uid: str, *modules: int) -> list[change.Ask]:
    return [
        change.Ask(
            key=f"pcie-{module}",
            claims=(
                row.Claim(
                    device=f"gpu-vfio-{module}",
                    resource="gpu.nvidia.com",
                    namespace="team",
                    pod="vm",
                    uid="uid-of-the-pod",
                    holder=uid,
                ),
            ),
        )
        for module in modules
    ]


async def ready(node: FabricNode) -> None:
    await node.until_known()
    await node.until_free()


async def test_the_gpus_of_a_claim_are_joined_and_parted_again(node: FabricNode) -> None:
    async with node.agent() as held:
        await ready(node)
        node.manager.faults["slow"] = "0.1"
        await held.hold_for_claim(UID, "{}", asks(UID, 1, 3))
        await held.link_claim(UID)
        assert node.manager.journal == ["activate 3"]
        assert node.keeper.tenants() != ()
        node.openers |= {"/dev/vfio/1": "qemu", "/dev/vfio/3": "qemu"}
        await held.release_claim(UID)
        await asyncio.sleep(0.1)
        assert node.manager.journal == ["activate 3"], "the machine has both still"
        node.openers = {path: who for path, who in node.openers.items() if who != "qemu"}
        await node.until_free()
        assert node.manager.journal == ["activate 3", "deactivate 3"]


async def test_a_gpu_alone_and_two_claims_beside_each_other_have_their_own_partitions(node: FabricNode) -> None:
    async with node.agent() as held:
        await ready(node)
        for uid, modules in (("a", (1, 3)), ("b", (2, 4)), ("c", (5,))):
            await held.hold_for_claim(uid, "{}", asks(uid, *modules))
            await held.link_claim(uid)
        assert sorted(len(node.lattice.partitions[one]) for one in node.active) == [1, 2, 2]


async def test_gpus_that_nvlink_does_not_join_are_refused_before_anything_is_held(node: FabricNode) -> None:
    async with node.agent() as held:
        await ready(node)
        with pytest.raises(errors.Invalid, match="modules 1, 2, and NVLink has no partition") as caught:
            await held.hold_for_claim(UID, "{}", asks(UID, 1, 2))
        assert caught.value.reason == "FabricSetNotOffered"
        assert "gpu.nvidia.com/partition2" in str(caught.value.hint)
        assert "1-3" in caught.value.message
        assert (held.notes, node.state(1)) == ({}, State.FREE)


async def test_a_claim_of_several_waits_for_a_manager_that_is_known(node: FabricNode) -> None:
    node.manager.stop()
    async with node.agent() as held:
        with pytest.raises(errors.Unavailable) as caught:
            await held.hold_for_claim(UID, "{}", asks(UID, 1, 3))
        assert caught.value.reason == "FabricUnknown"


async def test_a_partition_that_is_not_switched_on_is_said_and_the_gpus_come_back(
    node: FabricNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LINKED_S", 0.2)
    async with node.agent() as held:
        await ready(node)
        node.manager.faults["slow"] = "2"
        await held.hold_for_claim(UID, "{}", asks(UID, 1, 3))
        with pytest.raises(errors.Unavailable, match="not switched on") as caught:
            await held.link_claim(UID)
        assert caught.value.reason == "FabricNotSwitched"
        del node.manager.faults["slow"]
        await held.release_claim(UID)
        await node.until_free()
        assert node.active == []


async def test_a_gpu_that_an_ended_claim_had_with_another_brings_both_back_when_it_is_asked_for(
    node: FabricNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "SLOW_S", 60.0)
    monkeypatch.setattr(gate, "RETRY_S", 60.0)
    async with node.agent() as held:
        await ready(node)
        await held.hold_for_claim(UID, "{}", asks(UID, 1, 3))
        await held.link_claim(UID)
        node.openers |= {"/dev/vfio/1": "qemu", "/dev/vfio/3": "qemu"}
        await held.release_claim(UID)
        await asyncio.sleep(0.2)
        assert (node.state(1), node.state(3)) == (State.RELEASING, State.RELEASING)
        for path in ("/dev/vfio/1", "/dev/vfio/3"):
            del node.openers[path]
        async with asyncio.timeout(20):
            while True:  # as Prepare does
                try:
                    await held.hold_for_claim("next", "{}", asks("next", 1))
                    break
                except errors.FairleadError as error:
                    assert error.reason in {change.HELD, change.NOT_READY}  # noqa: PT017
        assert node.manager.journal[:2] == ["activate 3", "deactivate 3"]
        assert node.openers.get("/dev/vfio/3") == "agent", "nobody looked at it but for the first one's sake"


async def test_a_claim_without_a_fabric_waits_for_nothing(node: FabricNode) -> None:
    async with node.agent() as held:
        await ready(node)
        await held.link_claim("nobody's")
