"""A snapshot of the scheduler's world decides offline what was decided live."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from fairlead import errors
from fairlead.control.scheduler import snapshot
from fairlead.control.scheduler.controller import Scheduler
from fairlead.plan.schedule.engine.rankings import EngineRankings
from fairlead.settings import ControlSettings
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.gpudevice import HEALTHY, GPUDevice, GPUDeviceSpec, GPUDeviceStatus, GPULink
from tests.unit.control.scheduler.plane import GPU, Plane

_AT = "2026-11-22T14:00:00Z"


async def _world() -> Plane:
    """Pods of many needs, a gang that fits and one that does not, and queues of which one is at its limit."""
    plane = Plane()
    for number, gpus in enumerate((8, 8, 4, 4, 2)):
        await plane.add_node(f"n{number}", gpus)
    await plane.add_queue("small", namespaces=("small",), limit={GPU: "2"})
    for number, gpus in enumerate((1, 4, 2, 1, 8, 3)):
        await plane.add_pod(f"single-{number}", gpus)
    await plane.add_gang("fits", 3, 1)
    await plane.add_gang("large", 3, 8)
    for number in range(3):
        await plane.add_pod(f"limited-{number}", 1, namespace="small")
    await plane.add_pod("held", 1, scheduling_gates=(core.SchedulingGate(name="x/y"),))
    return plane


async def test_a_replayed_decision_knows_how_gpus_hang_together_and_says_so() -> None:
    plane = Plane()
    for name, kind in (("apart", "SYS"), ("joined", "NV")):
        await plane.add_node(name, 2)
        for index, other in ((0, 1), (1, 0)):
            made = await plane.store.create(_gpu(name, index, kind, f"0000:0{other}:00.0"))
            await plane.store.update_status(msgspec.structs.replace(made, status=GPUDeviceStatus(health=HEALTHY)))
    await plane.add_pod("pair", 2)
    taken = await snapshot.take(plane.store, ControlSettings(), _AT)
    for rankings in (None, EngineRankings("packed")):
        [found] = await snapshot.replay(snapshot.parse(snapshot.emit(taken)), ControlSettings(), rankings)
        assert found.node == "joined"
        assert found.step is not None
        words = "GPUs 0 and 1 are free there, joined by NVLink"
        assert found.step.message == f"Successfully assigned default/pair to joined: {words}"


def _gpu(node: str, index: int, kind: str, other: str) -> GPUDevice:
    spec = GPUDeviceSpec(
        node_name=node,
        index=index,
        minor=index,
        uuid=f"GPU-{node}-{index}",
        vendor="nvidia",
        product="H100",
        memory="1Gi",
        simulated=True,
        pci_bus_id=f"0000:0{index}:00.0",
        resource=GPU,
        links=(GPULink(kind=kind, gpus=(other,)),),
    )
    return GPUDevice(metadata=meta.ObjectMeta(name=f"{node}-{index}"), spec=spec)


async def _decided(plane: Plane) -> dict[str, str]:
    """Return by pod the node, or why it waits; the gang that fits nowhere is left out: it is judged anew at times."""
    found = [pod.metadata for pod in (await plane.store.list(core.Pod)).items if "large" not in pod.metadata.name]
    nodes = await plane.bound()
    return {one.name: nodes.get(one.name) or (await plane.words(one.name, one.namespace))[1] for one in found}


async def _run(plane: Plane) -> dict[str, str]:
    """Let the scheduler decide on everything that no gate holds; returns what it decided."""

    async def decided() -> dict[str, str] | None:
        found = await _decided(plane)
        return found if all(said for name, said in found.items() if name != "held") else None

    async with plane.running():
        return dict(await plane.until(decided))


def _said(decisions: tuple[snapshot.Decision, ...]) -> dict[str, str]:
    return {
        one.name: one.node or (one.step.message if one.step is not None else "")
        for one in decisions
        if "large" not in one.name
    }


@pytest.mark.parametrize("policy", ["packed", "spread", "fairlead"])
async def test_a_replayed_decision_is_the_one_that_was_made_live(policy: str) -> None:
    plane = await _world()
    plane.choose(policy)
    control = ControlSettings(policy=policy)
    body = snapshot.emit(await snapshot.take(plane.store, control, _AT))
    live = await _run(plane)
    again = _said(await snapshot.replay(snapshot.parse(body), control, EngineRankings(policy)))
    assert again == live
    assert len(set(again.values())) > 5


async def test_a_snapshot_taken_afterwards_says_why_the_rest_waits() -> None:
    plane = await _world()
    live = {name: said for name, said in (await _run(plane)).items() if " " in said or name == "held"}
    control = ControlSettings()
    again = await snapshot.replay(await snapshot.take(plane.store, control, _AT), control)
    assert _said(again) == live
    (large,) = {one.step.message.partition(":")[0] for one in again if "large" in one.name and one.step is not None}
    assert large == 'group "large" is placed as a whole'


async def test_nothing_secret_is_in_the_file() -> None:
    plane = Plane()
    pod = await plane.add_pod("one", annotations={"note": "hunter2", "kueue.x-k8s.io/pod-group-total-count": "1"})
    main = msgspec.structs.replace(
        pod.spec.containers[0], env=(core.EnvVar(name="PASSWORD", value="hunter2"),), args=("--token=hunter2",)
    )
    await plane.store.delete(core.Pod, "one", "default", grace_s=0)
    await plane.add_pod("one", containers=(main,), annotations={"note": "hunter2", names.MIRROR: "a"})
    body = snapshot.emit(await snapshot.take(plane.store, ControlSettings(), _AT))
    assert b"hunter2" not in body
    # Who is ended for another depends on it.
    assert json.loads(body)["items"][0]["metadata"]["annotations"] == {names.MIRROR: "a"}
    assert json.loads(body)["items"][0]["metadata"]["name"] == "one"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not a snapshot"),
        (b"[]", "not a snapshot"),
        (b'{"kind": "Pod", "apiVersion": "v1"}', "not a snapshot: 'v1' 'Pod'"),
        (
            b'{"kind": "SchedulerSnapshot", "apiVersion": "fairlead.dev/v1alpha1", "items": [{"kind": "Cat"}]}',
            "item 0 of the snapshot is a 'Cat'",
        ),
        (
            b'{"kind": "SchedulerSnapshot", "apiVersion": "fairlead.dev/v1alpha1", '
            b'"items": [{"kind": "Pod", "apiVersion": "v1", "spec": 7}]}',
            "item 0 of the snapshot, a Pod, cannot be read",
        ),
    ],
)
async def test_what_is_no_snapshot_is_refused_with_the_place(body: bytes, said: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        await snapshot.replay(snapshot.parse(body), ControlSettings())
    assert said in refused.value.message


@pytest.mark.parametrize("policy", ["packed"])
async def test_a_replay_ends_though_no_pod_that_must_end_ever_does(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gangs whose victims stay, as in every replay: each pod is looked at a few times, not for ever."""
    looks, look = list[str](), Scheduler._look

    async def counted(self: Scheduler, pod: core.Pod, tasks: asyncio.TaskGroup) -> None:
        looks.append(pod.metadata.name)
        assert len(looks) < 10 * len(waiting), "a pod is looked at again and again"
        await look(self, pod, tasks)

    plane = Plane()
    for number in range(4):
        await plane.add_node(f"n{number}", 8)
    for number in range(30):
        await plane.add_pod(f"low-{number}", 1, priority=0)
    async with plane.running():
        await plane.until_bound(f"low-{number}" for number in range(30))
    for number in range(6):
        await plane.add_gang(f"gang-{number}", 12, 1, priority=10 + number)
    for number in range(40):
        await plane.add_pod(f"small-{number}", 1 + number % 8, priority=number % 3)
    waiting = [pod for pod in (await plane.store.list(core.Pod)).items if not pod.spec.node_name]
    control = ControlSettings(policy=policy, head_wait_s=1)
    taken = await snapshot.take(plane.store, control, "2036-11-22T14:00:00Z")
    monkeypatch.setattr(Scheduler, "_look", counted)
    found = await snapshot.replay(taken, control, EngineRankings(policy))
    assert len(found) == len(waiting)
    assert all(one.node or one.step is not None for one in found)
