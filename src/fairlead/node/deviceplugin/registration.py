"""Keeps a plugin registered with the kubelet, across restarts of either.

A kubelet that starts removes every socket in its folder and makes a new `kubelet.sock`; a clean-up job may remove ours
alone. One watch on the folder (`inventory.foldermonitor`) ticks at whatever happens there; a slow poll backs it up. At
each tick a `Registrar` compares what is there with what it did: own socket gone → serve again; another `kubelet.sock`
than the one registered with → register; no kubelet reads the list any more → register. The last is how two plugins of
one resource change places: a kubelet that loses the old one's stream hangs up on the plugin that is registered, the new
one, and sends it nothing. Of two agents the newer wins: whose socket was replaced by one that answers stands by until
that one is gone. Failures are retried with doubling, jittered waits that a new socket cuts short. One is not: where the
kubelet's folder was deleted, this process's mount of it is dead, and only another container has the new one, so the
error is raised and ends the agent. Otherwise only cancellation ends it, and takes the socket along.

Source: kubernetes pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, runClient.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import grpc.aio

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.node.deviceplugin import plugin
from fairlead.node.inventory import foldermonitor
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.proto import deviceplugin_pb2 as pb

POLL_S: Final = 5.0
REGISTER_TIMEOUT_S: Final = 15.0
"""A kubelet dials back within the call and allows 10 s for that."""
LONGEST_WAIT_S: Final = 30.0
FRESH_S: Final = 1.0
"""A kubelet binds its socket before it listens: a new one is tried again soon for this long."""
FRESH_WAIT_S: Final = 0.01
HANGUP_WAIT_S: Final = 0.1
"""A kubelet that hung up is not done with the old connection at once, and would take the new one for it."""


class Registrar:
    """Serves one endpoint and keeps it registered."""

    def __init__(
        self,
        endpoint: plugin.Endpoint,
        watch: foldermonitor.FolderMonitor,
        *,
        first_wait_s: float,
        on_registered: Callable[[str], None] | None = None,
        before_return: Callable[[], Awaitable[object]] | None = None,
        before_end: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Prepare; nothing is served before `run`.

        Args:    first_wait_s: first wait after a failure; doubles to 30 s, each jittered to 50-100 %.
                 on_registered: gets the resource after every registration.
                 before_return: done before the socket is served again; may raise Unavailable, which is retried.
                 before_end: waited for before the socket is removed at the end.
        """
        self._endpoint = endpoint
        self._watch = watch
        self._kubelet = watch.folder / wire.KUBELET_SOCKET
        self._first_wait_s = first_wait_s
        self._on_registered = on_registered
        self._before_return = before_return
        self._before_end = before_end
        self._registered: plugin.Identity | None = None
        self._registered_at = float("-inf")
        self._seen: plugin.Identity | None = None
        self._seen_at = float("-inf")
        self._has_served = self._is_hung_up = self._is_swept = False
        self.is_standing_by = False
        """Whether another process serves the resource at our path."""
        endpoint.plugin.on_unwatched = self._unwatched

    async def run(self) -> None:
        """Serve and stay registered until cancelled; then end the streams and remove the socket.

        Raises: Unavailable (`plugin.FOLDER_GONE`): this process can never serve again.
        """
        waits = Backoff(first_s=self._first_wait_s, last_s=LONGEST_WAIT_S)
        try:
            while True:
                seen = self._watch.ticks.version
                try:
                    await self._reconcile()
                except errors.FairleadError as error:
                    if error.reason == plugin.FOLDER_GONE:
                        raise
                    await self._after_failure(error, waits)
                else:
                    waits.reset()
                    self._is_swept = False
                    await self._wait_tick(seen, POLL_S)
        except asyncio.CancelledError:
            # Not after an error: what is waited for here ends only once this task has ended.
            if self._before_end is not None:
                await asyncio.shield(self._before_end())
            raise
        finally:
            await self._endpoint.stop()

    def _unwatched(self) -> None:
        if self._registered is not None:
            self._registered, self._is_hung_up = None, True
            self._watch.tick()

    async def _reconcile(self) -> None:
        if self._is_hung_up:
            self._is_hung_up = False
            await asyncio.sleep(HANGUP_WAIT_S)
        if not self._endpoint.is_present():
            self._registered = None
            if await self._stands_by():
                return
            if self._has_served and self._before_return is not None:
                await self._before_return()
            await self._endpoint.start()
            self._has_served = True
        kubelet = plugin.identify(self._kubelet)
        if kubelet is None:
            self._registered = None
        elif kubelet != self._registered or self._is_unheard():
            if kubelet != self._seen:
                self._seen, self._seen_at = kubelet, asyncio.get_running_loop().time()
            await self._register_while_served()
            self._registered, self._registered_at = kubelet, asyncio.get_running_loop().time()

    def _is_unheard(self) -> bool:
        """Whether a kubelet that we registered with never came for the list: it hung up before it did."""
        is_due = asyncio.get_running_loop().time() >= self._registered_at + POLL_S
        return is_due and not self._endpoint.plugin.is_watched

    async def _stands_by(self) -> bool:
        """Leave the resource to a newer agent, for as long as it answers; a first start always takes over."""
        was, self.is_standing_by = self.is_standing_by, self._has_served and await self._endpoint.is_taken()
        if self.is_standing_by and not was:
            path = str(self._endpoint.path)
            telemetry.log.info("another agent has taken over", resource=self._endpoint.plugin.resource, path=path)
            await self._endpoint.stop()
        return self.is_standing_by

    async def _register_while_served(self) -> None:
        """Register, and let go of the call as soon as our own socket is gone.

        A starting kubelet may sweep it away at any moment before it dials back, and then blocks in that dial.
        """
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(self._try_register())
            guard = tasks.create_task(self._until_lost())
            await asyncio.wait({call, guard}, return_when=asyncio.FIRST_COMPLETED)
            is_lost = not call.done()
            call.cancel()
            guard.cancel()
        if is_lost:
            message = f"socket {self._endpoint.path} was removed while it was being registered"
            raise errors.Unavailable(message, reason="PluginSocketLost")
        if (error := call.result()) is not None:
            raise error

    async def _try_register(self) -> errors.FairleadError | None:
        """Return the error instead of raising it, so that it leaves the task group as it is."""
        try:
            await self._register()
        except errors.FairleadError as error:
            return error
        return None

    async def _until_lost(self) -> None:
        while True:
            seen = self._watch.ticks.version
            if not self._endpoint.is_present():
                return
            await self._wait_tick(seen, POLL_S)

    async def _register(self) -> None:
        resource = self._endpoint.plugin.resource
        request = pb.RegisterRequest(
            version=wire.VERSION,
            endpoint=self._endpoint.path.name,
            resource_name=resource,
            options=await self._endpoint.plugin.options(),
        )
        with telemetry.timed("plugin registered", resource=resource):
            async with grpc.aio.insecure_channel(wire.target(self._kubelet), options=wire.CHANNEL_OPTIONS) as channel:
                await wire.RegistrationStub(channel).register(request, timeout_s=REGISTER_TIMEOUT_S)
        telemetry.log.info("registered with the kubelet", resource=resource, path=str(self._kubelet))
        if self._on_registered is not None:
            self._on_registered(resource)

    async def _after_failure(self, error: errors.FairleadError, waits: Backoff) -> None:
        if asyncio.get_running_loop().time() < self._seen_at + FRESH_S:
            await asyncio.sleep(FRESH_WAIT_S)
            return
        was_swept, self._is_swept = self._is_swept, error.reason == plugin.SWEPT
        if self._is_swept and not was_swept:  # a starting kubelet empties its folder once, which is no failure
            return
        facts = {"resource": self._endpoint.plugin.resource, "reason": error.reason, "error": errors.sentence(error)}
        telemetry.log.warning("registration failed", **facts)
        await self._back_off(waits.next())

    async def _back_off(self, wait_s: float) -> None:
        """Wait, unless a socket at either path becomes another one."""
        before = self._sockets()
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while self._sockets() == before and (left_s := end - loop.time()) > 0:
            await self._wait_tick(self._watch.ticks.version, left_s)

    def _sockets(self) -> tuple[plugin.Identity | None, bool]:
        return plugin.identify(self._kubelet), self._endpoint.is_present()

    async def _wait_tick(self, seen: int, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._watch.ticks.wait(seen)
        except TimeoutError:
            return
