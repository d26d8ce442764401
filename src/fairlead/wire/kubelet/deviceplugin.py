"""Defines the device plugin API's calls: method paths, server handlers and client stubs around the messages.

Both sides live here, so that the plugin and the embedded kubelet cannot drift apart. A servicer is a plain object with
one coroutine a method, messages in and out; it raises `FairleadError` and the handler answers with the gRPC status of
the error table. A stub does the reverse: whatever status a foreign plugin or kubelet answers comes back as the class of
the table that has it. The reason token travels in the trailing metadata `fairlead-reason`. Sockets, retries and
checkpoints belong to `node`.

Source: k8s.io/kubelet pkg/apis/deviceplugin/v1beta1 api.proto and constants.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf import message

from fairlead import errors
from fairlead.wire.proto import deviceplugin_pb2 as pb

VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

REGISTRATION: Final = "v1beta1.Registration"
DEVICE_PLUGIN: Final = "v1beta1.DevicePlugin"
REASON_KEY: Final = "fairlead-reason"

CHANNEL_OPTIONS: Final[list[tuple[str, str | int]]] = [
    # Servers written in Go refuse the percent-encoded path that C-core would send as :authority.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # A socket file that was removed and made again is another peer: never share its connection or its back-off.
    ("grpc.use_local_subchannel_pool", 1),
    # C-core takes this for the time that one attempt may last: a peer on a busy machine needs more than a moment.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

Request = TypeVar("Request", bound=message.Message)
Response = TypeVar("Response", bound=message.Message)


def target(socket: Path) -> str:
    """Return the gRPC address of a unix socket."""
    return f"unix:{socket}"


def cdi_names(answer: pb.ContainerAllocateResponse) -> tuple[str, ...]:
    """Return the CDI devices of an answer, by field and by annotation, each once, in order."""
    by_field = [item.name for item in answer.cdi_devices]
    by_annotation = [
        name.strip()
        for key in sorted(answer.annotations)
        if key.startswith("cdi.k8s.io/")
        for name in answer.annotations[key].split(",")
    ]
    return tuple(dict.fromkeys([*by_field, *by_annotation]))


class RegistrationServicer(Protocol):
    """What a kubelet serves on `kubelet.sock`."""

    async def register(self, request: pb.RegisterRequest) -> pb.Empty:
        """Register a plugin; the real kubelet dials the endpoint back before it answers."""
        ...


class DevicePluginServicer(Protocol):
    """What a plugin serves on its own socket."""

    async def options(self) -> pb.DevicePluginOptions:
        """Return which optional calls are worth making."""
        ...

    def list_and_watch(self) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Yield the full list now and on every change; cancelled when the client goes."""
        ...

    async def preferred_allocation(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        """Suggest devices for each container request."""
        ...

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Return what each container must be given for its devices."""
        ...

    async def pre_start_container(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        """Act right before a container starts; called only if the options ask for it."""
        ...


def registration_handlers(servicer: RegistrationServicer) -> grpc.GenericRpcHandler:
    """Return the handler of service `v1beta1.Registration`, for `server.add_generic_rpc_handlers`."""
    return grpc.method_handlers_generic_handler(
        REGISTRATION, {"Register": unary(servicer.register, pb.RegisterRequest)}
    )


def device_plugin_handlers(servicer: DevicePluginServicer) -> grpc.GenericRpcHandler:
    """Return the handler of service `v1beta1.DevicePlugin`, for `server.add_generic_rpc_handlers`."""

    async def options(_: pb.Empty) -> pb.DevicePluginOptions:
        return await servicer.options()

    return grpc.method_handlers_generic_handler(
        DEVICE_PLUGIN,
        {
            "GetDevicePluginOptions": unary(options, pb.Empty),
            "ListAndWatch": stream(servicer.list_and_watch, pb.Empty),
            "GetPreferredAllocation": unary(servicer.preferred_allocation, pb.PreferredAllocationRequest),
            "Allocate": unary(servicer.allocate, pb.AllocateRequest),
            "PreStartContainer": unary(servicer.pre_start_container, pb.PreStartContainerRequest),
        },
    )


def unary(
    behaviour: Callable[[Request], Awaitable[Response]], kind: type[Request]
) -> grpc.RpcMethodHandler[Request, Response]:
    """Return the handler of a call that answers once; errors of the table become the status of their row."""

    async def serve(request: Request, context: grpc.aio.ServicerContext[Request, Response]) -> Response:
        try:
            return await behaviour(request)
        except errors.FairleadError as error:
            return await abort(context, error)

    return grpc.unary_unary_rpc_method_handler(serve, kind.FromString, encode)


def stream(
    behaviour: Callable[[], AsyncIterator[Response]], kind: type[Request]
) -> grpc.RpcMethodHandler[Request, Response]:
    """Return the handler of a call that takes nothing but its name and answers until its client goes."""

    async def serve(_: Request, context: grpc.aio.ServicerContext[Request, Response]) -> AsyncIterator[Response]:
        try:
            async for answer in behaviour():
                yield answer
        except errors.FairleadError as error:
            await abort(context, error)

    return grpc.unary_stream_rpc_method_handler(serve, kind.FromString, encode)


def encode(item: message.Message) -> bytes:
    """Return the bytes of a message."""
    return item.SerializeToString()


async def abort(context: grpc.aio.ServicerContext[Request, Response], error: errors.FairleadError) -> Response:
    """End a call with the status of an error of the table."""
    code = grpc.StatusCode[errors.row_of(error).grpc]
    return await context.abort(code, errors.sentence(error), ((REASON_KEY, error.reason),))


# Statuses without a row of their own, by who must act; everything else is a peer that breaks the protocol.
_FOREIGN: Final[dict[str, type[errors.FairleadError]]] = {
    "DEADLINE_EXCEEDED": errors.Unavailable,
    "CANCELLED": errors.Unavailable,
    "ALREADY_EXISTS": errors.Conflict,
}
_BY_STATUS: Final = {**_FOREIGN, **{row.grpc: kind for kind, row in errors.TABLE.items() if kind is not errors.Invalid}}


def translate(error: grpc.aio.AioRpcError, call: str) -> errors.FairleadError:
    """Return the error of the table for a failed call; `call` names it in the message (`Allocate`)."""
    status = error.code().name
    trailer = dict(error.trailing_metadata() or ())
    reason = trailer.get(REASON_KEY) or "".join(word.capitalize() for word in status.split("_"))
    text = f"{call} failed ({status}): {error.details() or 'no details given'}"
    return _BY_STATUS.get(status, errors.ProtocolError)(text, reason=str(reason), status=status)


class RegistrationStub:
    """Calls a kubelet. Every method raises the table's class for the status that came back."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._register = method(channel, REGISTRATION, "Register")

    async def register(self, request: pb.RegisterRequest, *, timeout_s: float | None = None) -> None:
        """Register one endpoint. Raises: Unavailable: no kubelet there; RequestError: it refuses name or version."""
        await answer(self._register(request, timeout=timeout_s), "Register", pb.Empty)


class DevicePluginStub:
    """Calls a plugin. Every method raises the table's class for the status that came back; None means no deadline."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._options = method(channel, DEVICE_PLUGIN, "GetDevicePluginOptions")
        self._preferred = method(channel, DEVICE_PLUGIN, "GetPreferredAllocation")
        self._allocate = method(channel, DEVICE_PLUGIN, "Allocate")
        self._pre_start = method(channel, DEVICE_PLUGIN, "PreStartContainer")
        self._watch = streaming(channel, DEVICE_PLUGIN, "ListAndWatch")

    async def options(self, *, timeout_s: float | None = None) -> pb.DevicePluginOptions:
        """Return which optional calls are worth making."""
        return await answer(
            self._options(pb.Empty(), timeout=timeout_s), "GetDevicePluginOptions", pb.DevicePluginOptions
        )

    async def list_and_watch(self) -> AsyncGenerator[pb.ListAndWatchResponse, None]:
        """Yield full lists until the plugin ends the stream (returns) or it breaks (raises)."""
        async for answer in answers(self._watch(pb.Empty()), "ListAndWatch", pb.ListAndWatchResponse):
            yield answer

    async def preferred_allocation(
        self, request: pb.PreferredAllocationRequest, *, timeout_s: float | None = None
    ) -> pb.PreferredAllocationResponse:
        """Return the plugin's suggestion."""
        return await answer(
            self._preferred(request, timeout=timeout_s), "GetPreferredAllocation", pb.PreferredAllocationResponse
        )

    async def allocate(self, request: pb.AllocateRequest, *, timeout_s: float | None = None) -> pb.AllocateResponse:
        """Return what each container must be given."""
        return await answer(self._allocate(request, timeout=timeout_s), "Allocate", pb.AllocateResponse)

    async def pre_start_container(
        self, request: pb.PreStartContainerRequest, *, timeout_s: float | None = 30.0
    ) -> pb.PreStartContainerResponse:
        """Let the plugin act right before a container starts; kubelets allow 30 s."""
        return await answer(
            self._pre_start(request, timeout=timeout_s), "PreStartContainer", pb.PreStartContainerResponse
        )


def method(
    channel: grpc.aio.Channel, service: str, name: str
) -> grpc.aio.UnaryUnaryMultiCallable[message.Message, bytes]:
    """Return a call for `answer`, which reads the bytes itself: grpc.aio makes None of those that are not messages."""
    return channel.unary_unary(f"/{service}/{name}", encode)


def streaming(
    channel: grpc.aio.Channel, service: str, name: str
) -> grpc.aio.UnaryStreamMultiCallable[message.Message, bytes]:
    """Return a call for `answers`, as `method` does for one answer."""
    return channel.unary_stream(f"/{service}/{name}", encode)


async def answer(call: grpc.aio.UnaryUnaryCall[message.Message, bytes], name: str, kind: type[Response]) -> Response:
    """Await the answer of a call. Args: name: for messages.

    Raises: ProtocolError: it cannot be read; else the table's class for the status that came back.
    """
    try:
        return decode(kind, await call, name)
    except grpc.aio.AioRpcError as error:
        raise translate(error, name) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The caller was not cancelled: its channel was closed under the call, and its task would end without a word.
        text = f"{name} failed (CANCELLED): the connection was given up while it was in flight"
        raise errors.Unavailable(text, reason="Cancelled", status="CANCELLED") from None


async def answers(
    call: grpc.aio.UnaryStreamCall[message.Message, bytes], name: str, kind: type[Response]
) -> AsyncGenerator[Response, None]:
    """Yield the answers of a call until the peer ends it (returns) or it breaks (raises as `answer`)."""
    try:
        async for data in call:
            yield decode(kind, data, name)
    except grpc.aio.AioRpcError as error:
        raise translate(error, name) from error
    finally:
        call.cancel()


def decode(kind: type[Response], data: bytes, call: str) -> Response:
    """Return the message in the bytes that a call was answered with. Raises: ProtocolError (`AnswerUnreadable`)."""
    try:
        return kind.FromString(data)
    except message.DecodeError as error:
        text = f"{call} was answered with {len(data)} bytes that are no {kind.__name__}"
        raise errors.ProtocolError(text, reason="AnswerUnreadable") from error
