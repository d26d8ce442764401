"""Starts, watches and ends one virtual machine of a node's own: QEMU, asked over QMP.

The machine lives as long as its user's work with it, and dies with this process. What its guest says is data: a report
is one line of at most so many bytes, the console is read to its end and the last of it kept. Our ends of both, and of
QMP, are sockets without a name: no other account of the machine can speak in the guest's place.

A machine that the kernel cannot kill still has its GPUs: ending it raises DeviceFault, and they go into quarantine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Final, TypeVar

from fairlead import command, errors, pipe, telemetry
from fairlead.node.vm.tail import Tail
from fairlead.wire.qemu import qmp
from fairlead.wire.qemu.machine import Machine, emit_line

T = TypeVar("T")

NOT_STARTED: Final = "MachineNotStarted"
ENDED: Final = "MachineEnded"
SILENT: Final = "MachineSilent"
REFUSED: Final = "MachineRefused"
TOO_LONG: Final = "MachineReportTooLong"
STUCK: Final = "MachineStuck"
LARGEST: Final = 256 << 10
"""Bytes of one report; that of eight GPUs has some six thousand."""
_MOST_REPORTS: Final = 64
"""Reports that wait to be read; further ones wait in the guest."""
_QUIT_S: Final = 5.0
"""How long QEMU may take to end when asked over QMP."""
_STUCK_S: Final = 30.0
"""How long the kernel may take to end a process that was killed: it unpins memory and resets GPUs meanwhile."""
_MOST_EVENTS: Final = 100

Describe = Callable[[int, int], Machine]
"""Returns the machine for the descriptors of QMP and of its reports."""


class Running:
    """A machine that runs. Made by `run_machine` alone."""

    def __init__(self, process: asyncio.subprocess.Process, console: Tail, failures: Tail) -> None:
        """Own nothing."""
        self._process, self._console, self._failures = process, console, failures
        self._writer: asyncio.StreamWriter | None = None
        self._teller: asyncio.StreamWriter | None = None
        self._numbers = 0
        self._answers: dict[int, asyncio.Future[qmp.Answer]] = {}
        self._reports: asyncio.Queue[bytes | errors.FairleadError] = asyncio.Queue(_MOST_REPORTS)
        self._settled = asyncio.Event()
        """Set once QEMU has made the machine, or has ended."""
        self._is_made = False
        self.over = asyncio.Event()
        """Set once QEMU has ended."""
        self.version = ""
        """Of QEMU, once it has greeted: 11.1.3."""
        self.events: tuple[qmp.Event, ...] = ()
        """What has happened to the machine; the newest hundred."""

    @property
    def pid(self) -> int:
        """Return QEMU's process id."""
        return self._process.pid

    @property
    def console(self) -> str:
        """Return the end of what the guest's console showed, as printable lines."""
        return self._console.text

    async def ask(self, name: str, *, limit_s: float = _QUIT_S) -> object:
        """Return QEMU's answer to a QMP command without arguments.

        Raises: Unavailable: the machine is over (`MachineEnded`), there is no answer in time (`MachineSilent`), or QEMU
                refuses (`MachineRefused`).
        """
        if self._writer is None:
            raise self._ended()
        self._numbers += 1
        number = self._numbers
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(limit_s):
                self._writer.write(qmp.emit_command(name, number))
                found = await answer
        except TimeoutError as error:
            message = f"the emulator {self.pid} did not answer {name} within {limit_s:g} s"
            raise errors.Unavailable(message, reason=SILENT, hint="is the machine overloaded?") from error
        finally:
            self._answers.pop(number, None)
        if found.failure:
            raise errors.Unavailable(f"the emulator {self.pid} refused {name}: {found.failure}", reason=REFUSED)
        return found.value

    async def read_report(self, limit_s: float) -> bytes:
        """Return the next line that the guest writes on its port, without its end.

        Raises: Unavailable: the machine ended before (`MachineEnded`), or wrote no line in time (`MachineSilent`).
                ProtocolError (`MachineReportTooLong`): it wrote more than `LARGEST` bytes.
        """
        try:
            async with asyncio.timeout(limit_s):
                found = await self._reports.get()
        except TimeoutError as error:
            last = self._console.verdict
            message = f"the machine reported nothing within {limit_s:g} s" + (f" ({last})" if last else "")
            raise errors.Unavailable(message, reason=SILENT, hint="its console says what it waits for") from error
        if isinstance(found, errors.FairleadError):
            self._reports.put_nowait(found)
            raise found
        return found

    async def tell(self, line: bytes) -> None:
        """Write a line to the guest's port; it waits there until the guest reads. Raises: Unavailable: it is over."""
        if self._teller is None or self.over.is_set():
            raise self._ended()
        try:
            self._teller.write(line)
            await self._teller.drain()
        except OSError as error:
            raise self._ended() from error

    async def wait_made(self, limit_s: float) -> None:
        """Wait until QEMU has made the machine. Raises: Unavailable (`MachineNotStarted`): it ended, or is late."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._settled.wait()
        if self._is_made:
            return
        how = f"it ended with code {self._process.returncode}" if self.over.is_set() else f"not within {limit_s:g} s"
        hint = (
            "`fairlead vfio check` says whether its GPUs can be passed; it needs /dev/kvm and an emulator that has VFIO"
        )
        message = f"the virtual machine did not start: {self._failures.last_line or how}"
        raise errors.Unavailable(message, reason=NOT_STARTED, hint=hint)

    async def speak(self, ours: socket.socket) -> None:
        """Carry QMP until QEMU closes it."""
        reader, writer = await asyncio.open_connection(sock=ours, limit=qmp.LONGEST)
        self._writer = writer
        try:
            while line := await reader.readline():
                self._hear(qmp.parse_line(line), writer)
        except ConnectionResetError:
            pass  # closed with our last words unread, as by one that is killed
        except (OSError, ValueError, errors.ProtocolError) as error:
            telemetry.log.warning("emulator not understood", error=f"process {self.pid}: {error}")
        finally:
            self._writer = None
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(self._ended())
            writer.close()

    def _hear(self, said: qmp.Greeting | qmp.Answer | qmp.Event | None, writer: asyncio.StreamWriter) -> None:
        match said:
            case qmp.Greeting():
                self.version = said.version
                writer.write(qmp.emit_command(qmp.NEGOTIATED, 0))
            case qmp.Answer(id=0):
                self._is_made = True
                self._settled.set()
            case qmp.Answer():
                answer = self._answers.get(said.id)
                if answer is not None and not answer.done():
                    answer.set_result(said)
            case qmp.Event():
                self.events = (*self.events[1 - _MOST_EVENTS :], said)
            case None:
                pass

    async def listen(self, ours: socket.socket) -> None:
        """Take the guest's reports until QEMU ends, or one is too long."""
        reader, writer = await asyncio.open_connection(sock=ours, limit=LARGEST)
        self._teller = writer
        try:
            while line := await reader.readline():
                if not line.endswith(b"\n"):
                    break
                await self._reports.put(line[:-1])
            await self.over.wait()
            end: errors.FairleadError = self._ended()
        except ValueError:
            message = f"the machine's report has more than {LARGEST} bytes"
            end = errors.ProtocolError(message, reason=TOO_LONG, hint="it was dropped; look at the machine's image")
        except OSError:
            end = self._ended()
        finally:
            writer.close()
        await self._reports.put(end)

    async def follow(self) -> None:
        """Wait for QEMU's end."""
        await self._process.wait()
        self.over.set()
        self._settled.set()

    async def end(self) -> None:
        """End the machine: asked over QMP once it is made, then by a signal, however often its user is cancelled.

        Raises: DeviceFault (`MachineStuck`): it does not end.
        """
        try:
            # One that is still being made answers nothing: it pins memory, and would be waited for in vain.
            if self._is_made and not self.over.is_set():
                with contextlib.suppress(TimeoutError, errors.FairleadError):
                    async with asyncio.timeout(_QUIT_S):
                        await self.ask("quit")
                        await self.over.wait()
        finally:
            await self._kill()

    async def _kill(self) -> None:
        try:
            async with asyncio.timeout(_STUCK_S):
                await command.end(self._process, at_once=True)
        except TimeoutError as error:
            message = f"the emulator {self.pid} was killed and has not ended within {_STUCK_S:g} s"
            hint = "the kernel has its GPUs: see dmesg; the machine may have to be started anew"
            raise errors.DeviceFault(message, reason=STUCK, hint=hint) from error

    def _ended(self) -> errors.Unavailable:
        how = ", ".join(one.reason or one.name for one in self.events[-3:]) or f"code {self._process.returncode}"
        last = self._failures.last_line or self._console.verdict
        message = f"the machine ended ({how})" + (f": {last}" if last else "")
        return errors.Unavailable(message, reason=ENDED, hint="its console says why")


async def run_machine(describe: Describe, use: Callable[[Running], Awaitable[T]], *, limit_s: float) -> T:
    """Run a machine for as long as `use` works with it, and return what that returns.

    Args:   limit_s: until QEMU has made the machine; it pins all of its memory for GPUs first.
    Raises: Unavailable (`MachineNotStarted`): with QEMU's reason.   DeviceFault (`MachineStuck`): it cannot be ended.
            Invalid (`MachineInvalid`): no machine can be made as described.   What `use` raises.
    """
    if command.find_program("setpriv") is None:
        message = "the virtual machine did not start: without setpriv it would outlive this program, with its GPUs"
        raise errors.Unavailable(message, reason=NOT_STARTED, hint="install util-linux")
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        qmp_ours, qmp_theirs = _pair(ours, theirs)
        report_ours, report_theirs = _pair(ours, theirs)
        console, console_end = _output(ours, theirs)
        failures, failures_end = _output(ours, theirs)
        machine = describe(qmp_theirs.fileno(), report_theirs.fileno())
        process = await command.started(
            emit_line(machine),
            env=command.base_env(),
            stdin=asyncio.subprocess.DEVNULL,
            output=console_end,
            failures=failures_end,
            inherited=machine.descriptors,
        )
        theirs.close()
        outputs = Tail(console), Tail(failures)
        running = Running(process, *outputs)
        work = (running.speak(qmp_ours), running.listen(report_ours), running.follow(), *(one.run() for one in outputs))
        return await _watch(running, work, use, limit_s)


async def _watch(
    running: Running,
    work: Iterable[Coroutine[object, object, None]],
    use: Callable[[Running], Awaitable[T]],
    limit_s: float,
) -> T:
    """Return what `use` returns; the machine is ended whatever happens."""
    found: list[T] = []
    failed: errors.FairleadError | None = None  # raised below, so that no ExceptionGroup wraps it
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(one, name=f"machine {running.pid}") for one in work]
        try:
            await running.wait_made(limit_s)
            found.append(await use(running))
        except errors.FairleadError as error:
            failed = error
        finally:
            try:
                await running.end()
            except errors.FairleadError as error:
                failed = error
            for one in background:
                one.cancel()
    if failed is not None:
        raise failed
    return found[0]


def _pair(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection without a name."""
    near, far = socket.socketpair()
    near.setblocking(False)
    return ours.enter_context(near), theirs.enter_context(far)


def _output(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[pipe.Pipe, int]:
    """Return where an output is read, and the descriptor to write it to."""
    reading, writing = os.pipe()
    theirs.callback(os.close, writing)
    made = pipe.Pipe(reading)
    ours.callback(made.close)
    return made, writing
