"""Which devices a pod would get on a node, how they hang together, and that the right node is chosen for it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from fairlead.model.gpu import GPU, Inventory, Link, LinkKind
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu import gpudevice as planner
from fairlead.plan.gpu.allocation import choose
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.engine.rankings import EngineRankings
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.rankings import PlainRankings
from fairlead.plan.schedule.reference import UNIT, NodeInfo, PodInfo
from fairlead.plan.schedule.topology import gpus, offers
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from tests import devices as devices_of

GPU_NAME, MIG_NAME = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
_KINDS = (LinkKind.NVLINK, LinkKind.SINGLE_SWITCH, LinkKind.SAME_NODE, LinkKind.SYSTEM)
_POINTS = {LinkKind.NVLINK: 100, LinkKind.SINGLE_SWITCH: 60, LinkKind.SAME_NODE: 40, LinkKind.SYSTEM: 0}


def inventory(count: int, ways: Mapping[tuple[int, int], LinkKind]) -> Inventory:
    """Return a machine; pairs that are not named are across the sockets."""
    there = tuple(
        GPU(
            uuid=GPUUUID(f"GPU-{at}"),
            index=at,
            minor=at,
            pci_bus_id=f"0000:{at:02x}:00.0",
            name="H100",
            memory_bytes=1,
            numa_node=at * 2 // count,
        )
        for at in range(count)
    )
    links = tuple(
        Link(a=there[a].uuid, b=there[b].uuid, kind=kind, lanes=4 if kind is LinkKind.NVLINK else 0)
        for a, b in itertools.combinations(range(count), 2)
        for kind in (ways.get((a, b), LinkKind.SYSTEM),)
    )
    return Inventory(gpus=there, links=links)


def pairs(count: int = 4) -> Inventory:
    """Return a machine whose GPUs are joined in twos: 0 and 1, 2 and 3 …"""
    return inventory(count, {(at, at + 1): LinkKind.NVLINK for at in range(0, count, 2)})


def objects(node: str, machine: Inventory, held: Mapping[int, str] | None = None) -> list[GPUDevice]:
    """Return what its agent publishes. Args: held: by index, the uid of the pod that has the GPU."""
    found = planner.plan_devices(node, machine, verdicts={}, known={}, problem="", kept=(), nvidia_resource=GPU_NAME)
    return [
        GPUDevice(
            metadata=meta.ObjectMeta(name=f"{node}-{one.spec.index}"),
            spec=one.spec,
            status=gpudevice.GPUDeviceStatus(
                health=gpudevice.HEALTHY,
                holders=(gpudevice.Holder(namespace="default", pod=uid, pod_uid=uid),)
                if (uid := (held or {}).get(one.spec.index))
                else (),
            ),
        )
        for one in found.values()
    ]


def pod(uid: str, count: int, node: str = "", resource: str = GPU_NAME) -> core.Pod:
    wanted = core.ResourceRequirements(limits={resource: count}, requests={resource: count})
    spec = core.PodSpec(containers=(core.Container(name="c", image="i", resources=wanted),), node_name=node)
    return core.Pod(metadata=meta.ObjectMeta(name=uid, namespace="default", uid=uid), spec=spec)


def node_object(name: str, **amounts: str) -> core.Node:
    ready = meta.Condition(type="Ready", status="True")
    allocatable = {"pods": "110", "cpu": "64", **amounts}
    return core.Node(
        metadata=meta.ObjectMeta(name=name), status=core.NodeStatus(allocatable=allocatable, conditions=(ready,))
    )


class Cluster:
    """A cache that is fed as by its watches, and both ways of judging it."""

    def __init__(self) -> None:
        self.cache = Cache(SchedulingQueue(lambda: 0.0), lambda _pod: True, lambda: 0.0)
        self.plain, self.arrays = PlainRankings("packed"), EngineRankings("packed")

    def add(self, name: str, machine: Inventory, held: Mapping[int, str] | None = None) -> None:
        self.cache.note_node(node_object(name, **{GPU_NAME: str(len(machine.gpus))}))
        for one in objects(name, machine, held):
            self.cache.note_device(one)
        for uid in dict.fromkeys((held or {}).values()):
            count = sum(who == uid for who in (held or {}).values())
            self.cache.note_pod(pod(uid, count, name))

    def ask(self, asked: core.Pod) -> Any:
        """Return what is decided, by array as node by node."""
        changes = self.cache.changes()
        need, found = self.cache.need(asked), []
        for rankings in (self.plain, self.arrays):
            rankings.take(self.cache.views, changes)
            ranking = rankings.of(need)
            list(ranking.refresh(self.cache.views))
            found.append(ranking.summary())
        assert found[0] == found[1] == reference.place(need, self.cache.views.values())
        return found[0]


def test_two_gpus_go_to_the_node_whose_free_ones_are_joined_by_nvlink() -> None:
    cluster = Cluster()
    # Both have two free, and packing would take the first by name: on it one of each pair is left.
    cluster.add("apart", pairs(), {0: "a", 2: "b"})
    cluster.add("joined", pairs(), {0: "c", 1: "d"})
    found = cluster.ask(pod("new", 2))
    assert found.node == "joined"
    assert found.message == "assigned to joined: GPUs 2 and 3 are free there, joined by NVLink"
    assert found.facts["devices"] == "GPUs 2 and 3 are free there, joined by NVLink"


def test_packing_does_not_outweigh_nvlink() -> None:
    cluster = Cluster()
    cluster.add("full", pairs(8), {0: "a", 1: "b", 2: "c", 3: "d", 4: "e", 6: "f"})
    cluster.add("idle", pairs(8))
    assert cluster.ask(pod("new", 2)).node == "idle"


def test_one_gpu_goes_where_it_breaks_no_pair_up() -> None:
    cluster = Cluster()
    cluster.add("a-whole", pairs(), {0: "a", 1: "b"})
    cluster.add("broken", pairs(), {0: "c", 2: "d"})
    assert cluster.ask(pod("new", 1)).node == "broken"


def test_a_pod_that_was_placed_and_has_no_gpus_yet_takes_those_that_the_plugin_will_choose() -> None:
    cluster = Cluster()
    cluster.add("a-now", pairs())
    cluster.add("joined", pairs(), {0: "c", 1: "d"})
    cluster.cache.note_pod(pod("late", 1, "a-now"))  # breaks up one pair
    cluster.cache.note_pod(pod("later", 1, "a-now"))  # takes the other half of it
    found = cluster.ask(pod("new", 2))
    assert (found.node, found.devices) == ("a-now", "GPUs 2 and 3 are free there, joined by NVLink")


def test_gpus_of_a_pod_that_is_gone_are_free_and_sick_ones_are_not() -> None:
    cluster = Cluster()
    cluster.add("n", pairs(), {0: "a", 1: "a", 2: "b"})
    cluster.cache.note_pod(pod("a", 2, "n"), is_gone=True)
    assert cluster.ask(pod("new", 2)).devices == "GPUs 0 and 1 are free there, joined by NVLink"
    sick = objects("n", pairs(), {2: "b"})[0]
    cluster.cache.note_device(
        msgspec.structs.replace(sick, status=msgspec.structs.replace(sick.status, health=gpudevice.UNHEALTHY))
    )
    assert cluster.ask(pod("new", 2)).devices == "GPUs 1 and 3 are free there, of several NUMA nodes"


def test_a_node_of_which_nothing_is_known_is_not_worse_for_one_gpu_and_is_for_two() -> None:
    cluster = Cluster()
    cluster.add("known", pairs(), {0: "x", 2: "y"})
    cluster.cache.note_node(node_object("a-plain", **{GPU_NAME: "4"}))
    for uid in ("v", "w"):
        cluster.cache.note_pod(pod(uid, 1, "a-plain"))
    assert cluster.ask(pod("one", 1)).node == "a-plain"  # equal, so the first by name
    cluster.add("joined", pairs(), {0: "p", 1: "q"})
    assert cluster.ask(pod("two", 2)).node == "joined"
    # Objects that are gone take their knowledge with them, in rows that are kept as in those made anew.
    for name, held in (("known", {0: "x", 2: "y"}), ("joined", {0: "p", 1: "q"})):
        for one in objects(name, pairs(), held):
            cluster.cache.note_device(one, is_gone=True)
    assert cluster.ask(pod("two", 2)).node == "a-plain"


def _random_machine(chance: random.Random) -> Inventory:
    count = chance.choice((2, 4, 8))
    ways = {pair: chance.choice(_KINDS) for pair in itertools.combinations(range(count), 2)}
    return inventory(count, ways)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_foretold_is_what_the_device_plugin_prefers(seed: int) -> None:
    chance = random.Random(seed)
    machine = _random_machine(chance)
    devices = {DeviceID(one.uuid): devices_of.gpu(one.uuid, index=str(one.index)) for one in machine.gpus}
    ways = {(link.a, link.b): link.kind for link in machine.links}
    for _ in range(6):
        free = [one for one in machine.gpus if chance.random() < 0.7]
        if not free:
            continue
        count = chance.randint(1, len(free))
        preferred = choose.choose_devices(
            tuple(DeviceID(one.uuid) for one in free),
            (),
            count,
            devices=devices,
            topology=choose.plan_topology(machine),
        )
        taken = {at: "x" for at, one in enumerate(machine.gpus) if one not in free}
        known = [offers.known(one) for one in objects("n", machine, taken)]
        held = {"x": {GPU_NAME: len(taken) * UNIT}} if taken else {}
        found = offers.offers(offers.prepare(known), held, lambda _uid: "")[GPU_NAME]
        assert isinstance(found, gpus.FreeGPUs)
        mask = gpus.chosen(found.fabric, found.free, count)
        assert {f"GPU-{at}" for at in range(len(machine.gpus)) if mask >> at & 1} == set(preferred)
        worst = min(
            (_POINTS[ways.get((a, b)) or ways[b, a]] for a, b in itertools.combinations(map(GPUUUID, preferred), 2)),
            default=100,
        )
        worth = found.worth(count)
        assert worth is not None
        assert worth in {worst, worst - 10}


def slot(profile: str, start: int, size: int) -> gpudevice.MIGSlice:
    resource = f"nvidia.com/mig-{profile}"
    return gpudevice.MIGSlice(uuid=f"MIG-{profile}@{start}", profile=profile, start=start, size=size, resource=resource)


def mig_device(node: str, *slots: gpudevice.MIGSlice, held: Mapping[str, tuple[str, ...]] | None = None) -> GPUDevice:
    spec = objects(node, pairs(2))[0].spec
    spec = msgspec.structs.replace(spec, resource="", mig_devices=slots)
    holders = tuple(
        gpudevice.Holder(namespace="default", pod=uid, pod_uid=uid, mig_devices=migs)
        for uid, migs in (held or {}).items()
    )
    status = gpudevice.GPUDeviceStatus(health=gpudevice.HEALTHY, holders=holders)
    return GPUDevice(metadata=meta.ObjectMeta(name=f"{node}-mig"), spec=spec, status=status)


def test_a_mig_device_is_taken_where_most_aligned_places_stay() -> None:
    cluster = Cluster()
    slots = (slot("3g.40gb", 0, 4), slot("1g.10gb", 4, 1))
    # Both have a free 1g.10gb at slice 4. On the idle one it stands in the way of a second half; on the other one
    # slice 5 is in use, so that half is in pieces already.
    cluster.cache.note_node(node_object("a-idle", **{MIG_NAME: "1", "nvidia.com/mig-3g.40gb": "1"}))
    cluster.cache.note_device(mig_device("a-idle", *slots))
    cluster.cache.note_node(node_object("used", **{MIG_NAME: "2"}))
    used = (slot("1g.10gb", 4, 1), slot("1g.10gb", 5, 1))
    cluster.cache.note_device(mig_device("used", *used, held={"a": ("MIG-1g.10gb@5",)}))
    cluster.cache.note_pod(pod("a", 1, "used", MIG_NAME))
    found = cluster.ask(pod("new", 1, resource=MIG_NAME))
    assert found.node == "used"
    words = "MIG devices 0:1g.10gb@4 are free there; GPU 0 keeps aligned places for 1 of 4g.40gb"
    assert found.devices == words


def test_a_mig_device_in_use_is_not_foretold_again() -> None:
    device = mig_device("n", slot("1g.10gb", 0, 1), slot("1g.10gb", 1, 1), held={"a": ("MIG-1g.10gb@0",)})
    asked = {MIG_NAME: UNIT}
    found = offers.offers(offers.prepare([offers.known(device)]), {"a": asked}, lambda _uid: "")[MIG_NAME]
    assert found.words(1).startswith("MIG devices 0:1g.10gb@1 ")
    assert found.worth(2) is None
    late = offers.offers(offers.prepare([offers.known(device)]), {"a": asked, "b": asked}, lambda _uid: "")[MIG_NAME]
    assert late.worth(1) is None


def test_profiles_of_no_listed_model_and_nodes_of_many_gpus_are_not_judged() -> None:
    odd = mig_device("n", slot("9g.99gb", 0, 1))
    found = offers.offers(offers.prepare([offers.known(odd)]), {}, lambda _uid: "")["nvidia.com/mig-9g.99gb"]
    assert (found.worth(1), found.words(1)) == (None, "")
    many = [offers.known(one) for one in objects("n", inventory(gpus.MOST + 1, {}))]
    assert offers.offers(offers.prepare(many), {}, lambda _uid: "") == {}


@pytest.mark.parametrize("seed", range(4))
def test_by_array_and_node_by_node_topology_weighs_the_same(seed: int) -> None:
    chance = random.Random(seed)
    shapes = [_random_machine(chance) for _ in range(3)]
    plain, arrays = PlainRankings("packed"), EngineRankings("packed")
    views: dict[str, NodeInfo] = {}
    needs = [PodInfo(requests={GPU_NAME: count * UNIT, "pods": UNIT}) for count in (1, 2, 3, 4)]
    for _ in range(30):
        changes: dict[str, tuple[NodeInfo | None, NodeInfo | None]] = {}
        for name in chance.sample([f"n{at}" for at in range(9)], chance.choice((1, 2, 6))):
            machine = chance.choice(shapes)
            there = [chance.choice(needs) for _ in range(chance.randint(0, 3))]
            known = [offers.known(one) for one in objects(name, machine)] if chance.random() < 0.8 else []
            pods = {str(at): one.requests for at, one in enumerate(there)}
            empty = NodeInfo(name=name, is_ready=True, allocatable={GPU_NAME: 8 * UNIT, "pods": 9 * UNIT})
            after = reference.occupied(empty, there, offers.offers(offers.prepare(known), pods, lambda _uid: ""))
            changes[name] = (views.get(name), after)
            views[name] = after
        plain.take(views, changes)
        arrays.take(views, changes)
        for need in chance.sample(needs, 2):
            found = []
            for rankings in (plain, arrays):
                ranking = rankings.of(need)
                list(ranking.refresh(views))
                found.append(ranking.summary())
            assert (found[0].best, found[0].devices) == (found[1].best, found[1].devices)
