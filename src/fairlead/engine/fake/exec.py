"""Plays exec sessions and image facts for the fake engine: a process beside a container's own, names, sizes."""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from fairlead.engine.fake import shell
from fairlead.model.container.output import ErrorOutput

_END_OF_TRANSMISSION: Final = b"\x04"


class FakeExec:
    """`port.ExecSession` over a program of `engine.fake.shell`."""

    def __init__(self, process: shell.Process, *, tty: bool, stdin: bool) -> None:
        self.task: asyncio.Task[None] | None = None
        self._has_terminal = tty
        self._output: asyncio.Queue[bytes] = asyncio.Queue()
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        if not stdin:
            self._input.put_nowait(b"")
        self._process = replace(process, emit=self._emit, fail=self._fail, read=self._input.get)
        self._exit_code = shell.KILLED

    def _emit(self, data: bytes) -> None:
        self._output.put_nowait(data.replace(b"\n", b"\r\n") if self._has_terminal else data)

    def _fail(self, data: bytes) -> None:
        self._emit(data if self._has_terminal else ErrorOutput(data))

    async def live(self, argv: tuple[str, ...]) -> None:
        """Run the program to its end; the engine makes this a task."""
        try:
            refusal = shell.refusal(self._process)
            if refusal:
                (self._emit if self._has_terminal else self._fail)(refusal)
            self._exit_code = shell.REFUSED if refusal else await shell.run(self._process, argv)
        except shell.Killed:
            self._exit_code = shell.KILLED
        finally:
            self._output.put_nowait(b"")

    async def read(self) -> bytes:
        """See `port.ExecSession.read`."""
        data = await self._output.get()
        if not data:
            self._output.put_nowait(b"")  # the end stays the end
        return data

    async def write(self, data: bytes) -> None:
        """See `port.ExecSession.write`."""
        self._input.put_nowait(b"" if data == _END_OF_TRANSMISSION else data)

    async def resize(self, rows: int, columns: int) -> None:
        """See `port.ExecSession.resize`."""
        if self._has_terminal:
            self._process.size = (rows, columns)

    async def wait(self) -> int:
        """See `port.ExecSession.wait`."""
        if self.task is not None:
            await asyncio.wait([self.task])
        return self._exit_code

    async def close(self) -> None:
        """See `port.ExecSession.close`."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])


class FakeConnection:
    """`subresource.Connection` to a peer that sends back what comes."""

    def __init__(self) -> None:
        self._echo: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes:
        """Return the next bytes, b"" once closed."""
        return await self._echo.get()

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        if data:
            self._echo.put_nowait(data)

    async def close(self) -> None:
        """Close both directions."""
        self._echo.put_nowait(b"")


def full_name(name: str) -> str:
    """Return a name as podman stores it: `web` is `localhost/web:latest`."""
    head = name.partition("/")[0]
    is_qualified = "/" in name and ("." in head or ":" in head or head == "localhost")
    full = name if is_qualified else f"localhost/{name}"
    return full if ":" in full.rpartition("/")[2] else f"{full}:latest"


def source_size(source: Path) -> int:
    """Return the bytes of a tar or of a folder's files, of the first 10,000: a fake need not read a whole machine."""
    found = (_size(Path(root, name)) for root, _, names in os.walk(source) for name in names)
    return sum(itertools.islice(found, _MEASURED)) if source.is_dir() else _size(source)


_MEASURED: Final = 10_000


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0  # gone since it was listed
