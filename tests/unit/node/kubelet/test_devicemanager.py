"""The device manager against real plugins on real sockets: registration, choice, world, and plugins that go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fairlead import errors
from fairlead.node.kubelet.devices import devicemanager, registration
from fairlead.node.kubelet.devices.checkpoint import NAME, Checkpoint, Grant
from fairlead.node.kubelet.devices.devicemanager import Choice, DeviceManager, device_requests
from fairlead.node.kubelet.devices.endpoint import Endpoint
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.unit.node.kubelet.fakeplugin import RESOURCE, Plugin

_SOCKETS = itertools.count()


class World:
    """A device manager with its registration socket, as the kubelet runs it."""

    def __init__(self, folder: Path, *, grace_s: float = 60.0, **more: Any) -> None:
        self.state, self.sockets = folder / "state", folder / "sockets"
        self.state.mkdir(exist_ok=True)
        self._changed = asyncio.Event()
        self.manager = DeviceManager(Checkpoint(self.state), grace_s=grace_s, changed=self._changed.set, **more)
        self.choices: dict[str, Choice] = {}

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; it is looked at after every change of capacity."""
        async with asyncio.timeout(50):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def until_capacity(self, total: int, healthy: int, resource: str = RESOURCE) -> None:
        await self.until(lambda: self.manager.capacity().get(resource) == (total, healthy))

    async def until_displaced_end(self) -> None:
        """Wait until the manager has seen the end of every displaced plugin, which changes no capacity."""
        async with asyncio.timeout(50):
            while True:
                if not self.manager._displaced[RESOURCE]:
                    return
                await asyncio.sleep(0.01)

    async def register(self, request: pb.RegisterRequest) -> None:
        """Register as a plugin does, over kubelet.sock."""
        address = deviceplugin.target(self.sockets / deviceplugin.KUBELET_SOCKET)
        async with grpc.aio.insecure_channel(address, options=deviceplugin.CHANNEL_OPTIONS) as channel:
            await deviceplugin.RegistrationStub(channel).register(request, timeout_s=50)

    @contextlib.asynccontextmanager
    async def plugged(self, plugin: Plugin, resource: str = RESOURCE) -> AsyncIterator[None]:
        """Serve a plugin and register it; returns once its list has arrived."""
        name = f"p{next(_SOCKETS)}.sock"
        async with plugin.serve(self.sockets / name):
            await self.register(plugin.request(name, resource=resource))
            await self.until_capacity(len(plugin.devices), sum(plugin.devices.values()), resource)
            yield

    async def allocate(self, pod: core.Pod) -> dict[str, tuple[str, ...]]:
        """Allocate; returns device ids by container."""

        async def record(container: str, choice: Choice) -> None:
            self.choices[container] = choice

        return {grant.container: grant.device_ids for grant in await self.manager.allocate(pod, record)}


@contextlib.asynccontextmanager
async def _world(folder: Path, **more: Any) -> AsyncIterator[World]:
    world = World(folder, **more)
    assert world.manager.load() is True
    async with registration.serve_registration(world.manager, world.sockets), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.manager.run())
        yield world
        task.cancel()


def _container(name: str, count: int | str | float, resource: str = RESOURCE) -> core.Container:
    return core.Container(name=name, resources=core.ResourceRequirements(limits={resource: count}))


def _pod(count: int | str | float = 1, *, uid: str = "uid-1", inits: tuple[int, ...] = (), mains: int = 1) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name="train", uid=uid),
        spec=core.PodSpec(
            containers=tuple(_container(f"main{number}", count) for number in range(mains)),
            init_containers=tuple(_container(f"init{number}", asked) for number, asked in enumerate(inits)),
        ),
    )


# registration


async def test_a_plugin_is_dialled_back_and_its_list_becomes_capacity(tmp_path: Path) -> None:
    async with _world(tmp_path) as world, world.plugged(Plugin("g0", "g1")):
        assert world.manager.capacity() == {RESOURCE: (2, 2)}
        assert world.manager.is_registered(RESOURCE)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": "v1alpha1"}, r'version "v1alpha1" is not offered \(offered: v1beta1\)'),
        ({"resource_name": "gpu"}, 'invalid name of device plugin resource "gpu"'),
        ({"resource_name": "example.com/"}, 'invalid name of device plugin resource "example.com/"'),
        ({"resource_name": "kubernetes.io/gpu"}, 'invalid name of device plugin resource "kubernetes.io/gpu"'),
        ({"endpoint": "../elsewhere.sock"}, "is not the name of a file"),
        ({"endpoint": "/run/elsewhere.sock"}, "is not the name of a file"),
        ({"endpoint": ""}, "is not the name of a file"),
    ],
)
async def test_a_wrong_version_name_or_endpoint_is_refused_with_what_is_wrong(
    tmp_path: Path, changes: dict[str, str], problem: str
) -> None:
    async with _world(tmp_path) as world:
        request = Plugin("g0").request("p.sock")
        for field, value in changes.items():
            setattr(request, field, value)
        with pytest.raises(errors.RequestError, match=problem):
            await world.register(request)
        assert world.manager.capacity() == {}


@pytest.mark.slow
async def test_a_plugin_that_cannot_be_dialled_is_refused_after_ten_seconds(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        with pytest.raises(errors.Unavailable, match="does not answer"):
            await world.manager.register(Plugin("g0").request("absent.sock"), world.sockets)


async def test_a_start_removes_old_sockets_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    (folder / "kubelet_internal_checkpoint").write_text("kept")
    async with Plugin("g0").serve(folder / "old.sock"), _world(tmp_path):
        assert sorted(path.name for path in folder.iterdir()) == ["kubelet.sock", "kubelet_internal_checkpoint"]
        assert (folder / "kubelet.sock").stat().st_mode & 0o777 == 0o600
    assert not (folder / "kubelet.sock").exists()


async def test_every_list_replaces_the_last(tmp_path: Path) -> None:
    plugin = Plugin("g0", "g1", "g2")
    async with _world(tmp_path) as world, world.plugged(plugin):
        await plugin.change({"g0": True, "g1": False})
        await world.until_capacity(2, 1)
        await plugin.change({})
        await world.until_capacity(0, 0)
        assert world.manager.is_registered(RESOURCE)


async def test_a_plugin_counts_as_registered_only_once_its_own_list_has_come(tmp_path: Path) -> None:
    async with _world(tmp_path) as world, world.plugged(Plugin("g0")):
        silent = Plugin("g0")
        silent.lists = False
        async with silent.serve(world.sockets / "silent.sock"):
            await world.register(silent.request("silent.sock"))
            await _turns()
            assert world.manager.capacity() == {RESOURCE: (1, 0)}
            assert not world.manager.is_registered(RESOURCE)


async def test_a_plugin_that_has_come_back_and_not_yet_listed_is_away_since_it_came(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        async with world.plugged(Plugin("g0")):
            assert world.manager.away_since(RESOURCE) == 0
        await world.until_capacity(1, 0)
        gone_at = world.manager.away_since(RESOURCE)
        silent = Plugin("g0")
        silent.lists = False
        async with silent.serve(world.sockets / "silent.sock"):
            await world.register(silent.request("silent.sock"))
            await _turns()
            assert world.manager.away_since(RESOURCE) > gone_at > 0


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# plugins that go


async def test_a_plugin_that_goes_leaves_its_devices_unhealthy_at_once(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        async with world.plugged(Plugin("g0", "g1")):
            pass
        await world.until_capacity(2, 0)
        assert not world.manager.is_registered(RESOURCE)
        with pytest.raises(errors.Insufficient):
            await world.allocate(_pod())


async def test_a_vanished_plugins_capacity_is_dropped_after_the_grace(tmp_path: Path) -> None:
    async with _world(tmp_path, grace_s=0.1) as world:
        async with world.plugged(Plugin("g0")):
            pass
        await world.until(lambda: world.manager.capacity() == {})


async def test_a_plugin_that_comes_back_in_time_keeps_its_capacity(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        async with world.plugged(Plugin("g0")):
            held = await world.allocate(_pod())
        async with world.plugged(Plugin("g0")):
            assert world.manager.capacity() == {RESOURCE: (1, 1)}
            assert held == {"main0": ("g0",)}
            with pytest.raises(errors.Insufficient):
                await world.allocate(_pod(uid="uid-2"))


async def test_the_newest_plugin_of_a_resource_is_the_one_in_use(tmp_path: Path) -> None:
    old, new = Plugin("old"), Plugin("new0", "new1")
    async with _world(tmp_path) as world, world.plugged(old), world.plugged(new):
        await old.change({"old": True, "older": True})
        assert await world.allocate(_pod()) == {"main0": ("new0",)}
        assert old.asked == []


async def test_a_displaced_plugin_that_lives_serves_again_when_the_newer_one_ends(tmp_path: Path) -> None:
    old, new = Plugin("g0", "g1"), Plugin("g0", "g1", "g2")
    async with _world(tmp_path) as world, world.plugged(old):
        async with world.plugged(new):
            assert await world.allocate(_pod()) == {"main0": ("g0",)}
        await world.until_capacity(2, 2)
        assert world.manager.is_registered(RESOURCE)
        assert await world.allocate(_pod(uid="uid-2")) == {"main0": ("g1",)}
        await old.change({"g0": True, "g1": False})
        await world.until_capacity(2, 1)


async def test_a_displaced_plugin_that_ended_first_is_not_fallen_back_to(tmp_path: Path) -> None:
    old, new = Plugin("old"), Plugin("new0", "new1")
    async with _world(tmp_path) as world:
        async with contextlib.AsyncExitStack() as newer:
            async with world.plugged(old):
                await newer.enter_async_context(world.plugged(new))
            assert world.manager.capacity() == {RESOURCE: (2, 2)}
            await world.until_displaced_end()
        await world.until_capacity(2, 0)


async def test_the_newest_of_several_displaced_plugins_serves_again(tmp_path: Path) -> None:
    first, second, third = Plugin("a"), Plugin("b0", "b1"), Plugin("c0", "c1", "c2")
    async with _world(tmp_path) as world, world.plugged(first):
        async with world.plugged(second):
            async with world.plugged(third):
                pass
            await world.until_capacity(2, 2)
        await world.until_capacity(1, 1)


async def test_a_plugin_that_registers_again_is_not_its_own_predecessor(tmp_path: Path) -> None:
    plugin = Plugin("g0")
    async with _world(tmp_path) as world:
        async with world.plugged(plugin):
            (socket,) = (path.name for path in world.sockets.iterdir() if path.name != deviceplugin.KUBELET_SOCKET)
            for _ in range(3):
                await world.register(plugin.request(socket))
            await plugin.change({"g0": True, "g1": True})
            await world.until_capacity(2, 2)
            assert world.manager._displaced[RESOURCE] == []
        await world.until_capacity(2, 0)


async def test_whose_list_counts_is_told_whenever_it_changes(tmp_path: Path) -> None:
    told: list[tuple[str, tuple[str, ...]]] = []

    def listed(resource: str, devices: Mapping[str, bool], socket: Path) -> None:
        told.append((resource, tuple(devices)))

    async with _world(tmp_path, listed=listed) as world, world.plugged(Plugin("a")):
        async with world.plugged(Plugin("b")):
            assert told == [(RESOURCE, ("a",)), (RESOURCE, ("b",))]
        await world.until(lambda: told[2:] == [(RESOURCE, ("a",))])


async def test_a_plugin_whose_list_cannot_be_read_is_gone_and_takes_nobody_along(tmp_path: Path) -> None:
    plugin, other = Plugin("g0"), Plugin("h0")
    async with _world(tmp_path) as world, world.plugged(plugin), world.plugged(other, "example.com/other"):
        plugin.garbles = frozenset({"ListAndWatch"})
        await plugin.change({"g0": True, "g1": True})
        await world.until_capacity(1, 0)
        assert not world.manager.is_registered(RESOURCE)
        await other.change({"h0": True, "h1": True})
        await world.until_capacity(2, 2, "example.com/other")


# choosing


async def test_devices_are_given_out_in_advertised_order_and_once(tmp_path: Path) -> None:
    async with _world(tmp_path) as world, world.plugged(Plugin("g2", "g0", "g1")):
        assert await world.allocate(_pod(2)) == {"main0": ("g2", "g0")}
        assert await world.allocate(_pod(uid="uid-2")) == {"main0": ("g1",)}


async def test_of_a_preference_only_what_is_free_and_healthy_counts(tmp_path: Path) -> None:
    plugin = Plugin("g0", "g1", "g2", "g3", prefers=("g3", "g9", "g2", "g1"))
    async with _world(tmp_path) as world, world.plugged(plugin):
        await world.allocate(_pod(uid="uid-0"))
        await plugin.change({"g0": True, "g1": True, "g2": False, "g3": True})
        await world.until_capacity(4, 3)
        assert await world.allocate(_pod(2)) == {"main0": ("g1", "g0")}
        asked = plugin.preferences[-1]
        assert (list(asked.available_deviceIDs), asked.allocation_size) == (["g0", "g1"], 2)
        assert world.choices["main0"].preferred == ("g3", "g9", "g2", "g1")


async def test_too_few_free_devices_are_refused_in_the_kubelets_words(tmp_path: Path) -> None:
    plugin = Plugin("g0", "g1")
    async with _world(tmp_path) as world, world.plugged(plugin):
        with pytest.raises(errors.Insufficient) as caught:
            await world.allocate(_pod(3))
        assert caught.value.message == (
            f"Allocate failed due to requested number of devices unavailable for {RESOURCE}. "
            "Requested: 3, Available: 2, which is unexpected"
        )
        assert caught.value.reason == "UnexpectedAdmissionError"
        assert (plugin.asked, world.manager.holders()) == ([], frozenset())


async def test_a_resource_nobody_registered_is_refused_the_same_way(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        with pytest.raises(errors.Insufficient, match="Requested: 1, Available: 0"):
            await world.allocate(_pod())


async def test_pods_that_come_together_never_share_a_device(tmp_path: Path) -> None:
    plugin = Plugin(*(f"g{number}" for number in range(8)))
    plugin.hold.clear()
    async with _world(tmp_path) as world, world.plugged(plugin), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(world.allocate(_pod(2, uid=f"uid-{number}"))) for number in range(4)]
        await _turns()
        plugin.hold.set()
        given = [name for task in running for name in (await task)["main0"]]
        assert sorted(given) == sorted(plugin.devices)


async def test_init_containers_devices_are_used_again_by_those_after_them(tmp_path: Path) -> None:
    plugin = Plugin("g0", "g1", "g2", prefers=("g2",))
    async with _world(tmp_path) as world, world.plugged(plugin):
        held = await world.allocate(_pod(1, inits=(2, 1), mains=2))
        assert held["init0"] == ("g2", "g0")
        assert set(held["init1"]) <= set(held["init0"])
        assert set(held["main0"]) | set(held["main1"]) == {"g2", "g0"}
        assert list(plugin.preferences[-1].must_include_deviceIDs) == list(held["main1"])
        assert await world.allocate(_pod(uid="uid-2")) == {"main0": ("g1",)}


@pytest.mark.parametrize("count", ["2", 2, 2.0, "2.0", "2e0", "2000m"])
def test_a_whole_number_of_devices_may_be_written_as_any_quantity(count: str | float) -> None:
    assert device_requests(core.Pod(), _container("main", count)) == ((RESOURCE, 2),)


def test_only_extended_resources_of_a_positive_number_are_devices() -> None:
    limits: dict[str, str | int | float] = {"cpu": "1", RESOURCE: 0, "b.com/x": 1, "a.com/x": "3"}
    item = core.Container(name="main", resources=core.ResourceRequirements(limits=limits))
    assert device_requests(core.Pod(), item) == (("a.com/x", 3), ("b.com/x", 1))


def test_what_a_claim_meets_is_asked_of_no_plugin() -> None:
    mapped = core.ContainerExtendedResourceRequest(container_name="main", resource_name="b.com/x", request_name="r")
    told = core.PodExtendedResourceClaimStatus(request_mappings=(mapped,), resource_claim_name="made")
    pod = core.Pod(status=core.PodStatus(extended_resource_claim_status=told))
    limits: dict[str, str | int | float] = {"b.com/x": 1, "a.com/x": "3"}
    wanted = core.ResourceRequirements(limits=limits)
    assert device_requests(pod, core.Container(name="main", resources=wanted)) == (("a.com/x", 3),)
    assert device_requests(pod, core.Container(name="other", resources=wanted)) == (("a.com/x", 3), ("b.com/x", 1))


# the plugin's answer


async def test_a_plugin_that_refuses_leaves_the_devices_free(tmp_path: Path) -> None:
    plugin = Plugin("g0")
    async with _world(tmp_path) as world, world.plugged(plugin):
        plugin.refuses = errors.DeviceFault("g0 has fallen off the bus", reason="GPULost")
        with pytest.raises(errors.DeviceFault, match="fallen off the bus"):
            await world.allocate(_pod())
        plugin.refuses = None
        assert await world.allocate(_pod(uid="uid-2")) == {"main0": ("g0",)}


async def test_a_plugin_that_dies_while_it_is_asked_leaves_the_devices_free(tmp_path: Path) -> None:
    plugin = Plugin("g0")
    plugin.hold.clear()
    async with _world(tmp_path) as world, asyncio.TaskGroup() as tasks:
        async with world.plugged(plugin):
            asking = tasks.create_task(_caught(world.allocate(_pod())))
            async with asyncio.timeout(50):
                await plugin.was_asked.wait()
        assert (_reason(await asking), world.manager.holders()) == ("PluginUnreachable", frozenset())


@pytest.mark.parametrize("prefers", [(), ("g0",)], ids=["allocate", "preference"])
async def test_a_stream_that_ends_while_a_call_is_in_flight_ends_the_call_and_says_so(
    tmp_path: Path, prefers: tuple[str, ...]
) -> None:
    plugin = Plugin("g0", prefers=prefers)
    plugin.hold.clear()
    async with _world(tmp_path) as world, asyncio.TaskGroup() as tasks, world.plugged(plugin):
        asking = tasks.create_task(_caught(world.allocate(_pod())))
        async with asyncio.timeout(60):
            await (plugin.was_consulted if prefers else plugin.was_asked).wait()
            await plugin.hang_up()
            assert (_reason(await asking), world.manager.holders()) == ("PluginUnreachable", frozenset())


@pytest.mark.parametrize(("is_deaf", "reason"), [(True, "PluginUnreachable"), (False, "Internal")])
async def test_whether_a_plugin_refused_or_died_does_not_hang_on_the_transports_word(
    tmp_path: Path, is_deaf: bool, reason: str
) -> None:
    """A call cut in flight may end as INTERNAL, and before the stream's end is seen."""
    plugin = Plugin("g0")
    plugin.refuses = errors.ProtocolError("stream cut", reason="Internal")
    async with _world(tmp_path) as world, world.plugged(plugin):
        plugin.is_deaf = is_deaf
        assert _reason(await _caught(world.allocate(_pod()))) == reason


def _reason(error: errors.FairleadError | None) -> str:
    return error.reason if error is not None else "none"


async def _caught(call: Any) -> errors.FairleadError | None:
    try:
        await call
    except errors.FairleadError as error:
        return error
    return None


async def test_an_answer_that_cannot_be_read_is_refused_and_the_plugin_serves_on(tmp_path: Path) -> None:
    plugin = Plugin("g0")
    async with _world(tmp_path) as world, world.plugged(plugin):
        plugin.garbles = frozenset({"Allocate"})
        with pytest.raises(errors.ProtocolError, match="Allocate was answered with 1 bytes that are no AllocateResp"):
            await world.allocate(_pod())
        plugin.garbles = frozenset()
        assert await world.allocate(_pod(uid="uid-2")) == {"main0": ("g0",)}


async def test_an_answer_for_another_number_of_containers_is_refused(tmp_path: Path) -> None:
    plugin = Plugin("g0")
    plugin.answers_for = 2
    async with _world(tmp_path) as world, world.plugged(plugin):
        with pytest.raises(errors.ProtocolError, match="answered for 2 containers, not 1"):
            await world.allocate(_pod())


async def test_what_a_container_holds_is_kept_and_its_plugin_not_asked_twice(tmp_path: Path) -> None:
    plugin = Plugin("g0", "g1")
    async with _world(tmp_path) as world, world.plugged(plugin):
        first = await world.allocate(_pod())
        assert await world.allocate(_pod()) == first
        assert plugin.asked == [("g0",)]


async def test_plugins_that_ask_for_it_act_before_a_container_starts(tmp_path: Path) -> None:
    asks, does_not = Plugin("g0", pre_start=True), Plugin("n0")
    async with _world(tmp_path) as world, world.plugged(asks), world.plugged(does_not, "example.com/nic"):
        limits: dict[str, str | int | float] = {RESOURCE: 1, "example.com/nic": 1}
        item = core.Container(name="main0", resources=core.ResourceRequirements(limits=limits))
        await world.allocate(core.Pod(metadata=meta.ObjectMeta(uid="uid-1"), spec=core.PodSpec(containers=(item,))))
        await world.manager.pre_start(world.manager.held("uid-1"))
        assert (asks.pre_started, does_not.pre_started) == ([("g0",)], [])


async def test_a_plugin_that_is_to_act_before_a_start_and_is_gone_is_missed_after_a_restart_too(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        async with world.plugged(Plugin("g0", pre_start=True)):
            await world.allocate(_pod())
        await world.until_capacity(1, 0)
        grants = world.manager.held("uid-1")
        assert _reason(await _caught(world.manager.pre_start(grants))) == "PluginUnreachable"
    async with _world(tmp_path) as world:
        assert world.manager.held("uid-1") == grants
        assert _reason(await _caught(world.manager.pre_start(grants))) == "PluginUnreachable"


# the world


async def test_freed_devices_are_free_and_freeing_twice_is_nothing(tmp_path: Path) -> None:
    async with _world(tmp_path) as world, world.plugged(Plugin("g0")):
        await world.allocate(_pod())
        assert await world.manager.free("uid-1")
        assert not await world.manager.free("uid-1")
        assert await world.allocate(_pod(uid="uid-2")) == {"main0": ("g0",)}


async def test_the_checkpoint_survives_a_new_manager_answers_included(tmp_path: Path) -> None:
    plugin = Plugin("g0", "g1")
    async with _world(tmp_path) as world, world.plugged(plugin):
        await world.allocate(_pod())
        before = world.manager.held("uid-1")
    async with _world(tmp_path) as world:
        assert world.manager.held("uid-1") == before
        assert pb.ContainerAllocateResponse.FromString(before[0].response).envs["DEVICES"] == "g0"
        async with world.plugged(plugin):
            assert await world.allocate(_pod(uid="uid-2")) == {"main0": ("g1",)}
            assert await world.allocate(_pod()) == {"main0": ("g0",)}
    assert plugin.asked == [("g0",), ("g1",)]


async def test_a_damaged_checkpoint_is_kept_and_made_anew_from_what_containers_say(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / NAME).write_text("{")
    world, plugin = World(tmp_path), Plugin("g0", "g1")
    assert world.manager.load() is False
    held = Grant(pod_uid="uid-1", container="main0", resource=RESOURCE, device_ids=("g1",), response=b"")
    world.manager.restore((held,))
    async with _world(tmp_path) as again, again.plugged(plugin):
        assert await again.allocate(_pod(uid="uid-2")) == {"main0": ("g0",)}
        assert await again.allocate(_pod()) == {"main0": ("g1",)}
        assert again.manager.held("uid-1")[0].response
    assert plugin.asked == [("g0",), ("g1",)]


async def test_a_checkpoint_from_a_newer_version_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / NAME).write_text('{"version": 9}')
    with pytest.raises(errors.Unavailable) as caught:
        World(tmp_path).manager.load()
    assert caught.value.reason == "StateFromNewerVersion"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder whose state is on a file system of 16 KiB."""
    folder = tmp_path / "state"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", str(folder)], check=True)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))


async def test_a_full_disk_refuses_the_allocation_and_changes_no_record(tiny_disk: Path) -> None:
    async with _world(tiny_disk) as world, world.plugged(Plugin("g0", "g1")):
        await world.allocate(_pod())
        _fill(tiny_disk / "state" / "filler")
        with pytest.raises(errors.Unavailable) as caught:
            await world.allocate(_pod(uid="uid-2"))
        assert caught.value.reason == "StateWriteFailed"
        with pytest.raises(errors.Unavailable):
            await world.manager.free("uid-1")
        assert world.manager.holders() == {"uid-1"}
        (tiny_disk / "state" / "filler").unlink()
        assert await world.allocate(_pod(uid="uid-2")) == {"main0": ("g1",)}


async def test_a_registration_that_is_given_up_while_it_waits_leaves_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devicemanager, "_MOST_NEW", 1)
    dialed = list[Endpoint]()
    dial = Endpoint.dial

    async def noted(*words: Any, **options: Any) -> Endpoint:
        dialed.append(await dial(*words, **options))
        return dialed[-1]

    monkeypatch.setattr(Endpoint, "dial", noted)
    world, plugin = World(tmp_path), Plugin("a")
    world.sockets.mkdir()
    async with plugin.serve(world.sockets / "p.sock"):
        await world.manager.register(plugin.request("p.sock"), world.sockets)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(world.manager.register(plugin.request("p.sock"), world.sockets))
            while len(dialed) < 2:  # noqa: ASYNC110  (the dial has no event)
                await asyncio.sleep(0.01)
            waiting.cancel()
        states = [one.channel.get_state() for one in dialed]
        await dialed[0].channel.close()
    assert states[0] is not grpc.ChannelConnectivity.SHUTDOWN
    assert states[1] is grpc.ChannelConnectivity.SHUTDOWN
