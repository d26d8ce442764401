"""Interprets the few commands that the fake engine's containers run, with real timing, output and exit codes.

A program is an argument list. Known are `echo`, `sleep`, `true`, `false`, `cat` (its input back), `env`, `hostname`,
`id -u`, `pwd`, `stty size`, `dd` (with `bs=NM`: takes that much memory, so a limit can be broken), `nc -ll -p PORT -e
cat` (sends back what comes) and `sh` (also `/bin/sh`, with or without `-c`), whose scripts are those commands, `exit N`
and `wait`, separated by `;`, `&` or lines; `>&2` at a command's end sends its output to standard error. As the first
process of a container they are deaf to SIGTERM, which the kernel keeps from a namespace's init without a handler; `trap
"exit N" TERM` is the handler. Anything else is not found, as in an image without it. For tests and the simulation; this
is not a shell.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

KNOWN: Final = frozenset(
    {"echo", "sleep", "true", "false", "cat", "env", "hostname", "id", "pwd", "stty", "dd", "nc", "sh"}
)
ROOT: Final = "0"
_USERS: Final[Mapping[str, str]] = {"root": ROOT, "nobody": "65534"}
"""Names that the images know."""
NOT_FOUND: Final = 127
KILLED: Final = 137
REFUSED: Final = 126
"""Exit code of a process that the runtime could not begin."""
_TO_ERRORS: Final = "@2"
"""Stands for `>&2` while a script is cut into words."""
_BLOCK: Final = re.compile(r"bs=(\d+)([kMG]?)\Z")
_UNITS: Final = {"": 1, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Killed(Exception):
    """The kernel ends the process: it took more memory than it may."""


@dataclass(slots=True)
class Process:
    """One fake process: where its output goes, where its input comes from, what is around it."""

    emit: Callable[[bytes], None]
    """Takes output as it comes."""
    read: Callable[[], Awaitable[bytes]]
    """Returns the next input, b"" at its end."""
    env: Mapping[str, str]
    hostname: str
    fail: Callable[[bytes], None] | None = None
    """Takes standard error; None: with the output."""
    user: str = ROOT
    """By number or name, with or without a group."""
    workdir: str = "/"
    memory_limit_bytes: int | None = None
    size: tuple[int, int] = (24, 80)
    """Rows and columns of its terminal."""
    ports: set[int] = field(default_factory=set)
    """On which it listens and sends back what comes."""
    term_exit: int | None = None
    """Exit code with which it answers SIGTERM; None: deaf to it."""


def refusal(process: Process) -> bytes:
    """Return what a runtime says of a user that the image does not know; empty: it knows them."""
    name = process.user.partition(":")[0]
    if name.isdecimal() or name in _USERS:
        return b""
    return f"Error: unable to find user {name}: no matching entries in passwd file\n".encode()


def is_known(argv: Sequence[str]) -> bool:
    """Return whether the first word is a command there is."""
    return argv[0].rpartition("/")[2] in KNOWN


async def run(process: Process, argv: Sequence[str]) -> int:
    """Run a program to its end; returns its exit code. Raises Killed where it takes too much memory."""
    name = argv[0].rpartition("/")[2]
    waiting = _WAITING.get(name)
    return await waiting(process, argv[1:]) if waiting else _at_once(process, name, argv[1:])


def _at_once(process: Process, name: str, words: Sequence[str]) -> int:
    if name == "dd":
        _take_memory(process, words)
    lines = {
        "echo": [" ".join(words)],
        "env": [f"{key}={value}" for key, value in process.env.items()],
        "hostname": [process.hostname],
        "id": [_uid(process.user)],
        "pwd": [process.workdir],
        "stty": ["{} {}".format(*process.size)],
    }
    for line in lines.get(name, []):
        process.emit(f"{line}\n".encode())
    if name not in KNOWN:
        process.emit(f"sh: {name}: not found\n".encode())
        return NOT_FOUND
    return 1 if name == "false" else 0


def _uid(user: str) -> str:
    name = user.partition(":")[0]
    return _USERS.get(name, name)


async def _sleep(_process: Process, words: Sequence[str]) -> int:
    await asyncio.sleep(float(words[0]))
    return 0


async def _cat(process: Process, _words: Sequence[str]) -> int:
    while data := await process.read():
        process.emit(data)
    return 0


async def _listen(process: Process, words: Sequence[str]) -> int:
    process.ports.add(int(words[words.index("-p") + 1]))
    await asyncio.Event().wait()
    return 0


async def _sh(process: Process, words: Sequence[str]) -> int:
    if words and words[0] == "-c":
        return (await _script(process, words[1]))[0]
    code = 0
    while data := await process.read():
        code, is_over = await _script(process, data.decode())
        if is_over:
            break
    return code


async def _script(process: Process, text: str) -> tuple[int, bool]:
    """Run the commands of a script; returns the last one's exit code, and whether it was `exit`."""
    code = 0
    lexer = shlex.shlex(text.replace(">&2", f" {_TO_ERRORS} ").replace("\n", ";"), posix=True, punctuation_chars=";&")
    lexer.whitespace_split = True
    for words in _statements(list(lexer)):
        if words[-1] == _TO_ERRORS:
            code = await run(_to_errors(process), words[:-1])
            continue
        if words[0] == "exit":
            return int(words[1]) if len(words) > 1 else code, True
        if words[0] == "trap":
            process.term_exit = int(words[1].removeprefix("exit "))
        elif words[0] != "wait":
            code = await run(process, words)
    return code, False


_WAITING: Final[Mapping[str, Callable[[Process, Sequence[str]], Awaitable[int]]]] = {
    "sleep": _sleep,
    "cat": _cat,
    "nc": _listen,
    "sh": _sh,
}


def _to_errors(process: Process) -> Process:
    return process if process.fail is None else replace(process, emit=process.fail)


def _statements(words: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for word in words:
        if word and set(word) <= {";", "&"}:
            found.append([])
        else:
            found[-1].append(word)
    return [statement for statement in found if statement]


def _take_memory(process: Process, words: Sequence[str]) -> None:
    blocks = [block for block in map(_BLOCK.match, words) if block]
    size = max((int(block[1]) * _UNITS[block[2]] for block in blocks), default=0)
    if process.memory_limit_bytes is not None and size > process.memory_limit_bytes:
        raise Killed
