"""Defines the health stream of DRA plugins: which devices work, as their driver says it.

Conventions are those of `wire.kubelet.deviceplugin`. Both versions carry the same messages. A report covers some of the
devices or all; each counts until it is stale, so a driver sends it again before that.

Source: k8s.io/kubelet pkg/apis/dra-health/v1 and v1alpha1 api.proto; kubernetes pkg/kubelet/cm/dra/healthinfo.go.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Final, Protocol

import grpc
import grpc.aio

from fairlead.frozen import frozen
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.proto import drahealth_pb2 as pb

V1: Final = "v1.DRAResourceHealth"
V1ALPHA1: Final = "v1alpha1.DRAResourceHealth"
SERVICES: Final[Mapping[str, str]] = {V1: V1, V1ALPHA1: V1ALPHA1}
"""The gRPC service by the name that a plugin lists among its supported versions, the preferred one first."""
STALE_S: Final = 30.0
"""How long a report counts that does not say it itself."""
MOST_MESSAGE: Final = 1024
"""Longest message of one device, in bytes; kubelets cut what is longer."""


class Health(enum.Enum):
    """How a device is; a number that this program does not know is `UNKNOWN`."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@frozen
class DeviceHealth:
    """What a driver says of one device."""

    pool: str
    device: str
    health: Health
    updated_at: int
    """When it was found out, Unix seconds."""
    timeout_s: int = 0
    """How long it counts; 0: `STALE_S`."""
    message: str = ""


class Servicer(Protocol):
    """What a driver serves."""

    def watch(self) -> AsyncIterator[tuple[DeviceHealth, ...]]:
        """Yield reports, the first of every device at once; cancelled when the client goes."""
        ...


def handlers(servicer: Servicer) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of both versions, for `server.add_generic_rpc_handlers`."""

    async def watch() -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        async for devices in servicer.watch():
            yield pb.NodeWatchResourcesResponse(devices=[_emit(one) for one in devices])

    methods = {"NodeWatchResources": deviceplugin.stream(watch, pb.NodeWatchResourcesRequest)}
    return tuple(grpc.method_handlers_generic_handler(service, methods) for service in SERVICES.values())


class Stub:
    """Calls a driver."""

    def __init__(self, channel: grpc.aio.Channel, version: str = V1) -> None:
        """Take one of `SERVICES`."""
        self._watch = deviceplugin.streaming(channel, SERVICES[version], "NodeWatchResources")

    async def watch(self) -> AsyncGenerator[tuple[DeviceHealth, ...], None]:
        """Yield reports until the driver ends the stream (returns) or it breaks (raises the table's class)."""
        call = self._watch(pb.NodeWatchResourcesRequest())
        answers = deviceplugin.answers(call, "NodeWatchResources", pb.NodeWatchResourcesResponse)
        async with contextlib.aclosing(answers):
            async for answer in answers:
                yield tuple(_parse(one) for one in answer.devices)


def _emit(item: DeviceHealth) -> pb.DeviceHealth:
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=item.pool, device_name=item.device),
        health=pb.HealthStatus.Name(item.health.value),
        last_updated_time=item.updated_at,
        health_check_timeout_seconds=item.timeout_s,
        message=item.message,
    )


_KNOWN: Final = {one.value: one for one in Health}


def _parse(item: pb.DeviceHealth) -> DeviceHealth:
    return DeviceHealth(
        pool=item.device.pool_name,
        device=item.device.device_name,
        health=_KNOWN.get(item.health, Health.UNKNOWN),
        updated_at=item.last_updated_time,
        timeout_s=item.health_check_timeout_seconds,
        message=item.message,
    )
