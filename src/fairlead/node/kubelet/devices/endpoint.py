"""Calls one registered device plugin, each call with a deadline.

A plugin may be stopped, swapped out or wait for its hardware for ever. A call that is not answered in time ends as
`PluginTimeout`, so a plugin that hangs keeps its own resource's pods from starting and no others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeVar

import grpc.aio

from fairlead import errors
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.proto import deviceplugin_pb2 as pb

DIAL_S: Final = 10.0
"""For a connection and the plugin's options. Source: kubernetes pkg/kubelet/cm/devicemanager, dial timeout."""
NO_ANSWER: Final = "PluginTimeout"
UNREACHABLE: Final = "PluginUnreachable"
_LATE: Final = "DeadlineExceeded"

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Endpoint:
    """One registered plugin, alive or gone."""

    resource: str
    channel: grpc.aio.Channel
    stub: deviceplugin.DevicePluginStub
    options: pb.DevicePluginOptions
    timeout_s: float
    """How long one of its calls may take."""
    socket: Path
    devices: dict[str, bool] = field(default_factory=dict)
    """Device id to healthy, in advertised order."""
    has_listed: bool = False
    """Whether `devices` is its own list; before that it may be what the plugin before it left."""
    registered_at: float = field(default_factory=time.monotonic)
    worsened_at: float = 0.0
    """Monotonic time at which a device of its list last turned unhealthy; 0: none did."""
    gone_at: float | None = None
    """Set before its channel is closed: while it is None the channel takes calls."""
    silent_at: float = float("-inf")
    """Monotonic time at which a call was last given up."""
    follower: asyncio.Task[None] | None = None
    """Reads its list; None before that begins."""

    @classmethod
    async def dial(cls, resource: str, socket: Path, *, timeout_s: float) -> Self:
        """Connect to a plugin and read its options. Raises: Unavailable (`PluginUnreachable`): not within 10 s."""
        address = deviceplugin.target(socket)
        channel = grpc.aio.insecure_channel(address, options=deviceplugin.CHANNEL_OPTIONS)
        stub = deviceplugin.DevicePluginStub(channel)
        try:
            async with asyncio.timeout(DIAL_S):
                await channel.channel_ready()  # a plugin that has yet to listen would be refused at once
                options = await stub.options()
        except (TimeoutError, errors.FairleadError) as error:
            await channel.close()
            message = f"the device plugin of {resource} does not answer at {address}"
            raise errors.Unavailable(message, reason=UNREACHABLE) from error
        return cls(resource=resource, channel=channel, stub=stub, options=options, timeout_s=timeout_s, socket=socket)

    def take(self, devices: dict[str, bool]) -> None:
        """Take over a list that the plugin sent."""
        if any(was and not devices.get(name, True) for name, was in self.devices.items()):
            self.worsened_at = time.monotonic()
        self.devices, self.has_listed = devices, True

    async def allocate(self, device_ids: tuple[str, ...]) -> bytes:
        """Return the plugin's answer for one container. Raises: as `_ask`; ProtocolError: not one answer."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=device_ids)])
        answer = await self._ask("Allocate", lambda: self.stub.allocate(request, timeout_s=self.timeout_s))
        if len(answer.container_responses) != 1:
            message = f"plugin of {self.resource} answered for {len(answer.container_responses)} containers, not 1"
            raise errors.ProtocolError(message, reason="AllocateAnswerInvalid")
        return answer.container_responses[0].SerializeToString()

    async def pre_start(self, device_ids: tuple[str, ...]) -> None:
        """Let the plugin act before a container starts. Raises: as `_ask`."""
        request = pb.PreStartContainerRequest(devices_ids=device_ids)
        await self._ask("PreStartContainer", lambda: self.stub.pre_start_container(request, timeout_s=self.timeout_s))

    async def prefer(self, available: tuple[str, ...], must: tuple[str, ...], count: int) -> tuple[str, ...]:
        """Return the devices that the plugin would choose, none where it does not say. Raises: as `_ask`."""
        if not self.options.get_preferred_allocation_available:
            return ()
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=count
        )
        whole = pb.PreferredAllocationRequest(container_requests=[request])
        answer = await self._ask(
            "GetPreferredAllocation", lambda: self.stub.preferred_allocation(whole, timeout_s=self.timeout_s)
        )
        return tuple(answer.container_responses[0].deviceIDs) if answer.container_responses else ()

    def unanswered(self, call: str) -> errors.Unavailable:
        """Return what is raised where a call was not answered in time."""
        message = f"the plugin of {self.resource} did not answer {call} within {self.timeout_s:g} s"
        return errors.Unavailable(message, reason=NO_ANSWER, hint="it hangs: look at its log, or restart it")

    async def _ask(self, name: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Await one answer of the plugin.

        Raises: Unavailable: it is gone (`PluginUnreachable`), or hangs (`PluginTimeout`); else what it refuses with.

        A call cut in flight ends as UNAVAILABLE, CANCELLED or INTERNAL, as the transport pleases, and may end before
        the plugin's stream does: whether the plugin refused or died is found out by asking it for something it cannot
        refuse.
        """
        cause = None
        if self.gone_at is None:
            try:
                return await call()
            except errors.FairleadError as error:
                cause = error
            if cause.reason == _LATE:
                self.silent_at = time.monotonic()
                raise self.unanswered(name) from cause
            if await self._is_there():
                raise cause
        message = f"the plugin of {self.resource} went away while it was asked"
        raise errors.Unavailable(message, reason=UNREACHABLE) from cause

    async def _is_there(self) -> bool:
        try:
            if self.gone_at is None:
                await self.stub.options(timeout_s=DIAL_S)
        except errors.FairleadError:
            return False
        return self.gone_at is None
