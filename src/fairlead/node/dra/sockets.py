"""Serves a DRA driver on sockets where a kubelet finds them, and keeps them there.

The kubelet watches `plugins_registry`: it dials each socket there, asks what the plugin is, and connects to the socket
that the answer names. So the service's socket answers before the registration's appears, and goes after it. Both have
an instance's name: in an update two agents are there for a while, and neither touches the other's. An agent that ends
while another stands by (`standby`) keeps its sockets until that one is registered, so that a kubelet always has a
driver to call. What an agent that was killed left behind is swept by the next one, once nobody answers there.

Source: kubernetes pkg/kubelet/pluginmanager; KEP-4381, "Rolling updates".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import grpc.aio

from fairlead import errors, telemetry
from fairlead.node.deviceplugin import plugin
from fairlead.node.dra import standby
from fairlead.node.inventory import latest
from fairlead.wire.kubelet import deviceplugin, drahealth, draplugin
from fairlead.wire.kubelet import pluginregistration as registration

CHECK_S: Final = 2.0
"""How often the sockets are looked at."""
HANDOVER_S: Final = 15.0
"""Longest that an agent that ends waits for the one that stands by; a DaemonSet's pod has 30 s to end."""
_REGISTER_S: Final = 1.0
"""A kubelet has dialled a registration within this time of its appearance."""
_LOOK_S: Final = 0.05
_SERVICES: Final = "dra-*.sock"
"""The service sockets of all instances, as a pattern."""
_ROOTS: Final = 0o600
_STOP_S: Final = 5.0
"""How long calls that run have to end before their server does."""


def _registration(driver: str, instance: str) -> str:
    """Return the name of an instance's registration socket."""
    return f"{driver}-{instance}-reg.sock"


class _Counted:
    """A driver that counts the calls which run."""

    def __init__(self, driver: draplugin.Servicer) -> None:
        self._driver = driver
        self.running = 0

    async def prepare(self, claims: tuple[draplugin.Claim, ...]) -> Mapping[str, draplugin.Prepared]:
        with self._one():
            return await self._driver.prepare(claims)

    async def unprepare(self, claims: tuple[draplugin.Claim, ...]) -> Mapping[str, str]:
        with self._one():
            return await self._driver.unprepare(claims)

    @contextlib.contextmanager
    def _one(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


class Sockets:
    """The sockets of one instance of a driver."""

    def __init__(self, root: Path, driver: str, *, instance: str = "") -> None:
        """Take where they are. Args: root: of the kubelet.   instance: part of their names; empty: made here."""
        name = instance or os.urandom(4).hex()
        self.folder = root / registration.PLUGINS / driver
        self.registry = root / registration.FOLDER
        self.service = self.folder / f"dra-{name}.sock"
        self.registration = self.registry / _registration(driver, name)
        self.problem: latest.Latest[str | None] = latest.Latest(None)
        """Why the kubelet did not take the driver; empty: it did; None: it has not asked yet."""
        self._driver = driver
        self._servers: list[tuple[grpc.aio.Server, Path]] = []
        self._identities: dict[Path, plugin.Identity | None] = {}

    async def info(self) -> registration.Info:
        """Return what the plugin is; see `registration.Servicer`."""
        return registration.Info(
            type=registration.DRA_PLUGIN,
            name=self._driver,
            endpoint=str(self.service),
            versions=(*draplugin.SERVICES, *drahealth.SERVICES),
        )

    async def registered(self, problem: str) -> None:
        """Take in what the kubelet made of it; see `registration.Servicer`."""
        if self.problem.set(problem):
            if problem:
                telemetry.log.warning("dra driver not registered", resource=self._driver, error=problem)
            else:
                telemetry.log.info("dra driver registered", resource=self._driver)

    async def run(self, claims: draplugin.Servicer, health: drahealth.Servicer) -> None:
        """Serve, and serve again whenever a socket is gone, until cancelled; then the sockets go."""
        calls = _Counted(claims)
        try:
            while True:
                await self._start(calls, health)
                await self._until_gone()
                telemetry.log.warning("dra socket is gone, served again", path=str(self.service))
                await self._stop()
        finally:
            await asyncio.shield(self._leave(calls))

    async def successor(self) -> Path | None:
        """Return the socket of another instance, once it serves and its registration is there; None: none is.

        It is waited for, `HANDOVER_S` at most.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANDOVER_S):
                while True:
                    for path in self.folder.glob(_SERVICES):
                        shown = self.registry / _registration(self._driver, path.stem.removeprefix("dra-"))
                        if path != self.service and shown.is_socket() and await plugin.answers(path):
                            return path
                    await asyncio.sleep(_LOOK_S)
        return None

    async def _leave(self, calls: _Counted) -> None:
        """End the servers; where an agent stands by, once that one serves and the calls that run here have ended.

        A kubelet closes its connection when the registration goes, whatever runs there.
        """
        if self._servers and await standby.is_awaited(self.folder):
            if await self.successor() is None:
                telemetry.log.warning("no other agent serves claims yet", path=str(self.folder))
            else:
                await asyncio.sleep(_REGISTER_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_S):
                        while calls.running:  # noqa: ASYNC110 (calls end by themselves)
                            await asyncio.sleep(_LOOK_S)
        await self._stop()

    async def _start(self, claims: draplugin.Servicer, health: drahealth.Servicer) -> None:
        """Serve both sockets. Raises: Unavailable: a folder refuses, or a path is too long."""
        await asyncio.to_thread(self._prepare_folders)
        await self._sweep()
        await self._serve(self.service, [*draplugin.handlers(claims), *drahealth.handlers(health)])
        if not await plugin.answers(self.service):
            raise errors.Unavailable(f"nobody accepts on {self.service}", reason="PluginSocketFailed")
        await self._serve(self.registration, [registration.handlers(self)])

    async def _serve(self, path: Path, handlers: list[grpc.GenericRpcHandler]) -> None:
        plugin.assert_path_fits(path)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(handlers)
        fresh = path.with_name(f".{path.name}")  # kubelets look at no name with a dot
        self._servers.append((server, path))
        try:
            fresh.unlink(missing_ok=True)
            server.add_insecure_port(deviceplugin.target(fresh))
            await server.start()
            fresh.chmod(_ROOTS)  # who reaches it could have devices prepared
            fresh.replace(path)
        except (OSError, RuntimeError) as error:
            await self._stop()
            raise errors.Unavailable(f"cannot listen on {path}: {error}", reason="PluginSocketFailed") from error
        self._identities[path] = plugin.identify(path)

    def _prepare_folders(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self.registry.mkdir(parents=True, exist_ok=True, mode=0o755)
        except OSError as error:
            message = f"cannot make the folders of the kubelet's plugins: {error}"
            hint = "the agent needs the kubelet's `plugins` and `plugins_registry`"
            raise errors.Unavailable(message, reason="PluginFolderFailed", hint=hint) from error

    async def _sweep(self) -> None:
        """Remove sockets of our driver that nobody serves any more, the registrations first."""
        stale = [
            *self.registry.glob(_registration(self._driver, "*")),
            *self.folder.glob(_SERVICES),
            *self.folder.glob(standby.NAMES),
        ]
        for path in stale:
            if path in {self.service, self.registration} or not path.is_socket():
                continue
            if not await plugin.answers(path):
                path.unlink(missing_ok=True)
                telemetry.log.info("stale dra socket removed", path=str(path))

    async def _until_gone(self) -> None:
        while self._are_present():  # noqa: ASYNC110 (the file system tells nobody)
            await asyncio.sleep(CHECK_S)

    def _are_present(self) -> bool:
        return all(plugin.identify(path) == identity for path, identity in self._identities.items())

    async def _stop(self) -> None:
        """End the servers, the registration's first, and remove the sockets that are ours; idempotent."""
        servers, self._servers = self._servers, []
        for server, path in reversed(servers):
            identity = self._identities.pop(path, None)
            if identity is not None and plugin.identify(path) == identity:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            await asyncio.shield(server.stop(_STOP_S if path == self.service else None))
        self.problem.set(None)
