"""Asks a Fabric Manager from the agent's loop: each call has a limit, and one that hangs blocks nothing else.

Which start of the Manager answers is asked for before its list. An agent in the Service VM that is of an earlier
version of this program does not know that question and ends the connection; then each connection counts as a start.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, TypeVar

from fairlead import errors, telemetry
from fairlead.model.fabric import ManagerIdentity
from fairlead.silicon.fabric import agentclient
from fairlead.silicon.fabric.port import FabricManager
from fairlead.silicon.fabric.reached import Reached

T = TypeVar("T")
_TRIES: Final = 3
"""How often in a row an agent may end the connection at that question before it counts as one that does not know it."""


class Caller:
    """The way to one Manager."""

    def __init__(self, reached: Reached) -> None:
        """Connect nothing yet."""
        self._reached = reached
        self._unanswered = 0
        self._own_start = ""

    async def call(self, call: Callable[[FabricManager], T]) -> T:
        """Wait for one call of the Manager's, for as long as it may take. Raises: Unavailable; what the call raises."""
        future = self._reached.connection.submit(call)
        waited = asyncio.wrap_future(future)
        waited.add_done_callback(_ignore)
        done = set[asyncio.Future[T]]()
        try:
            done, _ = await asyncio.wait({waited}, timeout=self._reached.timeout_s)
        finally:
            gave_up = None if done else self._reached.connection.give_up(future)
        if gave_up is not None:
            raise gave_up
        return waited.result()

    async def identify(self, *, is_fresh: bool) -> ManagerIdentity:
        """Return which start of the Manager answers. Args: is_fresh: whether nothing was asked on this connection."""
        if self._unanswered >= _TRIES:
            if is_fresh or not self._own_start:
                self._own_start = secrets.token_hex(8)
            return ManagerIdentity(start=self._own_start)
        try:
            found = await self.call(lambda manager: manager.identify())
        except errors.FairleadError as error:
            await self._note_unanswered(error)
            raise
        self._unanswered = 0
        return found

    async def _note_unanswered(self, error: errors.FairleadError) -> None:
        """Count an agent that was there, answers a list, and ends the connection at this question."""
        if not self._reached.is_agent or error.reason != agentclient.LOST:
            return
        await self.call(lambda manager: manager.list_partitions())
        self._unanswered += 1
        if self._unanswered == _TRIES:
            hint = "install this version of fairlead in the Service VM, and start `fairlead fabric serve` again"
            telemetry.log.warning("fabric agent does not say which start it is", path=self._reached.name, error=hint)


def _ignore(done: asyncio.Future[T]) -> None:
    """Fetch what a call raised that nobody waits for any more."""
    if not done.cancelled():
        done.exception()
