"""The example driver of the unit tests as a process on a cluster's node: `KUBECONFIG NODE VERSION[,VERSION]`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from fairlead import telemetry
from fairlead.store.kubernetes import credentials, store
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.resource.device import Device
from fairlead.wire.kubernetes.resource.resourceslice import ResourcePool, ResourceSlice, ResourceSliceSpec
from tests.unit.node.kubelet.dra.exampledriver import DRIVER, ExampleDriver

REGISTRY = Path("/var/lib/kubelet/plugins_registry")


class _Speaking(ExampleDriver):
    """Says in its log what it is asked."""

    def said(self, what: str, *names: str) -> None:
        telemetry.log.info("driver asked", method=what, claim=",".join(names))

    async def registered(self, problem: str) -> None:
        self.said(f"registered:{problem}")


async def main(kubeconfig: str, node: str, versions: str) -> None:
    """Publish two devices and serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    access = credentials.from_files([Path(kubeconfig)], env={})
    async with store.KubernetesStore(access) as objects:
        driver = _Speaking(objects, Path("/var/run/cdi"))
        driver.versions = tuple(versions.split(","))
        driver.asked = driver.said
        async with driver.serve(REGISTRY):
            spec = ResourceSliceSpec(
                driver=DRIVER,
                node_name=node,
                pool=ResourcePool(name=node, generation=1, resource_slice_count=1),
                devices=(Device(name="cpu-0"), Device(name="cpu-1")),
            )
            await objects.create(ResourceSlice(metadata=meta.ObjectMeta(generate_name="cpu-"), spec=spec))
            await stop.wait()


if __name__ == "__main__":
    telemetry.configure("info", "json")
    asyncio.run(main(*sys.argv[1:]))
