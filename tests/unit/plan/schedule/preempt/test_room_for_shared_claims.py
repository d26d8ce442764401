"""Room for pods that share claims: where one can go all can, held against every choice of nodes and of who ends."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.claim import ask
from fairlead.plan.schedule.claim.claims import Claims
from fairlead.plan.schedule.preempt import plan, rule
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.plan.schedule.trial import Running, WhatIf
from fairlead.wire.kubernetes import core, meta
from tests.unit.control.scheduler.claimplane import DRIVER, devices, read

NODES = ("n0", "n1", "n2")
GPUS, CPUS = 3, 4
"""Of each node."""


class NobodyWaits:
    """The pods that have a node: here every claim's users are listed with the nodes."""

    def __call__(self, namespace: str) -> Sequence[core.Pod]:
        del namespace
        return ()

    def wait(self, uid: str) -> bool:
        del uid
        return False


@dataclass(frozen=True)
class There:
    """A pod that runs, with GPUs of a claim of its own."""

    node: str
    gpus: int
    cpus: int
    priority: int


@dataclass(frozen=True)
class Asked:
    """A pod of the group: its cores, and which of the group's claims it uses."""

    cpus: int
    claims: frozenset[int]


def _claim(name: str, count: int, **status: Any) -> Any:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    about = {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1"}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    return read("ResourceClaim", {"metadata": about, "spec": spec, "status": status})


def _allocated(name: str, node: str, numbers: Sequence[int]) -> Any:
    results = [{"request": "gpus", "driver": DRIVER, "pool": node, "device": f"gpu-{number}"} for number in numbers]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms}}
    users = [{"resource": "pods", "name": name, "uid": name}]
    return _claim(name, len(numbers), allocation=allocation, reservedFor=users)


def _pod(name: str, claims: Collection[str]) -> core.Pod:
    references = tuple(core.PodResourceClaim(name=one, resource_claim_name=one) for one in sorted(claims))
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="d", uid=name), spec=core.PodSpec(resource_claims=references)
    )


class World:
    """Three nodes, what runs there, and claims that a group asks for and that have no device yet."""

    def __init__(self, there: Sequence[There], counts: Sequence[int], *, all_nodes: bool = False) -> None:
        self.claims, self.running, free = Claims(NobodyWaits()), list[Running](), dict.fromkeys(NODES, (GPUS, CPUS))
        self.claims.note(read("DeviceClass", {"metadata": {"name": "gpu"}, "spec": {}}))
        for node in NODES:
            self._publish(node, GPUS, {"nodeName": node})
        if all_nodes:
            self._publish("net", 1, {"allNodes": True})
        for number, count in enumerate(counts):
            self.claims.note(_claim(f"c{number}", count))
        self.there = dict[str, There]()
        for number, one in enumerate(there):
            gpus, cpus = free[one.node]
            if one.gpus <= gpus and one.cpus <= cpus:
                free[one.node] = gpus - one.gpus, cpus - one.cpus
                self._run(f"r{number}", one, range(gpus - one.gpus, gpus))

    def _publish(self, name: str, count: int, where: Mapping[str, Any]) -> None:
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "pool": pool, "devices": devices(count), **where}
        self.claims.note(read("ResourceSlice", {"metadata": {"name": f"{name}-a"}, "spec": spec}))

    def _run(self, name: str, one: There, numbers: Sequence[int]) -> None:
        self.there[name] = one
        if numbers:
            self.claims.note(_allocated(name, one.node, numbers))
        has = self.claims.has(_pod(name, {name} if numbers else ()))
        assert has is not None
        need = PodInfo(requests=_cpus(one.cpus), asks=(has,))
        self.running.append(
            Running(uid=name, namespace="d", name=name, node=one.node, need=need, priority=one.priority)
        )

    def nodes(self) -> dict[str, NodeInfo]:
        return {
            name: NodeInfo(
                name=name,
                allocatable=_cpus(CPUS),
                limits={ask.NAME: self.claims.limits(name, {})},
                is_imagined=True,
            )
            for name in NODES
        }

    def need(self, number: int, one: Asked) -> PodInfo:
        asked = self.claims.ask(_pod(f"g{number}", {f"c{claim}" for claim in one.claims}))
        assert asked is not None
        return PodInfo(requests=_cpus(one.cpus), asks=(asked,))

    def find(self, group: Sequence[Asked], priority: int) -> plan.Plan | None:
        terms = plan.Terms(may_end=lambda one: one.priority < priority, value=rule.worth, cost=rule.loss(0.0))
        needs = [self.need(number, one) for number, one in enumerate(group)]
        return plan.find(needs, WhatIf(self.nodes(), self.running), terms)

    def left(self, gone: Collection[str]) -> list[There]:
        return [one for name, one in self.there.items() if name not in gone]


def _cpus(count: int) -> dict[str, int]:
    return {"cpu": count * reference.UNIT}


def _fits(group: Sequence[Asked], places: Sequence[str], counts: Sequence[int], left: Sequence[There]) -> bool:
    """Tell by the sums of each node alone whether a group has room at places, each claim on one node."""
    at = dict[int, str]()
    for one, place in zip(group, places, strict=True):
        if any(at.setdefault(claim, place) != place for claim in one.claims):
            return False
    for node in NODES:
        gpus = sum(one.gpus for one in left if one.node == node)
        gpus += sum(counts[claim] for claim, place in at.items() if place == node)
        cpus = sum(one.cpus for one in left if one.node == node)
        cpus += sum(one.cpus for one, place in zip(group, places, strict=True) if place == node)
        if gpus > GPUS or cpus > CPUS:
            return False
    return True


def _has_room(group: Sequence[Asked], counts: Sequence[int], left: Sequence[There]) -> bool:
    return any(_fits(group, places, counts, left) for places in itertools.product(NODES, repeat=len(group)))


def _subsets(names: Collection[str]) -> Iterator[frozenset[str]]:
    for size in range(len(names) + 1):
        yield from map(frozenset, itertools.combinations(sorted(names), size))


_THERE = st.lists(
    st.builds(There, st.sampled_from(NODES), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), max_size=7
)
_COUNTS = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@st.composite
def _groups(draw: st.DrawFn) -> tuple[list[int], list[Asked]]:
    counts = draw(_COUNTS)
    each = st.builds(Asked, st.integers(0, 2), st.frozensets(st.integers(0, len(counts) - 1), max_size=2))
    return counts, draw(st.lists(each, min_size=1, max_size=4))


@given(_THERE, _groups(), st.integers(0, 3))
def test_what_is_proposed_for_pods_that_share_claims_fits_and_ends_only_those_who_may_end(
    there: list[There], asked: tuple[list[int], list[Asked]], priority: int
) -> None:
    counts, group = asked
    world = World(there, counts)
    found = world.find(group, priority)
    if found is None:
        return
    assert all(one.priority < priority for one in found.ended)
    assert _fits(group, found.nodes, counts, world.left({one.uid for one in found.ended}))


@given(_THERE, _COUNTS, st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(0, 3))
def test_pods_that_all_share_claims_get_room_exactly_where_ending_all_who_may_would_give_it(
    there: list[There], counts: list[int], cores: list[int], priority: int
) -> None:
    group = [Asked(each, frozenset(range(len(counts)))) for each in cores]
    world = World(there, counts)
    found = world.find(group, priority)
    may = {name for name, one in world.there.items() if one.priority < priority}
    assert (found is not None) == _has_room(group, counts, world.left(may))
    if found is None:
        return
    gone = {one.uid for one in found.ended}
    if _has_room(group, counts, world.left(())):
        assert gone == set()
    for fewer in _subsets(gone):
        if fewer != gone:
            assert not _fits(group, found.nodes, counts, world.left(fewer)), "one of them need not have ended"


def test_the_node_is_chosen_for_all_who_share_a_claim_and_not_for_the_first_of_them() -> None:
    world = World([There("n0", 0, 1, 0), There("n1", 0, 3, 0), There("n2", 0, 2, 0)], [1])
    found = world.find([Asked(1, frozenset({0})), Asked(1, frozenset({0})), Asked(1, frozenset({0}))], 0)
    assert found is not None
    assert found.nodes == ("n0", "n0", "n0")
    world = World([There("n0", 0, 2, 2), There("n1", 0, 2, 0), There("n2", 0, 2, 2)], [1])
    found = world.find([Asked(2, frozenset({0})), Asked(2, frozenset({0}))], 1)
    assert found is not None
    assert (found.nodes, [one.name for one in found.ended]) == (("n1", "n1"), ["r1"])


def test_pods_that_share_a_device_that_every_node_reaches_may_be_on_several_nodes() -> None:
    full = [There(node, GPUS, 0, 2) for node in NODES]
    world = World([*full, There("n0", 0, 2, 0), There("n1", 0, 2, 2)], [1], all_nodes=True)
    group = [Asked(4, frozenset({0})), Asked(4, frozenset({0}))]
    found = world.find(group, 1)
    assert found is not None
    assert set(found.nodes) == {"n0", "n2"}
    assert [one.name for one in found.ended] == ["r3"]
    assert world.find([*group, Asked(4, frozenset({0}))], 1) is None


def test_a_claim_that_one_of_the_group_has_already_is_not_given_to_another_of_it() -> None:
    world = World([There("n0", 1, 1, 0), There("n1", GPUS, 0, 2), There("n2", GPUS, 0, 2)], [3])
    asked = world.claims.ask(_pod("g0", {"r0"}))
    assert asked is not None
    needs = [PodInfo(requests=_cpus(1), asks=(asked,)), world.need(1, Asked(1, frozenset({0})))]
    terms = plan.Terms(may_end=lambda one: one.priority < 1, value=rule.worth, cost=rule.loss(0.0))
    # Its GPU is free once the pod that runs has ended, and all three are, but for the first of the two.
    assert plan.find(needs, WhatIf(world.nodes(), world.running), terms) is None
    assert plan.find(needs[1:], WhatIf(world.nodes(), world.running), terms) is not None


def test_nobody_ends_for_more_pods_than_a_claim_can_have_users() -> None:
    world = World([There("n0", 0, 1, 0)], [1])
    need = world.need(0, Asked(0, frozenset({0})))
    terms = plan.Terms(may_end=lambda one: one.priority < 1, value=rule.worth, cost=rule.loss(0.0))
    assert plan.find([need] * ask.Ask.common_most, WhatIf(world.nodes(), ()), terms) is not None
    assert plan.find([need] * (ask.Ask.common_most + 1), WhatIf(world.nodes(), ()), terms) is None


def test_a_claim_without_a_name_is_no_claim_that_pods_share() -> None:
    """What is made for extended resources at the binding is each pod's own, however alike it is."""
    claim = _claim("", 1)
    one = ask.wanted(msgspec.structs.replace(claim, metadata=meta.ObjectMeta()), "x")
    assert ask.Ask(wanted=(one,)).common == frozenset()
