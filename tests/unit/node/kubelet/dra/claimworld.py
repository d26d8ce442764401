"""Claims as a scheduler leaves them: allocated, and reserved for their pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec

from fairlead.node.kubelet.dra import devicehealth, pluginwatcher, slicewipe
from fairlead.node.kubelet.dra.dramanager import DRAManager
from fairlead.node.kubelet.dra.drivers import Drivers
from fairlead.store import retry
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import Store
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimConsumerReference
from tests.unit.node.kubelet.dra.exampledriver import DRIVER

NODE = "here"


def results(*devices: str, driver: str = DRIVER, request: str = "cpus", **more: Any) -> list[dict[str, Any]]:
    return [{"request": request, "driver": driver, "pool": NODE, "device": one, **more} for one in devices]


async def add_claim(
    store: Store, name: str, *pods: core.Pod, found: list[dict[str, Any]] | None = None, **metadata: Any
) -> ResourceClaim:
    """Add a claim that is allocated (one device where it is not said) and reserved for pods."""
    about = {"name": name, "namespace": "default", **metadata}
    claim = await store.create(msgspec.convert({"metadata": about}, ResourceClaim))
    users = [{"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid} for pod in pods]
    devices = {"results": results("cpu-0") if found is None else found}
    status = {"allocation": {"devices": devices}, "reservedFor": users}
    return await store.update_status(msgspec.convert({"metadata": claim.metadata, "status": status}, ResourceClaim))


async def reserve(store: Store, name: str, pod: core.Pod) -> None:
    """Reserve a claim for one more pod."""
    user = ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)

    def reserved(claim: ResourceClaim) -> ResourceClaim:
        status = msgspec.structs.replace(claim.status, reserved_for=(*claim.status.reserved_for, user))
        return msgspec.structs.replace(claim, status=status)

    await retry.change_status(store, ResourceClaim, name, reserved, namespace="default")


def claiming(*names: str, name: str = "train", requests: tuple[str, ...] = (), uid: str = "") -> core.Pod:
    """Return a pod that uses claims, under their own names; its container uses all."""
    claims = tuple(core.PodResourceClaim(name=one, resource_claim_name=one) for one in names)
    used = tuple(
        core.ContainerResourceClaim(name=one, request=request) for one in names for request in requests or ("",)
    )
    item = core.Container(
        name="main", image="localhost/tools:1", command=("env",), resources=core.ResourceRequirements(claims=used)
    )
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="default", uid=uid or f"uid-{name}"),
        spec=core.PodSpec(containers=(item,), resource_claims=claims, node_name=NODE, restart_policy="Never"),
    )


class Node:
    """A DRA manager over real sockets, without the rest of a kubelet; made again it is a kubelet's next start."""

    def __init__(
        self, folder: Path, store: MemoryStore | None = None, *, call_s: float = 20, delay_s: float = 30
    ) -> None:
        self.folder, self.store = folder, store or MemoryStore()
        self.registry = folder / "plugins_registry"
        self.state = folder / "state"
        self.state.mkdir(exist_ok=True)
        self.changes = asyncio.Event()
        self.health = devicehealth.DeviceHealth()
        self.wipe = slicewipe.SliceWipe(self.store, NODE, delay_s=delay_s)
        self.drivers = Drivers(health=self.health, wipe=self.wipe, changed=self.changes.set, call_s=call_s)
        self.manager = DRAManager(self.store, self.drivers, self.state)
        self.watcher = pluginwatcher.PluginWatcher(self.registry, self.drivers, poll_s=0.1)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 - state of several objects, not one event
                await asyncio.sleep(0.01)


def channel(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(deviceplugin.target(socket), options=deviceplugin.CHANNEL_OPTIONS)
