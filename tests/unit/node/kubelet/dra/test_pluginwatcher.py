"""Plugins are found by their sockets; what they say of themselves is checked before it is believed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.node.kubelet.dra import devicehealth, drivers, pluginwatcher, slicewipe
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import EVERYTHING, Listing, Selector, T
from fairlead.wire.kubelet import drahealth, draplugin, pluginregistration
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.resource.resourceslice import ResourcePool, ResourceSlice, ResourceSliceSpec
from tests.unit.node.kubelet.dra import claimworld
from tests.unit.node.kubelet.dra.claimworld import Node
from tests.unit.node.kubelet.dra.exampledriver import DRIVER, ExampleDriver


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as name:  # a socket's path has 107 bytes
        yield Path(name)


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


@pytest.fixture
def driver(node: Node) -> ExampleDriver:
    return ExampleDriver(node.store, node.folder / "cdi")


@contextlib.asynccontextmanager
async def watching(node: Node) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(node.watcher.run()), tasks.create_task(node.wipe.run())]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


def is_registered(node: Node, name: str = DRIVER) -> bool:
    try:
        node.drivers.find(name)
    except errors.Unavailable:
        return False
    return True


async def test_a_driver_is_registered_told_so_and_gone_with_its_socket(node: Node, driver: ExampleDriver) -> None:
    async with watching(node):
        async with driver.serve(node.registry):
            assert await driver.until_told() == ""
            await node.until(lambda: node.drivers.find(DRIVER).is_connected)
        await node.until(lambda: not is_registered(node))


async def test_a_driver_that_was_there_first_is_found_and_one_that_comes_back_is_registered_again(
    node: Node, driver: ExampleDriver
) -> None:
    async with driver.serve(node.registry), watching(node):
        assert await driver.until_told() == ""
    async with watching(node):
        async with driver.serve(node.registry):
            assert await driver.until_told() == ""
        async with driver.serve(node.registry):
            assert await driver.until_told() == ""
            await node.until(lambda: node.drivers.find(DRIVER).is_connected)


async def test_the_instance_that_registered_last_is_called_and_the_earlier_one_when_it_is_gone(
    node: Node, driver: ExampleDriver
) -> None:
    newer = ExampleDriver(node.store, node.folder / "cdi")
    claims = (draplugin.Claim(namespace="default", name="cpus", uid="u"),)
    driver.refuse = newer.refuse = "no"
    async with watching(node), driver.serve(node.registry, "-1"):
        await driver.until_told()
        async with newer.serve(node.registry, "-2"):
            await newer.until_told()
            await node.until(lambda: node.drivers.find(DRIVER).is_connected)
            await node.until(lambda: node.drivers.find(DRIVER).endpoint.name == "dra-2.sock")
            await node.drivers.prepare(DRIVER, claims)
        await node.until(lambda: node.drivers.find(DRIVER).endpoint.name == "dra-1.sock")
        await node.drivers.prepare(DRIVER, claims)
    assert (len(newer.calls), len(driver.calls)) == (1, 1)


async def test_a_plugin_that_answers_no_more_is_not_registered_any_more(node: Node, driver: ExampleDriver) -> None:
    async with watching(node), driver.serve(node.registry):
        await driver.until_told()
        driver.is_silent = True
        await node.until(lambda: not is_registered(node))
        driver.is_silent = False
        assert await driver.until_told() == ""


@pytest.mark.parametrize(
    ("bend", "why"),
    [
        (lambda one: setattr(one, "type", "CSIPlugin"), 'plugins of type "CSIPlugin" are not served'),
        (lambda one: setattr(one, "versions", ("v1alpha2.DRAPlugin",)), "none of the services"),
        (lambda one: setattr(one, "versions", ()), "none of the services"),
        (lambda one: setattr(one, "name", "Not_A_Name"), "is not the name of a DRA driver"),
        (lambda one: setattr(one, "name", "a" * 64), "is not the name of a DRA driver"),
        (lambda one: setattr(one, "endpoint", "dra.sock"), "is not an absolute path"),
        (lambda one: setattr(one, "endpoint", "/x/../etc/dra.sock"), "is not an absolute path"),
        (lambda one: setattr(one, "endpoint", "/a\x00b"), "is not an absolute path"),
        (lambda one: setattr(one, "endpoint", "/" + "a" * 200), "is not an absolute path"),
        (lambda one: setattr(one, "endpoint", "/etc/passwd"), "is not a socket"),
        (lambda one: setattr(one, "endpoint", "/not/there"), "cannot be looked at"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_plugin_that_cannot_be_served_is_told_why(
    node: Node, driver: ExampleDriver, bend: Callable[[ExampleDriver], None], why: str
) -> None:
    async with watching(node), driver.serve(node.registry):
        await driver.until_told()
        await node.until(lambda: is_registered(node))
        bend(driver)  # it says something else than before: registered anew
        assert why in await driver.until_told()
        assert not is_registered(node)
        assert not is_registered(node, driver.name)


async def test_what_is_no_plugins_socket_is_never_dialled(node: Node, driver: ExampleDriver) -> None:
    node.registry.mkdir(parents=True)
    (node.registry / "notes.txt").write_text("x")
    async with driver.serve(node.folder / "elsewhere"), watching(node):
        (node.registry / "link-reg.sock").symlink_to(node.folder / "elsewhere" / f"{DRIVER}-reg.sock")
        (node.folder / "elsewhere" / f"{DRIVER}-reg.sock").rename(node.registry / ".hidden-reg.sock")
        await asyncio.sleep(0.4)
        assert not driver.registrations


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a socket away")
@pytest.mark.parametrize("what", ["socket", "folder", "open folder", "endpoint"])
async def test_another_accounts_socket_is_refused(node: Node, driver: ExampleDriver, what: str) -> None:
    with capture_logs() as logs:
        async with driver.serve(node.registry):
            place = node.folder / "plugins" / DRIVER
            match what:
                case "socket":
                    os.chown(node.registry / f"{DRIVER}-reg.sock", 1000, 1000)
                case "folder":
                    os.chown(place, 1000, 1000)
                case "open folder":
                    place.chmod(0o777)
                case _:
                    os.chown(place / "dra.sock", 1000, 1000)
            async with watching(node):
                await node.until(lambda: any(one["event"] == "plugin not registered" for one in logs))
                assert not is_registered(node)
    (said,) = [one for one in logs if one["event"] == "plugin not registered"]
    assert said["reason"] == "SocketUntrusted"
    assert bool(driver.registrations) == (what != "socket")  # one of another account is not even asked


async def test_a_socket_that_nobody_serves_holds_no_other_plugin(node: Node, driver: ExampleDriver) -> None:
    node.registry.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(node.registry / "a-reg.sock"))
        deaf.listen()
        async with watching(node), driver.serve(node.registry):
            assert await driver.until_told() == ""


def published(name: str, driver: str) -> ResourceSlice:
    spec = ResourceSliceSpec(driver=driver, node_name=claimworld.NODE, pool=ResourcePool(name="p"))
    return ResourceSlice(metadata=meta.ObjectMeta(name=name), spec=spec)


async def test_slices_of_a_driver_go_a_while_after_it_and_not_before(folder: Path) -> None:
    node = Node(folder, MemoryStore(), delay_s=0.4)
    driver = ExampleDriver(node.store, folder / "cdi")
    async with watching(node):
        async with driver.serve(node.registry):
            await driver.until_told()
            await node.until(lambda: node.drivers.find(DRIVER).is_connected)
            await node.store.create(published("mine", DRIVER))
            await node.store.create(published("others", "net.example.com"))
        await node.until(lambda: not is_registered(node))
        async with driver.serve(node.registry, "-again"):
            await node.until(lambda: is_registered(node) and node.drivers.find(DRIVER).is_connected)
            await asyncio.sleep(0.6)
            assert len((await node.store.list(ResourceSlice)).items) == 2
        await asyncio.sleep(0.2)
        assert len((await node.store.list(ResourceSlice)).items) == 2
        await asyncio.sleep(0.8)
        assert [one.metadata.name for one in (await node.store.list(ResourceSlice)).items] == ["others"]


async def test_a_wipe_goes_on_once_the_store_answers(folder: Path) -> None:
    class Away(MemoryStore):
        is_away = True

        async def list(self, kind: type[T], selector: Selector = EVERYTHING) -> Listing[T]:
            if self.is_away:
                raise errors.Unavailable("the store is away", reason="StoreAway")
            return await super().list(kind, selector)

    store = Away()
    await store.create(published("mine", DRIVER))
    wipe = slicewipe.SliceWipe(store, claimworld.NODE)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(wipe.run())
        await asyncio.sleep(0.05)
        store.is_away = False
        async with asyncio.timeout(10):
            while (await MemoryStore.list(store, ResourceSlice)).items:  # noqa: ASYNC110 - a store, not an event
                await asyncio.sleep(0.05)
        task.cancel()


# health


def report(
    health: drahealth.Health, *, device: str = "d", timeout_s: int = 0, message: str = ""
) -> drahealth.DeviceHealth:
    return drahealth.DeviceHealth(
        pool="p", device=device, health=health, updated_at=0, timeout_s=timeout_s, message=message
    )


def test_a_report_counts_until_it_is_stale_and_says_so_once() -> None:
    now = 0.0
    health = devicehealth.DeviceHealth(lambda: now)
    source = (DRIVER, "/a")
    assert health.take(source, [report(drahealth.Health.HEALTHY), report(drahealth.Health.UNHEALTHY, device="e")]) == (
        True,
        0,
    )
    assert health.take(source, [report(drahealth.Health.UNHEALTHY, timeout_s=90, device="e")]) == (False, 0)
    now = 29.0
    assert health.find(DRIVER, "p", "d").health is drahealth.Health.HEALTHY
    assert not health.has_expired()
    now = 31.0
    assert health.find(DRIVER, "p", "d").health is drahealth.Health.UNKNOWN
    assert health.find(DRIVER, "p", "e").health is drahealth.Health.UNHEALTHY
    assert (health.has_expired(), health.has_expired()) == (True, False)


def test_of_two_instances_the_newest_word_counts_and_one_that_ends_takes_its_own_along() -> None:
    now = 0.0
    health = devicehealth.DeviceHealth(lambda: now)
    health.take((DRIVER, "/old"), [report(drahealth.Health.HEALTHY)])
    now = 1.0
    health.take((DRIVER, "/new"), [report(drahealth.Health.UNHEALTHY)])
    assert health.find(DRIVER, "p", "d").health is drahealth.Health.UNHEALTHY
    health.drop((DRIVER, "/new"))
    assert health.find(DRIVER, "p", "d").health is drahealth.Health.HEALTHY
    assert health.find("net.example.com", "p", "d").health is drahealth.Health.UNKNOWN


def test_reports_without_end_and_words_without_end_are_bounded() -> None:
    health = devicehealth.DeviceHealth(lambda: 0.0)
    many = [report(drahealth.Health.HEALTHY, device=f"d{number}") for number in range(devicehealth.MOST_DEVICES + 7)]
    assert health.take((DRIVER, "/a"), many) == (True, 7)
    assert health.take((DRIVER, "/a"), [report(drahealth.Health.HEALTHY, device="x" * 600)]) == (False, 1)
    health.take((DRIVER, "/a"), [report(drahealth.Health.UNHEALTHY, device="d1", message="\x1b[2J\x00é" * 2000)])
    said = health.find(DRIVER, "p", "d1").message
    assert said.isprintable()
    assert len(said.encode()) <= drahealth.MOST_MESSAGE


async def test_a_driver_that_lists_no_health_service_has_no_stream(node: Node, driver: ExampleDriver) -> None:
    driver.versions = (draplugin.V1BETA1,)
    async with watching(node), driver.serve(node.registry):
        await driver.until_told()
        assert node.drivers.find(DRIVER).health_version is None


async def test_a_driver_that_lists_a_health_service_and_has_none_is_asked_once(
    node: Node, driver: ExampleDriver
) -> None:
    driver.serves_health = False
    with capture_logs() as logs:
        async with watching(node), driver.serve(node.registry):
            await driver.until_told()
            await node.until(lambda: any(one["event"] == "driver has no health stream" for one in logs))
            assert is_registered(node)
    assert not any(one["event"] == "health stream broken" for one in logs)


async def test_a_health_stream_that_breaks_leaves_its_devices_unknown_and_is_opened_again(
    node: Node, driver: ExampleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "_HEALTH_AGAIN_S", 0.05)

    def is_now(health: drahealth.Health) -> bool:
        return node.health.find(DRIVER, "p", "d").health is health

    async with watching(node), driver.serve(node.registry):
        await driver.reports.put((report(drahealth.Health.HEALTHY),))
        await node.until(lambda: is_now(drahealth.Health.HEALTHY))
        await driver.reports.put(None)  # ends the stream
        await node.until(lambda: is_now(drahealth.Health.UNKNOWN))
        await driver.reports.put((report(drahealth.Health.UNHEALTHY),))
        await node.until(lambda: is_now(drahealth.Health.UNHEALTHY))


def test_the_info_of_a_plugin_without_an_endpoint_means_its_own_socket(folder: Path) -> None:
    path = folder / "x-reg.sock"
    with socket.socket(socket.AF_UNIX) as mine:
        mine.bind(str(path))
        info = pluginregistration.Info(type="DRAPlugin", name=DRIVER, endpoint="", versions=(draplugin.V1,))
        assert pluginwatcher.check(info, path) == path
