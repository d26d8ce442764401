"""The embedded kubelet over a memory store, the fake engine and a real plugin socket: a pod's life, and crashes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import grpc.aio
import msgspec
import pytest

from fairlead import errors
from fairlead import settings as configuration
from fairlead.engine.fake.engine import FakeEngine
from fairlead.engine.port import ContainerPhase, ContainerSpec, ContainerState
from fairlead.kernel.mounting import tmpfs
from fairlead.model.container.output import LogQuery
from fairlead.node.kubelet import kubelet, runtime, sandbox, spec
from fairlead.node.kubelet.devices import checkpoint, endpoint
from fairlead.node.kubelet.kubelet import Kubelet
from fairlead.plan.pod import podstate
from fairlead.store import retry, tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import EVERYTHING, ChangeKind, Listing, Selector, Store, T
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.kubernetes import core, devicechange, meta, names
from fairlead.wire.kubernetes.devicechange import DeviceChange
from tests.unit.node.kubelet.fakeplugin import RESOURCE, Plugin

_NODE: Final = "here"
_IMAGE: Final = "localhost/tools:1"
_PATIENCE_S: Final = 50.0
_SOCKETS = itertools.count()
# Heeds SIGTERM, so that no test waits for a grace period.
_FOREVER: Final = ("sh", "-c", 'trap "exit 143" TERM; sleep 600')


class GatedStore(MemoryStore):
    """A store whose list of pods may be held back, as a busy one's is."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def list(self, kind: type[T], selector: Selector = EVERYTHING) -> Listing[T]:
        if issubclass(kind, core.Pod):
            await self.gate.wait()
        return await super().list(kind, selector)


class World:
    """One machine: what outlives a kubelet."""

    def __init__(self, folder: Path) -> None:
        self.store = GatedStore()
        self.engine = FakeEngine()
        self.engine.add_image(_IMAGE, command=("true",))
        self.engine.add_image(sandbox.IMAGE, command=_FOREVER)
        self.plugin = Plugin("g0", "g1", "g2")
        self.settings = configuration.Settings(
            state=configuration.StateSettings(folder=folder / "state", run=folder / "run"),
            kubelet=configuration.KubeletSettings(resync_s=0.2, backoff_s=0.05),
            node=configuration.NodeSettings(cdi_folder=folder / "cdi"),
        )

    async def __aenter__(self) -> Self:
        await self.engine.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.engine.__aexit__(*error)

    @contextlib.asynccontextmanager
    async def kubelet(self, *, plugged: bool = True) -> AsyncIterator[Kubelet]:
        """Run a kubelet; its end is as sudden as a kill for everything outside this process's memory."""
        node, ready = (
            Kubelet(store=self.store, engine=self.engine, images=self.engine, settings=self.settings, node=_NODE),
            asyncio.Event(),
        )
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(node.run(ready.set))
            async with asyncio.timeout(_PATIENCE_S):
                await ready.wait()
            async with self.plug() if plugged else contextlib.nullcontext():
                yield node
                task.cancel()
                await asyncio.wait([task])

    @contextlib.asynccontextmanager
    async def plug(self, plugin: Plugin | None = None, resource: str = RESOURCE) -> AsyncIterator[None]:
        """Serve and register a plugin; returns once the node shows its devices."""
        plugin = plugin or self.plugin
        name, folder = f"p{next(_SOCKETS)}.sock", self.settings.kubelet_folder
        async with plugin.serve(folder / name):
            address = deviceplugin.target(folder / deviceplugin.KUBELET_SOCKET)
            async with grpc.aio.insecure_channel(address, options=deviceplugin.CHANNEL_OPTIONS) as channel:
                await deviceplugin.RegistrationStub(channel).register(
                    plugin.request(name, resource=resource), timeout_s=5
                )
            healthy = str(sum(plugin.devices.values()))
            await self.until_node(lambda node: node.status.allocatable.get(resource) == healthy)
            yield

    async def run(self, pod: core.Pod) -> core.Pod:
        return await self.store.create(pod)

    async def until(self, name: str, holds: Callable[[core.Pod], bool]) -> core.Pod:
        last = None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                async for change in self.store.watch(core.Pod):
                    if change.object.metadata.name == name and change.kind is not ChangeKind.DELETED:
                        last = change.object
                        if holds(last):
                            return last
        except TimeoutError:
            pytest.fail(f"{name} never came there; its last status: {last.status if last else None}")
        raise AssertionError

    async def until_phase(self, name: str, phase: str) -> core.Pod:
        return await self.until(name, lambda pod: pod.status.phase == phase)

    async def until_gone(self, name: str) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            async for change in self.store.watch(core.Pod, since="0"):
                if change.object.metadata.name == name and change.kind is ChangeKind.DELETED:
                    return

    async def until_node(self, holds: Callable[[core.Node], bool]) -> core.Node:
        async with asyncio.timeout(_PATIENCE_S):
            async for change in self.store.watch(core.Node):
                if holds(change.object):
                    return change.object
        raise AssertionError

    async def until_engine(self, holds: Callable[[tuple[ContainerState, ...]], bool]) -> tuple[ContainerState, ...]:
        """Wait until what the engine has is as wanted; looked at after each of its events."""
        events = self.engine.watch_changes()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not holds(found := await self.engine.list_containers({})):
                    await anext(events)
                return found
        finally:
            await events.aclose()

    async def until_asked(self) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            await self.plugin.was_asked.wait()

    async def reasons(self, pod: core.Pod) -> list[str]:
        return [step.reason for step in await tracerecorder.list_steps(self.store, tracerecorder.reference(pod))]

    async def free(self) -> int:
        """Return how many devices a new pod can have: asked of the device manager by asking for one more each time."""
        grants = checkpoint.Checkpoint(self.settings.state.folder / "kubelet").load()
        assert grants is not None
        return len(self.plugin.devices) - sum(len(one.device_ids) for one in grants)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as one:
        yield one


def _container(
    command: tuple[str, ...], gpus: int | str | float = 0, *, of: str = RESOURCE, **more: Any
) -> core.Container:
    limits = {of: gpus} if gpus else {}
    return core.Container(
        **{"name": "main", "image": _IMAGE, **more},
        command=command,
        resources=core.ResourceRequirements(limits=limits, requests=limits),
    )


def _pod(
    *items: core.Container, name: str = "train", inits: tuple[core.Container, ...] = (), policy: str = "Never"
) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="default"),
        spec=core.PodSpec(
            containers=items,
            init_containers=inits,
            restart_policy=policy,
            node_name=_NODE,
        ),
    )


def _state(pod: core.Pod, index: int = 0) -> core.ContainerStateUnion:
    return pod.status.container_statuses[index].state


async def _output(world: World, name: str) -> bytes:
    return b"".join([line async for line in world.engine.logs(name, LogQuery(follow=False))])


# a life from beginning to end


async def test_a_pod_runs_to_its_end_with_its_devices_and_every_step_is_recorded(world: World) -> None:
    async with world.kubelet():
        pod = await world.run(_pod(_container(("env",), gpus=2)))
        over = await world.until_phase("train", "Succeeded")
        (state,) = await world.engine.list_containers({})
        assert b"DEVICES=g0,g1\n" in await _output(world, state.name)
        assert podstate.granted_devices(over) == {RESOURCE: ("g0", "g1")}
        reasons = await world.reasons(pod)
        order = ["DevicesChosen", "DevicesAllocated", "ContainerCreated", "ContainerStarted", "ContainerEnded"]
        assert [reason for reason in reasons if reason in order] == order
        assert "DevicesFreed" in reasons
        assert await world.free() == 3


async def test_the_node_shows_the_machine_its_devices_and_that_it_is_ready(world: World) -> None:
    async with world.kubelet():
        node = await world.store.get(core.Node, _NODE)
        assert (node.status.capacity[RESOURCE], node.status.capacity["pods"]) == ("3", "110")
        assert [(item.type, item.status) for item in node.status.conditions] == [("Ready", "True")]
        await world.plugin.change({"g0": True, "g1": False, "g2": True})
        node = await world.until_node(lambda node: node.status.allocatable[RESOURCE] == "2")
        assert node.status.capacity[RESOURCE] == "3"


async def test_a_container_that_fails_fails_its_pod_with_its_code(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(("sh", "-c", "exit 3"), gpus=1)))
        over = await world.until_phase("train", "Failed")
        terminated = _state(over).terminated
        assert terminated is not None
        assert (terminated.exit_code, over.status.message) == (3, 'container "main" exited with 3')
        assert await world.free() == 3


async def test_a_container_that_crashes_is_restarted_with_back_off_and_keeps_its_devices(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(("sh", "-c", "exit 1"), gpus=1), policy="Always"))
        waiting = await world.until("train", _is_waiting("CrashLoopBackOff"))
        assert waiting.status.phase == "Running"
        again = await world.until("train", lambda pod: pod.status.container_statuses[0].restart_count == 4)
        assert again.status.container_statuses[0].last_state.terminated is not None
        assert world.plugin.asked == [("g0",)]
        assert len(await world.engine.list_containers({})) <= 3


def _is_waiting(reason: str) -> Callable[[core.Pod], bool]:
    def holds(pod: core.Pod) -> bool:
        waiting = _state(pod).waiting if pod.status.container_statuses else None
        return waiting is not None and waiting.reason == reason

    return holds


async def test_a_container_removed_behind_our_back_frees_its_devices_and_the_status_is_true(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=3)))
        await world.until_phase("train", "Running")
        (state,) = await world.engine.list_containers({})
        await world.engine.remove(state.name)
        over = await world.until_phase("train", "Failed")
        terminated = _state(over).terminated
        assert terminated is not None
        assert terminated.exit_code in {137, 143}
        assert await world.free() == 3


async def test_a_container_that_vanished_while_nobody_looked_counts_as_ended(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=3)))
        running = await world.until_phase("train", "Running")
    await world.engine.remove(spec.engine_name(running, "main", 0))
    async with world.kubelet():
        over = await world.until_phase("train", "Failed")
        assert over.status.reason == "ContainerStatusUnknown"
        assert await world.free() == 3


async def test_a_container_killed_for_memory_says_so(world: World) -> None:
    async with world.kubelet():
        item = _container(("dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"))
        limits: dict[str, str | int | float] = {"memory": "16Mi"}
        item = msgspec.structs.replace(item, resources=core.ResourceRequirements(limits=limits))
        await world.run(_pod(item))
        over = await world.until_phase("train", "Failed")
        assert over.status.reason == "OOMKilled"


async def _ask_to_stop(store: Store) -> None:
    def asked(pod: core.Pod) -> core.Pod:
        request = core.StopRequest(requested_at=meta.now())
        return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, stop_request=request))

    await retry.change_status(store, core.Pod, "train", asked, namespace="default")


async def test_a_pod_asked_to_stop_stops_and_is_kept_with_its_logs(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=1)))
        await world.until_phase("train", "Running")
        await _ask_to_stop(world.store)
        over = await world.until_phase("train", "Failed")
        assert over.status.reason == "Stopped"
        assert [state.phase for state in await world.engine.list_containers({})] == [ContainerPhase.EXITED]
        assert await world.free() == 3


class StopsMeanwhile(GatedStore):
    """A store where somebody asks for a stop while the kubelet is about to write a pod's status."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = False

    async def get(self, kind: Any, name: str, namespace: str = "") -> Any:
        if issubclass(kind, core.Pod) and not self.is_asked:
            self.is_asked = True
            await _ask_to_stop(self)
        return await super().get(kind, name, namespace)


async def test_a_stop_asked_for_while_a_status_is_written_is_not_lost(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        world.store = StopsMeanwhile()
        async with world.kubelet():
            await world.run(_pod(_container(_FOREVER, gpus=1)))
            over = await world.until_phase("train", "Failed")
            assert over.status.reason == "Stopped"
            assert over.status.stop_request is not None


async def test_a_request_from_before_a_restart_waits_for_the_plugin_and_is_answered(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=1)))
        pod = await world.until_phase("train", "Running")
    wanted = devicechange.DeviceChangeSpec(
        pod_name="train", pod_uid=pod.metadata.uid, container="main", action="attach", resource=RESOURCE, device="g9"
    )
    asked = await world.store.create(devicechange.request(pod, wanted))
    async with world.kubelet(plugged=False), world.plug(), asyncio.timeout(_PATIENCE_S):
        async for change in world.store.watch(DeviceChange, since=asked.metadata.resource_version):
            if change.object.status.problem is not None:
                # What the plugin's list says, not that there is no plugin to ask.
                assert change.object.status.problem.reason == "DeviceUnknown"
                break


async def test_a_deleted_pod_leaves_neither_containers_nor_devices_nor_object(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=2)))
        await world.until_phase("train", "Running")
        await world.store.delete(core.Pod, "train", "default")
        await world.until_gone("train")
        assert await world.engine.list_containers({}) == ()
        assert await world.free() == 3


# what is refused


class LateAnswers(GatedStore):
    """A store whose answer to the write that ends a pod comes after the pod was deleted and its watchers know."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    async def update_status(self, item: Any) -> Any:
        written = await super().update_status(item)
        if isinstance(written, core.Pod) and written.status.phase == "Succeeded":
            await self.delete(core.Pod, written.metadata.name, written.metadata.namespace, grace_s=0)
            async with asyncio.timeout(_PATIENCE_S):
                await self.told.wait()
        return written

    async def watch(
        self, kind: Any, selector: Selector = EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[Any]:
        async for change in super().watch(kind, selector, since=since):
            yield change
            # Here the reader asks for the next change: this one is dealt with.
            if change.kind is ChangeKind.DELETED and selector.fields:
                self.told.set()


async def test_a_pod_deleted_while_its_end_is_written_is_not_brought_back_by_the_late_answer(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        world.store = LateAnswers()
        async with world.kubelet():
            await world.run(_pod(_container(("true",), 2)))
            await world.until_gone("train")
            assert await world.until_engine(lambda found: found == ()) == ()


async def test_too_few_devices_fail_the_pod_as_the_real_kubelet_fails_it(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(("true",), gpus=4)))
        over = await world.until_phase("train", "Failed")
        assert over.status.reason == "UnexpectedAdmissionError"
        assert f"unavailable for {RESOURCE}. Requested: 4, Available: 3" in over.status.message
        assert (await world.engine.list_containers({}), await world.free()) == ((), 3)


async def test_devices_of_a_pod_refused_half_way_are_free_again(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(("true",), gpus=2), _container(("true",), gpus=2, name="side")))
        await world.until_phase("train", "Failed")
        await world.run(_pod(_container(("true",), gpus=3), name="after"))
        await world.until_phase("after", "Succeeded")


async def test_an_unknown_image_fails_a_pod_that_never_restarts_and_frees_its_devices(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(("true",), gpus=3, image="localhost/absent")))
        over = await world.until_phase("train", "Failed")
        assert over.status.reason == "ImageNotFound"
        assert "localhost/absent" in over.status.message
        assert await world.free() == 3


async def test_an_unknown_image_keeps_a_restarting_pod_waiting_with_the_reason_until_it_comes(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(("true",), image="localhost/late"), policy="OnFailure"))
        waiting = await world.until("train", _is_waiting("ImageNotFound"))
        assert waiting.status.phase == "Pending"
        world.engine.add_image("localhost/late")
        await world.until_phase("train", "Succeeded")


async def test_a_command_that_is_not_in_the_image_fails_the_pod(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(("/no/such/command",), gpus=1)))
        over = await world.until_phase("train", "Failed")
        assert "/no/such/command" in over.status.message
        assert await world.free() == 3


async def test_a_pod_that_comes_before_its_plugin_waits_for_it(world: World) -> None:
    async with world.kubelet(plugged=False):
        await world.run(_pod(_container(("true",), gpus=1)))
        async with world.plug():
            await world.until_phase("train", "Succeeded")


async def test_a_plugin_that_comes_before_its_devices_are_well_is_waited_for(world: World) -> None:
    world.plugin.devices = dict.fromkeys(world.plugin.devices, False)
    async with world.kubelet():
        await world.run(_pod(_container(("true",), gpus=1)))
        await asyncio.sleep(0.5)
        await world.plugin.change(dict.fromkeys(world.plugin.devices, True))
        await world.until_phase("train", "Succeeded")


async def test_a_pod_that_is_bound_while_the_gpus_of_the_last_one_are_verified_waits_for_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.kubelet():
        # Long after the plugin registered: what is not well now is so since it was given back.
        monkeypatch.setattr(kubelet, "_PLUGIN_WAIT_S", 0.6)
        await asyncio.sleep(0.7)
        await world.plugin.change(dict.fromkeys(world.plugin.devices, False))
        await world.run(_pod(_container(("true",), gpus=1)))
        await asyncio.sleep(0.2)
        await world.plugin.change(dict.fromkeys(world.plugin.devices, True))
        await world.until_phase("train", "Succeeded")


@pytest.mark.parametrize(
    "refusal",
    [
        errors.Unavailable("not verified since its last tenant", reason="GPUNotVerified"),
        errors.Unavailable("the ledger of this node was not written within 2 s", reason="LedgerSlow"),
        errors.DeviceFault("is unhealthy: Verifying", reason="DeviceUnhealthy"),
    ],
    ids=["of the ledger", "of its disk", "of the plugin"],
)
async def test_a_plugin_that_knows_before_the_kubelet_that_a_gpu_is_not_verified_is_asked_again(
    world: World, refusal: errors.FairleadError
) -> None:
    world.plugin.refuses = refusal
    async with world.kubelet():
        await world.run(_pod(_container(("true",), gpus=1)))
        await world.until_asked()
        world.plugin.refuses = None
        await world.until_phase("train", "Succeeded")


@pytest.mark.parametrize("stream_ends_first", [False, True], ids=["at once", "its stream first"])
async def test_a_plugin_that_dies_while_it_is_asked_is_waited_for(world: World, stream_ends_first: bool) -> None:
    world.plugin.hold.clear()
    async with world.kubelet(plugged=False):
        async with world.plug():
            await world.run(_pod(_container(("true",), gpus=1)))
            await world.until_asked()
            if stream_ends_first:
                await world.plugin.hang_up()
                await world.until_node(lambda node: node.status.allocatable[RESOURCE] == "0")
        world.plugin.hold.set()
        async with world.plug():
            await world.until_phase("train", "Succeeded")


async def test_a_pod_whose_turn_comes_after_the_plugin_died_waits_for_it_as_well(world: World) -> None:
    world.plugin.hold.clear()
    async with world.kubelet(plugged=False):
        async with world.plug():
            for name in ("one", "two"):
                await world.run(_pod(_container(("true",), gpus=1), name=name))
            await world.until_asked()
            for _ in range(20):
                await asyncio.sleep(0)  # The other comes to wait for its turn.
            await world.plugin.hang_up()
            await world.until_node(lambda node: node.status.allocatable[RESOURCE] == "0")
        world.plugin.hold.set()
        async with world.plug():
            for name in ("one", "two"):
                await world.until_phase(name, "Succeeded")


async def test_a_pod_deleted_while_its_plugin_is_asked_never_starts(world: World) -> None:
    world.plugin.hold.clear()
    async with world.kubelet():
        pod = await world.run(_pod(_container(_FOREVER, gpus=3)))
        await world.until_asked()
        await world.store.delete(core.Pod, "train", "default", grace_s=0)
        await world.until_gone("train")
        world.plugin.hold.set()
        await world.run(_pod(_container(("true",), gpus=3), name="after"))
        await world.until_phase("after", "Succeeded")
        assert "ContainerCreated" not in await world.reasons(pod)


async def test_after_our_own_restart_too_nothing_restarts_without_the_plugin_that_is_to_act_before(
    world: World,
) -> None:
    world.plugin.pre_start = True
    async with world.kubelet():
        pod = await world.run(_pod(_container(_FOREVER, gpus=1), policy="OnFailure"))
        await world.until_phase("train", "Running")
    await world.engine.stop(spec.engine_name(pod, "main", 0), grace_s=0)
    async with world.kubelet(plugged=False), world.plug():
        await world.until("train", lambda pod: _is_running_again(pod, 1))
        assert world.plugin.pre_started == [("g0",), ("g0",)]


def _is_running_again(pod: core.Pod, times: int) -> bool:
    (status,) = pod.status.container_statuses
    return status.restart_count == times and status.state.running is not None


# several containers


async def test_containers_of_a_pod_share_a_sandbox_that_ends_with_them(world: World) -> None:
    async with world.kubelet():
        pod = _pod(
            _container(_FOREVER, gpus=1),
            _container(_FOREVER, gpus=1, name="side"),
            inits=(_container(("env",), gpus=2, name="init"),),
        )
        await world.run(pod)
        running = await world.until("train", _are_all_running)
        states = await world.engine.list_containers({})
        pause = spec.engine_name(running, sandbox.CONTAINER, 0)
        assert {state.name for state in states if state.phase is ContainerPhase.RUNNING} >= {pause}
        assert sorted(one for ids in world.plugin.asked for one in ids) == ["g0", "g0", "g1", "g1"]
        await world.store.delete(core.Pod, "train", "default")
        await world.until_gone("train")
        assert await world.engine.list_containers({}) == ()
        assert await world.free() == 3


def _are_all_running(pod: core.Pod) -> bool:
    return bool(pod.status.container_statuses) and all(
        status.state.running is not None for status in pod.status.container_statuses
    )


async def test_a_pod_of_two_containers_ends_and_keeps_their_logs(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(("echo", "one")), _container(("echo", "two"), name="side")))
        over = await world.until_phase("train", "Succeeded")
        names = [spec.engine_name(over, one, 0) for one in ("main", "side")]
        assert [await _output(world, name) for name in names] == [b"one\n", b"two\n"]
        await world.until_engine(lambda states: all(state.phase is ContainerPhase.EXITED for state in states))


async def test_a_sandbox_that_died_is_made_again_once_nothing_lives_in_it(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER), _container(_FOREVER, name="side"), policy="Always"))
        pod = await world.until("train", _are_all_running)
        for name in (sandbox.CONTAINER, "main", "side"):
            await world.engine.stop(spec.engine_name(pod, name, 0), grace_s=0)
        await world.until(
            "train", lambda pod: _are_all_running(pod) and pod.status.container_statuses[1].restart_count > 0
        )
        states = {state.name: state.phase for state in await world.engine.list_containers({})}
        assert states[spec.engine_name(pod, sandbox.CONTAINER, 0)] is ContainerPhase.RUNNING


async def test_a_failed_init_container_keeps_the_rest_from_starting(world: World) -> None:
    async with world.kubelet():
        inits = (_container(("false",), name="init"),)
        await world.run(_pod(_container(("true",), gpus=1), inits=inits))
        over = await world.until_phase("train", "Failed")
        assert over.status.reason == "InitContainerFailed"
        assert await world.free() == 3


# plugins that hang

_OTHER: Final = "vendor.example/fpga"


@pytest.mark.parametrize("call", ["GetPreferredAllocation", "Allocate"])
async def test_a_plugin_that_hangs_fails_its_own_pods_with_the_reason_and_holds_up_nobody_elses(
    world: World, call: str
) -> None:
    vendor = Plugin("f0", "f1", prefers=("f0",))
    vendor.hangs = frozenset({call})
    world.settings = dataclasses.replace(
        world.settings, kubelet=dataclasses.replace(world.settings.kubelet, plugin_timeout_s=1)
    )
    async with world.kubelet(), world.plug(vendor, _OTHER):
        for number in range(3):
            await world.run(_pod(_container(("true",), gpus=1, of=_OTHER), name=f"stuck{number}"))
        await world.run(_pod(_container(("true",), gpus=1), name="well"))
        await world.until_phase("well", "Succeeded")
        for number in range(3):
            stuck = await world.until_phase(f"stuck{number}", "Failed")
            assert f"the plugin of {_OTHER} did not answer" in stuck.status.message
        vendor.hangs = frozenset()
        await world.run(_pod(_container(("true",), gpus=2, of=_OTHER), name="later"))
        await world.until_phase("later", "Succeeded")


async def test_a_plugin_that_hangs_before_a_start_keeps_its_own_containers_waiting_with_the_reason(
    world: World,
) -> None:
    vendor = Plugin("f0", pre_start=True)
    vendor.hangs = frozenset({"PreStartContainer"})
    world.settings = dataclasses.replace(
        world.settings, kubelet=dataclasses.replace(world.settings.kubelet, plugin_timeout_s=0.3)
    )
    async with world.kubelet(), world.plug(vendor, _OTHER):
        await world.run(_pod(_container(("true",), gpus=1, of=_OTHER), name="stuck"))
        await world.run(_pod(_container(("true",), gpus=1), name="well"))
        await world.until_phase("well", "Succeeded")
        stuck = await world.until("stuck", lambda pod: "PluginTimeout" in _waiting(pod))
        assert stuck.status.phase == "Pending"
        vendor.hangs = frozenset()
        await world.until_phase("stuck", "Succeeded")


@pytest.mark.parametrize("call", ["GetDevicePluginOptions", "ListAndWatch"])
async def test_a_plugin_that_hangs_while_it_registers_holds_up_nobody(
    world: World, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "DIAL_S", 0.3)
    vendor = Plugin("f0")
    vendor.hangs = frozenset({call})
    folder = world.settings.kubelet_folder
    async with world.kubelet(), vendor.serve(folder / "vendor.sock"):
        address = deviceplugin.target(folder / deviceplugin.KUBELET_SOCKET)
        async with grpc.aio.insecure_channel(address, options=deviceplugin.CHANNEL_OPTIONS) as channel:
            registering = deviceplugin.RegistrationStub(channel).register(
                vendor.request("vendor.sock", resource=_OTHER), timeout_s=_PATIENCE_S
            )
            if call == "GetDevicePluginOptions":
                with pytest.raises(errors.Unavailable, match=f"the device plugin of {_OTHER} does not answer"):
                    await registering
            else:
                await registering
        await world.run(_pod(_container(("true",), gpus=1), name="well"))
        await world.until_phase("well", "Succeeded")


def _waiting(pod: core.Pod) -> list[str]:
    """Return why containers of the pod do not run."""
    states = (status.state for status in pod.status.container_statuses)
    return [state.waiting.reason for state in states if state.waiting is not None]


# after a crash


async def test_a_new_kubelet_adopts_what_runs_and_knows_who_holds_what(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=2)))
        await world.until_phase("train", "Running")
        before = await world.engine.list_containers({})
    async with world.kubelet():
        await world.run(_pod(_container(("true",), gpus=2), name="greedy"))
        await world.until_phase("greedy", "Failed")
        await world.run(_pod(_container(("env",), gpus=1), name="modest"))
        modest = await world.until_phase("modest", "Succeeded")
        assert b"DEVICES=g2\n" in await _output(world, spec.engine_name(modest, "main", 0))
        assert await world.engine.list_containers({names.POD_NAME: "train"}) == before
        assert (await world.store.get(core.Pod, "train", "default")).status.phase == "Running"


async def test_what_ended_while_nobody_looked_is_noticed_at_the_start(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=2)))
        await world.until_phase("train", "Running")
    (state,) = await world.engine.list_containers({})
    await world.engine.stop(state.name, grace_s=0)
    async with world.kubelet():
        over = await world.until_phase("train", "Failed")
        assert over.status.message == 'container "main" exited with 143'
        assert await world.free() == 3


async def test_containers_of_a_pod_that_is_no_longer_wanted_are_removed_and_those_of_others_are_not(
    world: World,
) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=2), _container(_FOREVER, name="side")))
        await world.until("train", _are_all_running)
    await world.store.delete(core.Pod, "train", "default", grace_s=0)
    labels = {names.HOME: "another", names.POD_UID: "uid-9", names.CONTAINER_NAME: "main"}
    await world.engine.create(ContainerSpec(name="foreign", image=_IMAGE, labels=labels))
    async with world.kubelet():
        await world.until_engine(lambda states: [state.name for state in states] == ["foreign"])
        await world.run(_pod(_container(("true",), gpus=3), name="after"))
        await world.until_phase("after", "Succeeded")


async def test_a_container_that_ends_before_the_pods_are_listed_is_not_taken_for_an_orphan(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(("echo", "kept"), gpus=1), name="done"))
        await world.until_phase("done", "Succeeded")
        await world.run(_pod(_container(_FOREVER, gpus=2)))
        running = await world.until_phase("train", "Running")
    name = spec.engine_name(running, "main", 0)
    world.store.gate.clear()
    async with world.kubelet():
        await world.engine.stop(name, grace_s=0)
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.sleep(3 * world.settings.kubelet.resync_s)
        world.store.gate.set()
        over = await world.until_phase("train", "Failed")
        assert over.status.message == 'container "main" exited with 143'
        assert name in {state.name for state in await world.engine.list_containers({})}


async def test_a_pod_with_another_name_keeps_its_containers(world: World) -> None:
    async with world.kubelet():
        pod = await world.run(_pod(_container(("echo", "kept"), gpus=1), name="old"))
        ended = await world.until_phase("old", "Succeeded")
        name = spec.engine_name(pod, "main", 0)
        renamed = await world.store.rename(ended, "new", lambda _seen: None)
        await world.run(_pod(_container(("true",), gpus=1), name="old"))  # its old name is free, its GPU too
        await world.until_phase("old", "Succeeded")
        assert await _output(world, name) == b"kept\n"
        assert (await world.store.get(core.Pod, "new", "default")).status == renamed.status
        await world.store.delete(core.Pod, "new", "default", grace_s=0)
        await world.until_engine(lambda states: name not in {state.name for state in states})


async def test_a_created_container_is_let_go_after_a_crash(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=1)))
        running = await world.until_phase("train", "Running")
    (state,) = await world.engine.list_containers({})
    await world.engine.remove(state.name)
    name = spec.engine_name(running, "main", 0)
    await world.engine.create(
        ContainerSpec(name=name, image=_IMAGE, command=("echo", "late"), labels=dict(state.labels))
    )
    async with world.kubelet():
        await world.until_phase("train", "Succeeded")
        assert await _output(world, name) == b"late\n"


class _Uninitialised(FakeEngine):
    """Podman after a kill between its database and the OCI runtime's create: containers without a process."""

    lost: str | None = None
    """The id of the one container that is listed so."""

    async def list_containers(self, labels: Mapping[str, str]) -> tuple[ContainerState, ...]:
        found = await super().list_containers(labels)
        return tuple(dataclasses.replace(state, pid=None) if state.id == self.lost else state for state in found)


async def test_a_container_without_a_process_is_made_anew_instead_of_started_unread(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.engine = engine = _Uninitialised()
    engine.add_image(_IMAGE, command=("true",))
    async with world:
        async with world.kubelet():
            pod = await world.run(_pod(_container(_FOREVER, gpus=1)))
            await world.until_phase("train", "Running")
        (state,) = await engine.list_containers({})
        await engine.remove(state.name)
        late = ContainerSpec(name=state.name, image=_IMAGE, command=("echo", "late"), labels=dict(state.labels))
        engine.lost = (await engine.create(late)).id
        async with world.kubelet():
            (found,) = await world.until_engine(lambda all_: [one.phase for one in all_] == [ContainerPhase.RUNNING])
        assert found.id != engine.lost
        assert "ContainerRemade" in await world.reasons(pod)
        assert await _output(world, state.name) == b""


async def test_a_damaged_checkpoint_is_rebuilt_from_the_containers_that_live(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_container(_FOREVER, gpus=2)))
        await world.until_phase("train", "Running")
    path = world.settings.state.folder / "kubelet" / checkpoint.NAME
    path.write_bytes(path.read_bytes()[:-9])
    async with world.kubelet():
        await world.run(_pod(_container(("env",), gpus=1), name="modest"))
        modest = await world.until_phase("modest", "Succeeded")
        assert b"DEVICES=g2\n" in await _output(world, spec.engine_name(modest, "main", 0))
    assert path.with_name(f"{checkpoint.NAME}.damaged-1").exists()


async def test_a_damaged_home_id_stops_the_start_because_it_would_match_every_container(world: World) -> None:
    folder = world.settings.state.folder / "kubelet"
    folder.mkdir(parents=True)
    (folder / "home-id").write_text("\n")
    with pytest.raises(errors.ProtocolError, match="home-id"):
        Kubelet(store=world.store, engine=world.engine, images=world.engine, settings=world.settings, node=_NODE)


async def test_a_container_without_a_pods_uid_is_left_alone_and_no_pods_folder_is_lost(world: World) -> None:
    volume = world.settings.state.folder / "pods" / "uid-1" / "volumes" / "data"
    volume.mkdir(parents=True)
    # A container of a database that was set aside.
    await world.engine.create(ContainerSpec(name="old", image=_IMAGE, labels={names.POD_UID: "uid-1"}))
    async with world.kubelet() as kubelet:
        home = (world.settings.state.folder / "kubelet" / "home-id").read_text().strip()
        assert kubelet
        await world.engine.create(ContainerSpec(name="odd", image=_IMAGE, labels={names.HOME: home}))
        await world.engine.start("odd")
        await world.run(_pod(_container(("true",), gpus=1)))
        await world.until_phase("train", "Succeeded")
        await asyncio.sleep(2 * world.settings.kubelet.resync_s)
        assert "odd" in {state.name for state in await world.engine.list_containers({})}
    assert volume.is_dir()


async def test_folders_of_pods_that_went_while_nobody_looked_go_with_the_start(world: World) -> None:
    left = world.settings.state.folder / "pods" / "uid-2" / "volumes" / "memory"
    left.mkdir(parents=True)
    if os.geteuid() == 0:
        tmpfs.mount(left, size_bytes=None)
    try:
        async with world.kubelet():
            async with asyncio.timeout(_PATIENCE_S):
                while left.parent.parent.exists():  # noqa: ASYNC110  (the folder has no event)
                    await asyncio.sleep(0.01)
        assert str(left) not in Path("/proc/self/mountinfo").read_text()
    finally:
        tmpfs.unmount(left)


# what nobody foresaw in one pod harms no other


class _Poisoned(FakeEngine):
    """An engine with a bug that one image brings out."""

    IMAGE: Final = "localhost/poison:1"

    async def create(self, spec: ContainerSpec) -> ContainerState:
        if spec.image == self.IMAGE:
            raise ValueError("embedded null byte")
        return await super().create(spec)


@pytest.fixture
async def poisoned(tmp_path: Path) -> AsyncIterator[World]:
    one = World(tmp_path)
    one.engine = _Poisoned()
    one.engine.add_image(_IMAGE, command=("true",))
    async with one:
        yield one


async def test_an_unknown_error_in_one_pod_marks_that_pod_and_the_others_run(poisoned: World) -> None:
    async with poisoned.kubelet():
        bad = await poisoned.run(_pod(_container(("env",), gpus=1, image=_Poisoned.IMAGE), name="poison"))
        marked = await poisoned.until("poison", lambda pod: pod.status.reason == "InternalError")
        assert "embedded null byte" in marked.status.message
        await poisoned.run(_pod(_container(("env",), gpus=2), name="good"))
        await poisoned.until_phase("good", "Succeeded")
        assert "InternalError" in await poisoned.reasons(bad)


async def test_a_pod_whose_error_is_over_runs_and_loses_its_mark(poisoned: World) -> None:
    async with poisoned.kubelet():
        await poisoned.run(_pod(_container(("env",), image=_Poisoned.IMAGE), name="poison"))
        await poisoned.until("poison", lambda pod: pod.status.reason == "InternalError")
        poisoned.engine.__class__ = FakeEngine
        poisoned.engine.add_image(_Poisoned.IMAGE, command=("true",))
        over = await poisoned.until_phase("poison", "Succeeded")
        assert over.status.reason == ""


async def test_a_deleted_pod_with_an_unknown_error_goes_and_frees_its_devices(poisoned: World) -> None:
    async with poisoned.kubelet():
        await poisoned.run(_pod(_container(("env",), gpus=1, image=_Poisoned.IMAGE), name="poison"))
        await poisoned.until("poison", lambda pod: pod.status.reason == "InternalError")
        await poisoned.store.delete(core.Pod, "poison", "default", grace_s=5)
        await poisoned.until_gone("poison")
        assert await poisoned.free() == 3


class _Holding(FakeEngine):
    """Podman's stop of a container that was created and never started: it succeeds and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_started = asyncio.Event()

    async def start(self, name: str) -> None:
        self.is_started.set()
        await asyncio.Event().wait()

    async def stop(self, name: str, *, grace_s: float) -> None:
        pass


async def test_a_delete_that_meets_a_container_never_started_frees_its_devices(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.engine = engine = _Holding()
    engine.add_image(_IMAGE, command=("true",))
    async with world:
        async with world.kubelet():
            await world.run(_pod(_container(_FOREVER, gpus=3)))
            async with asyncio.timeout(_PATIENCE_S):
                await engine.is_started.wait()
        # as a kill between create and start leaves it: the next kubelet meets a delete
        await world.store.delete(core.Pod, "train", "default", grace_s=5)
        async with world.kubelet():
            await world.until_gone("train")
            assert (await world.free(), await engine.list_containers({})) == (3, ())


class _Deaf(FakeEngine):
    """Containers that ignore SIGTERM; says which stop is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.graces: list[float] = []
        self.is_stopping = asyncio.Event()

    async def stop(self, name: str, *, grace_s: float) -> None:
        self.graces.append(grace_s)
        self.is_stopping.set()
        await super().stop(name, grace_s=grace_s)


async def test_a_shorter_grace_ends_a_stop_that_is_under_way_with_a_longer_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.engine = engine = _Deaf()
    engine.add_image(_IMAGE, command=("true",))
    engine.add_image(sandbox.IMAGE, command=_FOREVER)
    async with world, world.kubelet():
        await world.run(_pod(_container(("sleep", "600"), gpus=1), _container(("sleep", "600"), name="second")))
        await world.until_phase("train", "Running")
        await world.store.delete(core.Pod, "train", "default", grace_s=300)
        async with asyncio.timeout(_PATIENCE_S):
            await engine.is_stopping.wait()
        await world.store.delete(core.Pod, "train", "default", grace_s=1)
        await world.until_gone("train")
        assert engine.graces[:4] == [300.0, 300.0, 1.0, 1.0]


class _Leaving(_Deaf):
    """A stop that is given up on takes a moment to end, as a command of podman's does."""

    def __init__(self) -> None:
        super().__init__()
        self.is_leaving, self.may_leave = asyncio.Event(), asyncio.Event()

    async def stop(self, name: str, *, grace_s: float) -> None:
        try:
            await super().stop(name, grace_s=grace_s)
        except asyncio.CancelledError:
            self.is_leaving.set()
            await self.may_leave.wait()
            raise


async def test_a_stop_that_is_being_given_up_is_hurried_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.engine = engine = _Leaving()
    engine.add_image(_IMAGE, command=("true",))
    engine.add_image(sandbox.IMAGE, command=_FOREVER)
    async with world, world.kubelet():
        await world.run(_pod(_container(("sleep", "600"), gpus=1)))
        await world.until_phase("train", "Running")
        await world.store.delete(core.Pod, "train", "default", grace_s=300)
        async with asyncio.timeout(_PATIENCE_S):
            await engine.is_stopping.wait()
            await world.store.delete(core.Pod, "train", "default", grace_s=2)
            await engine.is_leaving.wait()
            await world.store.delete(core.Pod, "train", "default", grace_s=1)
            await asyncio.sleep(0.1)  # the kubelet hears of it
            engine.may_leave.set()
        await world.until_gone("train")
        assert engine.graces[:2] == [300.0, 1.0]


@pytest.mark.parametrize(("annotations", "is_told"), [({}, True), ({names.TENANT: "red"}, False)])
def test_a_port_that_is_taken_is_told_with_its_holder_and_not_to_tenants(
    annotations: dict[str, str], is_told: bool
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        container = {"name": "main", "ports": [{"containerPort": 80, "hostPort": port}]}
        body = {"metadata": {"name": "web", "annotations": annotations}, "spec": {"containers": [container]}}
        error = errors.Unavailable("address already in use", reason="PortTaken", hint="another port")
        told = runtime.with_listener(msgspec.convert(body, core.Pod), error)
    assert (f"port {port} is taken by process {os.getpid()} (" in told.message) == is_told
    assert (told.reason, told.hint) == ("PortTaken", "another port")


async def test_a_kubelet_keeps_the_claims_that_a_pods_status_names(world: World) -> None:
    pod = await world.run(_pod(_container(("true",))))
    made = core.PodResourceClaimStatus(name="gpus", resource_claim_name="train-gpus-x")
    status = msgspec.structs.replace(pod.status, resource_claim_statuses=(made,))
    await world.store.update_status(msgspec.structs.replace(pod, status=status))
    async with world.kubelet():
        over = await world.until_phase("train", "Succeeded")
        assert over.status.resource_claim_statuses == (made,)
