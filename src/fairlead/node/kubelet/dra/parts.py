"""Composes what a kubelet needs for claims: drivers found by their sockets, the manager of claims, health, slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fairlead.node.kubelet.dra import devicehealth, pluginwatcher, slicewipe
from fairlead.node.kubelet.dra.dramanager import DRAManager
from fairlead.node.kubelet.dra.drivers import Drivers
from fairlead.settings import Settings
from fairlead.store.port import Store


class DRA:
    """The drivers and claims of one node."""

    def __init__(
        self, store: Store, settings: Settings, node: str, folder: Path, *, changed: Callable[[], None]
    ) -> None:
        """Take the folder of the checkpoint, and what is called whenever a driver came, went or reported health."""
        self.health = devicehealth.DeviceHealth()
        self._wipe = slicewipe.SliceWipe(store, node, delay_s=settings.kubelet.driver_grace_s)
        drivers = Drivers(
            health=self.health, wipe=self._wipe, changed=changed, call_s=settings.kubelet.driver_timeout_s
        )
        self.manager = DRAManager(store, drivers, folder)
        self._watcher = pluginwatcher.PluginWatcher(settings.plugin_registry, drivers)
        self._changed = changed

    async def run(self) -> None:
        """Find drivers, follow them, and delete slices whose drivers are gone, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wipe.run(), name="slices")
            tasks.create_task(self._watcher.run(), name="plugin sockets")
            tasks.create_task(self._expire(), name="health")

    async def _expire(self) -> None:
        """Have pods looked at again when a driver's last words about a device are too old to count."""
        while True:
            await asyncio.sleep(devicehealth.LOOK_S)
            if self.health.has_expired():
                self._changed()
