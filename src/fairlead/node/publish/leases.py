"""Publishes this node's possessions as GPULease objects, from the ledger's history and from what it does now.

Every transition is reported here after it is on disk; the possession it belongs to is a key of a work queue, written by
its own worker with back-off. An agent that starts reads the history first, so that nothing is missed that happened
while the API server, or the agent, was away. Leases are kept for `lease.keep_days` after their end. No GPU depends on
any of this: the ledger alone decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.node.inventory import latest, pods
from fairlead.node.lease import ledgerfile
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import possession
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.possession import Possession
from fairlead.plan.lease.row import Row
from fairlead.store import retry
from fairlead.store.port import Selector, Store
from fairlead.wire.kubernetes import gpudevice, gpulease
from fairlead.wire.kubernetes.gpulease import GPULease
from fairlead.workqueue import WorkQueue

_SWEEP: Final = "/sweep"
"""Key of the round over all objects; no GPU has this name."""
_SWEEP_S: Final = 3600.0
_LEDGER_LOST: Final = "LedgerLost"
_DAY_S: Final = 86400


class Leases:
    """The GPULeases of one node."""

    def __init__(
        self,
        node: str,
        store: Store,
        ledger: Path,
        *,
        snapshots: latest.Latest[Snapshot],
        pods: pods.Pods,
        keep_days: int,
    ) -> None:
        """Take the sources; nothing is read or written before `run`. Args: ledger: its file."""
        self._node, self._store, self._ledger = node, store, ledger
        self._snapshots, self._pods, self._keep_s = snapshots, pods, keep_days * _DAY_S
        self._found: dict[str, Possession] = {}
        """The last possession of each GPU, by the row's key."""
        self._due: dict[str, Possession] = {}
        """What is to be written, by `gpu/epoch`."""
        self._early: list[Change] | None = []
        """Transitions reported before the history was read; None: it has been read."""
        self.opened = asyncio.Event()
        """Set once the ledger is open; replaced by the gate's own event."""
        self._queue = WorkQueue("leases", self._work, workers=4)

    def told(self, one: Change) -> None:
        """Take in a transition that is on disk."""
        if self._early is None:
            self._advance(one.after, event=one.event.value, at=one.facts.at)
        else:
            self._early.append(one)

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Publish for ever, once the ledger is open and its rows are of this boot."""
        meter.heartbeat("leases", None)
        await self.opened.wait()
        async for snapshot in self._snapshots.changes():
            if snapshot.is_scanned:  # whether GPUs are simulated decides what they are called
                break
        await self._begin()
        self._queue.add(_SWEEP)
        await self._queue.run(meter)

    async def _begin(self) -> None:
        """Take in what the ledger says of the past, and what was told of meanwhile."""
        self._early = []
        rows, entries = await asyncio.to_thread(ledgerfile.read, self._ledger)
        for entry in entries:
            self._advance(entry.row, event=entry.event, at=entry.at)
        for row in rows.values():  # of a possession that began before the history does
            self._advance(row, event="", at=row.since)
        early, self._early = self._early, None
        for one in early:
            self.told(one)
        oldest = time.time() - self._keep_s
        self._due = {key: one for key, one in self._due.items() if not one.ended or one.ended >= oldest}

    def _advance(self, row: Row, *, event: str, at: float) -> None:
        one = possession.advance(self._found.get(row.key), row, event=event, at=at)
        if one is not None and one != self._found.get(row.key):
            self._found[row.key] = one
            self._ask(one)

    def _ask(self, one: Possession) -> None:
        key = f"{one.gpu}/{one.epoch}"
        self._due[key] = one
        self._queue.add(key)

    async def _work(self, key: str) -> float | None:
        if key == _SWEEP:
            await self._sweep()
            return _SWEEP_S
        if (one := self._due.get(key)) is not None:
            await self._write(one)
            if self._due.get(key) is one:
                del self._due[key]
        return None

    async def _write(self, one: Possession) -> None:
        is_simulated = self._snapshots.value.inventory.is_simulated
        device = gpudevice.object_name(one.gpu, self._node, simulated=is_simulated)
        there = await self._find(possession.plan_name(device, one))
        name = possession.plan_name(device, one, there)
        wanted = possession.show(one, name=name, device=device, node=self._node)
        if there is None or there.metadata.name != name:
            with contextlib.suppress(errors.Conflict):  # it is there
                await self._store.create(wanted)

        def told(found: GPULease) -> GPULease:
            status = possession.with_pods(wanted.status, found.status, self._uid)
            return msgspec.structs.replace(found, status=status)

        await retry.change_status(self._store, GPULease, name, told)

    async def _find(self, name: str) -> GPULease | None:
        try:
            return await self._store.get(GPULease, name)
        except errors.NotFound:
            return None

    def _uid(self, namespace: str, name: str) -> str:
        every = (pod.metadata for pod in self._pods.all())
        return next((one.uid for one in every if (one.namespace, one.name) == (namespace, name)), "")

    async def _sweep(self) -> None:
        """Say of leases that the ledger does not know that they are lost, and remove what is old."""
        listing = await self._store.list(GPULease, Selector(fields={"spec.nodeName": self._node}))
        now = time.time()
        for one in possession.find_old(listing.items, before=now - self._keep_s):
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._store.delete(GPULease, one.metadata.name, uid=one.metadata.uid)
        for one in listing.items:
            if self._is_known(one) or one.status.state in gpulease.ENDED:
                continue
            with contextlib.suppress(errors.NotFound):
                await retry.change_status(self._store, GPULease, one.metadata.name, _lost)

    def _is_known(self, one: GPULease) -> bool:
        every = (*self._found.values(), *self._due.values())
        return any(found.gpu == one.spec.gpu and possession.is_shown_by(one, found) for found in every)


def _lost(found: GPULease) -> GPULease | None:
    message = "the node's ledger no longer knows of it; a pod that has the GPU now has a lease of its own"
    return possession.lose(found, at=time.time(), reason=_LEDGER_LOST, message=message)
