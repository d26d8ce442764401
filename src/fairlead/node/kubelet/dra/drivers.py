"""Knows the DRA drivers of this node: which instances are registered, which of them answer, and how to call one.

Two instances of a driver stand side by side while it is updated: calls go to the one that registered last among those
that are connected. An instance's connection is followed for as long as it is registered, so that it is made again
where it broke, also after a long silence; while no instance of a driver is connected its slices are about to go.
Source: Kubernetes pkg/kubelet/cm/dra/plugin, dra_plugin_manager.go and dra_plugin.go (behaviour).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from fairlead import errors, telemetry
from fairlead.node.kubelet.dra import devicehealth, slicewipe
from fairlead.wire.kubelet import deviceplugin, drahealth, draplugin

CALL_S: Final = 45.0
"""How long one call of a driver may take. Source: Kubernetes pkg/kubelet/cm/dra/plugin, half of what a pod waits."""
NOT_REGISTERED: Final = "DriverNotRegistered"
NO_ANSWER: Final = "DriverTimeout"
AWAY: Final = "DriverUnreachable"
_HEALTH_AGAIN_S: Final = 5.0
_UNSUPPORTED: Final = "UNIMPLEMENTED"


@dataclass(slots=True, eq=False)
class Instance:
    """One running copy of a driver."""

    driver: str
    endpoint: Path
    channel: grpc.aio.Channel
    stub: draplugin.Stub
    health_version: str | None
    """None: it reports no health."""
    is_connected: bool = field(default=False)


class Drivers:
    """The drivers of one node."""

    def __init__(
        self,
        *,
        health: devicehealth.DeviceHealth,
        wipe: slicewipe.SliceWipe,
        changed: Callable[[], None],
        call_s: float = CALL_S,
    ) -> None:
        """Take who hears of them.

        Args: changed: called whenever a driver came or went, or reported health.   call_s: longest time for a call.
        """
        self._health, self._wipe, self._changed, self._call_s = health, wipe, changed, call_s
        self._instances: dict[str, list[Instance]] = {}
        """By driver, the last registered at the end."""

    @contextlib.asynccontextmanager
    async def registered(self, driver: str, endpoint: Path, versions: Iterable[str]) -> AsyncIterator[None]:
        """Have an instance called, and its health followed, while the block runs.

        Args:    versions: as the plugin lists them; one of `draplugin.SERVICES` is among them.
        Raises:  Conflict: the endpoint is registered.
        """
        if any(one.endpoint == endpoint for one in self._instances.get(driver, ())):
            message = f"endpoint {endpoint} of DRA driver {driver} is registered by another socket"
            raise errors.Conflict(message, reason="EndpointTaken")
        instance = _dial(driver, endpoint, frozenset(versions))
        self._instances.setdefault(driver, []).append(instance)
        failed: errors.FairleadError | None = None  # a task group would wrap it
        try:
            async with asyncio.TaskGroup() as tasks:
                followers = (self._follow_connection(instance), self._follow_health(instance))
                running = [tasks.create_task(one, name=f"driver {driver}") for one in followers]
                try:
                    yield
                except errors.FairleadError as error:
                    failed = error
                finally:
                    for task in running:
                        task.cancel()
        finally:
            self._leave(instance)
            await instance.channel.close()
        if failed is not None:
            raise failed

    def _leave(self, instance: Instance) -> None:
        left = [one for one in self._instances[instance.driver] if one is not instance]
        self._instances[instance.driver] = left
        if not left:
            del self._instances[instance.driver]
        instance.is_connected = False
        self._health.drop((instance.driver, str(instance.endpoint)))
        self._look(instance.driver)

    def _look(self, driver: str) -> None:
        is_there = any(one.is_connected for one in self._instances.get(driver, ()))
        self._wipe.come(driver) if is_there else self._wipe.leave(driver)
        self._changed()

    async def _follow_connection(self, instance: Instance) -> None:
        while True:
            state = instance.channel.get_state(try_to_connect=True)
            if (is_ready := state is grpc.ChannelConnectivity.READY) is not instance.is_connected:
                instance.is_connected = is_ready
                self._look(instance.driver)
            await instance.channel.wait_for_state_change(state)

    async def _follow_health(self, instance: Instance) -> None:
        if instance.health_version is None:
            return
        stub = drahealth.Stub(instance.channel, instance.health_version)
        source = (instance.driver, str(instance.endpoint))
        while True:
            try:
                async for devices in stub.watch():
                    is_news, left_out = self._health.take(source, devices)
                    if left_out:
                        telemetry.log.warning("reports of too many devices", resource=source[0], count=left_out)
                    if is_news:
                        self._changed()
            except errors.FairleadError as error:
                if error.context.get("status") == _UNSUPPORTED:
                    telemetry.log.warning("driver has no health stream", resource=source[0], path=source[1])
                    return
                telemetry.log.info("health stream broken", resource=source[0], error=errors.sentence(error))
            self._health.drop(source)
            self._changed()
            await asyncio.sleep(_HEALTH_AGAIN_S)

    # calls

    def find(self, driver: str) -> Instance:
        """Return the instance to call. Raises: Unavailable (`DriverNotRegistered`)."""
        found = self._instances.get(driver, ())
        if not found:
            message = f"DRA driver {driver} is not registered"
            raise errors.Unavailable(message, reason=NOT_REGISTERED, hint="start it: it prepares the claim's devices")
        return next((one for one in reversed(found) if one.is_connected), found[-1])

    async def prepare(self, driver: str, claims: tuple[draplugin.Claim, ...]) -> Mapping[str, draplugin.Prepared]:
        """Call a driver, as `draplugin.Stub`. Raises: Unavailable: not registered, not reached, or not in time."""
        instance = self.find(driver)
        try:
            return await instance.stub.prepare(claims, timeout_s=self._call_s)
        except errors.FairleadError as error:
            raise self._failed(instance, "NodePrepareResources", error) from error

    async def unprepare(self, driver: str, claims: tuple[draplugin.Claim, ...]) -> Mapping[str, str]:
        """Call a driver, as `draplugin.Stub`. Raises: as `prepare`."""
        instance = self.find(driver)
        try:
            return await instance.stub.unprepare(claims, timeout_s=self._call_s)
        except errors.FairleadError as error:
            raise self._failed(instance, "NodeUnprepareResources", error) from error

    def _failed(self, instance: Instance, call: str, error: errors.FairleadError) -> errors.FairleadError:
        """Return what to raise for a call that failed as a whole, with the driver's name."""
        status = error.context.get("status")
        if status == "DEADLINE_EXCEEDED":
            message = f"DRA driver {instance.driver} did not answer {call} within {self._call_s:g} s"
            return errors.Unavailable(message, reason=NO_ANSWER, hint="it hangs: look at its log, or restart it")
        if status in {"UNAVAILABLE", "CANCELLED"} and not instance.is_connected:
            message = f"DRA driver {instance.driver} does not answer at {instance.endpoint}"
            return errors.Unavailable(message, reason=AWAY, hint="it is tried again when it does")
        text = f"DRA driver {instance.driver}: {error.message}"
        return type(error)(text, reason=error.reason, hint=error.hint)


def _dial(driver: str, endpoint: Path, versions: frozenset[str]) -> Instance:
    channel = grpc.aio.insecure_channel(deviceplugin.target(endpoint), options=deviceplugin.CHANNEL_OPTIONS)
    version = next(one for one in draplugin.SERVICES if one in versions)
    health = next((one for one in drahealth.SERVICES if one in versions), None)
    return Instance(driver, endpoint, channel, draplugin.Stub(channel, version), health)
