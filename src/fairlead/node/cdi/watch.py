"""Regenerates CDI specs while a machine changes: MIG instances, driver and modules, boards that come and go.

Two things ask for another look: an event of the driver, and a fingerprint of the files that specs depend on, compared
every so often because /proc and /sys send no events. One look answers any number of askings; what it
finds is written only where it differs. A look that fails leaves the files as they are and is repeated. At the start the
files that are there are held to this boot and driver, and the log says which are of another time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairlead import errors, telemetry
from fairlead.model.gpu import EventKind
from fairlead.node.cdi import source as cdisource
from fairlead.node.cdi import specfiles
from fairlead.silicon import running

_ASKING = frozenset({EventKind.CHANGED, EventKind.LOST, EventKind.RECOVERED})


class Watcher:
    """One folder of specs and the machine they describe."""

    def __init__(
        self,
        source: cdisource.Source,
        specs: specfiles.SpecFiles,
        *,
        interval_s: float,
        settle_s: float = 0.2,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Prepare; nothing is read before `run`.

        Args:    interval_s: time between two fingerprints, and between tries of a look that failed.
                 settle_s: least time between two looks, since one change comes as several.
                 on_change: called in a thread after files were written or removed.
        """
        self._source, self._specs = source, specs
        self._interval_s, self._settle_s, self._on_change = interval_s, settle_s, on_change
        self._asked = asyncio.Event()
        self._asked.set()
        self._complaint = ""
        self._seen: object = None
        """Fingerprint of what the last look found."""

    async def run(self) -> None:
        """Watch for ever."""
        await asyncio.to_thread(self._tell_stale)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._compare())
            group.create_task(self._follow())

    def _tell_stale(self) -> None:
        now = running.read_running(self._source.place.root)
        for line in self._specs.stale(now.boot_id, now.versions):
            telemetry.log.warning("cdi spec stale", error=line)

    async def _listen(self) -> None:
        async for event in self._source.silicon.watch_events():
            if event.kind in _ASKING:
                self._asked.set()

    async def _compare(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if await self._fingerprint() != self._seen:
                self._asked.set()

    async def _fingerprint(self) -> object:
        place = self._source.place
        return await asyncio.to_thread(running.fingerprint, place.root, place.driver_root, place.search)

    async def _follow(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                before, first = self._specs.written, await self._fingerprint()
                found = await self._source.collect()
                self._seen = await self._fingerprint()
                if self._seen != first:  # the machine changed during the look: look again
                    self._asked.set()
                await self._specs.keep(found.made, found.stamps)
            except errors.FairleadError as error:
                self._complain(error)
                await asyncio.sleep(self._interval_s)
                self._asked.set()
                continue
            self._complaint = ""
            if self._on_change is not None and self._specs.written != before:
                await asyncio.to_thread(self._on_change)
            await asyncio.sleep(self._settle_s)

    def _complain(self, error: errors.FairleadError) -> None:
        """Log an error once, not at every try."""
        if error.message != self._complaint:
            self._complaint = error.message
            telemetry.log.warning("cdi specs not renewed", reason=error.reason, error=errors.sentence(error))
