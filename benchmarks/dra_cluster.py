"""Rows of pods with claims on a real control plane, beside the real kube-scheduler.

500 nodes publish 8 GPUs each, and 3,000 pods claim one GPU each of 4,000; both schedulers in turn on one API server.
Each pod has a claim of its own that is there before it, so no controller is measured. Then one pod wants 27 of a
node's 26 GPUs, and a pod that claims nothing comes after it: how long does it wait?
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from benchmarks import plane
from benchmarks.frame import Row, Unmeasured, benchmark
from fairlead import errors
from tools.cluster import build, home

NODES, PODS, ROUNDS = 500, 3000, 1
_SETTLE_S: Final = 6.0
_DRIVER: Final = "gpu.example.com"
_RESOURCE: Final = "/apis/resource.k8s.io/v1"
_CLAIMS: Final = f"{_RESOURCE}/namespaces/default/resourceclaims"
_MERGE: Final = "application/merge-patch+json"
Scheduler = Callable[[home.Cluster], AbstractContextManager[int]]


class ClaimPlane(plane.Plane):
    """Nodes whose GPUs are claimed, and pods with claims."""

    async def prepare(self, nodes: int) -> None:
        expression = f'device.driver == "{_DRIVER}" && device.attributes["{_DRIVER}"].type == "gpu"'
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        await self.call("POST", f"{_RESOURCE}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": spec})
        await super().prepare(nodes)

    async def _add_node(self, number: int) -> None:
        await super()._add_node(number)
        await self.publish(f"paper-{number:05}", 8)

    async def publish(self, node: str, gpus: int) -> None:
        """Create the slice of a node's GPUs."""
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        devices = [_gpu(number) for number in range(gpus)]
        spec = {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        await self.call("POST", f"{_RESOURCE}/resourceslices", {"metadata": {"name": node}, "spec": spec})

    async def _add_pod(self, number: int, scheduler: str) -> None:
        await self.claim(f"p{number:05}", 1, scheduler)

    async def claim(self, name: str, count: int, scheduler: str, *, node: str = "") -> None:
        """Create a claim and a pod with it."""
        exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        await self.call("POST", _CLAIMS, {"metadata": {"name": name}, "spec": spec})
        await self.pod(name, scheduler, {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}, node=node)

    async def pod(self, name: str, scheduler: str, more: Mapping[str, Any], *, node: str = "") -> None:
        """Create a pod."""
        main = {"name": "main", "image": "registry.invalid/none:1", "resources": {"requests": {"cpu": "100m"}}}
        spec: dict[str, Any] = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 0, "containers": [main]}
        spec |= {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
        await self.call("POST", plane.PODS, {"metadata": {"name": name}, "spec": {**spec, **more}})

    async def clear(self) -> None:
        """Delete every pod, event and claim; no controller is there that would."""
        await super().clear()
        found = (await self.call("GET", _CLAIMS))["items"]
        await plane.for_all(len(found), lambda at: self._remove(found[at]["metadata"]["name"]))

    async def _remove(self, name: str) -> None:
        path = f"{_CLAIMS}/{name}"
        await self.call("PATCH", f"{path}/status", {"status": {"allocation": None, "reservedFor": None}}, kind=_MERGE)
        await self.call("PATCH", path, {"metadata": {"finalizers": None}}, kind=_MERGE)
        await self.call("DELETE", path)

    async def _overcommitted(self) -> int:
        """Return how many devices two claims have."""
        given = Counter(
            (result["pool"], result["device"])
            for item in (await self.call("GET", _CLAIMS))["items"]
            for result in item.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        )
        return sum(count > 1 for count in given.values())

    async def innocent(self, scheduler: str) -> float:
        """Return the seconds until a pod is bound that comes after one whose claim cannot be met."""
        await self.claim("greedy", 27, scheduler, node="many")
        await self.pod("innocent", scheduler, {})
        begun = time.monotonic()
        while time.monotonic() - begun < 60:
            if (await self.call("GET", f"{plane.PODS}/innocent"))["spec"].get("nodeName"):
                break
            await asyncio.sleep(0.02)
        return time.monotonic() - begun


def _gpu(number: int) -> dict[str, Any]:
    attributes = {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "architecture": {"string": "Hopper"},
        "driverVersion": {"version": "580.65.6"},
        "uuid": {"string": f"GPU-{number}"},
        "numa": {"int": number // 4},
    }
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}


@benchmark("dra-cluster")
def dra_cluster() -> Iterable[Row | Unmeasured]:
    if why := plane.missing():
        yield Unmeasured(name="claims: beside kube-scheduler on one control plane", why=why)
        return
    ours, theirs, waits = asyncio.run(_side_by_side())
    version = next(build.version_of(one) for one in build.modules(build.DEFAULT_VERSION) if "kubernetes" in one.name)
    peer: dict[str, Any] = {
        "peer_name": f"kube-scheduler {version}",
        "peer_source": "the same API server, nodes and claims",
    }
    size = "3,000 pods, 500 nodes x 8 GPUs"
    rates = [statistics.median(one.per_s for one in rounds) for rounds in (ours, theirs)]
    yield Row(name=f"claims: pods bound, {size}", ours=rates[0], unit="1/s", bar=2 * rates[1], peer=rates[1], **peer)
    left = [max(one.pending for one in rounds) for rounds in (ours, theirs)]
    yield Row(name=f"claims: pods left pending, {size}", ours=left[0], unit="pods", bar=left[1], peer=left[1], **peer)
    spent = [
        statistics.median(1000 * one.processor_s / max(1, one.bound) for one in rounds) for rounds in (ours, theirs)
    ]
    yield Row(name=f"claims: processor time of a pod, {size}", ours=spent[0], unit="ms", peer=spent[1], **peer)
    memory = [max(one.memory_mib for one in rounds) for rounds in (ours, theirs)]
    yield Row(name=f"claims: most memory, {size}", ours=memory[0], unit="MiB", peer=memory[1], **peer)
    twice = max(one.overcommitted for one in ours)
    yield Row(name=f"claims: devices that two claims have, {size}", ours=twice, unit="", bar=0)
    name = "claims: until a pod is bound that comes after one which wants 27 of 26 GPUs"
    yield Row(name=name, ours=waits[0], unit="s", bar=1.0, peer=waits[1], **peer)


async def _side_by_side() -> tuple[list[plane.Round], list[plane.Round], tuple[float, float]]:
    ours, theirs = list[plane.Round](), list[plane.Round]()
    async with plane.opened(ClaimPlane) as one:
        await one.prepare(NODES)
        waits = await _innocent(one)
        for _ in range(ROUNDS):
            theirs.append(await _round(one, plane.kube_scheduler, "default-scheduler"))
            await one.clear()
            ours.append(await _round(one, plane.fairlead_scheduler, "fairlead"))
            await one.clear()
    return ours, theirs, waits


async def _round(one: ClaimPlane, scheduler: Scheduler, name: str) -> plane.Round:
    with scheduler(one.cluster) as pid:
        await asyncio.sleep(_SETTLE_S)
        return await one.round(PODS, name, pid)


async def _innocent(one: ClaimPlane) -> tuple[float, float]:
    await one.publish("many", 26)
    with contextlib.suppress(errors.Unavailable):
        await one.add_node("many")
    found = []
    for scheduler, name in ((plane.fairlead_scheduler, "fairlead"), (plane.kube_scheduler, "default-scheduler")):
        with scheduler(one.cluster):
            await asyncio.sleep(_SETTLE_S)
            found.append(await one.innocent(name))
        await one.clear()
    return found[0], found[1]
