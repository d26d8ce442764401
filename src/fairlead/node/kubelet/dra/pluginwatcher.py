"""Finds plugins by their sockets in the folder `plugins_registry`, asks each what it is and registers DRA drivers.

One task a socket: it asks for the plugin's name and endpoint, checks both, tells the plugin what came of it and keeps
the driver registered for as long as the socket is there and answers. A socket that is replaced is another plugin. What
a plugin says is a stranger's word: its socket, its endpoint and every folder on the way to them must be root's or this
user's own, or another account could stand in for the driver, and would be told which devices whose container gets.
Source: Kubernetes pkg/kubelet/pluginmanager (behaviour); kubelet v1.37 dials files without a leading dot.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc.aio

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.node.inventory import foldermonitor
from fairlead.node.kubelet.dra.drivers import Drivers
from fairlead.wire.kubelet import deviceplugin, draplugin, pluginregistration
from fairlead.wire.kubernetes import names
from fairlead_cdi.host import trust

ASK_S: Final = 5.0
"""For one call of a plugin."""
POLL_S: Final = 10.0
"""Between two questions to a registered plugin whether it is there, and between two looks at the folder."""
_MOST_SOCKETS: Final = 128
"""Sockets that are dialled; a node has a few drivers."""
_MOST_PATH: Final = 107
"""Bytes of a unix socket's path. Source: unix(7), sun_path."""
_MOST_NAME: Final = 63
_FIRST_WAIT_S, _LAST_WAIT_S = 0.5, 60.0
_SILENT: Final = 2
"""Questions in a row without an answer after which a plugin is not registered any more."""

Identity = tuple[int, int]
"""Inode and time of making: another one is another socket. A change of its mode is none."""


def identify(path: Path) -> Identity | None:
    """Return which socket is at a path; None: there is none, or what is there is a link or no socket."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def check_socket(path: Path) -> None:
    """Return if only root and this user can put another socket in a socket's place.

    Raises: Invalid: it is not an absolute path of a socket; Denied (`SocketUntrusted`): it is another account's.
    """
    text = str(path)
    is_plain = text.isprintable() and path.is_absolute() and ".." not in path.parts
    if not is_plain or len(os.fsencode(path)) > _MOST_PATH:
        message = f'"{text[:200]}" is not an absolute path of at most {_MOST_PATH} bytes without ".."'
        raise errors.Invalid(message, reason="EndpointInvalid")
    try:
        found = path.lstat()
        open_place = trust.find_open(str(path.parent))
    except OSError as error:
        message = f"{path} cannot be looked at: {error.strerror}"
        raise errors.Invalid(message, reason="EndpointInvalid") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise errors.Invalid(f"{path} is not a socket", reason="EndpointInvalid")
    if found.st_uid not in {0, os.geteuid()}:
        message = f"{path} belongs to user {found.st_uid}, neither root nor this kubelet's user"
        raise errors.Denied(message, reason="SocketUntrusted", hint="run the driver as root")
    if open_place:
        message = f"others than root can write {open_place}, on the way to {path}"
        raise errors.Denied(message, reason="SocketUntrusted", hint=f"chown root {open_place} and chmod go-w")


def check(info: pluginregistration.Info, socket: Path) -> Path:
    """Return where a DRA driver is called, if it can be registered. Raises: Invalid, Denied."""
    if info.type != pluginregistration.DRA_PLUGIN:
        message = f'plugins of type "{info.type[:64]}" are not served by this kubelet (served: DRAPlugin)'
        raise errors.Invalid(message, reason="PluginTypeUnknown")
    if not names.is_dns_subdomain(info.name) or len(info.name) > _MOST_NAME:
        message = (
            f'"{info.name[:200]}" is not the name of a DRA driver: a DNS subdomain of at most {_MOST_NAME} characters'
        )
        raise errors.Invalid(message, reason="DriverNameInvalid")
    if not any(one in draplugin.SERVICES for one in info.versions):
        offered = ", ".join(one[:64] for one in info.versions[:8]) or "none"
        message = (
            f"none of the services of {info.name} is known here: {offered} (known: {', '.join(draplugin.SERVICES)})"
        )
        raise errors.Invalid(message, reason="VersionUnsupported")
    endpoint = Path(info.endpoint) if info.endpoint else socket
    check_socket(endpoint)
    return endpoint


class PluginWatcher:
    """Registers the plugins of one folder."""

    def __init__(self, folder: Path, drivers: Drivers, *, poll_s: float = POLL_S) -> None:
        """Take the folder, which is made where it is missing."""
        self._folder, self._drivers, self._poll_s = folder, drivers, poll_s
        self._monitor = foldermonitor.FolderMonitor(folder)
        self._tasks: dict[Path, tuple[Identity, asyncio.Task[None]]] = {}
        self._has_said = False

    async def run(self) -> None:
        """Keep every plugin registered until cancelled."""
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True, mode=0o750)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._monitor.run(), name="plugin folder")
            while True:
                seen = self._monitor.ticks.version
                self._follow(await asyncio.to_thread(self._list), tasks)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):
                        await self._monitor.ticks.wait(seen)

    def _list(self) -> dict[Path, Identity]:
        """Return the sockets of the folder, those with a leading dot left out; a link is none."""
        try:
            paths = sorted(path for path in self._folder.iterdir() if not path.name.startswith("."))
        except OSError:
            return {}
        found = {path: known for path in paths if (known := identify(path)) is not None}
        if len(found) > _MOST_SOCKETS and not self._has_said:
            self._has_said = True
            telemetry.log.error("too many plugin sockets", path=str(self._folder), count=len(found))
        return dict(list(found.items())[:_MOST_SOCKETS])

    def _follow(self, found: dict[Path, Identity], tasks: asyncio.TaskGroup) -> None:
        gone = {path: task for path, (identity, task) in self._tasks.items() if found.get(path) != identity}
        for path, task in gone.items():
            task.cancel()
            del self._tasks[path]
        for path, identity in found.items():
            if path not in self._tasks:
                task = tasks.create_task(self._keep(path, gone.get(path)), name=f"plugin {path.name}")
                self._tasks[path] = (identity, task)

    async def _keep(self, socket: Path, before: asyncio.Task[None] | None) -> None:
        """Keep one plugin registered; what it is refused for is said once, and it is asked again.

        Args: before: of the socket that this one has taken the place of: it ends first.
        """
        if before is not None:
            await asyncio.wait([before])
        waits, said = Backoff(first_s=_FIRST_WAIT_S, last_s=_LAST_WAIT_S), ""
        while True:
            try:
                await asyncio.to_thread(check_socket, socket)
                async with _channel(socket) as channel:
                    await self._register(socket, pluginregistration.Stub(channel), waits.reset)
            except errors.FairleadError as error:
                text = errors.sentence(error)
                if text != said:
                    telemetry.log.warning("plugin not registered", path=str(socket), reason=error.reason, error=text)
                said = text
            await asyncio.sleep(waits.next())

    async def _register(self, socket: Path, stub: pluginregistration.Stub, is_well: Callable[[], None]) -> None:
        """Register a plugin and wait until it is silent. Raises: FairleadError: why it is not, or no more."""
        info = await stub.info(timeout_s=ASK_S)
        try:
            endpoint = await asyncio.to_thread(check, info, socket)
            async with self._drivers.registered(info.name, endpoint, info.versions):
                await stub.notify(timeout_s=ASK_S)
                is_well()
                telemetry.log.info("DRA driver registered", resource=info.name, path=str(endpoint))
                await self._until_silent(info, stub)
        except (errors.Invalid, errors.Denied, errors.Conflict) as error:
            await stub.notify(errors.sentence(error), timeout_s=ASK_S)
            raise

    async def _until_silent(self, info: pluginregistration.Info, stub: pluginregistration.Stub) -> None:
        """Return when a plugin says something else than before. Raises: FairleadError: it says nothing any more."""
        failures = 0
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                said = await stub.info(timeout_s=ASK_S)
            except errors.FairleadError as error:
                failures += 1
                if failures == _SILENT:
                    message = f"plugin {info.name} does not answer any more: {error.message}"
                    raise errors.Unavailable(message, reason="PluginSilent") from error
                continue
            failures = 0
            if said != info:
                telemetry.log.info("plugin registers again: it says something else", resource=info.name)
                return


def _channel(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(deviceplugin.target(socket), options=deviceplugin.CHANNEL_OPTIONS)
