"""A machine's life with a program in QEMU's place, which speaks its end of QMP; the real one is in tests/system."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.node.vm import emulator
from fairlead.wire.qemu.machine import Machine
from tests.unit.node.vm import fakeqemu

T = TypeVar("T")


async def _run(folder: Path, rest: str, use: Callable[[emulator.Running], Awaitable[T]], *, limit_s: float = 20.0) -> T:
    program = fakeqemu.write(folder, rest)

    def describe(qmp: int, report: int) -> Machine:
        return Machine(
            name="verifier",
            emulator=str(program),
            kernel="/kernel",
            initramfs="/initramfs",
            command_line="",
            memory_mib=64,
            processors=1,
            qmp=qmp,
            report=report,
        )

    return await emulator.run_machine(describe, use, limit_s=limit_s)


async def _report(running: emulator.Running) -> bytes:
    return await running.read_report(20.0)


async def test_reports_are_read_and_the_machine_is_asked_to_end(tmp_path: Path) -> None:
    async def use(running: emulator.Running) -> tuple[bytes, bytes, object, str]:
        found = [await running.read_report(20.0) for _ in range(2)]
        return found[0], found[1], await running.ask("query-status"), running.version

    rest = 'greet(); report.sendall(b"{}\\n"); report.sendall(b"second\\n"); serve()'
    assert await _run(tmp_path, rest, use) == (b"{}", b"second", {"status": "running"}, "11.1.3")


async def test_what_was_written_before_the_end_is_read(tmp_path: Path) -> None:
    rest = 'greet(); report.sendall(b"last\\n"); sys.exit(0)'
    assert await _run(tmp_path, rest, _report) == b"last"


async def test_a_machine_that_is_killed_with_our_last_words_unread_is_no_riddle(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert await _run(tmp_path, 'greet(); report.sendall(b"{}\\n"); time.sleep(600)', _report) == b"{}"
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == []


async def test_a_machine_that_does_not_start_says_why(tmp_path: Path) -> None:
    rest = 'print("qemu: vfio 0000:18:00.0: group 7 is not viable", file=sys.stderr); sys.exit(1)'
    with pytest.raises(errors.Unavailable, match="group 7 is not viable") as failed:
        await _run(tmp_path, rest, _report)
    assert failed.value.reason == emulator.NOT_STARTED


async def test_a_machine_that_takes_too_long_to_start_is_ended(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="not within") as failed:
        await _run(tmp_path, "time.sleep(600)", _report, limit_s=0.5)
    assert failed.value.reason == emulator.NOT_STARTED


async def test_a_machine_that_ends_before_its_report_says_how(tmp_path: Path) -> None:
    rest = 'greet(); say({"event": "GUEST_PANICKED"}); print("Kernel panic"); sys.stdout.flush(); sys.exit(0)'
    with pytest.raises(errors.Unavailable, match=r"GUEST_PANICKED.*Kernel panic") as failed:
        await _run(tmp_path, rest, _report)
    assert failed.value.reason == emulator.ENDED


async def test_a_silent_guest_is_given_up_with_the_last_line_of_its_console(tmp_path: Path) -> None:
    async def use(running: emulator.Running) -> bytes:
        return await running.read_report(1.0)

    rest = 'greet(); report.sendall(b"half"); print("waits\\x1b[31m for the driver"); sys.stdout.flush(); serve()'
    with pytest.raises(errors.Unavailable, match=r"waits.*for the driver") as failed:
        await _run(tmp_path, rest, use)
    assert failed.value.reason == emulator.SILENT
    assert failed.value.message.isprintable()


async def test_a_report_without_end_is_dropped(tmp_path: Path) -> None:
    rest = 'greet()\ntry:\n    report.sendall(b"x" * (64 << 20))\nexcept OSError:\n    pass\nserve()'
    with pytest.raises(errors.ProtocolError) as failed:
        await _run(tmp_path, rest, _report)
    assert failed.value.reason == emulator.TOO_LONG


async def test_a_console_that_floods_costs_its_last_lines_alone(tmp_path: Path) -> None:
    async def use(running: emulator.Running) -> str:
        await running.read_report(60.0)
        return running.console

    rest = 'greet()\nfor _ in range(64): sys.stdout.write("flood\\n" * 20000)\nsys.stdout.flush()\n'
    console = await _run(tmp_path, rest + 'report.sendall(b"done\\n"); serve()', use)
    assert 0 < len(console) <= 16 << 10


async def test_refusals_and_silence_of_the_emulator_are_errors(tmp_path: Path) -> None:
    async def refuse(running: emulator.Running) -> object:
        return await running.ask("device_add")

    async def hang(running: emulator.Running) -> object:
        return await running.ask("nothing", limit_s=0.3)

    with pytest.raises(errors.Unavailable, match="such") as failed:
        await _run(tmp_path, "greet(); serve()", refuse)
    assert failed.value.reason == emulator.REFUSED
    assert failed.value.message.isprintable()
    with pytest.raises(errors.Unavailable) as failed:
        await _run(tmp_path, "greet(); serve()", hang)
    assert failed.value.reason == emulator.SILENT


async def test_an_emulator_that_speaks_no_qmp_and_ignores_signals_is_ended(tmp_path: Path) -> None:
    rest = 'import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nqmp.sendall(b"SSH-2.0\\n")\ntime.sleep(600)'
    with pytest.raises(errors.Unavailable) as failed:
        await _run(tmp_path, rest, _report, limit_s=1.0)
    assert failed.value.reason == emulator.NOT_STARTED


async def test_cancelling_the_work_ends_the_machine_and_leaves_no_descriptor(tmp_path: Path) -> None:
    pids: list[int] = []
    begun = asyncio.Event()

    async def use(running: emulator.Running) -> None:
        pids.append(running.pid)
        begun.set()
        await asyncio.sleep(600)

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_run(tmp_path, "greet(); serve()", use))
        await begun.wait()
        task.cancel()
    assert task.cancelled()
    assert not Path(f"/proc/{pids[0]}").exists()
    await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("rest", ["greet(); time.sleep(600)", "time.sleep(600)"], ids=["made", "being made"])
async def test_a_machine_that_hangs_is_gone_however_often_its_user_is_cancelled(tmp_path: Path, rest: str) -> None:
    """A verifier's limit and its agent's end come together; QEMU outlives the ends of its sockets."""
    before = _children()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_run(tmp_path, rest, _report))
        while not (begun := _children() - before):  # noqa: ASYNC110 (there is nothing else to wait for)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        await asyncio.wait([task])
    assert task.cancelled()
    assert _children() & begun == set()


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
