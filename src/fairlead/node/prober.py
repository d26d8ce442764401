"""A probe that waits: started before its container is there, so that its own start costs no time when it is.

A container may live for milliseconds, a Python program takes tens of them to start. So the probe is started as soon as
a container's folder shows, waits for its orders on standard input, and is put into the container's device cgroup the
moment that is in force: with a process in it a cgroup cannot be removed, and its rules stay to be asked. Runtimes try
for a while (runc for a fifth of a second) to remove a cgroup that is not empty yet; a probe with its orders takes a few
milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.engine import command, pipe

ANSWER_S: Final = 6.0


class Prober:
    """One waiting probe, good for one answer."""

    def __init__(self, process: asyncio.subprocess.Process, orders: pipe.Pipe, output: pipe.Pipe) -> None:
        self._process, self._orders, self._output = process, orders, output

    def enter(self, folder: Path) -> None:
        """Put the probe into a cgroup ahead of its orders; where that may not be, the probe says so itself later."""
        with contextlib.suppress(OSError):
            (folder / "cgroup.procs").write_text(str(self._process.pid))

    async def ask(self, words: Sequence[str]) -> tuple[int, str]:
        """Give the probe its orders, the arguments it would be started with; returns its exit code and its words.

        Raises: Unavailable: it does not end in time.
        """
        said = b""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._orders.write("\0".join(words).encode())
                self._orders.close()
                while piece := await self._output.read():
                    said += piece
                code = await self._process.wait()
        except TimeoutError as error:
            message = f"the probe did not end within {ANSWER_S:g} s"
            raise errors.Unavailable(message, reason="ProgramTimeout", hint="is the machine overloaded?") from error
        return code, said.decode(errors="replace").strip()


@contextlib.asynccontextmanager
async def waiting(argv: Sequence[str]) -> AsyncIterator[Prober]:
    """Have a probe wait for the length of a block. Raises: Unavailable: it cannot be started."""
    theirs, ours = os.pipe()
    orders = pipe.Pipe(ours)
    ours, answers = os.pipe()
    output = pipe.Pipe(ours)
    try:
        try:
            process = await command.started(argv, env={}, stdin=theirs, output=answers)
        finally:
            os.close(theirs)
            os.close(answers)
        try:
            yield Prober(process, orders, output)
        finally:
            await command.end(process, at_once=True)
    finally:
        orders.close()
        output.close()
