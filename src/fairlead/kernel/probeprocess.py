"""Keeps a probe process waiting, so that its start costs no time when the container is there.

A container may live for milliseconds, a Python program takes tens of them to start. So a probe is started ahead, waits
for its orders on standard input, and is told to enter the container's device cgroups the moment its rules are in force:
a cgroup that has a process cannot be removed, so its rules can still be tested. A probe that moves itself needs a
fraction of a millisecond; moved by another process it would take 8 to 30 ms (`openprobe`). A runtime waits a moment for
a cgroup to become empty (runc a second), or ends what is in it; a probe with its orders needs a few milliseconds.

A probe that waits is one idle process of 9 MB. It ends with its standard input, so with the process that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import Final, Self

from fairlead import command, errors, pipe

ANSWER_S: Final = 6.0
END_S: Final = 2.0
_WHOLE: Final = b"]\n"
"""How a whole answer ends: it is the last thing that the program prints."""


class ProbeProcess:
    """One waiting probe, good for one answer; `close` it in the end."""

    def __init__(self, process: asyncio.subprocess.Process, orders: pipe.Pipe, output: pipe.Pipe) -> None:
        self._process, self._orders, self._output = process, orders, output

    @classmethod
    async def start(cls, argv: Sequence[str]) -> Self:
        """Start a probe. Raises: Unavailable: it cannot be started."""
        theirs, ours = os.pipe()
        orders = pipe.Pipe(ours)
        ours, answers = os.pipe()
        output = pipe.Pipe(ours)
        try:
            process = await command.started(argv, env={}, stdin=theirs, output=answers)
        except BaseException:
            orders.close()
            output.close()
            raise
        finally:
            os.close(theirs)
            os.close(answers)
        return cls(process, orders, output)

    @property
    def is_waiting(self) -> bool:
        """Whether it is still there."""
        return self._process.returncode is None

    async def enter(self, cgroup_files: Sequence[str]) -> None:
        """Have the probe go into cgroups ahead of its orders; where it may not, it says so once it has them."""
        if cgroup_files:
            await self._tell(cgroup_files)

    async def ask(self, words: Sequence[str]) -> tuple[int, str]:
        """Give the probe its orders, the arguments it would be started with; returns its exit code and its words.

        An answer that is whole counts as success at once: `close` waits for the end of the process.

        Raises: Unavailable: it does not end in time.
        """
        said = b""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._tell(words)
                self._orders.close()
                while not said.endswith(_WHOLE) and (piece := await self._output.read()):
                    said += piece
                # Its end, which takes its namespace and tmpfs down, costs milliseconds that a start need not wait for.
                code = 0 if said.endswith(_WHOLE) else await self._process.wait()
        except TimeoutError as error:
            message = f"the probe did not end within {ANSWER_S:g} s"
            raise errors.Unavailable(message, reason="ProgramTimeout", hint="is the machine overloaded?") from error
        return code, said.decode(errors="replace").strip()

    async def _tell(self, words: Sequence[str]) -> None:
        message = "\0".join(words).encode(errors="surrogateescape")
        await self._orders.write(b"%d\n%b" % (len(message), message))

    async def close(self) -> None:
        """End it, asked or not; one that hangs in a driver is killed and left behind."""
        self._orders.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await command.end(self._process, at_once=True)
        self._output.close()


class StandbyProbe:
    """Keeps one probe waiting."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Take how a waiting probe is started; nothing is before `run`."""
        self._argv = argv
        self._idle: ProbeProcess | None = None
        self._wanted = asyncio.Event()
        self._is_kept = False

    def keep(self, is_kept: bool) -> None:
        """Have one wait from now on, or none."""
        self._is_kept = is_kept
        self._wanted.set()

    async def take(self) -> ProbeProcess:
        """Return the probe that waits, else a new one; the caller closes it. Raises: Unavailable."""
        idle, self._idle = self._idle, None
        if idle is not None and idle.is_waiting:
            return idle
        return await ProbeProcess.start(self._argv)

    def refill(self) -> None:
        """Start the next probe; called once the last one has answered, so as not to slow it down."""
        self._wanted.set()

    async def run(self) -> None:
        """Keep one for ever; where none can be started, `take` says so."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                if self._is_kept and self._idle is None:
                    with contextlib.suppress(errors.Unavailable):
                        self._idle = await ProbeProcess.start(self._argv)
                elif not self._is_kept:
                    await self._drop()
        finally:
            await self._drop()

    async def _drop(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            await idle.close()
