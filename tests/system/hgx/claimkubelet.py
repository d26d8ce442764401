"""Plays a kubelet's DRA manager in the node, beside the agent that prepares its claims: Fairlead's own, over sockets.

`start` begins agent and kubelet in the background, in one process, over a store in memory: what is a claim of the API
server's is written there. The other functions ask it over a socket of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import commanded  # type: ignore[import-not-found]  # packed beside this file

STATE = Path("/state/fairlead")
ROOT = Path("/var/lib/kubelet")
NAME = "claimkubelet"
NODE, DRIVER = "hgx", "gpu.nvidia.com"
AGAIN_S = 60.0


def start() -> int:
    """Begin to serve in the background; returns the pid."""
    return int(commanded.start(NAME, _serve))


def published() -> dict[str, dict[str, Any]]:
    """Return what slices say of each device: its address, module, and taints as `key=value`."""
    return dict(_ask("published"))


def prepare(pod: str, device: str, policy: str) -> list[str]:
    """Have a pod's claim for a device prepared; returns the nodes of its CDI file, or raises with the refusal."""
    return list(_ask("prepare", pod, device, policy))


def unprepare(pod: str) -> bool:
    """Have a pod's claim unprepared, as after its end or its deletion by force; returns whether its file is gone.

    A busy machine's ledger may take longer than the agent waits for it: a kubelet asks again then.
    """
    until = time.monotonic() + AGAIN_S
    while True:
        try:
            return bool(_ask("unprepare", pod))
        except RuntimeError as error:
            if "decided nothing within" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(1)


def _ask(what: str, *arguments: str) -> Any:
    return commanded.ask(NAME, what, *arguments, limit_s=100)


async def _serve() -> None:
    from fairlead import settings, telemetry
    from fairlead.node import agent
    from fairlead.node.kubelet.dra import devicehealth, pluginwatcher, slicewipe
    from fairlead.node.kubelet.dra.dramanager import DRAManager
    from fairlead.node.kubelet.dra.drivers import Drivers
    from fairlead.silicon import machine
    from fairlead.store.embedded.memory import MemoryStore
    from fairlead.wire.kubernetes import core, meta

    config = settings.override(
        settings.Settings(),
        {
            "state.folder": STATE,
            "node.name": NODE,
            "node.vfio": "bound",
            "node.door": "claims",
            "node.engine": "containerd://2.2.1",
            "node.kubelet_folder": ROOT / "device-plugins",
        },
    )
    telemetry.configure("debug", "json")
    store = MemoryStore()
    await store.create(core.Node(metadata=meta.ObjectMeta(name=NODE, uid="uid-of-node")))
    STATE.mkdir(parents=True, exist_ok=True)
    kept = STATE / "kubelet"
    kept.mkdir(exist_ok=True)
    drivers = Drivers(
        health=devicehealth.DeviceHealth(),
        wipe=slicewipe.SliceWipe(store, NODE, delay_s=30),
        changed=lambda: None,
        call_s=45,
    )
    world = _World(store, DRAManager(store, drivers, kept), config.node.cdi_folder)
    world.manager.load(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    silicon = machine.open_silicon(config.silicon, STATE / "silicon")

    async def do(what: str, *arguments: str) -> Any:
        return await getattr(world, what)(*arguments)

    async with asyncio.TaskGroup() as tasks, commanded.answering(NAME, do):
        tasks.create_task(agent.run_agent(config, silicon, store, ready=None))
        tasks.create_task(pluginwatcher.PluginWatcher(ROOT / "plugins_registry", drivers, poll_s=0.5).run())
        await asyncio.Event().wait()


@dataclasses.dataclass
class _World:
    """What the test asks for; a scheduler is the test."""

    store: Any
    manager: Any
    folder: Path

    async def published(self) -> dict[str, dict[str, Any]]:
        from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

        devices = [one for item in (await self.store.list(ResourceSlice)).items for one in item.spec.devices]
        return {
            one.name: {
                "address": one.attributes["resource.kubernetes.io/pciBusID"].string,
                "module": one.attributes["gpuModuleId"].int_,
                "has_iommufd": one.attributes["iommuFDEnabled"].bool_,
                "taints": [f"{taint.key}={taint.value}" for taint in one.taints],
            }
            for one in devices
        }

    async def prepare(self, name: str, device: str, policy: str) -> list[str]:
        import msgspec

        from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

        about = {"name": name, "namespace": "team"}
        made = await self.store.create(msgspec.convert({"metadata": about}, ResourceClaim))
        parameters = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "VfioDeviceConfig",
            "iommu": {"backendPolicy": policy},
        }
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device}
        opaque = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
        status = {
            "allocation": {"devices": {"results": [result], "config": [opaque]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
        }
        await self.store.update_status(msgspec.convert({"metadata": made.metadata, "status": status}, ResourceClaim))
        await self.manager.prepare(self._pod(name))
        found = json.loads(self._file(made.metadata.uid).read_text())
        devices = [one["containerEdits"] for one in found["devices"]]
        return [node["path"] for edits in devices for node in edits.get("deviceNodes", ())]

    async def unprepare(self, name: str) -> bool:
        from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

        made = await self.store.get(ResourceClaim, name, "team")
        await self.manager.unprepare(f"uid-{name}")
        await self.store.delete(ResourceClaim, name, "team")
        return not self._file(made.metadata.uid).exists()

    def _file(self, uid: str) -> Path:
        return self.folder / f"k8s.gpu.nvidia.com-claim_{uid}.json"

    @staticmethod
    def _pod(name: str) -> Any:
        from fairlead.wire.kubernetes import core, meta

        used = core.ResourceRequirements(claims=(core.ContainerResourceClaim(name="gpu"),))
        return core.Pod(
            metadata=meta.ObjectMeta(name=name, namespace="team", uid=f"uid-{name}"),
            spec=core.PodSpec(
                containers=(core.Container(name="main", image="i", resources=used),),
                resource_claims=(core.PodResourceClaim(name="gpu", resource_claim_name=name),),
                node_name=NODE,
            ),
        )
