"""Claims of NVIDIA's DRA driver, taken over from its recorded checkpoints; what cannot be is named and stays."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead import errors
from fairlead.kernel import openfiles
from fairlead.model.mig import Slot
from fairlead.node.dra import adopter
from fairlead.plan.dra.offered import Kind
from fairlead.plan.lease.row import State
from tests.unit.node.dra.claimnode import ClaimNode, claim, config, result

RECORDED = Path(__file__).parents[3] / "data" / "claim" / "checkpoint"
PART = "gpu-4-mig-1g10gb-19-0"
LONG = config("GpuConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})
MPS = config("GpuConfig", sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}})
WHOLE, SLICES = claim("whole", result("gpu-0"), result("gpu-1")), claim("slices", result("gpu-2"), configs=[LONG])
SHARED, PARTED = claim("mps", result("gpu-3"), configs=[MPS]), claim("part", result(PART))


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClaimNode]:
    """Have a node on which NVIDIA's driver was, with a MIG device of its own; programs have its GPUs open."""
    try:
        found = ClaimNode(tmp_path)
    except errors.Unavailable as error:
        pytest.skip(errors.sentence(error))
    gpu = (await found.partitioner.list_partitions())[4].gpu
    await found.partitioner.set_mode(gpu, is_enabled=True)
    await found.partitioner.create_compute(
        gpu, await found.partitioner.create_instance(gpu, Slot(profile="1g.10gb", start=0)), 1
    )
    for one in (WHOLE, SLICES, SHARED, PARTED, claim("begun", result("gpu-5"))):
        found.store.write(one)
    found.openers = [openfiles.Opener(pid=4711, name="python", cgroups=(), devices=(("c", 195, 0), ("c", 195, 1)))]
    try:
        async with found.running():
            yield found
    finally:
        await found.close()


def left(node: ClaimNode, name: str) -> Path:
    """Leave a checkpoint on a node."""
    path = node.folder / "plugin" / "checkpoint.json"
    path.parent.mkdir(exist_ok=True)
    shutil.copy(RECORDED / name, path)
    return path


def foreign_spec(node: ClaimNode, uid: str) -> Path:
    path = node.folder / "cdi" / f"k8s.gpu.nvidia.com-claim_{uid}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text("cdiVersion: 0.7.0")
    return path


def test_where_the_other_drivers_file_lies_beside_ours() -> None:
    assert adopter.SOCKET == "dra.sock"


@pytest.mark.parametrize("name", ["v1.json", "v2.json", "v2-versioned.json"])
async def test_claims_of_a_checkpoint_are_ours_with_their_gpus(node: ClaimNode, name: str) -> None:
    path, theirs = left(node, name), foreign_spec(node, "uid-of-whole")
    assert await node.adopter.adopt()  # the one by MPS is left
    assert sorted(one.words for one in node.journal.all()) == ["team/part", "team/slices", "team/whole"]
    assert [node.row(index).state for index in (0, 1, 2, 4)] == [State.HELD] * 4
    assert node.nodes(WHOLE) == {"/dev/nvidia0", "/dev/nvidia1"}
    assert not theirs.exists()
    assert path.exists()
    (text,) = {text for who, reason, text in node.said if (who, reason) == ("team/mps", "ClaimNotAdopted")} or {""}
    assert ("mps-control-daemon-uid-of-mps-1a2b3" in text) == (name != "v1.json")
    # A kubelet that asks again gets what it has, and one that gives back gets its GPUs free.
    assert await node.prepare(WHOLE) == [f"k8s.gpu.nvidia.com/claim=uid-of-whole-gpu-{number}" for number in (0, 1)]
    node.openers = []
    await node.unprepare(WHOLE)
    async with asyncio.timeout(20):
        while node.row(0).state is not State.FREE:
            node.gate.poke()
            await asyncio.sleep(0.005)


async def test_an_adopted_mig_device_stays_when_its_claim_ends(node: ClaimNode) -> None:
    left(node, "v2.json")
    await node.adopter.adopt()
    (device,) = next(one for one in node.journal.all() if one.name == "part").devices
    assert (device.kind, device.profile, device.start) == (Kind.MIG, "1g.10gb", 0)
    assert len(node.nodes(PARTED)) == 3
    await node.unprepare(PARTED)
    assert len((await node.partition(4)).instances) == 1


async def test_adopted_time_slices_are_reset_with_their_claim(node: ClaimNode) -> None:
    left(node, "v2.json")
    node.silicon.machine.gpus[2].time_slice = 3  # as the other driver set it
    await node.adopter.adopt()
    await node.unprepare(SLICES)
    assert node.silicon.machine.gpus[2].time_slice == 0


async def test_a_claim_that_is_left_is_unprepared_and_then_the_file_goes_aside(node: ClaimNode) -> None:
    path, theirs = left(node, "v2.json"), foreign_spec(node, "uid-of-mps")
    assert await node.adopter.adopt()
    await node.unprepare(SHARED)  # its pod ends: the kubelet asks us, and is answered
    assert not theirs.exists()
    del node.store.claims["mps"]
    assert not await node.adopter.adopt()
    assert not path.exists()
    assert [one.name for one in path.parent.glob("checkpoint.json.*")] == ["checkpoint.json.adopted-1"]
    assert not await node.adopter.adopt()
    assert len(node.journal.all()) == 3


async def test_without_an_api_server_names_are_taken_from_the_newest_view_alone(node: ClaimNode) -> None:
    node.store.is_away = True
    left(node, "v1.json")
    assert await node.adopter.adopt()
    assert node.journal.uids() == frozenset()
    left(node, "v2.json")
    await node.adopter.adopt()
    assert sorted(one.name for one in node.journal.all()) == ["part", "slices", "whole"]


async def test_a_claim_that_is_gone_or_was_made_anew_is_not_adopted(node: ClaimNode) -> None:
    left(node, "v2.json")
    del node.store.claims["whole"]
    node.store.write(claim("slices", result("gpu-2"), uid="uid-of-another"))
    await node.adopter.adopt()
    assert [one.name for one in node.journal.all()] == ["part"]


async def test_a_device_that_is_another_one_now_is_named(node: ClaimNode) -> None:
    left(node, "v2.json")
    (instance,) = (await node.partition(4)).instances
    gpu = (await node.partition(4)).gpu
    await node.partitioner.destroy_compute(gpu, instance.id, instance.computes[0].id)
    await node.partitioner.destroy_instance(gpu, instance.id)
    node.watch.ask_scan(is_urgent=True)
    await node.watch.snapshots.wait(node.watch.snapshots.version)
    await node.adopter.adopt()
    assert "part" not in {one.name for one in node.journal.all()}
    assert any(who == "team/part" and text for who, _, text in node.said)


async def test_a_gpu_that_another_claim_has_is_not_adopted_twice(node: ClaimNode) -> None:
    node.openers = []
    await node.prepare(claim("ours", result("gpu-0")))
    left(node, "v2.json")
    await node.adopter.adopt()
    assert "whole" not in {one.name for one in node.journal.all()}
    assert [one.holder for one in node.row(0).claims] == ["uid-of-ours"]
    assert node.row(1).state is not State.HELD


@pytest.mark.parametrize(
    ("data", "word"),
    [(b'{"checksum":1,"v2":{"check', "damaged"), (b'{"v2":{"checksum":7}}', "damaged"), (b'{"v3":{}}', "newer")],
)
async def test_a_file_that_is_not_understood_is_set_aside_whole(node: ClaimNode, data: bytes, word: str) -> None:
    path = left(node, "v2.json")
    for number in (1, 2):
        path.write_bytes(data)
        assert not await node.adopter.adopt()
        assert path.with_name(f"checkpoint.json.{word}-{number}").read_bytes() == data
    assert node.journal.uids() == frozenset()


async def test_while_the_other_driver_serves_nothing_is_taken_from_it(node: ClaimNode) -> None:
    with tempfile.TemporaryDirectory(prefix="fl-") as name, socket.socket(socket.AF_UNIX) as listening:
        folder = Path(name)  # a socket's path has 107 bytes
        listening.bind(str(folder / adopter.SOCKET))
        listening.listen()
        shutil.copy(RECORDED / "v2.json", folder / "checkpoint.json")
        assert await node.make_adopter(folder).adopt()
        assert node.journal.uids() == frozenset()
        listening.close()
        await node.make_adopter(folder).adopt()
        assert len(node.journal.all()) == 3


async def test_names_that_would_be_paths_are_refused(node: ClaimNode) -> None:
    from fairlead.wire.nvidia import claimcheckpoint

    path = left(node, "v2.json")
    text = path.read_bytes().replace(b"uid-of-whole", b"../../../whole")
    start = text.index(b'"v2":') + 5
    view = text[start:-1]
    zeroed = b'{"checksum":0' + view[view.index(b",") :]
    summed = str(claimcheckpoint.emit_checksum(zeroed)).encode()
    path.write_bytes(text[:start] + zeroed.replace(b'"checksum":0', b'"checksum":' + summed, 1) + b"}")
    assert await node.adopter.adopt()
    assert sorted(one.name for one in node.journal.all()) == ["part", "slices"]
    assert not list(node.folder.parent.glob("whole*"))
