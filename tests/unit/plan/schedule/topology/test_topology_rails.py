"""Network cards beside GPUs: what they are worth to pods of a group, which may span nodes."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule import reference
from fairlead.wire.kubernetes import core
from tests.unit.plan.schedule.topology.test_topology import GPU_NAME, Cluster, node_object, objects, pairs, pod


def _add(cluster: Cluster, name: str, railed: Collection[int], taken: int = 0) -> None:
    """Add a node of four GPUs. Args: railed: indexes of those with a network card.   taken: how many are in use."""
    machine, held = pairs(), {index: f"{name}-{index}" for index in range(taken)}
    cluster.cache.note_node(node_object(name, **{GPU_NAME: "4"}))
    for one in objects(name, machine, held):
        nics = (f"mlx5_{one.spec.index}",) if one.spec.index in railed else ()
        cluster.cache.note_device(msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, nics=nics)))
    for uid in held.values():
        cluster.cache.note_pod(pod(uid, 1, name))


def _member(uid: str, count: int) -> core.Pod:
    one = pod(uid, count)
    told = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    about = msgspec.structs.replace(one.metadata, labels={"kueue.x-k8s.io/pod-group-name": "train"}, annotations=told)
    return msgspec.structs.replace(one, metadata=about)


def _grouped(cluster: Cluster, count: int) -> core.Pod:
    for uid in ("one", "two"):
        cluster.cache.note_pod(_member(uid, count))
    return _member("one", count)


def test_a_groups_pods_go_where_their_gpus_have_network_cards_and_others_where_they_pack() -> None:
    cluster = Cluster()
    _add(cluster, "bare", (), taken=2)
    _add(cluster, "railed", range(4))
    assert cluster.ask(pod("alone", 2)).node == "bare"
    assert cluster.ask(_grouped(cluster, 2)).node == "railed"


def test_the_cards_beside_the_gpus_that_the_pod_would_get_count_and_not_those_beside_others() -> None:
    cluster = Cluster()
    _add(cluster, "a", (0, 1), taken=2)  # its cards are beside GPUs that are in use
    _add(cluster, "b", (2, 3), taken=2)
    assert cluster.ask(_grouped(cluster, 2)).node == "b"


def test_without_network_cards_a_groups_pods_are_placed_as_others_are() -> None:
    cluster = Cluster()
    _add(cluster, "idle", ())
    _add(cluster, "used", (), taken=2)
    found = cluster.ask(_grouped(cluster, 2))
    assert (found.node, found.best) == ("used", cluster.ask(pod("alone", 2)).best)


_nodes = st.lists(st.tuples(st.sets(st.integers(0, 3)), st.integers(0, 3)), min_size=1, max_size=6)


@given(_nodes, st.integers(1, 3))
def test_by_array_and_node_by_node_rails_weigh_the_same(nodes: list[tuple[set[int], int]], count: int) -> None:
    cluster = Cluster()
    for number, (railed, taken) in enumerate(nodes):
        _add(cluster, f"n{number}", railed, taken)
    cluster.ask(_grouped(cluster, count))  # which compares the three ways of judging
    need = cluster.cache.need(_member("one", count))
    rails = {name: reference.SCORES[reference.RAILS].worth(need, node) for name, node in cluster.cache.views.items()}
    assert all(0 <= worth <= 100 for worth in rails.values())
    assert not any(rails[f"n{number}"] for number, (railed, _) in enumerate(nodes) if not railed)
