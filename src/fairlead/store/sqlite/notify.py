"""Wakes watchers when another process commits to the SQLite file, by inotify instead of polling.

A process that commits touches the database's timestamps afterwards (`notify`); every watcher hears it through inotify.
The log's own writes would come too early: SQLite shows a commit only after it has flushed the log. A writer that is
killed between commit and touch is heard too, because the kernel then closes its descriptors of the file. Where inotify
has no room for us, a slow timer asks instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import asyncinotify

from fairlead import telemetry

SLOW_S = 2.0
"""Period of the timer that stands in for inotify."""
_MASK = asyncinotify.Mask.ATTRIB | asyncinotify.Mask.CLOSE_WRITE


def notify(path: Path) -> None:
    """Wake every process that watches the file."""
    os.utime(path)


class Notifier:
    """Calls `heard` on the running loop whenever another process commits, from construction to `close`."""

    def __init__(self, path: Path, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._inotify = self._watch(path)
        if self._inotify is None:
            self._wait()

    def close(self) -> None:
        """Hear nothing more and give the descriptor back."""
        if self._timer is not None:
            self._timer.cancel()
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()

    def _watch(self, path: Path) -> asyncinotify.Inotify | None:
        try:
            inotify = asyncinotify.Inotify()
        except OSError as error:
            telemetry.log.warning("no inotify, other processes' changes arrive late", error=str(error), path=str(path))
            return None
        try:
            inotify.add_watch(path, _MASK)
        except OSError as error:
            telemetry.log.warning("no inotify, other processes' changes arrive late", error=str(error), path=str(path))
            inotify.close()
            return None
        self._loop.add_reader(inotify.fd, self._drain, inotify.fd)
        return inotify

    def _drain(self, handle: int) -> None:
        """Read what has piled up: that there is news is all an event says."""
        try:
            os.read(handle, 65_536)
        except BlockingIOError:
            return
        self._heard()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(SLOW_S, self._tick)

    def _tick(self) -> None:
        self._wait()
        self._heard()
