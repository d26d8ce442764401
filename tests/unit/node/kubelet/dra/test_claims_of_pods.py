"""Pods with claims on the embedded kubelet: a driver over real sockets prepares their devices and takes them back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.node.kubelet.dra import claimrecord, podclaims
from fairlead.plan.pod import podstate
from fairlead.store import retry
from fairlead.wire.kubelet import drahealth, podresources
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourcePool, ResourceSlice, ResourceSliceSpec
from tests.unit.node.kubelet.dra import claimworld
from tests.unit.node.kubelet.dra.exampledriver import DRIVER, ExampleDriver
from tests.unit.node.kubelet.test_kubelet import World

_FOREVER = ("sh", "-c", 'trap "exit 143" TERM; sleep 600')


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:  # a socket's path has 107 bytes
        async with World(Path(folder)) as one:
            yield one


@pytest.fixture
def driver(world: World) -> ExampleDriver:
    return ExampleDriver(world.store, world.settings.node.cdi_folder)


async def run(
    world: World,
    *claims: str,
    name: str = "train",
    forever: bool = False,
    requests: tuple[str, ...] = (),
    found: list[dict[str, Any]] | None = None,
) -> core.Pod:
    """Run a pod as a scheduler does: its claims are allocated and reserved for it before it has a node."""
    pod = claimworld.claiming(*claims, name=name, requests=requests)
    item = msgspec.structs.replace(pod.spec.containers[0], command=_FOREVER if forever else ("env",))
    pod = await world.store.create(
        msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=(item,), node_name=""))
    )
    for claim in claims:
        try:
            await claimworld.reserve(world.store, claim, pod)
        except errors.NotFound:
            made = await claimworld.add_claim(world.store, claim, pod, found=found)
            for device in ("cpu-0", "cpu-1"):
                world.engine.devices.add(f"{DRIVER}/claim={made.metadata.uid}-{device}")
    return await bind(world, name)


async def bind(world: World, name: str) -> core.Pod:
    def bound(pod: core.Pod) -> core.Pod:
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="here"))

    return await retry.change(world.store, core.Pod, name, bound, namespace="default")


@contextlib.asynccontextmanager
async def machine(world: World, driver: ExampleDriver) -> AsyncIterator[None]:
    async with world.kubelet(plugged=False), driver.serve(world.settings.plugin_registry):
        yield


def waits(pod: core.Pod) -> str:
    waiting = [one.state.waiting for one in pod.status.container_statuses if one.state.waiting is not None]
    return next((one.message for one in waiting if one.reason == podclaims.NOT_PREPARED), "")


async def test_a_pod_has_the_devices_of_its_claim_and_gives_them_back(world: World, driver: ExampleDriver) -> None:
    async with machine(world, driver):
        pod = await run(world, "cpus")
        over = await world.until_phase("train", "Succeeded")
        assert len(await world.engine.list_containers({})) == 1
        claim = await world.store.get(ResourceClaim, "cpus", "default")
        assert driver.calls == [("prepare", ("cpus",)), ("unprepare", ("cpus",))]
        assert not driver.prepared
        reasons = await world.reasons(pod)
        assert reasons.index(podclaims.PREPARED) < reasons.index("ContainerCreated") < reasons.index("ContainerEnded")
        assert podclaims.UNPREPARED in reasons
        (named,) = over.status.container_statuses[0].allocated_resources_status
        assert (named.name, named.resources[0].resource_id) == (
            "claim:cpus",
            f"{DRIVER}/claim={claim.metadata.uid}-cpu-0",
        )
        assert podstate.granted_devices(over) == {}


async def test_a_pod_waits_for_a_driver_and_says_for_which(world: World, driver: ExampleDriver) -> None:
    async with world.kubelet(plugged=False):
        pod = await run(world, "cpus")
        waiting = await world.until("train", lambda pod: bool(waits(pod)))
        assert f"DRA driver {DRIVER} is not registered" in waits(waiting)
        assert not await world.engine.list_containers({})
        async with driver.serve(world.settings.plugin_registry):
            await world.until_phase("train", "Succeeded")
        assert podclaims.PREPARED in await world.reasons(pod)


async def test_a_pod_that_never_had_a_driver_ends_at_once(world: World) -> None:
    async with world.kubelet(plugged=False):
        await run(world, "cpus")
        await world.until("train", lambda pod: bool(waits(pod)))
        await world.store.delete(core.Pod, "train", "default", grace_s=0)
        await world.until_gone("train")


async def test_the_end_of_a_pod_waits_for_its_driver_and_says_so(world: World, driver: ExampleDriver) -> None:
    async with world.kubelet(plugged=False):
        async with driver.serve(world.settings.plugin_registry):
            pod = await run(world, "cpus", forever=True)
            await world.until_phase("train", "Running")
        await world.store.delete(core.Pod, "train", "default", grace_s=5)
        # At first it may be registered still, and not answer.
        held = await world.until("train", lambda pod: f"DRA driver {DRIVER} is not registered" in pod.status.message)
        assert held.status.reason == podclaims.NOT_UNPREPARED
        assert held.status.phase == "Running"
        async with asyncio.timeout(30):
            while podclaims.NOT_UNPREPARED not in await world.reasons(pod):  # noqa: ASYNC110 - its second look says it
                await asyncio.sleep(0.05)
        async with driver.serve(world.settings.plugin_registry):
            await world.until_gone("train")
        assert driver.calls[-1] == ("unprepare", ("cpus",))


async def test_pods_share_a_claim_and_it_is_unprepared_after_the_last(world: World, driver: ExampleDriver) -> None:
    async with machine(world, driver):
        await run(world, "cpus", name="first", forever=True)
        await world.until_phase("first", "Running")
        await run(world, "cpus", name="second", forever=True)
        await world.until_phase("second", "Running")
        await world.store.delete(core.Pod, "first", "default", grace_s=5)
        await world.until_gone("first")
        assert driver.calls == [("prepare", ("cpus",))]
        await world.store.delete(core.Pod, "second", "default", grace_s=5)
        await world.until_gone("second")
        assert driver.calls[1:] == [("unprepare", ("cpus",))]


async def test_a_kubelet_that_starts_again_prepares_nothing_twice(world: World, driver: ExampleDriver) -> None:
    async with machine(world, driver):
        await run(world, "cpus", forever=True)
        await world.until_phase("train", "Running")
    async with machine(world, driver):
        await world.store.delete(core.Pod, "train", "default", grace_s=5)
        await world.until_gone("train")
    assert [call for call, _ in driver.calls] == ["prepare", "unprepare"]


async def test_claims_of_a_pod_that_went_while_the_kubelet_was_away_are_unprepared(
    world: World, driver: ExampleDriver
) -> None:
    async with machine(world, driver):
        pod = await run(world, "cpus", forever=True)
        await world.until_phase("train", "Running")
    await world.store.delete(core.Pod, "train", "default", grace_s=0, uid=pod.metadata.uid)
    async with machine(world, driver), asyncio.timeout(30):
        while driver.prepared:  # noqa: ASYNC110 - a driver's memory, not an event
            await asyncio.sleep(0.01)
    assert driver.calls[-1] == ("unprepare", ("cpus",))


async def test_a_damaged_checkpoint_is_rebuilt_and_its_claims_are_unprepared_with_their_pods(
    world: World, driver: ExampleDriver
) -> None:
    async with machine(world, driver):
        await run(world, "cpus", forever=True)
        await world.until_phase("train", "Running")
    path = world.settings.state.folder / "kubelet" / claimrecord.NAME
    path.write_bytes(path.read_bytes()[:-3])
    async with machine(world, driver):
        await world.store.delete(core.Pod, "train", "default", grace_s=5)
        await world.until_gone("train")
    assert driver.calls[-1] == ("unprepare", ("cpus",))
    assert path.with_name(f"{claimrecord.NAME}.damaged-1").exists()


async def test_what_containers_have_by_claims_is_listed_with_its_cdi_names(world: World, driver: ExampleDriver) -> None:
    async with machine(world, driver):
        await run(world, "cpus", forever=True)
        await world.until_phase("train", "Running")
        channel = claimworld.channel(world.settings.pod_resources)
        async with channel:
            listed = await podresources.Stub(channel).list(timeout_s=5)
    (found,) = podresources.parse_dynamic(listed.pod_resources[0].containers[0])
    assert (found.claim, found.namespace) == ("cpus", "default")
    assert [(one.driver, one.pool, one.device) for one in found.devices] == [(DRIVER, "here", "cpu-0")]
    assert found.devices[0].cdi_devices[0].startswith(f"{DRIVER}/claim=")


async def test_the_health_that_a_driver_reports_is_in_the_pods_status(world: World, driver: ExampleDriver) -> None:
    def says(pod: core.Pod) -> tuple[str, str | None]:
        (named,) = pod.status.container_statuses[0].allocated_resources_status or (core.ResourceStatus(name=""),)
        return (named.resources[0].health, named.resources[0].message) if named.resources else ("", None)

    async with machine(world, driver):
        await run(world, "cpus", forever=True)
        await world.until("train", lambda pod: pod.status.phase == "Running" and says(pod)[0] == "Unknown")
        sick = drahealth.DeviceHealth(
            pool="here", device="cpu-0", health=drahealth.Health.UNHEALTHY, updated_at=1, message="too hot"
        )
        await driver.reports.put((sick,))
        await world.until("train", lambda pod: says(pod) == ("Unhealthy", "too hot"))
        await driver.reports.put((dataclasses.replace(sick, health=drahealth.Health.HEALTHY, message=""),))
        await world.until("train", lambda pod: says(pod) == ("Healthy", None))


async def test_slices_of_the_node_go_when_its_kubelet_starts(world: World) -> None:
    def published(name: str, node: str) -> ResourceSlice:
        spec = ResourceSliceSpec(driver=DRIVER, node_name=node, pool=ResourcePool(name=node))
        return ResourceSlice(metadata=meta.ObjectMeta(name=name), spec=spec)

    await world.store.create(published("mine", "here"))
    await world.store.create(published("others", "there"))
    async with world.kubelet(plugged=False), asyncio.timeout(30):
        while len((await world.store.list(ResourceSlice)).items) > 1:  # noqa: ASYNC110 - a store, not an event
            await asyncio.sleep(0.01)
    (left,) = (await world.store.list(ResourceSlice)).items
    assert left.metadata.name == "others"


async def test_a_pod_whose_claim_is_anothers_waits_and_its_driver_is_not_asked(
    world: World, driver: ExampleDriver
) -> None:
    async with machine(world, driver):
        await claimworld.add_claim(world.store, "cpus", claimworld.claiming(name="another", uid="u2"))
        await world.run(claimworld.claiming("cpus"))
        waiting = await world.until("train", lambda pod: bool(waits(pod)))
        assert "is not reserved for it" in waits(waiting)
        assert not driver.calls


async def test_containers_see_only_the_requests_that_they_name(world: World, driver: ExampleDriver) -> None:
    async with machine(world, driver):
        found = [*claimworld.results("cpu-0", request="big/first"), *claimworld.results("cpu-1", request="small")]
        await run(world, "cpus", requests=("big/first",), found=found)
        claim = await world.store.get(ResourceClaim, "cpus", "default")
        name = f"{DRIVER}/claim={claim.metadata.uid}-cpu-0"
        over = await world.until_phase("train", "Succeeded")
        (named,) = over.status.container_statuses[0].allocated_resources_status
        assert (named.name, [one.resource_id for one in named.resources]) == ("claim:cpus/big/first", [name])


async def test_a_driver_that_misses_the_deadline_holds_its_own_pod_alone_and_nothing_is_left(
    world: World, driver: ExampleDriver
) -> None:
    deadline_s = 0.4
    kubelet = dataclasses.replace(world.settings.kubelet, driver_timeout_s=deadline_s)
    world.settings = dataclasses.replace(world.settings, kubelet=kubelet)
    async with machine(world, driver):
        driver.gate.clear()
        pod = await run(world, "cpus", forever=True)
        waiting = await world.until("train", lambda pod: "did not answer" in waits(pod))
        assert f"did not answer NodePrepareResources within {deadline_s:g} s" in waits(waiting)
        assert "it hangs: look at its log, or restart it" in waits(waiting)
        assert not await world.engine.list_containers({})
        await run(world, name="beside")
        await world.until_phase("beside", "Succeeded")
        driver.gate.set()
        await world.until_phase("train", "Running")
        driver.gate.clear()
        await world.store.delete(core.Pod, "train", "default", grace_s=5)
        held = await world.until("train", lambda pod: pod.status.reason == podclaims.NOT_UNPREPARED)
        assert f"did not answer NodeUnprepareResources within {deadline_s:g} s" in held.status.message
        driver.gate.set()
        await world.until_gone("train")
        assert not driver.prepared
        assert podclaims.NOT_PREPARED in await world.reasons(pod)
    assert not list(world.settings.node.cdi_folder.glob("*.json"))
