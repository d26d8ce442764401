"""Carries what an SSH client opens to a WebSocket of the API: commands, terminals, SFTP, connections to ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import asyncssh
import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.ssh import inprocess
from fairlead.wire.fairlead import problem
from fairlead.wire.kubernetes import names

_CHUNK: Final = 1 << 15
_SHELL: Final = "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l"
"""A container's image need not name a shell of its user; bash where it is there."""
_PASSED: Final = frozenset({"LANG", "LANGUAGE", "COLORTERM", "NO_COLOR", "TZ"})
"""Variables of a client that are handed on, beside LC_*."""
_MOST_VARIABLES: Final = 32
_LONGEST_VALUE: Final = 256
_LONGEST_NAME: Final = 253
_WHERE: Final = "TENANCY+CONTAINER, for example ssh red+train@…"


class _Last(msgspec.Struct, frozen=True):
    """The text frame that ends a session."""

    exit_code: int | None = None
    problem: problem.Problem | None = None


class _Tenancy(msgspec.Struct, frozen=True):
    """What is read of a tenancy."""

    namespace: str


@frozen
class Target:
    """The container that a user name means."""

    name: str
    namespace: str
    """Or a tenancy, until `_found` has looked it up; empty: the account's own."""

    @property
    def query(self) -> tuple[tuple[str, str], ...]:
        """The namespace, for a request."""
        return (("namespace", self.namespace),) if self.namespace else ()


def target_of(user: str) -> Target:
    """Return the container that a user name means: CONTAINER, TENANCY+CONTAINER, or the same with a slash.

    `scp` takes a name with a slash for a file of its own machine; no name of an object has a plus. Raises: Invalid.
    """
    namespace, _, name = user.replace("+", "/", 1).rpartition("/")
    if not names.is_object_name(name) or (namespace and not names.is_dns_label(namespace)):
        message = f'"{errors.readable(user[:_LONGEST_NAME])}" names no container'
        raise errors.Invalid(message, reason="ContainerNameInvalid", hint=f"the user name is CONTAINER or {_WHERE}")
    return Target(name=name, namespace=namespace)


async def _found(app: Any, visitor: inprocess.Visitor, user: str) -> Target:
    """Return the container that a user name means, with its namespace where a tenancy is named. Raises: Invalid."""
    target = target_of(user)
    if target.namespace:
        # Whose key was taken away is told so by the request that follows, as is who names what there is not.
        with contextlib.suppress(errors.FairleadError):
            answer = await inprocess.asked(app, visitor, f"/v1/tenancies/{target.namespace}")
            return Target(name=target.name, namespace=msgspec.json.decode(answer, type=_Tenancy).namespace)
    return target


def variables(given: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return which of a client's variables a process is given, as parts of a query."""
    passed = [
        (name, value)
        for name, value in given
        if (name in _PASSED or name.startswith("LC_")) and name.isascii() and name.isprintable() and "=" not in name
        if len(name) <= _LONGEST_VALUE and len(value) <= _LONGEST_VALUE and value.isprintable()
    ]
    return tuple(("env", f"{name}={value}") for name, value in passed[:_MOST_VARIABLES])


async def run(app: Any, visitor: inprocess.Visitor, user: str, process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Carry one session of SSH, whatever it asked for, until it is over."""
    has_terminal = process.get_terminal_type() is not None
    try:
        code = await _run(app, visitor, await _found(app, visitor, user), process, has_terminal=has_terminal)
    except errors.FairleadError as error:
        line = f"fairlead: {_sentence(error)}" + ("\r\n" if has_terminal else "\n")
        with contextlib.suppress(OSError, asyncssh.Error):
            process.stderr.write(line.encode())
        code = errors.row_of(error).exit
    process.exit(code & 0xFF)


def _sentence(error: errors.FairleadError) -> str:
    """Return an error with a hint for a person who has nothing but `ssh`."""
    if error.reason == "NamespaceAmbiguous":
        error = errors.Invalid(error.message, reason=error.reason, hint=f"name one in the user name: {_WHERE}")
    return errors.sentence(error)


async def _run(
    app: Any,
    visitor: inprocess.Visitor,
    target: Target,
    process: asyncssh.SSHServerProcess[bytes],
    *,
    has_terminal: bool,
) -> int:
    path = f"/v1/containers/{target.name}"
    if process.subsystem == "sftp":
        opening = inprocess.opened(app, visitor, f"{path}/sftp", target.query)
        has_terminal = False
    elif process.subsystem is not None:
        message = f'there is no subsystem "{errors.readable(process.subsystem)}"'
        raise errors.Invalid(message, reason="SubsystemUnknown", hint="sftp is the one")
    else:
        opening = inprocess.opened(app, visitor, f"{path}/exec", _asked(target, process, has_terminal=has_terminal))
    async with opening as socket:
        if has_terminal:
            await _resize(socket, *process.term_size[:2])
        return await _carry(socket, process, is_split=not has_terminal)


def _asked(
    target: Target, process: asyncssh.SSHServerProcess[bytes], *, has_terminal: bool
) -> tuple[tuple[str, str], ...]:
    command = process.command
    argv = ("sh", "-c", _SHELL) if command is None else ("sh", "-c", command)
    term = process.get_terminal_type() or ""
    kind = (("env", f"TERM={term}"),) if has_terminal and 0 < len(term) < 64 and term.isprintable() else ()
    how = (("tty", "true"),) if has_terminal else (("split", "true"),)
    words = tuple(("command", word) for word in argv)
    return (*words, ("stdin", "true"), *how, *kind, *variables(tuple(process.env.items())), *target.query)


async def _resize(socket: inprocess.Socket, columns: int, rows: int) -> None:
    if 0 < columns < 1 << 16 and 0 < rows < 1 << 16:
        frame = {"resize": {"rows": rows, "columns": columns}}
        await socket.send(text=msgspec.json.encode(frame).decode())


async def _carry(socket: inprocess.Socket, process: asyncssh.SSHServerProcess[bytes], *, is_split: bool) -> int:
    """Carry both directions until the process ends, or its client leaves. Raises: FairleadError: why there is none."""
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(_drained(socket, process, is_split=is_split))
        feeding = group.create_task(_feed(socket, process))
        leaving = group.create_task(process.channel.wait_closed())
        await asyncio.wait((draining, leaving), return_when=asyncio.FIRST_COMPLETED)
        for one in (draining, feeding, leaving):
            one.cancel()
    if draining.cancelled():
        return 0
    if isinstance(last := draining.result(), errors.FairleadError):
        raise last
    return last


async def _drained(
    socket: inprocess.Socket, process: asyncssh.SSHServerProcess[bytes], *, is_split: bool
) -> int | errors.FairleadError:
    """Return the exit code, or why there is none; 0: the client left."""
    try:
        return await _drain(socket, process, is_split=is_split)
    except errors.FairleadError as error:
        return error
    except (OSError, asyncssh.Error):
        return 0


async def _drain(socket: inprocess.Socket, process: asyncssh.SSHServerProcess[bytes], *, is_split: bool) -> int:
    """Return the exit code. Raises: FairleadError: the service says why there is none."""
    while (frame := await socket.receive()) is not None:
        if isinstance(frame, str):
            last = msgspec.json.decode(frame, type=_Last)
            if last.problem is not None:
                raise problem.error_of(last.problem)
            if last.exit_code is not None:
                return last.exit_code
            continue
        is_error = is_split and frame[:1] == b"\x02"
        writer = process.stderr if is_error else process.stdout
        writer.write(frame[1:] if is_split else frame)
        await writer.drain()
    message = "the service closed the session without a word"
    raise errors.Unavailable(message, reason="SessionBroken", hint="is the container there still?")


async def _feed(socket: inprocess.Socket, process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Hand on what the client sends until it has no more; its terminal's size comes the same way."""
    while True:
        try:
            data = await process.stdin.read(_CHUNK)
        except asyncssh.TerminalSizeChanged as changed:
            await _resize(socket, changed.width, changed.height)
            continue
        except (asyncssh.BreakReceived, asyncssh.SignalReceived):
            continue  # nothing in a container can be sent them but by `fairlead kill`
        except (OSError, asyncssh.Error):
            return  # the client left
        if not data:
            await socket.send(text='{"eof":true}')
            return
        await socket.send(data=data)


async def connect(
    app: Any,
    visitor: inprocess.Visitor,
    user: str,
    port: int,
    streams: tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]],
) -> None:
    """Carry one connection to a port of the container's own loopback; a client learns of a refusal by its end."""
    reader, writer = streams
    with contextlib.suppress(errors.FairleadError, OSError, asyncssh.Error):
        target = await _found(app, visitor, user)
        path = f"/v1/containers/{target.name}/ports/{port}"
        async with inprocess.opened(app, visitor, path, target.query) as socket, asyncio.TaskGroup() as group:
            feeding = group.create_task(_send_all(socket, reader))
            with contextlib.suppress(errors.FairleadError, OSError, asyncssh.Error):
                async for frame in _frames(socket):
                    writer.write(frame)
                    await writer.drain()
            feeding.cancel()
    writer.close()


async def _frames(socket: inprocess.Socket) -> AsyncIterator[bytes]:
    """Yield what a port sends; a text frame is the last word, that it broke."""
    while isinstance(frame := await socket.receive(), bytes):
        yield frame


async def _send_all(socket: inprocess.Socket, reader: asyncssh.SSHReader[bytes]) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await reader.read(_CHUNK):
            await socket.send(data=data)
        await socket.send(text='{"eof":true}')
