"""Defines the DRA plugin API's calls: a kubelet has a driver prepare claims and unprepare them.

Conventions are those of `wire.kubelet.deviceplugin`. Both versions of the service carry the same messages, but for the
share of a device, which v1beta1 does not know: one servicer and one stub speak both. A kubelet names a claim only; the
driver reads what was allocated to it from the API. A driver answers for every claim by its uid; what goes wrong with
one is the text of its answer, and an error of the whole call is for what concerns all claims alike.

Source: k8s.io/kubelet pkg/apis/dra/v1 and v1beta1, api.proto and types.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from fairlead.frozen import frozen
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.proto import draplugin_pb2 as pb

V1: Final = "v1.DRAPlugin"
V1BETA1: Final = "v1beta1.DRAPlugin"
SERVICES: Final[Mapping[str, str]] = {
    V1: "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    V1BETA1: "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
"""The gRPC service by the name that a plugin lists among its supported versions, the preferred one first."""
SOCKET: Final = "dra.sock"
"""Name of a driver's socket in its folder below the kubelet's `plugins`."""


@frozen
class Claim:
    """Names a claim of a call."""

    namespace: str
    name: str
    uid: str


@frozen
class Device:
    """One prepared device of a claim."""

    requests: tuple[str, ...]
    """The requests that it serves, without the names of their alternatives."""
    pool: str
    device: str
    cdi_devices: tuple[str, ...] = ()
    """Qualified CDI names for every container that uses one of the requests."""
    share_id: str | None = None
    """Which share of a device that several claims have; only v1 carries it."""


@frozen
class Prepared:
    """What a driver answers for one claim: its devices, or why they cannot be had."""

    devices: tuple[Device, ...] = ()
    error: str = ""


class Servicer(Protocol):
    """What a driver serves."""

    async def prepare(self, claims: tuple[Claim, ...]) -> Mapping[str, Prepared]:
        """Return an answer for each claim, by uid; idempotent."""
        ...

    async def unprepare(self, claims: tuple[Claim, ...]) -> Mapping[str, str]:
        """Return for each claim, by uid, why it cannot be given back; empty: it is. Idempotent."""
        ...


def handlers(servicer: Servicer) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of both versions, for `server.add_generic_rpc_handlers`."""
    return tuple(_handler(servicer, version) for version in SERVICES)


def _handler(servicer: Servicer, version: str) -> grpc.GenericRpcHandler:
    async def prepare(request: pb.NodePrepareResourcesRequest) -> pb.NodePrepareResourcesResponse:
        prepared = await servicer.prepare(_claims(request.claims))
        named = {uid: _emit(one, version) for uid, one in prepared.items()}
        return pb.NodePrepareResourcesResponse(claims=named)

    async def unprepare(request: pb.NodeUnprepareResourcesRequest) -> pb.NodeUnprepareResourcesResponse:
        problems = await servicer.unprepare(_claims(request.claims))
        named = {uid: pb.NodeUnprepareResourceResponse(error=problem) for uid, problem in problems.items()}
        return pb.NodeUnprepareResourcesResponse(claims=named)

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "NodePrepareResources": deviceplugin.unary(prepare, pb.NodePrepareResourcesRequest),
        "NodeUnprepareResources": deviceplugin.unary(unprepare, pb.NodeUnprepareResourcesRequest),
    }
    return grpc.method_handlers_generic_handler(SERVICES[version], methods)


class Stub:
    """Calls a driver. Every method raises the table's class for the status that came back."""

    def __init__(self, channel: grpc.aio.Channel, version: str = V1) -> None:
        """Take one of `SERVICES`."""
        self._prepare = deviceplugin.method(channel, SERVICES[version], "NodePrepareResources")
        self._unprepare = deviceplugin.method(channel, SERVICES[version], "NodeUnprepareResources")

    async def prepare(self, claims: Iterable[Claim], *, timeout_s: float | None = None) -> Mapping[str, Prepared]:
        """Return what the driver answers by uid, for the claims that it answers for at all."""
        request = pb.NodePrepareResourcesRequest(claims=_named(claims))
        call = self._prepare(request, timeout=timeout_s)
        answer = await deviceplugin.answer(call, "NodePrepareResources", pb.NodePrepareResourcesResponse)
        return {uid: _parse(one) for uid, one in answer.claims.items()}

    async def unprepare(self, claims: Iterable[Claim], *, timeout_s: float | None = None) -> Mapping[str, str]:
        """Return by uid why a claim was not given back; empty: it was. Only claims that the driver answers for."""
        request = pb.NodeUnprepareResourcesRequest(claims=_named(claims))
        call = self._unprepare(request, timeout=timeout_s)
        answer = await deviceplugin.answer(call, "NodeUnprepareResources", pb.NodeUnprepareResourcesResponse)
        return {uid: one.error for uid, one in answer.claims.items()}


def _claims(items: Iterable[pb.Claim]) -> tuple[Claim, ...]:
    return tuple(Claim(namespace=one.namespace, name=one.name, uid=one.uid) for one in items)


def _named(claims: Iterable[Claim]) -> list[pb.Claim]:
    return [pb.Claim(namespace=one.namespace, name=one.name, uid=one.uid) for one in claims]


def _emit(prepared: Prepared, version: str) -> pb.NodePrepareResourceResponse:
    devices = [
        pb.Device(
            request_names=one.requests,
            pool_name=one.pool,
            device_name=one.device,
            cdi_device_ids=one.cdi_devices,
            share_id=one.share_id if version == V1 else None,
        )
        for one in prepared.devices
    ]
    return pb.NodePrepareResourceResponse(devices=devices, error=prepared.error)


def _parse(answer: pb.NodePrepareResourceResponse) -> Prepared:
    devices = (
        Device(
            requests=tuple(one.request_names),
            pool=one.pool_name,
            device=one.device_name,
            cdi_devices=tuple(one.cdi_device_ids),
            share_id=one.share_id if one.HasField("share_id") else None,
        )
        for one in answer.devices
    )
    return Prepared(devices=tuple(devices), error=answer.error)
