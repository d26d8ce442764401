"""Machines with NVLink are placed where the Fabric Manager has their driver's version, as classes and nodes change."""

from __future__ import annotations

import json

import msgspec
import pytest

from fairlead.control.scheduler import snapshot
from fairlead.control.scheduler.extender import Extender
from fairlead.plan.schedule import waiting
from fairlead.plan.schedule.fabric import guestdriver
from fairlead.plan.schedule.rankings import PlainRankings
from fairlead.settings import ControlSettings
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.workload import RuntimeClass
from tests.unit.control.scheduler.plane import Plane

_SLOT, _SINGLE = "nvidia.com/h100-sxm5-80gb-x4", "nvidia.com/h100-sxm5-80gb-x1"
_CLASS = "kata-qemu-nvidia-gpu-x4"


async def _plane(policy: str = "", **managers: str) -> Plane:
    """Return a plane with nodes, by name, whose Manager has a version; empty: nothing says it."""
    plane = Plane()
    if policy:
        plane.choose(policy)
    for name, manager in managers.items():
        await plane.add_node(name, 0, {names.FABRIC_MANAGER: manager} if manager else {})
        node = await plane.store.get(core.Node, name)
        amounts = {_SLOT: "1", _SINGLE: "8", "pods": "110"}
        status = msgspec.structs.replace(node.status, allocatable=amounts)
        await plane.store.update_status(msgspec.structs.replace(node, status=status))
    return plane


async def _say(plane: Plane, driver: str) -> None:
    """Have the class boot a driver."""
    about = meta.ObjectMeta(name=_CLASS, annotations={names.GUEST_DRIVER: driver})
    item = RuntimeClass(metadata=about, handler="kata-qemu-nvidia-gpu")
    found = (await plane.store.list(RuntimeClass)).items
    if not found:
        await plane.store.create(item)
        return
    there = msgspec.structs.replace(found[0].metadata, annotations=about.annotations)
    await plane.store.update(msgspec.structs.replace(found[0], metadata=there))


async def _label(plane: Plane, name: str, manager: str) -> None:
    node = await plane.store.get(core.Node, name)
    about = msgspec.structs.replace(node.metadata, labels={names.FABRIC_MANAGER: manager})
    await plane.store.update(msgspec.structs.replace(node, metadata=about))


async def _add(
    plane: Plane, name: str, resource: str = _SLOT, *, runtime_class: str = _CLASS, priority: int = 0
) -> None:
    wanted = core.ResourceRequirements(limits={resource: 1}, requests={resource: 1})
    box = core.Container(name="main", image="i", resources=wanted)
    await plane.add_pod(name, 0, containers=(box,), runtime_class_name=runtime_class, priority=priority)


@pytest.mark.parametrize("policy", ["", "packed"])
async def test_a_slot_of_several_goes_where_the_manager_has_the_classes_version(policy: str) -> None:
    plane = await _plane(policy, a="570.158.01", b="580.95.05")
    await _say(plane, "580.95.05")
    async with plane.running():
        await _add(plane, "many")
        await _add(plane, "one", _SINGLE)
        await _add(plane, "other", runtime_class="kata-of-others")
        found = await plane.until_bound(["many", "one", "other"])
    assert (found["many"], found["other"]) == ("b", "a")


async def test_a_pod_that_no_manager_fits_says_both_versions_and_goes_once_one_does() -> None:
    plane = await _plane(a="570.158.01")
    await _say(plane, "580.95.05")
    async with plane.running():
        await _add(plane, "many")
        said = await plane.until_said("many", guestdriver.WORDS)
        assert "570.158.01" in said
        assert "580.95.05" in said
        assert "install Manager 580.95.05" in said
        pod = await plane.store.get(core.Pod, "many", "default")
        nodes, pods = await plane.store.list(core.Node), await plane.store.list(core.Pod)
        assert waiting.why(pod, nodes.items, pods.items, ours="fairlead") == said
        assert any(guestdriver.WORDS in one for one in await plane.messages("FailedScheduling"))
        await _label(plane, "a", "580.95.05")
        assert await plane.until_bound(["many"]) == {"many": "a"}


async def test_a_class_whose_image_is_another_now_lets_pods_that_waited_go() -> None:
    plane = await _plane(a="570.158.01")
    await _say(plane, "580.95.05")
    async with plane.running():
        await _add(plane, "many")
        await plane.until_said("many", guestdriver.WORDS)
        await _say(plane, "570.158.01")
        assert await plane.until_bound(["many"]) == {"many": "a"}


async def test_nothing_is_compared_where_either_version_is_not_said() -> None:
    plane = await _plane(a="", b="570.158.01")
    async with plane.running():
        await _add(plane, "unsaid-class")
        await plane.until_bound(["unsaid-class"])
    await plane.end("unsaid-class")
    await _say(plane, "580.95.05")
    async with plane.running():
        await _add(plane, "unsaid-node")
        assert await plane.until_bound(["unsaid-node"]) == {"unsaid-node": "a"}


@pytest.mark.parametrize(("driver", "ended"), [("580.95.05", []), ("570.158.01", ["there"])])
async def test_a_pod_is_ended_for_one_whose_driver_fits_the_manager_and_for_no_other(
    driver: str, ended: list[str]
) -> None:
    plane = await _plane(a="570.158.01")
    await _say(plane, driver)
    async with plane.running():
        await _add(plane, "there", runtime_class="kata-of-others")
        await plane.until_bound(["there"])
        await _add(plane, "many", priority=1000)
        if ended:
            await plane.until_bound(["many"])
        else:
            await plane.until_said("many", guestdriver.WORDS)
    assert plane.placement.ended == ended


async def test_a_replay_of_a_snapshot_decides_by_the_versions_too() -> None:
    plane = await _plane(a="570.158.01", b="580.95.05")
    await _say(plane, "580.95.05")
    await _add(plane, "many")
    taken = snapshot.parse(snapshot.emit(await snapshot.take(plane.store, ControlSettings(), "")))
    (decided,) = await snapshot.replay(taken, ControlSettings())
    assert decided.node == "b"


async def test_the_extender_keeps_kube_scheduler_from_such_nodes_as_well() -> None:
    plane = await _plane(a="570.158.01", b="580.95.05")
    await _say(plane, "580.95.05")
    await _add(plane, "many")
    one = Extender(plane.placement, PlainRankings("packed"))
    for watch in one.watches():
        for item in (await plane.store.list(watch.kind)).items:
            tuple(watch.keys(Change(kind=ChangeKind.ADDED, object=item)))
    pod = await plane.store.get(core.Pod, "many", "default")
    asked = json.dumps({"Pod": json.loads(meta.encode(pod)), "NodeNames": ["a", "b"]}).encode()
    found = json.loads(await one.calls["/filter"](asked))
    assert found["NodeNames"] == ["b"]
    assert "Fabric Manager 570.158.01" in found["FailedAndUnresolvableNodes"]["a"]
