"""Asks an API server again and again whether it answers, for processes that can do nothing without it."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from fairlead import errors, telemetry

EVERY_S: Final = 5.0
PATIENCE_S: Final = 5.0


class Server(Protocol):
    """An API server that says its version."""

    async def version(self) -> str:
        """Return it. Raises: Unavailable, Denied, ProtocolError."""
        ...


class Reach:
    """Whether an API server answers; one that answers with a refusal does."""

    def __init__(self, server: Server, *, every_s: float = EVERY_S, patience_s: float = PATIENCE_S) -> None:
        """Take whom to ask, how often, and how long an answer may take; nothing is asked before `run`."""
        self._server, self._every_s, self._patience_s = server, every_s, patience_s
        self._problem = "the API server has not answered yet"

    def problem(self) -> str:
        """Return why it cannot be reached, "" where it answered the last time."""
        return self._problem

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            self._note(await self._ask())
            await asyncio.sleep(self._every_s)

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._server.version()
        except TimeoutError:
            return f"the API server did not answer within {self._patience_s:g} s"
        except errors.Unavailable as error:
            return f"the API server does not answer: {errors.sentence(error)}"
        except errors.FairleadError:
            return ""
        return ""

    def _note(self, problem: str) -> None:
        if bool(problem) != bool(self._problem):
            if problem:
                telemetry.log.warning("API server does not answer", reason="APIServerAway", error=problem)
            else:
                telemetry.log.info("API server answers")
        self._problem = problem
