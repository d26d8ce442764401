"""Rankings by array answer as those made node by node do, after any order of changes."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.engine.rankings import POLICIES, EngineRankings
from fairlead.plan.schedule.rankings import PlainRankings
from fairlead.plan.schedule.reference import UNIT, NodeInfo, PodInfo
from fairlead.plan.schedule.summary import Summary
from fairlead.wire.kubernetes import core

_GPU, _MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
_TAINTS = ((), (), (core.Taint(key="old", effect="PreferNoSchedule"),), (core.Taint(key="red"),))


class World:
    """Nodes that come, go and change, and pods that are put on them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.empty: dict[str, NodeInfo] = {}
        self.pods: dict[str, list[PodInfo]] = {}
        self.views: dict[str, NodeInfo] = {}

    def need(self) -> PodInfo:
        chance, requests = self.chance, {"cpu": self.chance.choice((1, 4, 7)) * UNIT, "pods": UNIT}
        if chance.random() < 0.8:
            requests[chance.choice((_GPU, _GPU, _GPU, _MIG))] = chance.choice((1, 1, 2, 4, 8)) * UNIT
        if chance.random() < 0.3:
            requests["memory"] = chance.choice((3, 2**33, 2**70)) * UNIT
        labels = chance.choice(({}, {}, {"zone": "a"}, {"nvidia.com/gpu.product": "H100"}))
        bears = (core.Toleration(operator="Exists"),) if chance.random() < 0.2 else ()
        ports = frozenset({("0.0.0.0", "TCP", 80)}) if chance.random() < 0.2 else frozenset()
        rule = core.NodeSelectorRequirement(key="fast", operator="Exists")
        term = core.PreferredSchedulingTerm(weight=7, preference=core.NodeSelectorTerm(match_expressions=(rule,)))
        likes = core.NodeAffinity(preferred_during_scheduling_ignored_during_execution=(term,))
        wanted = likes if chance.random() < 0.2 else core.NodeAffinity()
        return PodInfo(requests=requests, node_selector=labels, tolerations=bears, ports=ports, affinity=wanted)

    def step(self) -> dict[str, tuple[NodeInfo | None, NodeInfo | None]]:
        """Change a few nodes and return what changed."""
        before = dict(self.views)
        for _ in range(self.chance.randint(1, 4)):
            self._change(f"n{self.chance.randrange(12):02}")
        self.views = {name: reference.occupied(node, self.pods.get(name, ())) for name, node in self.empty.items()}
        names = {*before, *self.views}
        pairs = {name: (before.get(name), self.views.get(name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def _change(self, name: str) -> None:
        chance, fate = self.chance, self.chance.random()
        if fate < 0.05:
            self.empty.pop(name, None)
        elif fate < 0.3 or name not in self.empty:
            amounts = {"cpu": 64 * UNIT, "memory": 2**36 * UNIT, "pods": 9 * UNIT}
            if chance.random() < 0.8:
                amounts[_GPU] = chance.choice((0, 4, 8, 8, 5000)) * UNIT
            if chance.random() < 0.3:
                amounts[_MIG] = 7 * UNIT
            labels = {"nvidia.com/gpu.product": chance.choice(("H100", "T4")), "zone": chance.choice("ab")}
            labels |= {"fast": ""} if chance.random() < 0.5 else {}
            self.empty[name] = NodeInfo(
                name=name,
                labels=labels,
                taints=chance.choice(_TAINTS),
                is_ready=chance.random() < 0.9,
                is_unschedulable=chance.random() < 0.1,
                allocatable=amounts,
            )
        elif fate < 0.8:
            need = self.need()
            if need.requests.get("memory", 0) < 2**60:
                self.pods.setdefault(name, []).append(need)
        elif self.pods.get(name):
            self.pods[name].pop(chance.randrange(len(self.pods[name])))


def _facts(found: Summary) -> tuple[object, ...]:
    return found.nodes, found.fitting, found.best, sorted((one.why, one.nodes, one.example) for one in found.reasons)


def _asked(one: Any, need: PodInfo, views: Mapping[str, NodeInfo]) -> tuple[Summary, frozenset[str]]:
    ranking = one.of(need)
    list(ranking.refresh(views))
    return ranking.summary(), ranking.blockers


def _follow(engine: EngineRankings | PlainRankings, world: World) -> None:
    changes = world.step()
    engine.take(world.views, changes)


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"random"}))
@pytest.mark.parametrize("seed", range(3))
def test_by_array_and_node_by_node_the_same_is_said_after_every_change(policy: str, seed: int) -> None:
    world = World(seed)
    plain, engine = PlainRankings(policy), EngineRankings(policy)
    needs = [world.need() for _ in range(6)]
    for _ in range(25):
        changes = world.step()
        plain.take(world.views, changes)
        engine.take(world.views, changes)
        for need in world.chance.sample(needs, 3):  # so that rows lag behind, also over nodes that come and go
            slow, fast = _asked(plain, need, world.views), _asked(engine, need, world.views)
            assert _facts(fast[0]) == _facts(slow[0])
            assert fast[1] == slow[1]


@pytest.mark.parametrize("name", reference.SCORES)
def test_a_score_is_nothing_where_it_concerns_neither_pod_nor_node(name: str) -> None:
    """The arrays do not ask for it there: a score that breaks this would count in one ranking and not in the other."""
    world, score, seen = World(11), reference.SCORES[name], set[bool]()
    for _ in range(40):
        world.step()
        for need, node in itertools.product([world.need() for _ in range(3)], world.views.values()):
            is_concerned = score.concerns_pod(need) or score.concerns_node(node)
            seen.add(is_concerned)
            assert is_concerned or score.worth(need, node) == 0
    assert False in seen


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_takes_a_node_that_the_slow_truth_finds_room_on(policy: str) -> None:
    world, engine = World(7), EngineRankings(policy)
    needs = [world.need() for _ in range(6)]
    for _ in range(25):
        _follow(engine, world)
        for need in needs:
            found, _ = _asked(engine, need, world.views)
            slow = reference.place(need, world.views.values())
            assert (found.fitting, found.nodes) == (slow.fitting, slow.nodes)
            assert {name for name, _ in found.best} <= {
                name for name, node in world.views.items() if reference.first_refusal(need, node) is None
            }
            assert (found.node is None) == (slow.node is None)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_learned_step_by_step_is_what_a_new_start_learns(policy: str) -> None:
    """But for `random`, whose draws go on, and for how old the table of what is asked for may be."""
    world, engine = World(3), EngineRankings(policy)
    need = world.need()
    for _ in range(30):
        _follow(engine, world)
        _asked(engine, need, world.views)
    fresh = EngineRankings(policy)
    fresh.take(world.views, {name: (None, node) for name, node in world.views.items()})
    assert fresh.demand.asked == engine.demand.asked
    one, other = _asked(engine, need, world.views)[0], _asked(fresh, need, world.views)[0]
    if policy in reference.POLICIES:
        assert _facts(one) == _facts(other)
    assert (one.fitting, {why.why for why in one.reasons}) == (other.fitting, {why.why for why in other.reasons})


@pytest.mark.parametrize("kind", [EngineRankings, PlainRankings])
def test_the_same_seed_draws_the_same_nodes(kind: Callable[..., Any]) -> None:
    def drawn(seed: int) -> list[str | None]:
        world, engine = World(5), kind("random", seed=seed)
        need = PodInfo(requests={"pods": UNIT})
        found = []
        for _ in range(20):
            _follow(engine, world)
            found.append(_asked(engine, need, world.views)[0].node)
        return found

    assert drawn(1) == drawn(1) != drawn(2)


def _whole(policy: str, free: list[int], gpus: int) -> str | None:
    """Return which of nodes with so many free GPUs of 8 takes a pod."""
    amounts = {"cpu": 64 * UNIT, "pods": 110 * UNIT, _GPU: 8 * UNIT}
    single = PodInfo(requests={"cpu": UNIT, "pods": UNIT, _GPU: UNIT})
    views = {
        f"n{at}": reference.occupied(NodeInfo(name=f"n{at}", allocatable=amounts), [single] * (8 - left))
        for at, left in enumerate(free)
    }
    engine = EngineRankings(policy)
    engine.take(views, {name: (None, node) for name, node in views.items()})
    whole = PodInfo(requests={"cpu": UNIT, "pods": UNIT, _GPU: 8 * UNIT})
    _asked(engine, whole, views)  # somebody waits for a whole node
    need = PodInfo(requests={"cpu": UNIT, "pods": UNIT, _GPU: gpus * UNIT})
    return _asked(engine, need, views)[0].node


def test_policies_choose_among_whole_gpus_as_their_rules_say() -> None:
    assert _whole("binpack", [8, 3, 5], 1) == "n1"
    assert _whole("spread", [8, 3, 5], 1) == "n0"
    assert _whole("bestfit", [8, 3, 5], 2) == "n1"
    # n1 is full of single ones already, n0 idle: the class stays together.
    assert _whole("clustering", [8, 3, 8], 1) == "n1"
    # On n0 it would take the only node away that is of use to who asks for eight.
    assert _whole("fairlead", [8, 1, 6], 1) == "n1"


def test_a_node_that_claims_a_million_gpus_makes_no_large_array() -> None:
    views = {"liar": NodeInfo(name="liar", allocatable={"cpu": UNIT, "pods": UNIT, _GPU: 10**9 * UNIT})}
    engine = EngineRankings("fairlead")
    engine.take(views, {"liar": (None, views["liar"])})
    assert engine.table.state.gpu.size < 1000
    need = PodInfo(requests={_GPU: 10**6 * UNIT})
    assert _asked(engine, need, views)[0].node == "liar"


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _with_rules(chance: random.Random, node: str = "") -> core.Pod:
    """Draw a pod with rules on other pods."""
    term = {
        "labelSelector": {"matchLabels": {"app": chance.choice("ab")}},
        "topologyKey": chance.choice(("zone", "host")),
    }
    kind, how = chance.choice(("podAffinity", "podAntiAffinity")), chance.choice((_REQUIRED, _PREFERRED))
    spec: dict[str, Any] = {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {_GPU: 1}}}]}
    if chance.random() < 0.6:
        spec["affinity"] = {kind: {how: [term if how == _REQUIRED else {"weight": 5, "podAffinityTerm": term}]}}
    if chance.random() < 0.4:
        when = chance.choice(("DoNotSchedule", "ScheduleAnyway"))
        spec["topologySpreadConstraints"] = [{**term, "maxSkew": 1, "whenUnsatisfiable": when}]
    about = {"name": "p", "namespace": "default", "labels": {"app": chance.choice("ab")}}
    return msgspec.convert({"metadata": about, "spec": spec}, core.Pod)


@pytest.mark.parametrize("seed", range(8))
def test_rules_on_other_pods_are_judged_alike_by_array_and_node_by_node(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(9)]
    placed: dict[str, list[PodInfo]] = {name: [] for name in names}
    empty = {
        name: NodeInfo(
            name=name,
            labels={"host": name} | ({"zone": chance.choice("xyz")} if chance.random() < 0.9 else {}),
            is_ready=chance.random() < 0.9,
            allocatable={_GPU: 3 * UNIT, "pods": 9 * UNIT},
        )
        for name in names
    }
    plain, engine = PlainRankings("packed"), EngineRankings("packed")
    views: dict[str, NodeInfo] = {}
    for _ in range(12):
        for name in chance.sample(names, 2):
            placed[name].append(reference.pod_info(_with_rules(chance, name)))
        before, views = views, {name: reference.occupied(node, placed[name]) for name, node in empty.items()}
        changes = {name: (before.get(name), node) for name, node in views.items() if before.get(name) != node}
        plain.take(views, changes)
        engine.take(views, changes)
        terms = Counter(term for there in placed.values() for one in there for term in one.peer.terms)
        need = reference.pod_info(_with_rules(chance)).among(terms)
        slow, fast = _asked(plain, need, views), _asked(engine, need, views)
        assert _facts(fast[0]) == _facts(slow[0])
        assert fast[1] == slow[1]
        assert engine.of(need).scores() == plain.of(need).scores()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("default", ["packed", "fairlead"])
def test_each_need_is_placed_by_its_own_policy_as_if_it_were_the_only_one(default: str, seed: int) -> None:
    world, mixed = World(seed), EngineRankings(default)
    alone = {name: EngineRankings(name) for name in ("packed", "spread", "binpack")}
    needs = [world.need() for _ in range(4)]
    for _ in range(20):
        changes = world.step()
        for engine in (mixed, *alone.values()):
            engine.take(world.views, changes)
        for need in world.chance.sample(needs, 2):
            for policy, engine in alone.items():
                one, _ = _asked(mixed, dataclasses.replace(need, policy=policy), world.views)
                assert _facts(one) == _facts(_asked(engine, need, world.views)[0])
                assert one.facts["policy"] == policy


@pytest.mark.parametrize("seed", range(3))
def test_each_needs_own_policy_holds_without_arrays_too(seed: int) -> None:
    world, plain, engine = World(seed), PlainRankings("packed"), EngineRankings("packed")
    needs = [world.need() for _ in range(4)]
    for _ in range(15):
        changes = world.step()
        plain.take(world.views, changes)
        engine.take(world.views, changes)
        for policy in ("fairlead", "bestfit", "spread", "fgd"):
            need = dataclasses.replace(world.chance.choice(needs), policy=policy)
            assert _facts(_asked(plain, need, world.views)[0]) == _facts(_asked(engine, need, world.views)[0])


@pytest.mark.parametrize("policy", POLICIES)
def test_more_gpus_than_any_node_has_are_refused_by_every_policy(policy: str) -> None:
    views = {"n": NodeInfo(name="n", allocatable={"cpu": UNIT, "pods": UNIT, _GPU: 4 * UNIT})}
    need = PodInfo(requests={"pods": UNIT, _GPU: 16 * UNIT})
    for rankings in (EngineRankings(policy), PlainRankings(policy)):
        rankings.take(views, {"n": (None, views["n"])})
        assert _asked(rankings, need, views)[0].node is None


def test_a_policy_that_is_asked_for_late_weighs_what_runs_by_then() -> None:
    world, late, early = World(3), EngineRankings("packed"), EngineRankings("fairlead")
    for _ in range(30):
        changes = world.step()
        late.take(world.views, changes)
        early.take(world.views, changes)
    fresh = EngineRankings("fairlead")
    fresh.take(world.views, {name: (None, node) for name, node in world.views.items()})
    need = world.need()
    found, _ = _asked(late, dataclasses.replace(need, policy="fairlead"), world.views)
    assert found.best == _asked(fresh, need, world.views)[0].best
