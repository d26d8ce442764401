"""Owns the node's ledger: one process, one thread, one flush for all that wait.

The ledger is the authority on who has a GPU; objects in a cluster only repeat it. `act` takes a decision, a function
from the rows as they are to transitions of them. Decisions that come while the disk flushes share the next transaction,
each judged on the rows that those before it leave: one that is refused changes nothing and takes no other with it. An
answer is given when its transaction is on disk, never before. Nothing here runs on the event loop's thread but to wait.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.kernel import heldlock
from fairlead.node.inventory import latest
from fairlead.node.lease import ledgerfile
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.row import Row

LOCK: Final = "ledger.lock"
_BATCH: Final = 64

_Outcome = concurrent.futures.Future[tuple[Change, ...]]

Decision = Callable[[Mapping[str, Row]], Sequence[Change]]
"""Returns transitions, several of one row in their order. Raises a FairleadError where nothing is to change."""


class Ledger:
    """The open ledger of this node."""

    def __init__(self, folder: Path) -> None:
        """Take the lock and open the file; blocks for as long as the disk takes.

        Raises: Conflict (`AlreadyRunning`): another agent has it.   ProtocolError: it is of a newer version.
                Unavailable: the folder or its disk refuses.
        """
        with contextlib.ExitStack() as stack:
            me = heldlock.Owner(pid=os.getpid())
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(heldlock.held(folder / LOCK, f"the ledger in {folder}", me))
            self._file = ledgerfile.LedgerFile(folder / ledgerfile.NAME)
            stack.callback(self._file.close)
            self._resources = stack.pop_all()
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._waiting: collections.deque[tuple[Decision, ledgerfile.Notes, _Outcome]] = collections.deque()
        self.rows: latest.Latest[Mapping[str, Row]] = latest.Latest(self._file.rows)
        """Every GPU's row by its key, as it is on disk."""
        self.was_set_aside = self._file.was_set_aside

    @property
    def notes(self) -> Mapping[str, str]:
        """The documents beside the rows, as they are on disk."""
        return self._file.notes

    async def act(self, decide: Decision, notes: ledgerfile.Notes | None = None) -> tuple[Change, ...]:
        """Carry a decision out; returns what it changed once that is on disk.

        Args:    notes: documents to keep, or to remove, in the same transaction.

        Raises: what `decide` raises; Unavailable (`LedgerUnusable`): the disk refuses, and nothing has changed.
        """
        outcome: _Outcome = concurrent.futures.Future()
        self._waiting.append((decide, notes or {}, outcome))
        self._writer.submit(self._drain)
        try:
            # Not cancelled with its asker: what is being written is written.
            return await asyncio.shield(asyncio.wrap_future(outcome))
        finally:
            self.rows.set(self._file.rows)

    def close(self) -> None:
        """Finish what is being written, close the file and give the lock back."""
        self._writer.shutdown()
        self._resources.close()

    def _drain(self) -> None:
        """Decide and write everything that waits, in one transaction (the ledger's thread)."""
        batch: list[tuple[Decision, ledgerfile.Notes, _Outcome]] = []
        while self._waiting and len(batch) < _BATCH:
            batch.append(self._waiting.popleft())
        rows = dict(self._file.rows)
        settled: list[tuple[tuple[Change, ...], _Outcome]] = []
        noted: dict[str, str | None] = {}
        for decide, notes, outcome in batch:
            try:
                changes = tuple(decide(rows))
            except Exception as error:  # noqa: BLE001  (handed to the asker, whose task it ends)
                outcome.set_exception(error)
                continue
            rows.update((one.after.key, one.after) for one in changes)
            noted.update(notes)
            settled.append((changes, outcome))
        every = [one for changes, _ in settled for one in changes]
        try:
            if every or noted:
                self._file.commit(every, noted)
        except Exception as error:  # noqa: BLE001  (as above: no asker waits for an answer that never comes)
            for _, outcome in settled:
                outcome.set_exception(error)
            return
        for changes, outcome in settled:
            outcome.set_result(changes)
        try:
            self._file.tidy()
        except errors.FairleadError as error:
            telemetry.log.warning("ledger not tidied", reason=error.reason, error=error.message)
