"""Rules on other pods that select namespaces by their labels, as labels are now."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.wire.kubernetes import core, meta
from tests.unit.control.scheduler.plane import Plane

_RED = {"matchLabels": {"team": "red"}}


def _rule(field: str) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "namespaceSelector": _RED, "labelSelector": {}}
    rule = {field: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"affinity": msgspec.convert(rule, core.Affinity)}


async def _plane(*nodes: str) -> Plane:
    plane = Plane()
    for name in nodes:
        created = await plane.store.create(
            core.Node(metadata=meta.ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))
        )
        ready = meta.Condition(type="Ready", status="True")
        status = core.NodeStatus(allocatable={"nvidia.com/gpu": "8", "pods": "110"}, conditions=(ready,))
        await plane.store.update_status(msgspec.structs.replace(created, status=status))
    return plane


async def _label(plane: Plane, name: str, **labels: str) -> None:
    known = await plane.store.get(core.Namespace, name)
    about = msgspec.structs.replace(known.metadata, labels=labels)
    await plane.store.update(msgspec.structs.replace(known, metadata=about))


async def _space(plane: Plane, name: str, **labels: str) -> None:
    await plane.store.create(core.Namespace(metadata=meta.ObjectMeta(name=name, labels=labels)))


async def test_pods_of_namespaces_with_a_label_are_kept_away_from_and_others_are_not() -> None:
    plane = await _plane("a", "b")
    await _space(plane, "default")
    await _space(plane, "one", team="red")
    await _space(plane, "two", team="blue")
    for name, namespace, node in (("red", "one", "a"), ("blue", "two", "b")):
        await plane.placement.bind(await plane.add_pod(name, namespace=namespace), node)
    await plane.add_pod("apart", **_rule("podAntiAffinity"))
    await plane.add_pod("near", **_rule("podAffinity"))
    async with plane.running():
        found = await plane.until_bound(["apart", "near"])
    assert (found["apart"], found["near"]) == ("b", "a")


async def test_a_running_pods_rule_keeps_pods_of_the_namespaces_it_means_away() -> None:
    plane = await _plane("a")
    await _space(plane, "default")
    await _space(plane, "one", team="red")
    await _space(plane, "two", team="blue")
    await plane.placement.bind(await plane.add_pod("alone", **_rule("podAntiAffinity")), "a")
    await plane.add_pod("red", namespace="one")
    await plane.add_pod("blue", namespace="two")
    async with plane.running():
        await plane.until_bound(["blue"])
        said = await plane.until_said("red", "anti-affinity", namespace="one")
    assert said == "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."


async def test_a_pod_goes_on_once_its_namespace_has_another_label() -> None:
    plane = await _plane("a")
    await _space(plane, "default")
    await _space(plane, "one", team="red")
    await plane.placement.bind(await plane.add_pod("alone", **_rule("podAntiAffinity")), "a")
    await plane.add_pod("red", namespace="one")
    async with plane.running():
        await plane.until_said("red", "anti-affinity", namespace="one")
        await _label(plane, "one", team="blue")
        await plane.until_bound(["red"])


async def test_a_pod_goes_on_once_the_namespace_of_those_it_shuns_has_another_label() -> None:
    plane = await _plane("a")
    await _space(plane, "default")
    await _space(plane, "one", team="red")
    await plane.placement.bind(await plane.add_pod("red", namespace="one"), "a")
    await plane.add_pod("apart", **_rule("podAntiAffinity"))
    async with plane.running():
        await plane.until_said("apart", "anti-affinity")
        await _label(plane, "one")
        await plane.until_bound(["apart"])
