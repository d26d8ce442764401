"""Runs a program in the background of the node's machine, and asks it over a socket of its own; always packed.

`guest.py` calls a function of a packed module in a fork that ends with its answer. What must go on between two calls,
as a kubelet does, is begun here, and its module's other functions ask it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

Answers = Callable[..., Awaitable[Any]]
"""Takes what is asked, and its arguments; returns a value that JSON has, or raises a refusal."""
_SOCKETS, _LOGS = Path("/run"), Path("/run/started")


def start(name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Begin a program in the background; returns its pid once it can be asked.

    Args:   name: of its socket, and of its log, which `Node.log` reads.   run: serves with `answering`, for ever.
    Raises: RuntimeError: it ended before that; what it said stands in the error.
    """
    door = _door(name)
    door.unlink(missing_ok=True)
    pid = os.fork()
    if pid:
        while not door.exists():
            if os.waitpid(pid, os.WNOHANG)[0]:
                raise RuntimeError(f"{name} ended at once:\n{(_LOGS / name).read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        return pid
    os.setsid()
    _LOGS.mkdir(parents=True, exist_ok=True)
    log = os.open(_LOGS / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 1024)
    try:
        asyncio.run(run())
    except BaseException:  # noqa: BLE001 - the edge of the process: what ended it stands in its log
        traceback.print_exc()
    os._exit(1)


@contextlib.asynccontextmanager
async def answering(name: str, do: Answers) -> AsyncIterator[None]:
    """Answer what is asked during a block, each call by itself."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            what = json.loads(await reader.readline())
            try:
                told = {"value": await do(*what)}
            except Exception as error:  # noqa: BLE001 - the edge of a call: told to the test, whatever it was
                told = {"refused": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(told).encode() + b"\n")
            await writer.drain()

    async with await asyncio.start_unix_server(answer, _door(name)):
        yield


def ask(name: str, what: str, *arguments: str, limit_s: float = 60) -> Any:
    """Ask a program that was begun; returns its value. Raises: RuntimeError: its refusal."""
    with socket.socket(socket.AF_UNIX) as peer, peer.makefile("rw") as lines:
        peer.settimeout(limit_s)
        peer.connect(str(_door(name)))
        lines.write(json.dumps([what, *arguments]) + "\n")
        lines.flush()
        answer = json.loads(lines.readline())
    if "refused" in answer:
        raise RuntimeError(answer["refused"])
    return answer["value"]


def _door(name: str) -> Path:
    return _SOCKETS / f"{name}.sock"
