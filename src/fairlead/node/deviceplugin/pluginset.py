"""Keeps one plugin, its socket and its registration for every resource that this node offers, in one task tree.

A resource begins with its first devices. When its devices go away its plugin stays and lists none, since hardware comes
back. When the configuration offers it no more it ends: the kubelet gets an empty list, the socket is removed, and
the kubelet forgets the resource after its own grace. Pods that have its devices keep them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from fairlead import errors, telemetry
from fairlead.model.driver import DeviceNode
from fairlead.model.ids import DeviceID
from fairlead.node.deviceplugin import plugin as deviceplugin
from fairlead.node.deviceplugin import registration
from fairlead.node.deviceplugin import taken as takens
from fairlead.node.inventory import foldermonitor, latest
from fairlead.plan.gpu import attribution
from fairlead.plan.gpu.allocation import answer, choose
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.sharing import amounts
from fairlead.wire.proto import deviceplugin_pb2 as pb


class PluginSet:
    """The plugins by resource."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        folder: foldermonitor.FolderMonitor,
        *,
        first_wait_s: float,
        told: Callable[[attribution.Call], None] | None,
        on_registered: Callable[[deviceplugin.Plugin, Path], None],
        before_return: Callable[[], Awaitable[object]],
        before_end: Callable[[], Awaitable[object]],
        meter: telemetry.Meter,
    ) -> None:
        """Serve nothing yet; see `registration.Registrar` and `plugin.Plugin` for the arguments.

        Args:    before_end: waited for before a socket is removed at the agent's end; not when a resource ends.
        """
        self.registered: latest.Latest[frozenset[str]] = latest.Latest(frozenset())
        """Resources that a kubelet has taken in since they began."""
        self.allocate_options = answer.DEFAULT
        self.refusal: errors.Unavailable | None = None
        self.before_start: Callable[[str, tuple[DeviceID, ...]], Awaitable[None]] | None = None
        """See `plugin.Plugin`; of plugins that begin from now on."""
        self._pairing = amounts.Pairing()
        self.gate: deviceplugin.Gate | None = None
        """What every plugin asks before it gives a device away; set before the first offer."""
        self.taken: takens.Taken | None = None
        """What every plugin prefers no device of; set before the first offer."""
        self.prefer: deviceplugin.Prefer | None = None
        """Chooses slots of passed-through GPUs; None: there are none of several."""
        self._tasks, self._folder, self._meter, self._told = tasks, folder, meter, told
        self._first_wait_s = first_wait_s
        self._on_registered, self._before_return, self._before_end = on_registered, before_return, before_end
        self._plugins: dict[str, deviceplugin.Plugin] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._ended: set[deviceplugin.Plugin] = set()
        self._registrars: list[registration.Registrar] = []

    @property
    def is_standing_by(self) -> bool:
        """Whether another agent serves any of our resources."""
        return any(registrar.is_standing_by for registrar in self._registrars)

    def answer_by(self, options: answer.AllocateOptions, refusal: errors.Unavailable | None) -> None:
        """Have every plugin answer in this way from now on, or refuse. Args: refusal: see `Plugin.refusal`."""
        self.allocate_options, self.refusal = options, refusal
        for plugin in self._plugins.values():
            plugin.allocate_options, plugin.refusal = options, refusal

    def update(
        self, offered: Sequence[advertise.Advertisement], topology: choose.Topology, nodes: Sequence[DeviceNode]
    ) -> list[deviceplugin.Plugin]:
        """Offer this from now on; returns the plugins whose list is another one."""
        return [
            self._plugins[ad.resource] for ad in offered if self._plugin(ad.resource).update(ad, topology, nodes=nodes)
        ]

    def _plugin(self, resource: str) -> deviceplugin.Plugin:
        found = self._plugins.get(resource)
        if found is not None:
            return found
        made = deviceplugin.Plugin(resource, allocate_options=self.allocate_options, told=self._told, meter=self._meter)
        made.refusal, made.before_start, made.pairing = self.refusal, self.before_start, self._pairing
        made.gate, made.taken, made.prefer = self.gate, self.taken, self.prefer
        self._plugins[resource] = made
        before = self._serving.get(resource)
        self._serving[resource] = self._tasks.create_task(self._serve(made, before), name=f"plugin {resource}")
        return made

    def end(self, resources: Iterable[str]) -> None:
        """Take resources back."""
        for resource in resources:
            if (plugin := self._plugins.pop(resource, None)) is not None:
                self._ended.add(plugin)
                self._serving[resource].cancel()
                self.registered.set(self.registered.value - {resource})
                telemetry.log.info("resource ended", resource=resource)

    def recall(self, grant: attribution.Grant) -> pb.ContainerAllocateResponse | None:
        """Return what a grant would be answered now; None: it would be refused."""
        plugin = self._plugins.get(grant.resource)
        return plugin.recall(grant.ids) if plugin is not None else None

    async def _serve(self, plugin: deviceplugin.Plugin, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})  # an earlier plugin of the resource, which has the socket
        endpoint = deviceplugin.Endpoint(plugin, self._folder.folder)

        def registered(_: str) -> None:
            self._meter.add(telemetry.REGISTRATIONS, plugin.resource)
            self.registered.set(self.registered.value | {plugin.resource})
            self._on_registered(plugin, endpoint.path)

        registrar = registration.Registrar(
            endpoint,
            self._folder,
            first_wait_s=self._first_wait_s,
            on_registered=registered,
            before_return=self._before_return,
            before_end=functools.partial(self._await_end, plugin),
        )
        self._registrars.append(registrar)
        try:
            await registrar.run()
        finally:
            self._registrars.remove(registrar)
            self._ended.discard(plugin)

    async def _await_end(self, plugin: deviceplugin.Plugin) -> None:
        if plugin not in self._ended:
            await self._before_end()
