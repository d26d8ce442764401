"""An example DRA driver for tests: CPU-like devices, real gRPC over real sockets, one CDI file a claim.

It does what a driver does: reads the claim from the store, writes a CDI file, remembers what it prepared, and takes
both back. Where a test says so it misbehaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

import grpc.aio

from fairlead import errors
from fairlead.store.port import Store
from fairlead.wire.kubelet import deviceplugin, drahealth, draplugin, pluginregistration
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

DRIVER: Final = "cpu.example.com"
Prepared = Mapping[str, draplugin.Prepared]


class ExampleDriver:
    """What outlives its process: what it has prepared, and its CDI files."""

    def __init__(self, store: Store, cdi_folder: Path, name: str = DRIVER) -> None:
        self.store, self.cdi_folder, self.name = store, cdi_folder, name
        self.prepared: dict[str, tuple[draplugin.Device, ...]] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        """Each call with the claims that it named."""
        self.asked: Callable[..., None] = lambda *_: None
        """Gets each call and the claims that it names."""
        self.refuse = ""
        """What it answers for every claim; empty: it does what it is asked."""
        self.bend: Callable[[Prepared], Prepared] = lambda answer: answer
        """Changes its answer to a call."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.registrations: list[str] = []
        """What it was told of its registration; empty: it is registered."""
        self.told = asyncio.Event()
        self.reports: asyncio.Queue[tuple[drahealth.DeviceHealth, ...] | None] = asyncio.Queue()
        """What it reports of its devices next; None ends the stream."""
        self.versions: tuple[str, ...] = (draplugin.V1, draplugin.V1BETA1, drahealth.V1)
        self.type = pluginregistration.DRA_PLUGIN
        self.endpoint: str | None = None
        """What it says its endpoint is, where that is a lie."""
        self.serves_health = True
        self.is_silent = False
        """It answers no question about what it is."""

    def cdi_name(self, uid: str, device: str) -> str:
        return f"{self.name}/claim={uid}-{device}"

    # draplugin.Servicer

    async def prepare(self, claims: tuple[draplugin.Claim, ...]) -> Prepared:
        self.calls.append(("prepare", tuple(one.name for one in claims)))
        self.asked("prepare", *(one.name for one in claims))
        await self.gate.wait()
        return self.bend({one.uid: await self._prepare(one) for one in claims})

    async def _prepare(self, named: draplugin.Claim) -> draplugin.Prepared:
        if self.refuse:
            return draplugin.Prepared(error=self.refuse)
        claim = await self.store.get(ResourceClaim, named.name, named.namespace)
        allocation = claim.status.allocation
        if claim.metadata.uid != named.uid or allocation is None:
            return draplugin.Prepared(error="the claim is another one, or not allocated")
        mine = [one for one in allocation.devices.results if one.driver == self.name]
        devices = tuple(
            draplugin.Device(
                requests=(one.request.partition("/")[0],),
                pool=one.pool,
                device=one.device,
                cdi_devices=(self.cdi_name(named.uid, one.device),),
            )
            for one in mine
        )
        self._write(named.uid, [one.device for one in mine])
        self.prepared[named.uid] = devices
        return draplugin.Prepared(devices=devices)

    def _write(self, uid: str, names: list[str]) -> None:
        self.cdi_folder.mkdir(exist_ok=True, parents=True)
        made = [
            {"name": f"{uid}-{name}", "containerEdits": {"env": [f"DEVICE_{name.upper().replace('-', '_')}={uid}"]}}
            for name in names
        ]
        document = {"cdiVersion": "0.6.0", "kind": f"{self.name}/claim", "devices": made}
        (self.cdi_folder / f"{self.name}-{uid}.json").write_text(json.dumps(document))

    async def unprepare(self, claims: tuple[draplugin.Claim, ...]) -> Mapping[str, str]:
        self.calls.append(("unprepare", tuple(one.name for one in claims)))
        self.asked("unprepare", *(one.name for one in claims))
        await self.gate.wait()
        if not self.refuse:
            for one in claims:
                self.prepared.pop(one.uid, None)
                (self.cdi_folder / f"{self.name}-{one.uid}.json").unlink(missing_ok=True)
        return {one.uid: self.refuse for one in claims}

    # drahealth.Servicer, pluginregistration.Servicer

    async def watch(self) -> AsyncIterator[tuple[drahealth.DeviceHealth, ...]]:
        while (devices := await self.reports.get()) is not None:
            yield devices

    async def info(self) -> pluginregistration.Info:
        if self.is_silent:
            raise errors.Unavailable("not now", reason="Busy")
        endpoint = str(self._socket) if self.endpoint is None else self.endpoint
        return pluginregistration.Info(type=self.type, name=self.name, endpoint=endpoint, versions=self.versions)

    async def registered(self, problem: str) -> None:
        self.registrations.append(problem)
        self.told.set()

    @contextlib.asynccontextmanager
    async def serve(self, registry: Path, instance: str = "") -> AsyncIterator[None]:
        """Run until the block ends: the driver's socket first, then the one that registers it."""
        folder = registry.parent / "plugins" / self.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        registry.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._socket = folder / f"dra{instance}.sock"
        registration = registry / f"{self.name}{instance}-reg.sock"
        health = drahealth.handlers(self) if self.serves_health else ()
        handlers = (*draplugin.handlers(self), *health)
        async with (
            _served(self._socket, *handlers),
            _served(registration, pluginregistration.handlers(self)),
        ):
            yield

    async def until_told(self) -> str:
        """Return what the driver is told next of its registration."""
        async with asyncio.timeout(30):
            await self.told.wait()
        self.told.clear()
        return self.registrations[-1]


@contextlib.asynccontextmanager
async def _served(socket: Path, *handlers: grpc.GenericRpcHandler) -> AsyncIterator[None]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(deviceplugin.target(socket))
    await server.start()
    try:
        yield
    finally:
        socket.unlink(missing_ok=True)
        await server.stop(grace=None)
