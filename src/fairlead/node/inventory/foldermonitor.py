"""Ticks whenever something happens to the entries of one folder, by inotify; makes the folder where it is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import asyncinotify

from fairlead import telemetry
from fairlead.node.inventory import latest

ENTRIES: Final = (
    asyncinotify.Mask.CREATE
    | asyncinotify.Mask.DELETE
    | asyncinotify.Mask.MOVED_TO
    | asyncinotify.Mask.MOVED_FROM
    | asyncinotify.Mask.DELETE_SELF
    | asyncinotify.Mask.MOVE_SELF
    | asyncinotify.Mask.ONLYDIR
)
"""Entries that come and go."""
CONTENT: Final = ENTRIES | asyncinotify.Mask.CLOSE_WRITE | asyncinotify.Mask.ATTRIB
"""What is written into them, too."""
_ENDED: Final = asyncinotify.Mask.IGNORED | asyncinotify.Mask.MOVE_SELF | asyncinotify.Mask.UNMOUNT
_RETRY_S: Final = 1.0


class FolderMonitor:
    """Ticks whenever something of `mask` happens in the folder."""

    def __init__(self, folder: Path, *, mask: asyncinotify.Mask = ENTRIES) -> None:
        self.folder = folder
        self.ticks: latest.Latest[int] = latest.Latest(0)
        self._mask = mask

    async def run(self) -> None:
        """Watch for ever; a folder that is removed is made and watched again."""
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                await self._watch()
            except OSError as error:
                telemetry.log.warning("folder not watched", path=str(self.folder), error=str(error))
                await asyncio.sleep(_RETRY_S)
            self.tick()

    async def _watch(self) -> None:
        with asyncinotify.Inotify() as inotify:
            inotify.add_watch(self.folder, self._mask)
            self.tick()  # what happened before the watch began
            async for event in inotify:
                self.tick()
                if event.mask & _ENDED:
                    return

    def tick(self) -> None:
        """Wake every reader to look again."""
        self.ticks.set(self.ticks.value + 1)
