"""Serves `v1.PodResourcesLister` as the real kubelet does, from the checkpoints of device manager and claims.

Listed are the pods bound to this node that have not ended, each container and sidecar with the devices it holds, and an
ordinary init container while it runs: the real one leaves those out, and whoever audits one by that list finds nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import grpc.aio

from fairlead import errors
from fairlead.model import cdikind
from fairlead.node.kubelet.devices.devicemanager import DeviceManager
from fairlead.wire.kubelet import deviceplugin, podresources
from fairlead.wire.kubernetes import core
from fairlead.wire.proto import podresources_pb2 as pb

Claimed = Callable[[core.Pod, core.Container], Iterable[podresources.DynamicResource]]


def _nothing(_pod: core.Pod, _item: core.Container) -> Iterable[podresources.DynamicResource]:
    return ()


class _Servicer:
    def __init__(self, devices: DeviceManager, pods: Callable[[], Iterable[core.Pod]], claimed: Claimed) -> None:
        self._devices = devices
        self._pods = pods
        self._claimed = claimed

    async def list(self) -> pb.ListPodResourcesResponse:
        active = (pod for pod in self._pods() if pod.status.phase not in core.ENDED_PHASES)
        return pb.ListPodResourcesResponse(pod_resources=[self._of_pod(pod) for pod in active])

    async def allocatable(self) -> pb.AllocatableResourcesResponse:
        listed = self._devices.advertised().items()
        devices = [pb.ContainerDevices(resource_name=resource, device_ids=ids) for resource, ids in listed]
        return pb.AllocatableResourcesResponse(devices=devices)

    async def get(self, namespace: str, name: str) -> pb.GetPodResourcesResponse:
        """Return a pod's devices, ended or not: Kata's shim asks before the machine of a sandbox boots."""
        for pod in self._pods():
            if (pod.metadata.namespace, pod.metadata.name) == (namespace, name):
                return pb.GetPodResourcesResponse(pod_resources=self._of_pod(pod))
        shown = errors.readable(f"{namespace}/{name}"[:200])
        raise errors.NotFound(f"the kubelet has no pod {shown}", reason="PodNotFound", hint="was it deleted?")

    def _of_pod(self, pod: core.Pod) -> pb.PodResources:
        held = self._devices.held(pod.metadata.uid)
        running = {one.name for one in pod.status.init_container_statuses if one.state.running is not None}
        first = (one for one in pod.spec.init_containers if one.restart_policy == "Always" or one.name in running)
        containers = [
            pb.ContainerResources(
                name=item.name,
                devices=[
                    pb.ContainerDevices(resource_name=grant.resource, device_ids=grant.device_ids)
                    for grant in held
                    if grant.container == item.name
                ]
                + [
                    # Asked for by their CDI names, which stand for themselves: whoever audits the container knows them.
                    pb.ContainerDevices(resource_name=cdikind.kind_of(name), device_ids=[name])
                    for name in (pod.spec.machine.devices if pod.spec.machine is not None else ())
                ],
                dynamic_resources=[podresources.emit_dynamic(one) for one in self._claimed(pod, item)],
            )
            for item in (*first, *pod.spec.containers)
        ]
        return pb.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace, containers=containers)


@contextlib.asynccontextmanager
async def serve_pod_resources(
    devices: DeviceManager, pods: Callable[[], Iterable[core.Pod]], socket: Path, *, claimed: Claimed = _nothing
) -> AsyncIterator[None]:
    """Serve while the block runs; the socket is gone afterwards.

    Args:    pods: the pods bound to this node, now.   claimed: what a container has by claims.
    """
    await asyncio.to_thread(_make_way, socket)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((podresources.handlers(_Servicer(devices, pods, claimed)),))
    server.add_insecure_port(deviceplugin.target(socket))
    await server.start()  # it ends itself where it is cancelled
    try:  # a server that is left without `stop` lets its next call write into freed memory (grpcio 1.85)
        await asyncio.to_thread(socket.chmod, 0o600)
        yield
    finally:
        await server.stop(grace=None)
        _make_way(socket)


def _make_way(socket: Path) -> None:
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket.unlink(missing_ok=True)
