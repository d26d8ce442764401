"""Defines the PodResources API's calls: which container holds which devices, by number and by claim.

Server handlers and client stub stand side by side, as in `wire.kubelet.deviceplugin`, whose conventions hold here too:
plain servicer objects, statuses and errors of the table in both directions. Devices of ordinary init containers are not
in a kubelet's answer, only those of containers and of sidecars.

Source: k8s.io/kubelet pkg/apis/podresources/v1 api.proto; kubelet apis/podresources/server_v1.go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf import message

from fairlead.frozen import frozen
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.proto import podresources_pb2 as pb

SERVICE: Final = "v1.PodResourcesLister"
FOLDER: Final = "pod-resources"
"""Name of the folder that kubelets keep beside the one of device plugins."""
SOCKET: Final = "kubelet.sock"

Request = TypeVar("Request", bound=message.Message)
Response = TypeVar("Response", bound=message.Message)


@frozen
class ClaimDevice:
    """One device of a claim, as its driver prepared it."""

    driver: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...] = ()
    share_id: str | None = None


@frozen
class DynamicResource:
    """The devices of one claim that a container has."""

    claim: str
    namespace: str
    devices: tuple[ClaimDevice, ...]


def parse_dynamic(container: pb.ContainerResources) -> tuple[DynamicResource, ...]:
    """Return what a container has by claims."""
    return tuple(
        DynamicResource(
            claim=item.claim_name,
            namespace=item.claim_namespace,
            devices=tuple(_parse_device(one) for one in item.claim_resources),
        )
        for item in container.dynamic_resources
    )


def _parse_device(item: pb.ClaimResource) -> ClaimDevice:
    return ClaimDevice(
        driver=item.driver_name,
        pool=item.pool_name,
        device=item.device_name,
        cdi_devices=tuple(one.name for one in item.cdi_devices),
        share_id=item.share_id if item.HasField("share_id") else None,
    )


def emit_dynamic(item: DynamicResource) -> pb.DynamicResource:
    """Return the message of `DynamicResource`."""
    devices = [
        pb.ClaimResource(
            driver_name=one.driver,
            pool_name=one.pool,
            device_name=one.device,
            cdi_devices=[pb.CDIDevice(name=name) for name in one.cdi_devices],
            share_id=one.share_id,
        )
        for one in item.devices
    ]
    return pb.DynamicResource(claim_name=item.claim, claim_namespace=item.namespace, claim_resources=devices)


class Servicer(Protocol):
    """What a kubelet serves."""

    async def list(self) -> pb.ListPodResourcesResponse:
        """Return every active pod with the devices of its containers."""
        ...

    async def allocatable(self) -> pb.AllocatableResourcesResponse:
        """Return the devices that plugins advertise."""
        ...

    async def get(self, namespace: str, name: str) -> pb.GetPodResourcesResponse:
        """Return one pod with the devices of its containers. Raises: NotFound: there is no such pod."""
        ...


def handlers(servicer: Servicer) -> grpc.GenericRpcHandler:
    """Return the handler of service `v1.PodResourcesLister`, for `server.add_generic_rpc_handlers`."""

    async def get(request: pb.GetPodResourcesRequest) -> pb.GetPodResourcesResponse:
        return await servicer.get(request.pod_namespace, request.pod_name)

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Get": deviceplugin.unary(get, pb.GetPodResourcesRequest),
            "List": _unary(servicer.list, pb.ListPodResourcesRequest),
            "GetAllocatableResources": _unary(servicer.allocatable, pb.AllocatableResourcesRequest),
        },
    )


def _unary(
    behaviour: Callable[[], Awaitable[Response]], kind: type[Request]
) -> grpc.RpcMethodHandler[Request, Response]:
    async def serve(_: Request, __: grpc.aio.ServicerContext[Request, Response]) -> Response:
        return await behaviour()

    return grpc.unary_unary_rpc_method_handler(serve, kind.FromString, deviceplugin.encode)


class Stub:
    """Calls a kubelet. Every method raises the table's class for the status that came back."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._list = deviceplugin.method(channel, SERVICE, "List")
        self._allocatable = deviceplugin.method(channel, SERVICE, "GetAllocatableResources")

    async def list(self, *, timeout_s: float) -> pb.ListPodResourcesResponse:
        """Return every active pod with its containers' devices. Raises: Unavailable: no kubelet answers in time."""
        call = self._list(pb.ListPodResourcesRequest(), timeout=timeout_s)
        return await deviceplugin.answer(call, "List", pb.ListPodResourcesResponse)

    async def allocatable(self, *, timeout_s: float) -> pb.AllocatableResourcesResponse:
        """Return the devices that plugins advertise. Raises: as `list`."""
        call = self._allocatable(pb.AllocatableResourcesRequest(), timeout=timeout_s)
        return await deviceplugin.answer(call, "GetAllocatableResources", pb.AllocatableResourcesResponse)
