"""Slices that an agent publishes, on a real API server: admitted, whole, and allocated by the real kube-scheduler.

The machine is simulated: eight H100s as NVML shows them. What is published is planned from its scan and its partitions
by the code of the agent, and the publisher writes it with the agent's own store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plane
from fairlead.model.gpu import Vendor
from fairlead.model.mig import Partition
from fairlead.node.dra import publisher
from fairlead.node.inventory import latest
from fairlead.plan.claim import consistency
from fairlead.plan.dra import offered, share, taints
from fairlead.plan.gpu import health
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.silicon.sim import silicon as simulation
from fairlead.store.kubernetes import credentials, store
from fairlead.store.kubernetes import server as apiserver
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.device import DeviceTaint
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from tests.cluster import charts, paper
from tools.cluster import api, build, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

_RESOURCE = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_RESOURCE}/namespaces/default/resourceclaims"
_SLICES = f"{_RESOURCE}/resourceslices"
_PODS = "/api/v1/namespaces/default/pods"
_NODE = "gpus"
_ILL = health.Verdict(state=health.State.FAULTY, reason="XID79")


@pytest.fixture(scope="module")
def ring(kubernetes_version: str) -> Iterator[tuple[home.Cluster, api.API]]:
    """A control plane with one node that nobody heartbeats, and the chart's classes."""
    if why := plane.missing():
        pytest.skip(why)
    home.sweep()
    paths = tuple(build.folder_of(module) for module in build.modules(kubernetes_version))
    if missing := [str(path) for path in paths if not path.is_dir()]:
        pytest.fail(f"run tests/cluster/setup.sh {kubernetes_version} first: {missing} are not built")
    one = home.up("slices", version=kubernetes_version, paths=paths, owned=True, has_node=False)
    try:
        with one.api() as connection:
            connection.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
            for item in charts.render({"dra": {"enabled": True}}):
                if item["kind"] == "DeviceClass":
                    connection.create(f"{_RESOURCE}/deviceclasses", item)
            paper.add_node(connection, _NODE, gpus=0, labels={"kubernetes.io/hostname": _NODE})
            yield one, connection
    finally:
        one.down()


class Agent:
    """What of an agent publishes, on a simulated machine."""

    def __init__(self, objects: store.KubernetesStore, version: str, node: core.Node, seen: Snapshot) -> None:
        self.objects, self.snapshot = objects, seen
        self.node: latest.Latest[core.Node | None] = latest.Latest(node)
        self.offered: latest.Latest[tuple[offered.OfferedDevice, ...] | None] = latest.Latest(None)
        self.tainted: latest.Latest[Mapping[str, tuple[DeviceTaint, ...]]] = latest.Latest({})
        self._text = version
        self.publisher = publisher.Publisher(
            store=objects, node=self.node, offered=self.offered, tainted=self.tainted, version=self._version
        )

    async def _version(self) -> str:
        return self._text

    def offer(self, partitions: tuple[Partition, ...]) -> None:
        choice = offered.Choice(partitioned=set(self.snapshot.known))
        self.offered.set(offered.plan_devices(self.snapshot, partitions, choice))

    def share(self, count: int) -> None:
        choice = offered.Choice(shares=dict.fromkeys(self.snapshot.known, share.Shares(count=count)))
        self.offered.set(offered.plan_devices(self.snapshot, (), choice))

    def taint(self, *indexes: int) -> None:
        ill = {uuid: _ILL for uuid, gpu in self.snapshot.known.items() if gpu.index in indexes}
        self.tainted.set(taints.plan_taints(self.offered.value or (), taints.Against(verdicts=ill)))

    async def until(self, is_so: Callable[[tuple[ResourceSlice, ...]], bool]) -> tuple[ResourceSlice, ...]:
        """Return the slices as soon as they are so; asked again at each change of one."""
        listing = await self.objects.list(ResourceSlice)
        if not is_so(listing.items):
            async for _ in self.objects.watch(ResourceSlice, since=listing.resource_version):
                listing = await self.objects.list(ResourceSlice)
                if is_so(listing.items):
                    break
        return listing.items


@asynccontextmanager
async def _agent(cluster: home.Cluster, folder: Path) -> AsyncIterator[Agent]:
    """Run a publisher that has published everything."""
    silicon = simulation.SimulatedSilicon(folder, "h100x8")
    access = credentials.from_files([cluster.kubeconfig], env={})
    async with store.KubernetesStore(access) as objects:
        inventory = await silicon.scan()
        found = silicon.partitioner()
        assert found is not None
        partitions = await found.list_partitions()
        known = {gpu.uuid: gpu for gpu in inventory.gpus if gpu.vendor is Vendor.NVIDIA}
        seen = Snapshot(inventory=inventory, known=known, is_scanned=True)
        version = await apiserver.Server(objects.client, address="").version()
        agent = Agent(objects, version, await objects.get(core.Node, _NODE), seen)
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(120):
            running = tasks.create_task(agent.publisher.run())
            agent.offer(partitions)
            await agent.until(lambda items: len(items) == 9)
            yield agent
            running.cancel()
    await silicon.close()


def _devices(items: tuple[ResourceSlice, ...]) -> dict[str, list[str]]:
    return {one.name: [taint.value for taint in one.taints] for item in items for one in item.spec.devices}


async def test_a_machine_is_published_whole_and_kept_true(ring: tuple[home.Cluster, api.API], tmp_path: Path) -> None:
    cluster, connection = ring
    async with _agent(cluster, tmp_path) as agent:
        items = await agent.until(lambda items: len(_devices(items)) == 208)
        assert consistency.problems(items, (), ()) == ()
        assert agent.publisher.published.value.notes == ()
        agent.taint(3)
        items = await agent.until(lambda items: _devices(items)["gpu-3"] == ["79"])
        assert {item.spec.pool.generation for item in items} == {1}
        since = [one.taints[0].time_added for item in items for one in item.spec.devices if one.taints]
        connection.delete(f"{_SLICES}?fieldSelector=spec.nodeName={_NODE}")  # as a kubelet does at its start
        again = await agent.until(lambda items: len(items) == 9 and len(_devices(items)) == 208)
        assert [one.taints[0].time_added for item in again for one in item.spec.devices if one.taints] == since
        agent.taint()
        await agent.until(lambda items: not any(_devices(items).values()))


_ASKS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "one": ({"deviceClassName": "gpu.nvidia.com"},),
    "two": ({"deviceClassName": "gpu.nvidia.com", "count": 2},),
    "part": (
        {
            "deviceClassName": "mig.nvidia.com",
            "selectors": [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '3g.40gb'"}}],
        },
    ),
    "small": (
        {
            "deviceClassName": "mig.nvidia.com",
            "selectors": [
                {"cel": {"expression": "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('9Gi')) > 0"}}
            ],
        },
    ),
}


def _ask(connection: api.API, name: str, requests: tuple[dict[str, Any], ...]) -> None:
    asked = [
        {"name": f"r{at}", "exactly": {"allocationMode": "ExactCount", "count": 1, **one}}
        for at, one in enumerate(requests)
    ]
    connection.create(_CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": asked}}})
    spec = {
        "resourceClaims": [{"name": "c", "resourceClaimName": name}],
        "containers": [{"name": "main", "image": "registry.invalid/none:1", "resources": {"claims": [{"name": "c"}]}}],
        "terminationGracePeriodSeconds": 0,
    }
    connection.create(_PODS, {"metadata": {"name": name}, "spec": spec})


async def test_kube_scheduler_allocates_gpus_and_partitions(ring: tuple[home.Cluster, api.API], tmp_path: Path) -> None:
    """Devices are taken in our order: small ones from one GPU, at the end that leaves the most room."""
    cluster, connection = ring
    async with _agent(cluster, tmp_path) as agent:
        with plane.kube_scheduler(cluster):
            for name, requests in _ASKS.items():
                _ask(connection, name, requests)
                await asyncio.to_thread(_until_bound, connection, name)
        claims = (await agent.objects.list(ResourceClaim)).items
        items = (await agent.objects.list(ResourceSlice)).items
        found = {
            one.metadata.name: [result.device for result in one.status.allocation.devices.results]
            for one in claims
            if one.status.allocation is not None
        }
        assert found == {
            "one": ["gpu-0"],
            "two": ["gpu-1", "gpu-2"],
            "part": ["gpu-3-mig-3g40gb-9-4"],
            "small": ["gpu-3-mig-1g10gb-19-0"],
        }
        assert consistency.problems(items, claims, ()) == ()


async def test_a_container_that_asks_for_the_extended_resource_gets_a_gpu_that_is_well(
    ring: tuple[home.Cluster, api.API], tmp_path: Path
) -> None:
    cluster, connection = ring
    async with _agent(cluster, tmp_path) as agent:
        for name in _ASKS:
            await asyncio.to_thread(_end, connection, name)
        agent.taint(0, 1)
        await agent.until(lambda items: _devices(items)["gpu-1"] == ["79"])
        limits = {"limits": {"nvidia.com/gpu": "1"}}
        container = {"name": "main", "image": "registry.invalid/none:1", "resources": limits}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        connection.create(_PODS, {"metadata": {"name": "plain"}, "spec": spec})
        with plane.kube_scheduler(cluster):
            await asyncio.to_thread(_until_bound, connection, "plain")
        (claim,) = (await agent.objects.list(ResourceClaim)).items
        assert claim.status.allocation is not None
        assert [one.device for one in claim.status.allocation.devices.results] == ["gpu-2"]


async def test_claims_share_a_gpu_until_its_shares_are_taken(
    ring: tuple[home.Cluster, api.API], tmp_path: Path
) -> None:
    cluster, connection = ring
    names = ("first", "second", "third")
    async with _agent(cluster, tmp_path) as agent:
        agent.share(2)
        await agent.until(lambda items: len(items) == 1 and len(_devices(items)) == 8)
        with plane.kube_scheduler(cluster):
            for name in names:
                _ask(connection, name, _ASKS["one"])
                await asyncio.to_thread(_until_bound, connection, name)
        claims = {one.metadata.name: one.status.allocation for one in (await agent.objects.list(ResourceClaim)).items}
        found = [one.devices.results[0] for name in names if (one := claims[name]) is not None]
        assert [one.device for one in found] == ["gpu-0", "gpu-0", "gpu-1"]
        assert found[0].consumed_capacity == {"memory": "0", "shares": "1"}


def _end(connection: api.API, name: str) -> None:
    """Delete a pod and its claim, in place of the controllers that do not run here."""
    connection.delete(f"{_PODS}/{name}", grace_s=0)
    connection.patch(f"{_CLAIMS}/{name}/status", {"status": {"allocation": None, "reservedFor": None}})
    connection.patch(f"{_CLAIMS}/{name}", {"metadata": {"finalizers": None}})
    connection.delete(f"{_CLAIMS}/{name}")


def _until_bound(connection: api.API, name: str) -> None:
    def is_bound(items: list[api.Object]) -> bool | None:
        return any(item["metadata"]["name"] == name and item["spec"].get("nodeName") for item in items) or None

    connection.until(_PODS, is_bound, what=f"pod {name} bound", timeout_s=60)
