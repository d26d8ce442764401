"""A GPU that a process keeps where no table of descriptors shows it is given to nobody: each way, each bound."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.kernel import openfiles
from fairlead.model.driver import DeviceNode, DriverFiles
from fairlead.model.gpu import GPU, Driver, Inventory, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.inventory import pods
from fairlead.node.lease import gpuholders
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import settle
from fairlead.plan.lease.row import Claim, Row, State
from fairlead.plan.lease.table import Event
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, meta
from tests import hiding
from tests.leaseworld import Model, PodPlan, Violated

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and device nodes need root")

GPU0 = "GPU-00000000-0000-0000-0000-000000000000"
NUMBER: openfiles.Number = ("c", 1, 5)
"""Of the node that stands for the GPU: a device that every machine has."""
ONE = (PodPlan("A", (0,)), PodPlan("B", (0,)))
DOUBT = openfiles.Opener(pid=9, name="sibling", cgroups=(), devices=(), doubt="has files registered in an io_uring (1)")


def snapshot() -> Snapshot:
    gpu = GPU(uuid=GPUUUID(GPU0), index=0, minor=0, pci_bus_id="0000:00:00.0", name="X", memory_bytes=1)
    node = DeviceNode(path="/dev/nvidia0", host_path="/dev/nvidia0", major=1, minor=5, mode=0o666)
    return Snapshot(
        inventory=Inventory(gpus=(gpu,), drivers=(Driver(vendor=Vendor.NVIDIA, version="550.1"),)),
        drivers=(DriverFiles(vendor=Vendor.NVIDIA, version="550.1", nodes=(node,)),),
        known={gpu.uuid: gpu},
        is_scanned=True,
    )


class World:
    """A node whose pods live; `ended` of namespace `team` had the GPU, and the kubelet has forgotten it."""

    def __init__(self, known: pods.Pods | None, by_name: dict[str, core.Pod]) -> None:
        self.known, self.by_name = known, by_name
        claim = Claim(device=GPU0, namespace="team", pod="ended", uid=by_name["ended"].metadata.uid)
        self.row = Row(key=GPU0, state=State.RELEASING, claims=(claim,), since=1.0)
        self.listed: tuple[Holding, ...] = ()

    async def look(self, *found: openfiles.Opener, row: Row | None = None) -> settle.Seen:
        async def holdings() -> tuple[Holding, ...]:
            return self.listed

        holders = gpuholders.GPUHolders(holdings, known=self.known, find_openers=lambda *_: found)
        holders.update(snapshot())
        row = row if row is not None else self.row
        return (await holders.look((row,), self.listed, asked=frozenset()))[row.key]

    def of(self, name: str, one: openfiles.Opener = DOUBT) -> openfiles.Opener:
        """Return a process as one of a pod."""
        uid = self.by_name[name].metadata.uid if name in self.by_name else "0a0a0a0a-0000-0000-0000-000000000001"
        return dataclasses.replace(one, cgroups=(f"/kubepods/pod{uid}/main",))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store, made = MemoryStore(), dict[str, core.Pod]()
    for namespace, name in (("team", "ended"), ("team", "sibling"), ("other", "stranger"), ("other", "tenant")):
        limits = {"nvidia.com/gpu": "1"} if name == "tenant" else {}
        container = core.Container(name="main", image="x", resources=core.ResourceRequirements(limits=limits))
        made[name] = await store.create(
            core.Pod(
                metadata=meta.ObjectMeta(name=name, namespace=namespace),
                spec=core.PodSpec(node_name="node-1", containers=(container,)),
            )
        )
    await store.delete(core.Pod, "ended", "team", grace_s=0)
    known = pods.Pods("node-1", store)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(known.run())
        await known.listed.wait()
        yield World(known, made)
        following.cancel()


@needs_root
@pytest.mark.parametrize("whose", ["ended", "sibling"])
@pytest.mark.parametrize("way", [one.__name__ for one in hiding.HIDDEN])
async def test_no_way_to_keep_a_gpu_open_gets_past_the_rules(
    world: World, way: str, whose: str, tmp_path: Path
) -> None:
    """The model is told of a process what a look tells of it, and looks at every state once more."""
    node = tmp_path / "gpu0"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    with hiding.hidden(way, node) as pid:
        found = [world.of(whose, one) for one in openfiles.find_openers([NUMBER]) if one.pid == pid]
        seen = await world.look(*found)
    assert Model(pods=ONE, sees=lambda _: seen.processes).explore() > 500


def test_a_way_that_a_look_misses_is_found_violated() -> None:
    with pytest.raises(Violated, match=r"^I\d"):
        Model(pods=ONE, sees=lambda _: ()).explore()


async def test_doubts_count_for_the_pods_that_could_have_been_given_the_gpu(world: World) -> None:
    for name, counts in (("ended", True), ("sibling", True), ("unknown", True), ("stranger", False), ("tenant", False)):
        assert bool((await world.look(world.of(name))).processes) is counts, name
    assert (await world.look(DOUBT)).doubts == ()  # of no pod: a container beside ours, which was given nothing


async def test_a_doubt_counts_wherever_the_node_is_within_reach_but_in_a_monitor(world: World) -> None:
    near = dataclasses.replace(DOUBT, reachable=(NUMBER,), granted=(NUMBER,))
    assert (await world.look(near)).doubts == ("sibling (pid 9, has files registered in an io_uring (1))",)
    assert (await world.look(world.of("tenant", near))).doubts
    assert not (await world.look(world.of("stranger", near))).doubts  # it lives, and asks for nothing
    assert (await world.look(world.of("stranger", dataclasses.replace(near, granted=())))).doubts  # it made the node


async def test_a_living_pod_that_could_not_have_opened_the_gpu_is_no_monitor(world: World) -> None:
    """A descriptor that a tenant sent to a pod beside it, over a volume that both have, is still the tenant's."""
    held = dataclasses.replace(DOUBT, doubt="", devices=(NUMBER,))
    for name in ("sibling", "stranger"):
        assert (await world.look(world.of(name, held))).openers == ("sibling (pid 9)",)
        made = dataclasses.replace(held, reachable=(NUMBER,))  # mknod is allowed in most containers, open is not
        assert (await world.look(world.of(name, made))).openers == ("sibling (pid 9)",)
        given = dataclasses.replace(made, granted=(NUMBER,))
        assert (await world.look(world.of(name, given))).processes == ()


async def test_a_pod_whose_gpu_was_detached_counts_while_it_lives(world: World) -> None:
    claim = dataclasses.replace(world.row.claims[0], uid=world.by_name["stranger"].metadata.uid)
    assert (await world.look(world.of("stranger"), row=dataclasses.replace(world.row, claims=(claim,)))).doubts


async def test_without_a_store_the_doubts_of_every_pod_count(world: World) -> None:
    world.known = None
    assert (await world.look(world.of("stranger"))).doubts
    assert not (await world.look(DOUBT)).doubts


@pytest.mark.parametrize("state", [State.FREE, State.HELD])
async def test_a_doubt_takes_nothing_from_a_gpu_that_is_not_being_given_back(world: World, state: State) -> None:
    row = dataclasses.replace(world.row, state=state)
    assert (await world.look(world.of("ended"), row=row)).doubts == ()


async def test_a_doubt_keeps_a_gpu_from_the_next_and_is_no_reason_for_quarantine(world: World) -> None:
    seen = await world.look(world.of("sibling"))
    late = world.row.since + settle.STUCK_S + 1
    assert settle.plan_steps(world.row, seen, at=late, boot_id="b") == ()
    certain = dataclasses.replace(seen, openers=("train (pid 7)",))
    assert [one.event for one in settle.plan_steps(world.row, certain, at=late, boot_id="b")] == [Event.STUCK]


async def test_a_gpu_that_is_found_open_is_not_named_twice(world: World) -> None:
    both = dataclasses.replace(world.of("sibling"), devices=(NUMBER,))
    world.listed = (Holding(namespace="team", pod="sibling", container="main", resource="x", ids=(DeviceID(GPU0),)),)
    seen = await world.look(both)
    assert (seen.openers, seen.doubts) == (("sibling (pid 9)",), ())
