"""A small device plugin on a real unix socket: what a test wants it to advertise, prefer, answer and refuse."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import grpc.aio

from fairlead import errors
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.proto import deviceplugin_pb2 as pb

RESOURCE = "example.com/gpu"


class _Garbled:
    """Bytes that are not messages, where one is expected."""

    def SerializeToString(self) -> bytes:  # noqa: N802  protobuf's
        return b"\xff"


class Plugin:
    """`v1beta1.DevicePlugin` over a dictionary of devices."""

    def __init__(self, *ids: str, prefers: tuple[str, ...] = (), pre_start: bool = False) -> None:
        self.devices = dict.fromkeys(ids, True)
        self.prefers = prefers
        self.pre_start = pre_start
        self.refuses: errors.FairleadError | None = None
        self.answers_for = 1
        self.asked: list[tuple[str, ...]] = []
        """Device ids of every Allocate, in order."""
        self.was_asked = asyncio.Event()
        self.was_consulted = asyncio.Event()
        self.preferences: list[pb.ContainerPreferredAllocationRequest] = []
        self.pre_started: list[tuple[str, ...]] = []
        self.hold = asyncio.Event()
        """Cleared: every answer about devices waits for it."""
        self.hold.set()
        self.lists = True
        """False: registered, but its list is never sent."""
        self.garbles: frozenset[str] = frozenset()
        """Calls whose answers are not messages: ListAndWatch, Allocate."""
        self.hangs: frozenset[str] = frozenset()
        """Calls that are never answered: GetDevicePluginOptions, GetPreferredAllocation, Allocate, PreStartContainer,
        ListAndWatch."""
        self.is_deaf = False
        """True: asked for its options, it is not there any more."""
        self._hangs_up = False
        self._news = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def serve(self, socket: Path) -> AsyncIterator[None]:
        """Serve while the block runs; its end breaks every stream, as a killed plugin's does."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((deviceplugin.device_plugin_handlers(self),))
        server.add_insecure_port(deviceplugin.target(socket))
        await server.start()
        self._hangs_up = False
        try:
            yield
        finally:
            await server.stop(grace=None)

    def request(self, socket: str, *, resource: str = RESOURCE) -> pb.RegisterRequest:
        return pb.RegisterRequest(
            version=deviceplugin.VERSION, endpoint=socket, resource_name=resource, options=self._options()
        )

    async def change(self, devices: dict[str, bool]) -> None:
        """Send another list."""
        async with self._news:
            self.devices = devices
            self._news.notify_all()

    async def hang_up(self) -> None:
        """End every list's stream and nothing else, as the first sign of a death that is seen."""
        async with self._news:
            self._hangs_up = True
            self._news.notify_all()

    async def _hang(self, call: str) -> None:
        if call in self.hangs:
            await asyncio.Event().wait()

    def _options(self) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(
            pre_start_required=self.pre_start, get_preferred_allocation_available=bool(self.prefers)
        )

    async def options(self) -> pb.DevicePluginOptions:
        await self._hang("GetDevicePluginOptions")
        if self.is_deaf:
            raise errors.Unavailable("gone", reason="Unavailable")
        return self._options()

    async def list_and_watch(self) -> AsyncIterator[pb.ListAndWatchResponse]:
        await self._hang("ListAndWatch")
        async with self._news:
            while not self.lists:
                await self._news.wait()
            while not self._hangs_up:
                if "ListAndWatch" in self.garbles:
                    yield cast(pb.ListAndWatchResponse, _Garbled())
                health = {True: deviceplugin.HEALTHY, False: deviceplugin.UNHEALTHY}
                yield pb.ListAndWatchResponse(
                    devices=[pb.Device(ID=name, health=health[good]) for name, good in self.devices.items()]
                )
                await self._news.wait()

    async def preferred_allocation(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        await self._hang("GetPreferredAllocation")
        self.preferences.extend(request.container_requests)
        self.was_consulted.set()
        await self.hold.wait()
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self.prefers)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        ids = tuple(request.container_requests[0].devices_ids)
        self.asked.append(ids)
        self.was_asked.set()
        await self._hang("Allocate")
        await self.hold.wait()
        if self.refuses is not None:
            raise self.refuses
        if "Allocate" in self.garbles:
            return cast(pb.AllocateResponse, _Garbled())
        return pb.AllocateResponse(container_responses=[self.answer(ids)] * self.answers_for)

    def answer(self, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        """Return what is answered for some devices."""
        return pb.ContainerAllocateResponse(envs={"DEVICES": ",".join(ids), "ASKED": str(len(self.asked))})

    async def pre_start_container(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        await self._hang("PreStartContainer")
        self.pre_started.append(tuple(request.devices_ids))
        return pb.PreStartContainerResponse()
