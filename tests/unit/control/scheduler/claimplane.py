"""A scheduler over a store in memory, with drivers, claims and the controllers of claims that a cluster has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead import errors
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.resourceclaim import FINALIZER, ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from tests.unit.control.scheduler.plane import Plane

DRIVER = "gpu.example.com"
MODEL = "model"


def read(kind: str, document: Mapping[str, Any]) -> Any:
    return dialect.read({"apiVersion": dialect.V1, "kind": kind, **document}).item


def devices(count: int, **fields: Any) -> list[dict[str, Any]]:
    attributes = {MODEL: {"string": "H100"}}
    return [{"name": f"gpu-{number}", "attributes": attributes, **fields} for number in range(count)]


class ClaimPlane(Plane):
    """See `Plane`."""

    async def publish(self, node: str, found: Sequence[Mapping[str, Any]], **spec: Any) -> ResourceSlice:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        body = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(found), **spec}
        return await self.store.create(read("ResourceSlice", {"metadata": {"name": f"{node}-a"}, "spec": body}))

    async def add_machine(self, name: str, gpus: int, **fields: Any) -> None:
        """Add a node whose GPUs are claimed."""
        await self.add_node(name, 0)
        await self.publish(name, devices(gpus, **fields))

    async def add_class(self, name: str = "gpu", expression: str = f'device.driver == "{DRIVER}"') -> None:
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        await self.store.create(read("DeviceClass", {"metadata": {"name": name}, "spec": spec}))

    async def add_claim(
        self, name: str, count: int = 1, *, owner: core.Pod | None = None, device_class: str = "gpu", **exactly: Any
    ) -> ResourceClaim:
        spec = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count, **exactly}
        owners = [] if owner is None else [_owner(owner)]
        about = {"name": name, "namespace": "default", "ownerReferences": owners}
        body = {"devices": {"requests": [{"name": "gpus", "exactly": spec}]}}
        return await self.store.create(read("ResourceClaim", {"metadata": about, "spec": body}))

    async def add_claiming(self, name: str, count: int = 1, **more: Any) -> core.Pod:
        """Add a pod with a claim of a template, as the controller of claims makes it."""
        reference = core.PodResourceClaim(name="gpus", resource_claim_template_name="gpus")
        pod = await self.add_pod(name, 0, resource_claims=(reference,), **more)
        return await self.make_claim(pod, count)

    async def make_claim(self, pod: core.Pod, count: int = 1) -> core.Pod:
        claim = await self.add_claim(f"{pod.metadata.name}-gpus", count, owner=pod)
        made = core.PodResourceClaimStatus(name="gpus", resource_claim_name=claim.metadata.name)
        while True:
            found = await self.store.get(core.Pod, pod.metadata.name, pod.metadata.namespace)
            status = msgspec.structs.replace(found.status, resource_claim_statuses=(made,))
            try:
                return await self.store.update_status(msgspec.structs.replace(found, status=status))
            except errors.Conflict:
                await asyncio.sleep(0)

    async def claim(self, name: str) -> ResourceClaim:
        return await self.store.get(ResourceClaim, name, "default")

    async def held(self) -> dict[str, str]:
        """Return the claims by device; a device that two have fails the test."""
        found = dict[str, str]()
        for one in (await self.store.list(ResourceClaim)).items:
            for result in one.status.allocation.devices.results if one.status.allocation is not None else ():
                device = f"{result.pool}/{result.device}"
                assert device not in found, f"{device} is {found[device]}'s and {one.metadata.name}'s"
                found[device] = one.metadata.name
        return found

    async def finish(self, name: str) -> None:
        """Remove a pod and its claim, as the controller of claims and the garbage collector do."""
        with contextlib.suppress(errors.NotFound):
            await self.end(name)
        claim = await self.claim(f"{name}-gpus")
        status = msgspec.structs.replace(claim.status, allocation=None, reserved_for=())
        with contextlib.suppress(errors.NotFound):  # the store removes what a pod owned
            freed = await self.store.update_status(msgspec.structs.replace(claim, status=status))
            about = msgspec.structs.replace(freed.metadata, finalizers=())
            await self.store.update(msgspec.structs.replace(freed, metadata=about))
            await self.store.delete(ResourceClaim, claim.metadata.name, "default")

    async def until_ended(self, count: int) -> list[str]:
        """Wait until so many pods were ended for others; returns their names."""
        async with asyncio.timeout(20):
            while len(self.placement.ended) < count:  # noqa: ASYNC110 - a list, not a store
                await asyncio.sleep(0.01)
        return self.placement.ended

    async def settled(self, name: str) -> ResourceClaim:
        """Return a claim that is allocated, with what is written beside."""
        claim = await self.claim(name)
        assert claim.status.allocation is not None
        assert FINALIZER in claim.metadata.finalizers
        return claim


def _owner(pod: core.Pod) -> dict[str, Any]:
    about = pod.metadata
    return {"apiVersion": "v1", "kind": "Pod", "name": about.name, "uid": about.uid, "controller": True}
