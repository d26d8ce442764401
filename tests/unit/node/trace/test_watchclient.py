"""The process that watches containers, and the agent's side of it: what travels, and what ends with what."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from fairlead import errors, telemetry
from fairlead.kernel import readback
from fairlead.model.devicerule import DeviceRule, DeviceRules
from fairlead.node import part
from fairlead.node.trace import containerwatch, watchclient
from fairlead.node.trace import watchmessage as wire

UID, ID = "0d3b5f4e-1111-2222-3333-444455556666", "ab" * 32
PATIENCE_S = 50.0


@dataclass
class Wanted:
    paths: tuple[str, ...] = ("/dev/nvidia0",)
    numbers: tuple[tuple[int, int], ...] = ()


class Machine:
    """A /proc and a cgroup tree made of files, and a client of a process that looks at them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cgroups = root / "sys/fs/cgroup"
        (self.cgroups / "kubepods").mkdir(parents=True)
        (root / "proc/self/root").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text(f"30 20 0:27 / {self.cgroups} rw - cgroup2 cgroup2 rw\n")
        self.asked: list[str] = []
        self.seen: asyncio.Queue[tuple[str, containerwatch.FoundContainer[Wanted]]] = asyncio.Queue()
        self.client = watchclient.WatchClient[Wanted](
            prepare=self.prepare,
            seen=lambda uid, container: self.seen.put_nowait((uid, container)),
            program=watchclient.Program(root=root, log_level="error"),
        )

    async def prepare(self, uid: str) -> Wanted | None:
        self.asked.append(uid)
        return Wanted()

    def container(self, name: str, pid: int) -> None:
        process = self.root / "proc" / str(pid)
        (process / "root/dev").mkdir(parents=True)
        (process / "cgroup").write_text(f"0::/kubepods/pod{UID}/{name}\n")
        (process / "stat").write_text(f"{pid} (a) S {' '.join(str(number) for number in range(4, 53))}\n")
        folder = self.cgroups / f"kubepods/pod{UID}" / name
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text(f"{pid}\n")

    @contextlib.asynccontextmanager
    async def guarded(self, guard: part.Guard) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(guard.run(self.client.run))
            async with asyncio.timeout(PATIENCE_S):
                yield
            task.cancel()

    async def next_pid(self, last: int | None = None) -> int:
        while self.client.pid in {None, last}:  # noqa: ASYNC110  (another process's doing)
            await asyncio.sleep(0.01)
        assert self.client.pid is not None
        return self.client.pid


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_containers_that_were_there_and_that_come_are_seen_through_the_process(machine: Machine) -> None:
    machine.container(ID, 77)
    async with machine.guarded(part.Guard("trace")):
        machine.client.follow(UID)
        uid, late = await machine.seen.get()
        machine.container("cd" * 32, 78)
        _, new = await machine.seen.get()
        while machine.client.is_looking(new.id):  # noqa: ASYNC110  (as above)
            await asyncio.sleep(0.01)
    assert (uid, late.id, late.pid, late.is_late) == (UID, ID, 77, True)
    assert (new.id, new.pid, new.is_late, new.prepared) == ("cd" * 32, 78, False, Wanted())
    assert machine.asked == [UID]
    assert late.prepared is None


async def test_a_container_that_runs_is_found_by_its_id_and_one_that_does_not_is_not(machine: Machine) -> None:
    machine.container(ID, 77)
    async with machine.guarded(part.Guard("trace")):
        await machine.next_pid()
        known = await machine.client.read(ID, None, paths=(), numbers=())
        unknown = await machine.client.read("ef" * 32, None, paths=(), numbers=())
        gone = await machine.client.read(ID, 4_000_000, paths=(), numbers=())
    assert known.pid == 77
    assert (unknown.pid, unknown.found) == (None, None)
    assert (gone.pid, gone.found) == (4_000_000, None)


async def test_what_is_asked_before_the_process_runs_is_answered_once_it_does(machine: Machine) -> None:
    machine.container(ID, 77)
    async with asyncio.TaskGroup() as tasks:
        early = tasks.create_task(machine.client.read(ID, None, paths=(), numbers=()))
        await asyncio.sleep(0)
        async with machine.guarded(part.Guard("trace")):
            async with asyncio.timeout(watchclient.READ_S / 2):
                found = await early
    assert found.pid == 77


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_that_is_killed_or_stopped_is_another_one_soon_and_follows_the_same_pods(
    machine: Machine, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchclient, "SILENT_S", 2.5)
    async with machine.guarded(part.Guard("trace", first_wait_s=0.01)):
        machine.client.follow(UID)
        first = await machine.next_pid()
        os.kill(first, number)
        await machine.next_pid(first)
        machine.container(ID, 77)
        _, sight = await machine.seen.get()
    assert sight.id == ID
    assert not Path(f"/proc/{first}").exists()


async def test_a_process_that_takes_no_orders_is_another_one_once_too_many_wait(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST_WAITING", 3)
    async with machine.guarded(part.Guard("trace", first_wait_s=0.01)):
        machine.client.follow(UID)
        first = await machine.next_pid()
        os.kill(first, signal.SIGSTOP)
        for _ in range(8):  # a pipe holds the first
            machine.client.forget("x" * 60_000)
            await asyncio.sleep(0.01)
        await machine.next_pid(first)
        machine.container(ID, 77)
        _, sight = await machine.seen.get()
    assert sight.id == ID


async def test_the_process_ends_with_its_part(machine: Machine) -> None:
    async with machine.guarded(part.Guard("trace")):
        pid = await machine.next_pid()
    assert not Path(f"/proc/{pid}").exists()


async def test_a_process_that_cannot_be_started_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchclient.Program, "argv", lambda _: ["false"])
    with pytest.raises(errors.Unavailable, match="ended with status 1"):
        await machine.client.run(telemetry.UNMETERED)


def rule(major: int | None, minor: int | None, access: str) -> DeviceRule:
    return DeviceRule(kind="c", major=major, minor=minor, access=access)


def test_what_was_read_of_a_container_travels_whole() -> None:
    isolation = readback.Isolation(
        rules=("c 195:0 rwm",),
        in_force=DeviceRules.of([rule(195, 0, "rwm"), rule(None, None, "m")]),
        nodes=(readback.DeviceNode(path="/dev/nvidia0", major=195, minor=0),),
        opens={"/dev/nvidia0": "OK", "195:1": "EPERM"},
        unread=("nothing",),
    )
    report = wire.HasRead(number=7, pid=5, found=isolation, duration_s=0.5)
    data = wire.line(report)
    lines = wire.Lines(wire.Report)
    assert lines.feed(data[:20]) == []
    assert lines.feed(data[20:] + wire.line(wire.Alive())) == [report, wire.Alive()]


@pytest.mark.parametrize("data", [b"nonsense\n", b'{"type": "Unknown"}\n', b'{"type": "Looking", "container": 3}\n'])
def test_a_line_that_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(errors.ProtocolError):
        wire.Lines(wire.Report).feed(data)


def test_a_line_without_an_end_takes_no_memory_without_end() -> None:
    lines = wire.Lines(wire.Report)
    assert lines.feed(b"x" * wire.LONGEST) == []
    with pytest.raises(errors.ProtocolError, match="without an end"):
        lines.feed(b"x")


def test_messages_are_json() -> None:
    assert msgspec.json.decode(wire.line(wire.Follow(UID))) == {"type": "Follow", "uid": UID}
