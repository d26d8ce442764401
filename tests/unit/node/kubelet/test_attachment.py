"""Devices of running containers: who decides, what is written down when, and what a kill in between leaves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import grpc.aio
import msgspec
import pytest

from fairlead import errors
from fairlead.engine.port import ContainerPhase, ContainerState
from fairlead.kernel import openfiles
from fairlead.model.container.step import TraceStep
from fairlead.node.isolation.attach import Outcome
from fairlead.node.kubelet import attachment
from fairlead.node.kubelet.attachment import Attachments
from fairlead.node.kubelet.devices import registration
from fairlead.node.kubelet.devices.checkpoint import Checkpoint, Grant
from fairlead.node.kubelet.devices.devicemanager import Choice, DeviceManager
from fairlead.plan.audit import GrantedNode
from fairlead.plan.pod import podstate
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.kubernetes import core, devicechange, meta, names
from fairlead.wire.kubernetes.devicechange import DeviceChange, DeviceChangeStatus
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.unit.node.kubelet.fakeplugin import RESOURCE, Plugin

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
pytestmark = needs_root
_SOCKETS = itertools.count()
PID = 4321


class CDIPlugin(Plugin):
    """Answers with CDI names, as ours does."""

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        await super().allocate(request)
        names_ = [pb.CDIDevice(name=f"{RESOURCE}={one}") for one in request.container_requests[0].devices_ids]
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(cdi_devices=names_)])


class Changer:
    """Remembers what it was to do with the container."""

    def __init__(self) -> None:
        self.done: list[tuple[str, tuple[str, ...]]] = []
        self.refuses: errors.FairleadError | None = None
        self.after: Callable[[], Awaitable[None]] | None = None
        """Happens once the kernel has done it."""

    async def attach(self, pid: int, nodes: Sequence[GrantedNode], *, container: str = "") -> Outcome:
        assert container
        return self._do("attach", pid, nodes)

    async def detach(self, pid: int, nodes: Sequence[GrantedNode], *, is_forced: bool, container: str = "") -> Outcome:
        assert container
        outcome = self._do("force" if is_forced else "detach", pid, nodes)
        if self.after is not None:
            await self.after()
        return outcome

    def _do(self, what: str, pid: int, nodes: Sequence[GrantedNode]) -> Outcome:
        assert pid == PID
        if self.refuses is not None:
            raise self.refuses
        self.done.append((what, tuple(node.path for node in nodes)))
        ended = (openfiles.Holder(pid=7, name="train", is_first=False, devices=()),) if what == "force" else ()
        return Outcome(rules=("c 195:1 rw",), nodes=(("/dev/gpu1", "made"),), opens={}, ended=ended)


class Node:
    """One node: store, checkpoint, plugin, and what changes containers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.plugin = CDIPlugin("g0", "g1", "g2")
        self.changer = Changer()
        self.steps: list[TraceStep] = []
        self._changed = asyncio.Event()
        self.boot()
        self._spec()

    def boot(self) -> None:
        """Begin with the checkpoint on disk, as a kubelet that was killed does."""
        (self.folder / "state").mkdir(exist_ok=True)
        self.devices = DeviceManager(Checkpoint(self.folder / "state"), grace_s=60, changed=self._changed.set)
        assert self.devices.load()
        self.attachments = Attachments(
            self.store, self.devices, cdi_folder=self.folder / "cdi", record=self._keep, changer=self.changer
        )

    def _spec(self) -> None:
        (self.folder / "cdi").mkdir()
        entries = []
        for minor in range(3):
            os.mknod(self.folder / f"gpu{minor}", 0o20666, os.makedev(195, minor))
            path = {"path": f"/dev/gpu{minor}", "hostPath": str(self.folder / f"gpu{minor}")}
            entries.append({"name": f"g{minor}", "containerEdits": {"deviceNodes": [path]}})
        os.mknod(self.folder / "ctl", 0o20666, os.makedev(195, 255))
        common = {"deviceNodes": [{"path": "/dev/ctl", "hostPath": str(self.folder / "ctl")}]}
        spec = {"cdiVersion": "0.5.0", "kind": RESOURCE, "devices": entries, "containerEdits": common}
        (self.folder / "cdi/test.json").write_text(json.dumps(spec))

    async def _keep(self, pod: core.Pod, step: TraceStep) -> None:
        self.steps.append(step)

    @contextlib.asynccontextmanager
    async def plugged(self) -> AsyncIterator[None]:
        sockets, name = self.folder / "s", f"p{next(_SOCKETS)}.sock"
        async with registration.serve_registration(self.devices, sockets), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.devices.run())
            async with self.plugin.serve(sockets / name):
                address = deviceplugin.target(sockets / deviceplugin.KUBELET_SOCKET)
                async with grpc.aio.insecure_channel(address, options=deviceplugin.CHANNEL_OPTIONS) as channel:
                    await deviceplugin.RegistrationStub(channel).register(self.plugin.request(name), timeout_s=5)
                while self.devices.capacity().get(RESOURCE, (0, 0))[0] != 3:
                    self._changed.clear()
                    await self._changed.wait()
                yield
            running.cancel()

    async def plugin_dies(self) -> None:
        """Return once the device manager knows that it is gone."""
        await self.plugin.hang_up()
        async with asyncio.timeout(50):
            while self.devices.away_since(RESOURCE) == 0:
                self._changed.clear()
                await self._changed.wait()

    async def run(self, name: str, gpus: int) -> core.Pod:
        limits = {RESOURCE: gpus} if gpus else {}
        item = core.Container(name="main", image="x", resources=core.ResourceRequirements(limits=limits))
        pod = await self.store.create(
            core.Pod(
                metadata=meta.ObjectMeta(name=name, namespace="default"),
                spec=core.PodSpec(containers=(item,), node_name="here"),
            )
        )

        async def record(_: str, __: Choice) -> None:
            return

        await self.devices.allocate(pod, record)
        return pod

    async def change(
        self, pod: core.Pod, action: devicechange.Action, device: str, *, force: bool = False
    ) -> DeviceChangeStatus:
        """Ask for a change and have it carried out; returns the answer."""
        await self.ask(pod, action, device, force=force)
        return await self.carry_out(pod)

    async def ask(self, pod: core.Pod, action: devicechange.Action, device: str, *, force: bool = False) -> None:
        """Ask in the place of any earlier request, as the API does, and wait until the kubelet knows."""
        with contextlib.suppress(errors.NotFound):
            await self.store.delete(DeviceChange, pod.metadata.name, "default")
        spec = devicechange.DeviceChangeSpec(
            pod_name=pod.metadata.name,
            pod_uid=pod.metadata.uid,
            container="main",
            resource=RESOURCE,
            action=action,
            device=device,
            force=force,
        )
        await self.store.create(devicechange.request(pod, spec))

    async def carry_out(self, pod: core.Pod, *states: ContainerState) -> DeviceChangeStatus:
        """Play the pod's worker until the request is answered."""
        woken = asyncio.Event()
        async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self.attachments.follow(lambda _: woken.set()))
            await woken.wait()
            await self.attachments.carry_out(pod, states or (state(pod),))
            following.cancel()
        return (await self.asked(pod)).status

    async def asked(self, pod: core.Pod) -> DeviceChange:
        return await self.store.get(DeviceChange, pod.metadata.name, "default")

    async def fresh(self, pod: core.Pod) -> core.Pod:
        return await self.store.get(core.Pod, pod.metadata.name, "default")

    def held(self, pod: core.Pod) -> tuple[str, ...]:
        return tuple(one for grant in self.devices.held(pod.metadata.uid) for one in grant.device_ids)


def state(pod: core.Pod, phase: ContainerPhase = ContainerPhase.RUNNING) -> ContainerState:
    labels = {
        names.POD_UID: pod.metadata.uid,
        names.CONTAINER_NAME: "main",
        names.DEVICES: json.dumps({RESOURCE: ["g0"]}),
    }
    return ContainerState(engine="fake", id="x", name="x", phase=phase, labels=labels, image="x", pid=PID)


def problem(answer: DeviceChangeStatus) -> devicechange.Problem:
    assert answer.phase == "Refused"
    assert answer.problem is not None
    return answer.problem


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    one = Node(tmp_path)
    async with one.plugged():
        yield one


async def test_a_free_gpu_is_given_and_the_checkpoint_the_pod_and_the_trace_say_so(node: Node) -> None:
    pod = await node.run("a", 1)
    answer = await node.change(pod, "attach", "g1")
    assert answer.phase == "Done"
    assert node.steps[-1].reason == "Attached"
    assert node.changer.done == [("attach", ("/dev/gpu1",))]  # the control node it has already
    assert node.held(pod) == ("g0", "g1")


async def test_a_container_without_any_is_given_the_control_node_too(node: Node) -> None:
    pod = await node.run("a", 0)
    assert (await node.change(pod, "attach", "g2")).phase == "Done"
    assert node.changer.done == [("attach", ("/dev/ctl", "/dev/gpu2"))]


async def test_what_another_container_holds_is_not_given(node: Node) -> None:
    one, other = await node.run("a", 1), await node.run("b", 1)
    answer = await node.change(one, "attach", "g1")
    assert (problem(answer).kind, problem(answer).reason) == ("Conflict", "DeviceHeld")
    assert (node.steps[-1].reason, node.steps[-1].facts["cause"]) == ("AttachRefused", "DeviceHeld")
    assert (node.held(one), node.held(other), node.changer.done) == (("g0",), ("g1",), [])


@pytest.mark.parametrize(("device", "reason"), [("g9", "DeviceUnknown"), ("g2", "DeviceUnhealthy")])
async def test_what_the_plugin_does_not_offer_is_not_given(node: Node, device: str, reason: str) -> None:
    pod = await node.run("a", 1)
    await node.plugin.change({"g0": True, "g1": True, "g2": False})
    while node.devices.capacity()[RESOURCE] != (3, 2):
        node._changed.clear()
        await node._changed.wait()
    assert problem(await node.change(pod, "attach", device)).reason == reason
    assert node.held(pod) == ("g0",)


async def test_a_kernel_that_refuses_leaves_the_device_free(node: Node) -> None:
    pod = await node.run("a", 1)
    node.changer.refuses = errors.Conflict("something stands there", reason="NodeRefused")
    assert problem(await node.change(pod, "attach", "g1")).reason == "NodeRefused"
    assert node.held(pod) == ("g0",)
    other = await node.run("b", 2)
    assert node.held(other) == ("g1", "g2")


async def test_a_device_is_taken_and_another_container_can_have_it(node: Node) -> None:
    pod = await node.run("a", 2)
    await node.change(pod, "detach", "g0")
    assert node.steps[-1].reason == "Detached"
    assert node.changer.done == [("detach", ("/dev/gpu0",))]
    assert node.held(pod) == ("g1",)
    assert node.held(await node.run("b", 2)) == ("g0", "g2")


async def test_the_last_device_takes_the_control_node_with_it_and_does_not_come_back_by_itself(node: Node) -> None:
    pod = await node.run("a", 1)
    await node.change(pod, "detach", "g0", force=True)
    assert node.changer.done == [("force", ("/dev/ctl", "/dev/gpu0"))]
    assert node.steps[-1].facts["ended"] == [{"pid": 7, "name": "train"}]

    async def record(_: str, __: Choice) -> None:
        raise AssertionError("nothing is chosen anew")

    await node.devices.allocate(await node.fresh(pod), record)  # its restart
    assert node.held(pod) == ()
    assert node.held(await node.run("b", 3)) == ("g0", "g1", "g2")


async def test_a_device_in_use_stays_held(node: Node) -> None:
    pod = await node.run("a", 1)
    node.changer.refuses = errors.Conflict("open in 1 processes", reason="DeviceInUse", hint="--force")
    answer = await node.change(pod, "detach", "g0")
    assert (problem(answer).reason, problem(answer).hint) == ("DeviceInUse", "--force")
    assert node.steps[-1].reason == "DetachRefused"
    assert node.held(pod) == ("g0",)


async def test_what_it_does_not_hold_is_not_taken(node: Node) -> None:
    pod = await node.run("a", 1)
    assert problem(await node.change(pod, "detach", "g1")).reason == "DeviceNotHeld"


async def test_a_container_that_does_not_run_is_left(node: Node) -> None:
    pod = await node.run("a", 1)
    await node.ask(pod, "attach", "g1")
    answer = await node.carry_out(pod, state(pod, ContainerPhase.EXITED))
    assert problem(answer).reason == "ContainerNotRunning"
    assert node.held(pod) == ("g0",)


async def test_a_request_is_carried_out_once_and_answered_again_where_it_is_seen_again(node: Node) -> None:
    pod = await node.run("a", 1)
    await node.ask(pod, "attach", "g1")
    unanswered = await node.asked(pod)
    answer = await node.carry_out(pod)
    await node.store.update_status(
        msgspec.structs.replace(await node.asked(pod), status=unanswered.status)
    )  # as if the answer had not been written
    assert await node.carry_out(pod) == answer
    assert len(node.steps) == len(node.changer.done) == 1


async def test_a_request_that_is_answered_is_not_carried_out_after_a_restart(node: Node) -> None:
    pod = await node.run("a", 1)
    await node.change(pod, "attach", "g1")
    attachments = Attachments(
        node.store, node.devices, cdi_folder=node.folder / "cdi", record=node._keep, changer=node.changer
    )
    other = await node.run("b", 0)
    await node.ask(other, "attach", "g9")
    woken = asyncio.Event()
    async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(attachments.follow(lambda _: woken.set()))
        await woken.wait()
        assert attachments.wanted(pod.metadata.uid) == frozenset()
        assert attachments.wanted(other.metadata.uid) == {RESOURCE}
        await attachments.carry_out(pod, (state(pod),))
        following.cancel()
    assert len(node.changer.done) == 1


async def test_a_request_goes_with_its_pod(node: Node) -> None:
    pod = await node.run("a", 1)
    await node.ask(pod, "attach", "g1")
    await node.store.delete(core.Pod, "a", "default", grace_s=0)
    with pytest.raises(errors.NotFound):
        await node.asked(pod)


async def test_an_annotation_asks_for_nothing(node: Node) -> None:
    pod = await node.run("a", 1)
    text = json.dumps({"id": "1", "action": "attach", "container": "main", "resource": RESOURCE, "device": "g1"})
    about = msgspec.structs.replace(pod.metadata, annotations={"fairlead.dev/device-change": text})
    await node.attachments.carry_out(msgspec.structs.replace(pod, metadata=about), (state(pod),))
    assert (node.changer.done, node.steps, node.held(pod)) == ([], [], ("g0",))


async def test_a_kill_between_checkpoint_and_kernel_leaves_it_held_and_the_request_is_finished(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.plugged():
        pod = await node.run("a", 1)
        await node.ask(pod, "attach", "g1")
        await node.devices.give(pod.metadata.uid, "main", RESOURCE, "g1")  # and then it is killed
    node.boot()
    assert node.held(pod) == ("g0", "g1")
    async with node.plugged():
        assert (await node.carry_out(pod)).phase == "Done"
    assert node.changer.done == [("attach", ("/dev/ctl", "/dev/gpu0", "/dev/gpu1"))]


async def test_a_checkpoint_that_is_lost_is_made_again_from_what_the_pods_status_says(node: Node) -> None:
    pod = await node.run("a", 1)
    await node.change(pod, "attach", "g2")
    status = core.PodStatus(container_statuses=(core.ContainerStatus(name="main"),))
    held = {"main": {RESOURCE: node.held(pod)}}
    told = msgspec.structs.replace(pod, status=podstate.with_devices(status, pod.status, held))
    (grant,) = attachment.grants_now(state(pod), {pod.metadata.uid: told})
    assert grant == Grant(
        pod_uid=pod.metadata.uid, container="main", resource=RESOURCE, device_ids=("g0", "g2"), response=b""
    )
    assert [one.device_ids for one in attachment.grants_now(state(pod), {})] == [("g0",)]
    assert [one.device_ids for one in attachment.grants_now(state(pod), {pod.metadata.uid: pod})] == [("g0",)]


async def test_a_forged_grant_on_the_pod_restores_nothing(node: Node) -> None:
    pod = await node.run("a", 1)
    notes = {"fairlead.dev/devices": '{"r":["g2"]}', "fairlead.dev/devices-now": '{"main":{"r":["g2"]}}'}
    forged = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=notes))
    assert [one.device_ids for one in attachment.grants_now(state(pod), {pod.metadata.uid: forged})] == [("g0",)]


async def test_a_plugin_that_answers_with_nothing_to_open_cannot_be_attached(node: Node) -> None:
    (node.folder / "cdi/test.json").write_text(
        json.dumps(
            {
                "cdiVersion": "0.5.0",
                "kind": RESOURCE,
                "devices": [{"name": f"g{i}", "containerEdits": {"env": ["A=1"]}} for i in range(3)],
            }
        )
    )
    pod = await node.run("a", 1)
    assert problem(await node.change(pod, "attach", "g1")).reason == "NothingToAttach"
    assert node.held(pod) == ("g0",)


async def test_a_device_whose_answer_the_checkpoint_has_lost_is_still_taken_from_the_kernel(node: Node) -> None:
    pod = await node.run("train", 2)
    node.devices.restore(
        tuple(msgspec.structs.replace(one, response=b"") for one in node.devices.held(pod.metadata.uid))
    )
    assert (await node.change(pod, "detach", "g1")).phase == "Done"
    assert node.changer.done == [("detach", ("/dev/gpu1",))]


async def test_a_device_the_kernel_has_taken_is_free_even_if_the_plugin_died_meanwhile(node: Node) -> None:
    pod = await node.run("train", 2)
    node.changer.after = node.plugin_dies
    assert (await node.change(pod, "detach", "g1")).phase == "Done"
    (left,) = node.devices.held(pod.metadata.uid)
    assert (left.device_ids, left.response) == (("g0",), b"")
