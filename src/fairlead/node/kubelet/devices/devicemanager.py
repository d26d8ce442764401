"""Plays the kubelet's device manager: which plugins serve, which devices are free, who holds which.

Follows the real one: a resource's devices are the full list last sent by its newest plugin; free devices are the
healthy free ones; the plugin is asked for a preference, then for the allocation; the answer is kept and used
again when a container restarts. A plugin whose stream ends leaves its devices unhealthy at once and its capacity for a
grace time; where the plugin that it displaced still lives, that one serves again at once. Devices an init container
held are used again by the containers after it.

Allocation is one at a time for each resource, so a plugin that hangs delays no other resource's pods. Every change of
the grants is written to the checkpoint, in a thread, before the caller gets the answer.
Source: Kubernetes pkg/kubelet/cm/devicemanager (manager.go, endpoint.go).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.node.kubelet.devices import endpoint as plugin
from fairlead.node.kubelet.devices.checkpoint import Checkpoint, Grant
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.pod import admission
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.kubernetes import core, quantity
from fairlead.wire.proto import deviceplugin_pb2 as pb

PLUGIN_TIMEOUT_S: Final = 30.0
_MOST_NEW: Final = 64
"""Plugins that wait to be followed; one more waits in its registration."""
Grants = Mapping[tuple[str, str, str], Grant]
"""By pod uid, container and resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How the devices of one container were chosen, for the trace."""

    resource: str
    asked: int
    available: tuple[str, ...]
    preferred: tuple[str, ...]
    grant: Grant
    chosen_s: float
    allocate_s: float


class DeviceManager:
    """The grants of one node. All methods run on the event loop; allocation is one at a time for each resource."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        grace_s: float,
        changed: Callable[[], None],
        plugin_timeout_s: float = PLUGIN_TIMEOUT_S,
        listed: Callable[[str, Mapping[str, bool], Path], None] = lambda *_: None,
    ) -> None:
        """Take the durable grants.

        Args: grace_s: how long a vanished plugin's capacity is kept.   changed: called whenever capacity may differ.
              plugin_timeout_s: how long one call of a plugin may take.
              listed: called with the resource, devices and socket of the plugin in use whenever they may differ.
        """
        self._checkpoint = checkpoint
        self._grace_s = grace_s
        self._changed = changed
        self._timeout_s = plugin_timeout_s
        self._listed = listed
        self._endpoints: dict[str, plugin.Endpoint] = {}
        self._displaced: dict[str, list[plugin.Endpoint]] = {}
        """By resource: plugins that still live and were displaced by newer ones, the newest last."""
        self._grants: Grants = {}
        # By name and not by endpoint: a plugin that comes again is not called while a call of the old one is under way.
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._writing = asyncio.Lock()
        self._new: asyncio.Queue[plugin.Endpoint] = asyncio.Queue(_MOST_NEW)

    def load(self) -> bool:
        """Read the checkpoint; returns False where it was damaged and the grants must be rebuilt by `restore`."""
        grants = self._checkpoint.load()
        self._grants = {(g.pod_uid, g.container, g.resource): g for g in grants or ()}
        return grants is not None

    def restore(self, grants: tuple[Grant, ...]) -> None:
        """Take over what existing containers say they hold, after a damaged checkpoint."""
        self._grants = {(g.pod_uid, g.container, g.resource): g for g in grants}
        self._checkpoint.save(self._grants)

    # registration

    async def register(self, request: pb.RegisterRequest, folder: Path) -> pb.Empty:
        """Take a plugin in: check the request, dial the endpoint back, read its options.

        Raises: Invalid: wrong version or resource name; Unavailable: the endpoint does not answer within 10 s.
        """
        if request.version != deviceplugin.VERSION:
            message = f'device plugin API version "{request.version}" is not offered (offered: {deviceplugin.VERSION})'
            raise errors.Invalid(message, reason="VersionUnsupported")
        if not admission.is_extended(request.resource_name):
            message = f'invalid name of device plugin resource "{request.resource_name}"'
            raise errors.Invalid(message, reason="ResourceNameInvalid", hint="use domain/name outside kubernetes.io")
        if not request.endpoint or Path(request.endpoint).name != request.endpoint:
            message = f'device plugin endpoint "{request.endpoint}" is not the name of a file in {folder}'
            raise errors.Invalid(message, reason="EndpointInvalid")
        socket = folder / request.endpoint
        endpoint = await plugin.Endpoint.dial(request.resource_name, socket, timeout_s=self._timeout_s)
        try:
            await self._new.put(endpoint)
        except asyncio.CancelledError:
            await endpoint.channel.close()
            raise
        telemetry.log.info("device plugin registered", resource=request.resource_name, path=request.endpoint)
        return pb.Empty()

    async def run(self) -> None:
        """Follow every registered plugin's list until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._expire(), name="endpoint grace")
            while True:
                endpoint = await self._new.get()
                self._adopt(endpoint)
                endpoint.follower = tasks.create_task(self._follow(endpoint), name=f"plugin {endpoint.resource}")

    def _adopt(self, endpoint: plugin.Endpoint) -> None:
        """Make the newest plugin of a resource the one in use; the list of the last one stands until it speaks.

        The last one is followed on where it lives: it may be another program, which would not learn that the newest
        ended. One that registers again at the same socket is the same program: its earlier connection is given up.
        """
        old = self._endpoints.get(endpoint.resource)
        if old is not None:
            endpoint.devices = dict.fromkeys(old.devices, False)
        others = [*self._displaced.get(endpoint.resource, ()), *([old] if old is not None else [])]
        kept = [other for other in others if other.gone_at is None and other.socket != endpoint.socket]
        self._displaced[endpoint.resource] = kept
        self._endpoints[endpoint.resource] = endpoint
        for other in others:
            if other.socket == endpoint.socket and other.follower is not None:
                other.follower.cancel()

    async def _follow(self, endpoint: plugin.Endpoint) -> None:
        try:
            async for answer in endpoint.stub.list_and_watch():
                endpoint.take({item.ID: item.health == deviceplugin.HEALTHY for item in answer.devices})
                if self._endpoints.get(endpoint.resource) is endpoint:
                    self._use(endpoint)
        except errors.FairleadError as error:
            telemetry.log.info("device plugin gone", resource=endpoint.resource, reason=error.reason)
        finally:
            endpoint.devices = dict.fromkeys(endpoint.devices, False)
            endpoint.gone_at = time.monotonic()
            self._leave(endpoint)
            await endpoint.channel.close()

    def _use(self, endpoint: plugin.Endpoint) -> None:
        self._listed(endpoint.resource, endpoint.devices, endpoint.socket)
        self._changed()

    def _leave(self, endpoint: plugin.Endpoint) -> None:
        """Fall back to the plugin that this one displaced, if it lives."""
        waiting = [one for one in self._displaced.get(endpoint.resource, ()) if one.gone_at is None]
        self._displaced[endpoint.resource] = waiting
        if self._endpoints.get(endpoint.resource) is not endpoint:
            return
        if not waiting:
            self._changed()
            return
        heir = self._endpoints[endpoint.resource] = waiting.pop()
        telemetry.log.info("displaced device plugin serves again", resource=heir.resource, path=str(heir.socket))
        self._use(heir)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, max(0.05, self._grace_s / 4)))
            limit = time.monotonic() - self._grace_s
            old = [name for name, item in self._endpoints.items() if item.gone_at is not None and item.gone_at < limit]
            for name in old:
                del self._endpoints[name]
            if old:
                self._changed()

    # grants

    def capacity(self) -> dict[str, tuple[int, int]]:
        """Return capacity and allocatable (healthy) counts by resource."""
        return {name: (len(item.devices), sum(item.devices.values())) for name, item in sorted(self._endpoints.items())}

    def advertised(self) -> dict[str, tuple[str, ...]]:
        """Return the device ids of every resource, healthy or not."""
        return {name: tuple(item.devices) for name, item in sorted(self._endpoints.items())}

    def is_registered(self, resource: str) -> bool:
        """Return whether a living plugin serves the resource and has sent its list."""
        item = self._endpoints.get(resource)
        return item is not None and item.gone_at is None and item.has_listed

    def away_since(self, resource: str) -> float:
        """Return the monotonic time at which the resource's plugin went, or came back and has yet to list; else 0."""
        item = self._endpoints.get(resource)
        if item is None or self.is_registered(resource):
            return 0.0
        return item.gone_at or item.registered_at

    def unwell_since(self, resource: str) -> float:
        """Return the monotonic time at which devices that are unhealthy now may have turned so; 0: all are well.

        A plugin may be there before it knows what its devices are, or who has them; later one turns unhealthy while it
        is verified between two tenants.
        """
        item = self._endpoints.get(resource)
        return 0.0 if item is None or all(item.devices.values()) else max(item.registered_at, item.worsened_at)

    def held(self, pod_uid: str) -> tuple[Grant, ...]:
        """Return what a pod holds."""
        return tuple(grant for key, grant in sorted(self._grants.items()) if key[0] == pod_uid)

    def held_by_container(self, pod_uid: str) -> dict[str, dict[str, tuple[str, ...]]]:
        """Return what a pod's containers hold, by container and resource."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for grant in self.held(pod_uid):
            found.setdefault(grant.container, {})[grant.resource] = grant.device_ids
        return found

    def holders(self) -> frozenset[str]:
        """Return the uids of pods that hold anything."""
        return frozenset(key[0] for key in self._grants)

    async def allocate(self, pod: core.Pod, record: Callable[[str, Choice], Awaitable[None]]) -> tuple[Grant, ...]:
        """Give every container of a pod its devices; what it holds already is kept. Idempotent across a crash.

        Args:    record: awaited once for each fresh choice, with the container's name.
        Raises:  Insufficient: fewer healthy free devices than asked; FairleadError: the plugin refuses.
        """
        reusable: dict[str, set[str]] = {}
        for is_init, item in _in_order(pod.spec):
            for resource, count in device_requests(pod, item):
                grant = self._grants.get((pod.metadata.uid, item.name, resource))
                if grant is None:
                    async with self._turn(resource):
                        choice = await self._choose(pod, item.name, resource, count, reusable.get(resource, set()))
                        grant = choice.grant
                        await self._keep(grant)
                    await record(item.name, choice)
                elif grant.device_ids and not grant.response:
                    grant = await self._fetch(grant)
                pool = reusable.setdefault(resource, set())
                pool.update(grant.device_ids) if is_init else pool.difference_update(grant.device_ids)
        for grant in self.held(pod.metadata.uid):
            if grant.device_ids and not grant.response:  # given while the container ran, and not in its requests
                await self._fetch(grant)
        return self.held(pod.metadata.uid)

    @contextlib.asynccontextmanager
    async def _turn(self, resource: str, *, is_asking: bool = True) -> AsyncIterator[None]:
        """Wait until no other pod's call to the resource's plugin is under way, and keep others out of the block.

        Raises: Unavailable (`PluginTimeout`): another pod's call timed out while this one waited. All that waited for
                it fail at once, instead of one timeout after the other; a pod that comes later calls the plugin.
        """
        turn = self._turns.setdefault(resource, asyncio.Lock())
        came = time.monotonic()
        async with turn:
            endpoint = self._endpoints.get(resource)
            if is_asking and endpoint is not None and endpoint.silent_at > came:
                raise endpoint.unanswered("another pod's call")
            yield

    async def give(self, pod_uid: str, container: str, resource: str, device: str) -> Grant:
        """Give a running container one more device; idempotent. Returns all it then holds of the resource.

        Raises: NotFound: no such device; Conflict (`DeviceHeld`): another container has it; DeviceFault: it is not
                healthy; Unavailable: no plugin, or the checkpoint cannot be written.
        """
        async with self._turn(resource):
            old = self._grant(pod_uid, container, resource)
            if device in old.device_ids:
                return await self._ask_again(old) if not old.response else old
            endpoint = self._alive(resource, device)
            if device not in endpoint.devices:
                message = f'device "{device}" is none of the {len(endpoint.devices)} devices of {resource}'
                raise errors.NotFound(message, reason="DeviceUnknown", hint="`fairlead gpus` lists them")
            for other in self._grants.values():
                if other.resource == resource and device in other.device_ids:
                    # The holder is not named: the caller may be another tenant.
                    message = f'device "{device}" of {resource} is held by another container'
                    raise errors.Conflict(message, reason="DeviceHeld", hint="`fairlead gpus` says who holds what")
            if not endpoint.devices[device]:
                message = f'device "{device}" of {resource} is not healthy'
                raise errors.DeviceFault(message, reason="DeviceUnhealthy", hint="`fairlead events` says why")
            return await self._ask_again(msgspec.structs.replace(old, device_ids=(*old.device_ids, device)))

    async def take(self, pod_uid: str, container: str, resource: str, device: str) -> Grant:
        """Take one device back from a container that goes on; idempotent. Returns what it still holds.

        A container that is left with none keeps an entry that says so: its restart is not given another one. Where no
        plugin is there to answer for the rest, the device is free nevertheless and the answer is fetched when needed.
        Raises: Unavailable: the checkpoint cannot be written.
        """
        async with self._turn(resource, is_asking=False):
            old = self._grant(pod_uid, container, resource)
            if device not in old.device_ids:
                return old
            left = tuple(name for name in old.device_ids if name != device)
            rest = msgspec.structs.replace(old, device_ids=left, response=b"")
            if left:
                try:
                    return await self._ask_again(rest)
                except errors.Unavailable as error:
                    if error.reason == "StateWriteFailed":
                        raise
            await self._keep(rest)
            return rest

    async def answered(self, pod_uid: str, container: str) -> tuple[Grant, ...]:
        """Return what a container holds, each with its plugin's answer; one that the checkpoint has lost is fetched.

        Raises: Unavailable: no plugin to ask, or the checkpoint cannot be written.
        """
        held = [grant for grant in self.held(pod_uid) if grant.container == container]
        return tuple([one if one.response or not one.device_ids else await self._fetch(one) for one in held])

    async def answer_without(self, pod_uid: str, container: str, resource: str, device: str) -> Grant:
        """Return what a container would hold of a resource without one device; changes nothing. Raises: Unavailable."""
        old = self._grant(pod_uid, container, resource)
        left = tuple(name for name in old.device_ids if name != device)
        response = await self._alive(resource, device).allocate(left) if left else b""
        return msgspec.structs.replace(old, device_ids=left, response=response)

    def _grant(self, pod_uid: str, container: str, resource: str) -> Grant:
        nothing = Grant(pod_uid=pod_uid, container=container, resource=resource, device_ids=(), response=b"")
        return self._grants.get((pod_uid, container, resource), nothing)

    def _alive(self, resource: str, device: str) -> plugin.Endpoint:
        endpoint = self._endpoints.get(resource)
        if endpoint is None or endpoint.gone_at is not None:
            message = f'no plugin of {resource} to ask for device "{device}"'
            raise errors.Unavailable(message, reason=plugin.UNREACHABLE)
        return endpoint

    async def _fetch(self, grant: Grant) -> Grant:
        """Ask again in the resource's turn."""
        async with self._turn(grant.resource):
            return await self._ask_again(grant)

    async def _ask_again(self, grant: Grant) -> Grant:
        """Fetch the plugin's answer for devices whose number has changed, or whose answer the checkpoint has lost."""
        endpoint = self._alive(grant.resource, ", ".join(grant.device_ids))
        response = await endpoint.allocate(grant.device_ids)
        full = msgspec.structs.replace(grant, response=response, must_pre_start=endpoint.options.pre_start_required)
        await self._keep(full)
        return full

    async def _keep(self, grant: Grant) -> None:
        """Write the grant down before the caller gets it; a refused write leaves the checkpoint as it was."""
        telemetry.crash_point("devicemanager.before-checkpoint")
        await self._write(lambda grants: {**grants, (grant.pod_uid, grant.container, grant.resource): grant})
        telemetry.crash_point("devicemanager.after-checkpoint")

    async def _write(self, change: Callable[[Grants], Grants]) -> None:
        """Change the grants as one step: on disk, in a thread because that takes an fsync, then in memory."""
        async with self._writing:
            grants = change(self._grants)
            await asyncio.to_thread(self._checkpoint.save, grants)
            self._grants = grants

    async def _choose(self, pod: core.Pod, container: str, resource: str, count: int, reusable: set[str]) -> Choice:
        endpoint = self._endpoints.get(resource)
        devices: Mapping[str, bool] = endpoint.devices if endpoint is not None else {}
        taken = {name for g in self._grants.values() if g.resource == resource for name in g.device_ids} - reusable
        available = tuple(name for name, healthy in devices.items() if healthy and name not in taken)
        if endpoint is None or endpoint.gone_at is not None or len(available) < count:
            message = (
                f"Allocate failed due to requested number of devices unavailable for {resource}. "
                f"Requested: {count}, Available: {len(available)}, which is unexpected"
            )
            raise errors.Insufficient(message, reason="UnexpectedAdmissionError")
        must = tuple(name for name in available if name in reusable)[:count]
        with telemetry.timed("devices chosen", resource=resource) as choosing:
            preferred = await endpoint.prefer(available, must, count)
            chosen = _pick(available, must, preferred, count)
        with telemetry.timed("plugin allocated", resource=resource) as allocating:
            response = await endpoint.allocate(chosen)
        grant = Grant(
            pod_uid=pod.metadata.uid,
            container=container,
            resource=resource,
            device_ids=chosen,
            response=response,
            must_pre_start=endpoint.options.pre_start_required,
        )
        return Choice(
            resource=resource,
            asked=count,
            available=available,
            preferred=preferred,
            grant=grant,
            chosen_s=choosing.duration_s,
            allocate_s=allocating.duration_s,
        )

    async def pre_start(self, grants: tuple[Grant, ...]) -> None:
        """Call plugins that ask for it before a start. Raises: Unavailable: one is not there; what one refuses with."""
        for grant in grants:
            endpoint = self._endpoints.get(grant.resource)
            if grant.device_ids and endpoint is not None and endpoint.options.pre_start_required:
                await endpoint.pre_start(grant.device_ids)
            elif grant.device_ids and endpoint is None and grant.must_pre_start:
                message = f"the plugin of {grant.resource} is to act before each start, and none is registered"
                raise errors.Unavailable(message, reason=plugin.UNREACHABLE)

    async def free(self, pod_uid: str) -> bool:
        """Take back all that a pod holds; returns whether it held anything. Idempotent."""
        if not self.held(pod_uid):
            return False
        telemetry.crash_point("devicemanager.before-free")
        await self._write(lambda grants: {key: grant for key, grant in grants.items() if key[0] != pod_uid})
        telemetry.crash_point("devicemanager.after-free")
        return True


def _pick(available: tuple[str, ...], must: tuple[str, ...], preferred: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return the devices to use: those that must be, then the plugin's preference where free, then the rest."""
    free = set(available)
    order = [*must, *(name for name in preferred if name in free), *available]
    return tuple(dict.fromkeys(order))[:count]


def _in_order(spec: core.PodSpec) -> tuple[tuple[bool, core.Container], ...]:
    return (*((True, item) for item in spec.init_containers), *((False, item) for item in spec.containers))


def device_requests(pod: core.Pod, item: core.Container) -> tuple[tuple[str, int], ...]:
    """Return the extended resources a container asks plugins for, in name order, zero counts left out.

    Those that a claim meets are not the plugins' to give.
    """
    limits, met = item.resources.limits, lifecycle.met_by_claim(pod, item.name)
    plain = (name for name in limits if name not in met and admission.is_extended(name))
    asked = {name: quantity.parse_whole(limits[name]) for name in plain}
    return tuple((name, count) for name, count in sorted(asked.items()) if count > 0)
