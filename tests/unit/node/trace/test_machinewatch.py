"""A machine's start as its node sees it: real processes play the emulator, and a real socket Kata's shim."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fairlead.node.trace import machinewatch
from fairlead.plan.sandbox.machinestart import MachineTimes
from tests.katastandin import monitor

UID = "0b9d1b1e-62b8-4b2b-8f8e-1d2a3b4c5d6e"
SANDBOX = "5a" * 32
PATIENCE_S = 20.0
EMULATOR = """#!/bin/sh
exec 3<"$1"
read word <"$1.go"
"""


@contextlib.contextmanager
def emulator(folder: Path, *, name: str = "qemu-played") -> Iterator[subprocess.Popen[bytes]]:
    """Run what is called as an emulator is, with a node open and the sandbox's name among its words."""
    program, node = folder / name, folder / "node"
    program.write_text(EMULATOR)
    program.chmod(0o755)
    node.write_text("")
    os.mkfifo(folder / "node.go")
    with subprocess.Popen([program, node, "-name", f"sandbox-{SANDBOX},debug-threads=on"]) as running:
        try:
            yield running
        finally:
            running.kill()


@contextlib.asynccontextmanager
async def watching(*nodes: str) -> AsyncIterator[list[MachineTimes]]:
    """Follow one pod that was given nodes; yields what is seen."""
    seen: list[MachineTimes] = []

    async def given(_: str) -> tuple[str, ...]:
        return nodes

    watch = machinewatch.MachineWatch(nodes=given, seen=lambda uid, times: seen.append(times) if uid == UID else None)
    async with asyncio.TaskGroup() as tasks:
        watch.follow(UID, tasks)
        watch.follow(UID, tasks)
        yield seen
        watch.forget(UID)


async def until(seen: list[MachineTimes], *, agent: bool = False) -> MachineTimes:
    await came(lambda: bool(seen) and (not agent or seen[-1].agent_at is not None))
    return seen[-1]


async def came(what: Callable[[], bool]) -> None:
    for _ in range(round(PATIENCE_S / 0.02)):
        if what():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


def test_an_emulator_with_the_pods_node_is_found_and_dated(tmp_path: Path) -> None:
    async def run() -> MachineTimes:
        async with watching(str(tmp_path / "node")) as seen:
            with emulator(tmp_path):
                return await until(seen)

    before = time.time()
    assert before - 0.1 <= asyncio.run(run()).began_at <= time.time()


@pytest.mark.parametrize(("name", "node"), [("qemu-played", "other"), ("notqemu", "node")])
def test_another_pods_emulator_and_another_program_are_none(tmp_path: Path, name: str, node: str) -> None:
    async def run() -> list[MachineTimes]:
        async with watching(str(tmp_path / node)) as seen:
            with emulator(tmp_path, name=name):
                await asyncio.sleep(4 * machinewatch.POLL_S)
            return seen

    assert asyncio.run(run()) == []


def test_a_process_may_call_itself_anything_beside_a_machine_that_starts(tmp_path: Path) -> None:
    """The watch sees all containers of the node: what one tenant's process is called may not end it."""

    async def run(name: Path) -> MachineTimes:
        async with watching(str(tmp_path / "node")) as seen:
            await came(lambda: name.read_bytes() == b"\xff \xfe\n")
            await asyncio.sleep(2 * machinewatch.POLL_S)
            with emulator(tmp_path):
                return await until(seen)

    odd = ("sh", "-c", r"printf '\377 \376' >/proc/$$/comm; read word")
    with subprocess.Popen(odd, stdin=subprocess.PIPE) as process:
        assert asyncio.run(run(Path(f"/proc/{process.pid}/comm"))).began_at > 0
        process.communicate(b"\n")


@pytest.mark.parametrize("place", ["vc/sbs", "kata"])
def test_when_kernel_and_agent_began_is_asked_of_the_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(machinewatch, "PLACES", tuple(str(tmp_path / one).lstrip("/") for one in ("vc/sbs", "kata")))
    monkeypatch.setattr(monitor, "PLACE", place)

    async def run() -> MachineTimes:
        async with watching(str(tmp_path / "node")) as seen:
            with emulator(tmp_path):
                began = (await until(seen)).began_at
                await asyncio.sleep(1)
                booted = time.time()  # a guest that counts nothing yet

                def ask() -> bytes:
                    ticks = round(100 * (time.time() - booted)) + 1
                    return f"1 0 0 {ticks} 0 0 0 0 0 0\n{booted:.2f}\n".encode()

                with monitor.serving(str(tmp_path), SANDBOX, ask):
                    found = await until(seen, agent=True)
        assert found.began_at == began
        return found

    found = asyncio.run(run())
    assert found.kernel_at is not None
    assert found.agent_at is not None
    assert found.began_at + 0.5 < found.kernel_at <= found.agent_at <= time.time()


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.0 500 no\r\n\r\n" + b"kata_agent_process_start_time_seconds 1\n", b"\xff" * (3 << 20)]
)
def test_a_shim_that_says_nothing_or_floods_moves_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(machinewatch, "PLACES", (str(tmp_path).lstrip("/"),))
    folder = tmp_path / SANDBOX
    folder.mkdir()
    asked = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        with contextlib.suppress(ConnectionError):
            writer.write(answer)
            await writer.drain()
        writer.close()

    async def run() -> list[MachineTimes]:
        here = os.open(folder, os.O_PATH)
        try:
            server = await asyncio.start_unix_server(serve, f"/proc/self/fd/{here}/shim-monitor.sock")
        finally:
            os.close(here)
        async with server, watching(str(tmp_path / "node")) as seen:
            with emulator(tmp_path):
                await until(seen)
                await came(lambda: len(asked) >= 2)
        return seen

    found = asyncio.run(run())
    assert {one.agent_at for one in found} == {one.kernel_at for one in found} == {None}
