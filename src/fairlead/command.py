"""Starts programs: every child process comes from here, but those of the shim, the hook and `kernel.programs`.

A program is an argument list with an explicit environment and working folder: nothing of our own surroundings reaches
it. Each runs in a session of its own, so that a Ctrl-C on our terminal reaches us and not it. Short programs are waited
for with a time limit; long ones (`opened`) are killed with their block and, through util-linux's setpriv where it is
there, by the kernel when we die. (The kernel ties that signal to the thread that started the program: the event loop's,
which lives as long as we do. A Python `preexec_fn` would do the same but forks the whole process with its threads.)
One that must leave nothing behind (`wholly`) runs in a namespace of pids of its own.

Leaves the meaning of exit codes and messages to the callers.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import errno
import os
import pwd
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors, pipe

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DROPPED: Final = asyncio.subprocess.DEVNULL
MERGED: Final = asyncio.subprocess.STDOUT
OURS: Final = 2
"""Where a program's standard error goes: nowhere, where its output goes, where ours goes."""
_PID_NAMESPACE: Final = Path(__file__).with_name("kernel") / "programs" / "pidnamespace.py"
_TERM_S: Final = 5.0
_REAP_S: Final = 2.0
_LOOK_S: Final = 0.05
_LARGEST: Final = 256 << 20
"""Bytes that a short program may write, on either of its outputs, unless its caller says less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a program left."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def last_line(self) -> str:
        """The last line of standard error that says something, "" where there is none."""
        lines = [line.strip() for line in self.stderr.decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")


def base_env() -> dict[str, str]:
    """Return the environment every program gets: where programs are, whose home, messages in English."""
    return {"PATH": PATH, "HOME": _home(), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


def _home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a system without this user in /etc/passwd; as login(1) does
        return "/"


def find_program(name: str) -> Path | None:
    """Return where a program is (a path stays itself if it can be run), or None."""
    found = shutil.which(name, path=PATH)
    return Path(found) if found else None


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    stdin: int | None = None,
    folder: Path = Path("/"),
    largest: int = _LARGEST,
    wholly: bool = False,
) -> Result:
    """Run a program to its end.

    Args:    argv: program and arguments.   env: its whole environment.   timeout_s: seconds it may take.
             stdin: a descriptor to read from; None: nothing.   folder: where it runs.
             largest: bytes that it may write to its standard output, and as many to standard error.
             wholly: what it has started is killed with its end, however it ends, and all of it with ours: in a
             namespace of pids, or where this process may make none, in its process group.
    Raises:  Unavailable: not installed (`ProgramMissing`), not done in time (`ProgramTimeout`) or too much written
             (`ProgramTooLoud`); it was ended.
    """
    where = asyncio.subprocess
    process = await _spawn(
        _enclosed(argv) if wholly else argv,
        env=env,
        stdin=where.DEVNULL if stdin is None else stdin,
        stdout=where.PIPE,
        stderr=where.PIPE,
        folder=folder,
    )
    try:
        async with asyncio.timeout(timeout_s):
            stdout, stderr = await _collect(process, largest, wholly=wholly)
    except _TooLoud as error:
        message = f'"{" ".join(argv[:3])}" wrote more than {largest} bytes'
        raise errors.Unavailable(
            message, reason="ProgramTooLoud", hint="run it by hand and look at its output"
        ) from error
    except TimeoutError as error:
        message = f'"{" ".join(argv[:3])}" did not end within {timeout_s:g} s'
        raise errors.Unavailable(message, reason="ProgramTimeout", hint="is the machine overloaded?") from error
    finally:
        await end(process, wholly=wholly)
    return Result(code=process.returncode or 0, stdout=stdout, stderr=stderr)


def _enclosed(argv: Sequence[str]) -> list[str]:
    """Return the argument list that runs a program in a namespace of pids. Raises: Unavailable (`ProgramMissing`)."""
    found = find_program(argv[0])
    if found is None:
        number = errno.EACCES if Path(argv[0]).exists() else errno.ENOENT
        raise _refused(argv, OSError(number, os.strerror(number)))
    return [sys.executable, "-I", "-S", str(_PID_NAMESPACE), str(found), *argv[1:]]


class _TooLoud(Exception):
    """A program wrote more than it may; never leaves this module."""


async def _collect(process: asyncio.subprocess.Process, largest: int, *, wholly: bool) -> tuple[bytes, bytes]:
    """Return both outputs once the program has ended. Raises: _TooLoud."""
    try:
        async with asyncio.TaskGroup() as group:
            outputs = [
                group.create_task(_read(stream, largest)) for stream in (process.stdout, process.stderr) if stream
            ]
            if wholly:
                group.create_task(_end_group(process))
    except ExceptionGroup as failed:
        if failed.subgroup(_TooLoud) is None:
            raise
        raise _TooLoud from failed
    await process.wait()
    stdout, stderr = (task.result() for task in outputs)
    return stdout, stderr


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of a program's group when it ends: its outputs stay open while a child of it has them.

    Nothing is, where it had a namespace.
    """
    await _exited(process)
    _signal(process, signal.SIGKILL, wholly=True)


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Wait for a program's own end: asyncio's wait() is for its outputs' ends too, which children or we hold up."""
    while process.returncode is None:  # noqa: ASYNC110 (there is nothing else to wait for)
        await asyncio.sleep(_LOOK_S)


async def _read(stream: asyncio.StreamReader, largest: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(1 << 16):
        size += len(piece)
        if size > largest:
            raise _TooLoud
        pieces.append(piece)
    return b"".join(pieces)


@dataclass(slots=True)
class Running:
    """A long program and its output."""

    process: asyncio.subprocess.Process
    output: pipe.Pipe


@contextlib.asynccontextmanager
async def opened(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int = asyncio.subprocess.DEVNULL,
    stderr: int = DROPPED,
    at_once: bool = True,
    folder: Path = Path("/"),
) -> AsyncIterator[Running]:
    """Run a long program for the length of a block; it is ended and reaped with it, and dies when we do.

    Args:    stdin: a descriptor, which stays the caller's to close.   stderr: `DROPPED`, `MERGED` or `OURS`.
             at_once: it is killed; else asked to end, and killed after 5 s.   folder: where it runs.
    Raises:  Unavailable: not installed (`ProgramMissing`).
    """
    ours, theirs = os.pipe()
    output = pipe.Pipe(ours)
    try:
        try:
            wrapped = dying_with_us(argv)
            process = await _spawn(wrapped, env=env, stdin=stdin, stdout=theirs, stderr=stderr, folder=folder)
        finally:
            os.close(theirs)
        try:
            yield Running(process, output)
        finally:
            await end(process, at_once=at_once)
    finally:
        output.close()


async def started(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int,
    output: int,
    failures: int | None = None,
    inherited: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    """Start a program on given descriptors (the caller's to close) that dies when we do; `end` it in the end.

    Args:   failures: its standard error; None: as its output.   inherited: further descriptors, by their numbers.
    Raises: Unavailable: not installed (`ProgramMissing`).
    """
    stderr = output if failures is None else failures
    return await _spawn(
        dying_with_us(argv), env=env, stdin=stdin, stdout=output, stderr=stderr, inherited=tuple(inherited)
    )


def _signal(process: asyncio.subprocess.Process, number: signal.Signals, *, wholly: bool = False) -> None:
    """Send a signal without `Popen.send_signal`: that one reaps first, and asyncio's watcher loses the exit code."""
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if wholly else os.kill)(process.pid, number)


async def end(process: asyncio.subprocess.Process, *, at_once: bool = False, wholly: bool = False) -> None:
    """Make sure that a program is gone: SIGTERM, after 5 s (or `at_once`) SIGKILL; reaped on return.

    Args: wholly: what it has started in its process group is killed too, also where it ended by itself.
    """
    try:
        if process.returncode is None and not at_once:
            _signal(process, signal.SIGTERM, wholly=wholly)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TERM_S):
                    await _exited(process)
    finally:
        try:
            has_ended = process.returncode is not None
            if wholly or not has_ended:
                _signal(process, signal.SIGKILL, wholly=wholly)
            if not has_ended:
                await _reap(process)
        finally:
            # A program that the kernel cannot kill yet stays: asyncio must not close it when the loop has ended.
            process._transport.close()  # type: ignore[attr-defined]


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Wait for a killed program through cancellations, for 2 s after the first, which is raised in the end.

    One that is left before it was reaped stays a zombie, and its end is reported to a loop that may be closed by then.
    """
    _hang_up(process)
    cancelled: asyncio.CancelledError | None = None
    with contextlib.suppress(TimeoutError):
        while process.returncode is None:
            try:
                async with asyncio.timeout(None if cancelled is None else _REAP_S):
                    await process.wait()
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


def _hang_up(process: asyncio.subprocess.Process) -> None:
    """Close our ends of a killed program's outputs: asyncio's wait() is for their ends too, and children hold them."""
    for descriptor in (1, 2):
        if ours := process._transport.get_pipe_transport(descriptor):  # type: ignore[attr-defined]
            ours.close()


def dying_with_us(argv: Sequence[str]) -> list[str]:
    """Return the argument list that makes the kernel kill the program when we die, where setpriv is installed."""
    wrapper = find_program("setpriv")
    return [str(wrapper), "--pdeathsig", "KILL", "--", *argv] if wrapper else list(argv)


async def _spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    folder: Path = Path("/"),
    inherited: tuple[int, ...] = (),
) -> asyncio.subprocess.Process:
    # asyncio leaves a program unreaped whose start is cancelled twice: it is started in a task that is never cancelled.
    starting = asyncio.ensure_future(  # noqa: TID251 - waited for right here
        asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            cwd=folder,
            pass_fds=inherited,
        )
    )
    cancelled: asyncio.CancelledError | None = None
    while not starting.done():
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        process = starting.result()
    except ValueError as error:  # a NUL, or a lone surrogate: no argument of a program holds one
        message = f'an argument or variable for "{argv[0]}" cannot be passed to a program: {error}'
        raise errors.Invalid(message, reason="ArgumentInvalid", hint="remove NUL and what is not UTF-8") from error
    except OSError as error:
        raise _refused(argv, error) from error
    if cancelled is not None:
        try:
            await end(process, at_once=True)
        finally:
            raise cancelled
    return process


def _refused(argv: Sequence[str], error: OSError) -> errors.FairleadError:
    """Return what the kernel's refusal to run a program means."""
    if error.errno == errno.E2BIG:
        message = f'the arguments or variables for "{argv[0]}" are longer than a program may be given'
        return errors.Invalid(message, reason="ArgumentInvalid", hint="at most 128 KiB each and 2 MiB together")
    message = f'program "{argv[0]}" cannot be run: {error.strerror}'
    if error.errno in {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}:
        return errors.Unavailable(
            message, reason="ProgramNotStarted", hint="the machine is short of processes or memory"
        )
    return errors.Unavailable(message, reason="ProgramMissing", hint="install it, or name its path")
