"""Gives the API the node's ledger: its rows from the file, and a person's requests through the agent's socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.node.lease import baselines, ledgerfile, requestsocket
from fairlead.plan.lease.baseline import Decided, Learned
from fairlead.plan.lease.row import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLedger:
    """A `serve.backend.port.Ledger` over the ledger of this machine's agent."""

    folder: Path

    async def rows(self) -> Mapping[str, Row]:
        """See `port.Ledger.rows`."""
        return await asyncio.to_thread(ledgerfile.read_rows, self.folder / ledgerfile.NAME)

    async def ask(self, verb: str, gpu: str, *, by: str, why: str) -> Row:
        """See `port.Ledger.ask`."""
        return await asyncio.to_thread(
            requestsocket.ask, self.folder, requestsocket.Request(verb=verb, gpu=gpu, by=by, why=why)
        )

    async def baselines(self) -> tuple[Learned, Decided]:
        """See `port.Ledger.baselines`."""
        return await asyncio.to_thread(
            lambda: (baselines.read_learned(self.folder), baselines.read_decided(self.folder))
        )

    async def decide(self, act: Callable[[Learned, Decided], Decided]) -> None:
        """See `port.Ledger.decide`."""
        await asyncio.to_thread(baselines.decide, self.folder, act)
