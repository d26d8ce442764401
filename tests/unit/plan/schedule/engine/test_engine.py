"""The engine against the plain truth: the same node and the same GPUs after any sequence, and nothing given twice."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.engine import policy as policies
from fairlead.plan.schedule.engine.engine import Engine
from fairlead.plan.schedule.engine.fragmentation import Fragmentation
from fairlead.plan.schedule.engine.shape import WHOLE, Host, Placement, Shape, counted
from fairlead.plan.schedule.engine.state import State
from fairlead.plan.schedule.policy.demand import most_frequent
from tests.unit.plan.schedule.engine import plaintruth

_EXACT = sorted(set(policies.POLICIES) - {"random"})
_hosts = st.lists(
    st.builds(
        Host,
        name=st.just("n"),
        cpu_milli=st.sampled_from([8000, 64000, 96000]),
        memory_mib=st.sampled_from([1000, 8000]),
        gpus=st.integers(0, 8),
        model=st.sampled_from(["A", "B"]),
    ),
    min_size=1,
    max_size=6,
)
_models = st.sampled_from([frozenset[str](), frozenset({"A"}), frozenset({"B", "C"})])
_amounts = {"cpu_milli": st.sampled_from([0, 2000, 4000, 12000]), "memory_mib": st.sampled_from([0, 500])}
_shapes = st.one_of(
    st.builds(Shape, gpus=st.sampled_from([0, 1, 2, 4, 8]), models=_models, **_amounts),
    st.builds(
        Shape, gpus=st.just(1), gpu_milli=st.sampled_from([1, 160, 333, 500, 810, 999]), models=_models, **_amounts
    ),
)


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("policy", _EXACT)
@given(hosts=_hosts, shapes=st.lists(_shapes, min_size=1, max_size=25), seed=st.integers(0, 9))
def test_every_decision_is_that_of_the_plain_truth(
    policy: str, hosts: list[Host], shapes: list[Shape], seed: int
) -> None:
    table, chance = counted(shapes), random.Random(seed)
    engine, nodes = Engine(State(hosts), policy, table), [plaintruth.Node.of(host) for host in hosts]
    held: list[tuple[Shape, Placement]] = []
    for shape in [*shapes, *shapes]:
        if held and chance.random() < 0.3:
            gone, where = held.pop(chance.randrange(len(held)))
            engine.release(gone, where)
            nodes[where.node].give(gone, where.devices)
        expected = plaintruth.place(policy, nodes, shape, table)
        found = engine.place(shape)
        assert ((-1, ()) if found is None else (found.node, found.devices)) == expected
        if found is not None:
            nodes[found.node].take(shape, found.devices)
            held.append((shape, found))
    state = engine.state
    for at, node in enumerate(nodes):
        assert (state.cpu[at], state.memory[at]) == (node.cpu, node.memory)
        assert state.gpu[at, : len(node.gpu)].tolist() == node.gpu
        assert all(0 <= free <= WHOLE for free in node.gpu)
    assert state.taken_milli == sum(shape.total_milli for shape, _ in held)


@given(hosts=_hosts, shapes=st.lists(_shapes, min_size=1, max_size=12))
def test_fragmentation_is_the_papers_on_every_node(hosts: list[Host], shapes: list[Shape]) -> None:
    table, state = counted(shapes), State(hosts)
    engine, nodes = Engine(state, "bestfit", table), [plaintruth.Node.of(host) for host in hosts]
    for shape in shapes:
        found = engine.place(shape)
        if found is not None:
            nodes[found.node].take(shape, found.devices)
    one = Fragmentation(state, table)
    expected = [plaintruth.fragmented(node, table, node.cpu, node.gpu) for node in nodes]
    assert one.values(np.arange(len(nodes))).tolist() == expected
    assert one.cluster() == pytest.approx(sum(expected) / sum(table.values()))


@given(hosts=_hosts, shapes=st.lists(_shapes, min_size=1, max_size=12), asked=_shapes)
def test_what_has_room_is_what_the_slow_reference_lets_pass(
    hosts: list[Host], shapes: list[Shape], asked: Shape
) -> None:
    whole = [shape for shape in shapes if not shape.is_share]
    state = State(hosts)
    engine = Engine(state, "binpack", counted(whole))
    taken: list[dict[str, int]] = [{} for _ in hosts]
    for shape in whole:
        found = engine.place(shape)
        for name, amount in _requests(shape).items() if found else ():
            taken[found.node][name] = taken[found.node].get(name, 0) + amount  # type: ignore[union-attr]  # not None
    views = [
        reference.NodeInfo(
            name=str(at),
            labels={"model": host.model},
            allocatable={"cpu": host.cpu_milli, "memory": host.memory_mib, "gpu": host.gpus * WHOLE},
            taken=taken[at],
        )
        for at, host in enumerate(hosts)
    ]
    need = reference.PodInfo(requests=_requests(asked))
    if not asked.is_share:
        expected = [
            reference.first_refusal(need, view) is None and (not asked.models or view.labels["model"] in asked.models)
            for view in views
        ]
        fits = state.can_host(asked, np.arange(len(hosts))) & state.of_models(asked)
        assert fits.tolist() == expected


def _requests(shape: Shape) -> dict[str, int]:
    return {"cpu": shape.cpu_milli, "memory": shape.memory_mib, "gpu": shape.total_milli}


def _cluster(nodes: int = 8, gpus: int = 8) -> State:
    return State([Host(name=f"n{at}", cpu_milli=96000, memory_mib=1 << 20, gpus=gpus) for at in range(nodes)])


def _free(state: State) -> list[list[int]]:
    return [[*state.gpu[at].tolist(), int(state.cpu[at]), *state.held[at].tolist()] for at in range(len(state))]


def test_a_gang_is_placed_whole_or_leaves_nothing_behind() -> None:
    state = _cluster(nodes=4)
    engine = Engine(state, "fairlead", {})
    assert engine.place(Shape(gpus=1, gpu_milli=300)) is not None
    before, taken = _free(state), state.taken_milli
    # Counting alone lets it pass: each shape fits as often as it is asked for, but not beside the other.
    gang = [Shape(gpus=8)] * 3 + [Shape(gpus=1)] * 8
    assert engine.may_fit(gang)
    assert engine.place_gang(gang) is None
    assert (_free(state), state.taken_milli) == (before, taken)
    placed = engine.place_gang(gang[:-1])
    assert placed is not None
    assert [len(one.devices) for one in placed] == [8, 8, 8, *[1] * 7]


def test_requests_without_a_gpu_are_counted_by_what_else_they_ask_for() -> None:
    state = _cluster(nodes=2)
    engine = Engine(state, "fairlead", {})
    half = int(state.cpu.min()) // 2
    assert engine.capacity(Shape(cpu_milli=half)) == 4
    assert engine.capacity(Shape(cpu_milli=2 * half + 1)) == 0
    assert engine.capacity(Shape(cpu_milli=half, gpus=8)) == 2


def test_an_impossible_gang_is_refused_by_counting() -> None:
    engine = Engine(_cluster(nodes=500), "fairlead", {})
    assert engine.capacity(Shape(gpus=8)) == 500
    assert not engine.may_fit([Shape(gpus=8)] * 501)
    assert engine.state.now == 0


def test_checkpoints_may_be_nested() -> None:
    state = _cluster(nodes=2)
    before = _free(state)
    outer = state.checkpoint()
    state.take(0, Shape(gpus=1), (3,))
    inner = state.checkpoint()
    state.take(1, Shape(gpus=2), (0, 1))
    state.commit(inner)
    state.rollback(outer)
    assert _free(state) == before


@pytest.mark.parametrize(
    ("shape", "devices"),
    [
        (Shape(gpus=2), (0, 0)),
        (Shape(gpus=2), (0,)),
        (Shape(gpus=1), (8,)),
        (Shape(gpus=1), (-1,)),
        (Shape(gpus=1, gpu_milli=501), (5,)),
        (Shape(cpu_milli=96001), ()),
    ],
)
def test_nothing_is_taken_that_is_not_there(shape: Shape, devices: Sequence[int]) -> None:
    state = _cluster(nodes=1)
    state.take(0, Shape(gpus=1, gpu_milli=500), (5,))
    before = _free(state)
    with pytest.raises(ValueError, match="does not fit"):
        state.take(0, shape, devices)
    with pytest.raises(ValueError, match="was not on"):
        state.give(0, Shape(gpus=1), (7,))
    assert _free(state) == before


@pytest.mark.parametrize(
    "wrong", [{"gpus": 2, "gpu_milli": 500}, {"gpus": -1}, {"gpus": 1, "gpu_milli": 0}, {"cpu_milli": -1}]
)
def test_a_request_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a request"):
        Shape(**wrong)


@pytest.mark.parametrize("policy", policies.POLICIES)
def test_the_same_seed_ends_on_the_same_gpus(policy: str) -> None:
    chance = random.Random(1)
    shapes = [Shape(cpu_milli=1000, gpus=1, gpu_milli=chance.choice([200, 500, 1000])) for _ in range(60)]
    table = counted(shapes)
    ends = [[Engine.place(one, shape) for shape in shapes] for one in (_engine(policy, table), _engine(policy, table))]
    assert ends[0] == ends[1]


def _engine(policy: str, table: Mapping[Shape, int]) -> Engine:
    return Engine(_cluster(nodes=5), policy, table, seed=7)


def test_random_draws_differ_by_seed_and_stay_where_there_is_room() -> None:
    ends = set()
    for seed in range(5):
        engine = Engine(_cluster(nodes=9, gpus=2), "random", {}, seed=seed)
        found = [engine.place(Shape(gpus=1)) for _ in range(18)]
        assert all(found)
        assert engine.place(Shape(gpus=1)) is None
        ends.add(tuple((one.node, one.devices) for one in found if one))
    assert len(ends) > 1


def test_rules_of_the_caller_keep_requests_off_nodes() -> None:
    allowed = np.array([False, True, False])
    engine = Engine(_cluster(nodes=3, gpus=1), "fairlead", {}, allowed=lambda shape: allowed if shape.rule else None)
    assert [found and found.node for found in (engine.place(Shape(gpus=1, rule="zone=b")) for _ in range(2))] == [
        1,
        None,
    ]
    assert engine.place(Shape(gpus=1)) is not None


def test_whole_nodes_stay_free_where_they_are_asked_for() -> None:
    table = {Shape(gpus=1, gpu_milli=500): 90, Shape(gpus=8): 10}
    engine = Engine(_cluster(nodes=4), "fairlead", table)
    for _ in range(16):
        engine.place(Shape(gpus=1, gpu_milli=500))
    assert engine.capacity(Shape(gpus=8)) == 3


def test_the_table_is_cut_at_its_share_and_told_by_count() -> None:
    table = counted([Shape(gpus=1)] * 6 + [Shape(gpus=2)] * 3 + [Shape(gpus=8, memory_mib=7)])
    assert list(table.items()) == [(Shape(gpus=1), 6), (Shape(gpus=2), 3), (Shape(gpus=8), 1)]
    assert list(most_frequent(table, 0.9)) == [Shape(gpus=1), Shape(gpus=2)]
    assert most_frequent(table, 1.0) == table


def test_a_log_that_overflows_loses_no_change() -> None:
    state = _cluster(nodes=3, gpus=1)
    engine = Engine(state, "fairlead", {})
    assert engine.capacity(Shape(gpus=1)) == 3
    for _ in range(200):
        state.take(2, Shape(gpus=1), (0,))
        state.give(2, Shape(gpus=1), (0,))
    state.take(0, Shape(gpus=1), (0,))
    assert engine.capacity(Shape(gpus=1)) == 2


def test_ten_thousand_random_steps_give_no_gpu_twice() -> None:
    take_random_steps(10_000)


def take_random_steps(count: int) -> None:
    """Place, release, try gangs and take them back; compare with what is held, from its own list, now and then."""
    chance = random.Random(3)
    shapes = [Shape(gpus=1, gpu_milli=milli, cpu_milli=900) for milli in (100, 333, 500)]
    shapes += [Shape(gpus=gpus, cpu_milli=2000 * gpus) for gpus in (1, 2, 4)]
    engine = Engine(_cluster(nodes=6, gpus=4), "fairlead", counted(shapes))
    held: list[tuple[Shape, Placement]] = []
    for step in range(count):
        if chance.random() < 0.01:
            gang = chance.choices(shapes, k=5)
            held += zip(gang, engine.place_gang(gang) or (), strict=False)
        elif held and chance.random() < 0.5:
            engine.release(*held.pop(chance.randrange(len(held))))
        elif (found := engine.place(shape := chance.choice(shapes))) is not None:
            held.append((shape, found))
        if step % 500 == 0:
            free = np.full((6, 4), WHOLE)
            for shape, where in held:
                free[where.node, list(where.devices)] -= shape.gpu_milli
            assert free.min() >= 0
            assert (engine.state.gpu == free).all()


def test_a_share_on_which_all_is_lost_goes_to_a_gpu_that_has_room_all_the_same() -> None:
    """The lowest bucket is shared with GPUs that do not fit; the first of them was taken once."""
    shape = Shape(cpu_milli=4000, gpus=1, gpu_milli=810)
    engine = Engine(State([Host(name="n", cpu_milli=8000, memory_mib=1000, gpus=7, model="A")]), "fgd", {shape: 1})
    assert [engine.place(shape) for _ in range(3)][1:] == [Placement(0, (1,), 0), None]
