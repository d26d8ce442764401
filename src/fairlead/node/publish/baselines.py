"""Publishes which firmware this node may have as FirmwareBaselines, from the files beside its ledger.

The files are looked at every few seconds: they change when a board is verified that was not known, and when a person
decides. No GPU depends on any of this: what is verified is verified against the files.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.node.inventory import latest
from fairlead.node.lease import baselines
from fairlead.plan.lease import baseline, baselineobject
from fairlead.store import retry
from fairlead.store.port import Selector, Store
from fairlead.wire.fairlead.firmwarebaseline import FirmwareBaseline
from fairlead.wire.kubernetes import core
from fairlead.workqueue import WorkQueue

_ALL: Final = "baselines"
_LOOK_S: Final = 5.0
_AGAIN_S: Final = 3600.0
"""After this what another writer changed is put right."""


class Baselines:
    """The FirmwareBaselines of one node."""

    def __init__(
        self, store: Store, folder: Path, node: latest.Latest[core.Node | None], *, look_s: float = _LOOK_S
    ) -> None:
        """Take the sources; nothing is read or written before `run`. Args: folder: of the ledger."""
        self._store, self._folder, self._node, self._look_s = store, folder, node, look_s
        self._queue = WorkQueue("baselines", self._work)

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Publish for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(meter), name="baselines")
            tasks.create_task(self._node.follow(lambda _: self._queue.add(_ALL)), name="baselines: node")
            tasks.create_task(self._look(), name="baselines: files")

    async def _look(self) -> None:
        before: object = None
        while True:
            stamp = await asyncio.to_thread(baselines.stamp, self._folder, is_whole=True)
            if stamp != before:
                self._queue.add(_ALL)
                before = stamp
            await asyncio.sleep(self._look_s)

    async def _work(self, _: str) -> float | None:
        node = self._node.value
        if node is None:
            return None  # asked for again once it is there
        found = await asyncio.to_thread(self._standings)
        wanted = {one.metadata.name: one for one in (baselineobject.show(node, item) for item in found)}
        listing = await self._store.list(FirmwareBaseline, Selector(fields={"spec.nodeName": node.metadata.name}))
        kept: dict[str, FirmwareBaseline] = {}
        for one in listing.items:
            own = wanted.get(one.metadata.name)
            if own is not None and own.metadata.owner_references == one.metadata.owner_references:
                kept[one.metadata.name] = one
                continue
            with contextlib.suppress(errors.NotFound, errors.Conflict):  # gone, or another object by now
                await self._store.delete(FirmwareBaseline, one.metadata.name, uid=one.metadata.uid)
        for name, one in wanted.items():
            await self._keep(one, kept.get(name))
        return _AGAIN_S

    async def _keep(self, wanted: FirmwareBaseline, there: FirmwareBaseline | None) -> None:
        if there is None:
            with contextlib.suppress(errors.Conflict):  # it is there
                await self._store.create(wanted)
        if there is None or there.status != wanted.status:
            await retry.change_status(
                self._store,
                FirmwareBaseline,
                wanted.metadata.name,
                lambda found: msgspec.structs.replace(found, status=wanted.status),
            )

    def _standings(self) -> tuple[baseline.Standing, ...]:
        return baseline.standings(baselines.read_learned(self._folder), baselines.read_decided(self._folder))
