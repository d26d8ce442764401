"""Pods that ask by number for what a class stands for: the claim that a scheduler made is prepared like any other."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.node.kubelet.dra import podclaims
from fairlead.plan.pod import podstate
from fairlead.store import retry
from fairlead.wire.kubelet import drahealth, podresources
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.resourceclaim import EXTENDED_RESOURCE_CLAIM, ResourceClaim
from tests.unit.node.kubelet.dra import claimworld
from tests.unit.node.kubelet.dra.exampledriver import DRIVER, ExampleDriver
from tests.unit.node.kubelet.test_kubelet import World

CPU = "example.com/cpu"
NAME = "train-extended-resources-x"
_FOREVER = ("sh", "-c", 'trap "exit 143" TERM; sleep 600')


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:  # a socket's path has 107 bytes
        async with World(Path(folder)) as one:
            yield one


@pytest.fixture
def driver(world: World) -> ExampleDriver:
    return ExampleDriver(world.store, world.settings.node.cdi_folder)


@contextlib.asynccontextmanager
async def machine(world: World, driver: ExampleDriver) -> AsyncIterator[None]:
    async with world.kubelet(plugged=False), driver.serve(world.settings.plugin_registry):
        yield


def asking(*counts: int, forever: bool = False) -> core.Pod:
    """Return a pod with a container for each count, named c0, c1, …"""
    items = tuple(
        core.Container(
            name=f"c{at}",
            image="localhost/tools:1",
            command=_FOREVER if forever else ("env",),
            resources=core.ResourceRequirements(limits={CPU: count} if count else {}),
        )
        for at, count in enumerate(counts)
    )
    about = meta.ObjectMeta(name="train", namespace="default", uid="uid-train")
    return core.Pod(metadata=about, spec=core.PodSpec(containers=items, restart_policy="Never"))


async def run(world: World, pod: core.Pod, *, annotation: str = "true", is_owned: bool = True) -> core.Pod:
    """Run a pod as a scheduler does: the claim is made, the pod's status names it, then it has a node.

    Device `cpu-N` is container N's.
    """
    pod = await world.store.create(pod)
    asked = [(at, item) for at, item in enumerate(pod.spec.containers) if item.resources.limits]
    found: list[dict[str, Any]] = []
    for at, _ in asked:
        found += claimworld.results(f"cpu-{at}", request=f"container-{at}-request-0")
    owner = meta.OwnerReference(api_version="v1", kind="Pod", name="train", uid=pod.metadata.uid, controller=True)
    made = await claimworld.add_claim(
        world.store,
        NAME,
        pod,
        found=found,
        annotations={EXTENDED_RESOURCE_CLAIM: annotation},
        ownerReferences=[msgspec.to_builtins(owner)] if is_owned else [],
    )
    for at, _ in asked:
        world.engine.devices.add(f"{DRIVER}/claim={made.metadata.uid}-cpu-{at}")
    mappings = tuple(
        core.ContainerExtendedResourceRequest(
            container_name=item.name, resource_name=CPU, request_name=f"container-{at}-request-0"
        )
        for at, item in asked
    )
    told = core.PodExtendedResourceClaimStatus(request_mappings=mappings, resource_claim_name=NAME)

    def named(fresh: core.Pod) -> core.Pod:
        return msgspec.structs.replace(
            fresh, status=msgspec.structs.replace(fresh.status, extended_resource_claim_status=told)
        )

    def bound(fresh: core.Pod) -> core.Pod:
        return msgspec.structs.replace(fresh, spec=msgspec.structs.replace(fresh.spec, node_name="here"))

    await retry.change_status(world.store, core.Pod, "train", named, namespace="default")
    return await retry.change(world.store, core.Pod, "train", bound, namespace="default")


def given(pod: core.Pod) -> dict[str, list[str]]:
    """Return the names of the devices that each container's status says, by container."""
    return {
        one.name: [device.resource_id for each in one.allocated_resources_status for device in each.resources]
        for one in pod.status.container_statuses
    }


async def test_each_container_has_the_devices_of_its_own_requests(world: World, driver: ExampleDriver) -> None:
    async with machine(world, driver):
        await run(world, asking(1, 0, 1, forever=True))
        pod = await world.until_phase("train", "Running")
        uid = (await world.store.get(ResourceClaim, NAME, "default")).metadata.uid
        first, last = f"{DRIVER}/claim={uid}-cpu-0", f"{DRIVER}/claim={uid}-cpu-2"
        assert given(pod) == {"c0": [first], "c1": [], "c2": [last]}
        assert podstate.granted_devices(pod) == {}
        assert podstate.claimed_devices(pod) == {NAME: (first, last)}
        assert driver.calls == [("prepare", (NAME,))]
        async with claimworld.channel(world.settings.pod_resources) as channel:
            listed = await podresources.Stub(channel).list(timeout_s=5)
        by_name = {one.name: podresources.parse_dynamic(one) for one in listed.pod_resources[0].containers}
        assert [one.device for each in by_name["c2"] for one in each.devices] == ["cpu-2"]
        assert by_name["c1"] == ()
        await world.store.delete(core.Pod, "train", "default", grace_s=5)
        await world.until_gone("train")
        assert driver.calls[1:] == [("unprepare", (NAME,))]
        assert not driver.prepared


async def test_its_status_keeps_naming_the_claim_over_every_write_of_the_kubelet(
    world: World, driver: ExampleDriver
) -> None:
    async with machine(world, driver):
        pod = await run(world, asking(1))
        over = await world.until_phase("train", "Succeeded")
        assert over.status.extended_resource_claim_status == pod.status.extended_resource_claim_status
        assert podclaims.PREPARED in await world.reasons(pod)


async def test_health_is_said_of_its_devices_which_a_real_kubelet_leaves_out(
    world: World, driver: ExampleDriver
) -> None:
    def health(pod: core.Pod) -> list[str | None]:
        every = pod.status.container_statuses
        return [device.health for one in every for each in one.allocated_resources_status for device in each.resources]

    async with machine(world, driver):
        await run(world, asking(1, forever=True))
        await world.until("train", lambda pod: pod.status.phase == "Running" and health(pod) == ["Unknown"])
        sick = drahealth.DeviceHealth(
            pool="here", device="cpu-0", health=drahealth.Health.UNHEALTHY, updated_at=1, message="too hot"
        )
        await driver.reports.put((sick,))
        await world.until("train", lambda pod: health(pod) == ["Unhealthy"])


@pytest.mark.parametrize("lie", [{"annotation": "false"}, {"is_owned": False}], ids=["not-marked", "not-owned"])
async def test_a_claim_that_was_not_made_for_them_is_not_prepared(
    world: World, driver: ExampleDriver, lie: dict[str, Any]
) -> None:
    async with machine(world, driver):
        await run(world, asking(1), **lie)
        waiting = await world.until("train", lambda pod: any(given_wait(pod)))
        assert "was not made for the extended resources of this pod" in given_wait(waiting)[0]
        assert not driver.calls


def given_wait(pod: core.Pod) -> list[str]:
    waits = [one.state.waiting for one in pod.status.container_statuses if one.state.waiting is not None]
    return [one.message for one in waits if one.reason == podclaims.NOT_PREPARED]


async def test_a_pod_that_no_claim_was_made_for_is_refused_as_ever(world: World, driver: ExampleDriver) -> None:
    async with machine(world, driver):
        pod = asking(1)
        await world.run(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="here")))
        failed = await world.until_phase("train", "Failed")
        assert failed.status.reason == "UnexpectedAdmissionError"
        assert "requested number of devices unavailable for example.com/cpu" in failed.status.message


async def test_a_kubelet_that_starts_again_prepares_nothing_twice(world: World, driver: ExampleDriver) -> None:
    async with machine(world, driver):
        await run(world, asking(1, forever=True))
        await world.until_phase("train", "Running")
    async with machine(world, driver):
        await world.store.delete(core.Pod, "train", "default", grace_s=5)
        await world.until_gone("train")
    assert [call for call, _ in driver.calls] == ["prepare", "unprepare"]
