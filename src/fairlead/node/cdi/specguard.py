"""Keeps the agent's CDI specs on disk as they were written, and finds other files that define the same devices.

Whatever happens in the folder wakes it, by inotify: a spec of ours that was removed or changed is written again,
and every file that engines would read is held to ours. What is found is a value with a stream of changes; what follows
from it for devices is the agent's matter. While another agent serves by the same files nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fairlead import errors, telemetry
from fairlead.node.cdi import specfiles
from fairlead.node.inventory import foldermonitor, latest
from fairlead.plan.cdi import conflict
from fairlead_cdi import directory

SETTLE_S: Final = 0.1
"""Least time between two looks: one change comes as several events."""
RETRY_S: Final = 1.0


class SpecGuard:
    """The files of one `SpecFiles`, and what others put beside them."""

    def __init__(self, specs: specfiles.SpecFiles, *, is_serving: Callable[[], bool] = lambda: True) -> None:
        """Prepare; nothing is read before `run`. Args: is_serving: whether the files are ours to write now."""
        self._specs, self._is_serving = specs, is_serving
        self._watch = foldermonitor.FolderMonitor(specs.folder, mask=foldermonitor.CONTENT)
        self._registry: directory.Registry | None = None
        self.conflicts: latest.Latest[tuple[conflict.Conflict, ...]] = latest.Latest(())
        """Our devices that another file defines too."""

    async def run(self) -> None:
        """Guard for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run(), name="cdi folder")
            tasks.create_task(self._guard(), name="cdi specs")

    async def _guard(self) -> None:
        seen = -1
        while True:
            seen = await self._watch.ticks.wait(seen)
            try:
                await self._check()
            except errors.FairleadError as error:
                telemetry.log.warning("cdi spec not written again", reason=error.reason, error=errors.sentence(error))
                await asyncio.sleep(RETRY_S)
                self._watch.tick()
            await asyncio.sleep(SETTLE_S)

    async def _check(self) -> None:
        if self._is_serving():
            for path in await self._specs.restore():
                telemetry.log.warning("cdi spec was removed or changed by another process, written again", path=path)
        self.conflicts.set(await asyncio.to_thread(self._find_conflicts))

    def _find_conflicts(self) -> tuple[conflict.Conflict, ...]:
        own = str(self._specs.folder)
        usual = directory.DEFAULT_DIRECTORIES
        # Folders below ours in priority cannot change what ours say.
        folders = (own, *usual[usual.index(own) + 1 :]) if own in usual else (own,)
        self._registry = directory.scan(folders, previous=self._registry)
        return conflict.find(self._registry, self._specs.devices())
