"""The process that watches containers, in this one: orders in, reports out."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fairlead import telemetry
from fairlead.node.trace import containerwatch, watchprocess
from fairlead.node.trace import watchmessage as wire


@pytest.fixture
def process(tmp_path: Path) -> watchprocess._Process:
    (tmp_path / "proc").mkdir()
    return watchprocess._Process(tmp_path)


def reported(process: watchprocess._Process) -> wire.Report:
    return process._reports.get_nowait()


@pytest.mark.parametrize("is_ours", [True, False])
async def test_what_is_to_be_tried_is_asked_for_and_answered_by_number(
    process: watchprocess._Process, is_ours: bool
) -> None:
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(process._prepare("pod-1"))
        await asyncio.sleep(0)
        assert reported(process) == wire.Prepare(number=0, uid="pod-1")
        process._obey(wire.Prepared(number=7, is_ours=True), tasks)  # nobody asked that
        answer = wire.Prepared(number=0, is_ours=is_ours, paths=("/dev/nvidia0",), numbers=((195, 0),))
        process._obey(answer, tasks)
        process._obey(answer, tasks)  # once more changes nothing
    found = asked.result()
    assert (found is not None) is is_ours
    if found is not None:
        assert (found.number, found.paths, found.numbers) == (0, ("/dev/nvidia0",), ((195, 0),))
    assert not process._asked


async def test_a_question_that_is_given_up_is_forgotten(process: watchprocess._Process) -> None:
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(process._prepare("pod-1"))
        await asyncio.sleep(0)
        asked.cancel()
    assert not process._asked


async def test_pods_are_followed_and_forgotten(process: watchprocess._Process, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(process._watch, "follow", lambda uid: told.append(("follow", uid)))
    monkeypatch.setattr(process._watch, "forget", lambda uid: told.append(("forget", uid)))
    async with asyncio.TaskGroup() as tasks:
        for order in (wire.Follow(uid="a"), wire.Forget(uid="a")):
            process._obey(order, tasks)
    assert told == [("follow", "a"), ("forget", "a")]


async def test_a_container_is_read_back_by_its_pid_or_found_or_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = watchprocess._Process(Path("/"))
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    monkeypatch.setattr(containerwatch, "find_process", lambda container, _: gone.pid if container == "b" else None)
    for number, (container, pid) in enumerate((("a", os.getpid()), ("a", None), ("b", None))):
        async with asyncio.TaskGroup() as tasks:
            process._obey(wire.Read(number=number, container=container, pid=pid, paths=(), numbers=()), tasks)
    here, unseen, ended = (reported(process) for _ in range(3))
    assert isinstance(here, wire.HasRead)
    assert (here.pid, here.found is not None) == (os.getpid(), True)
    assert unseen == wire.HasRead(number=1, pid=None, found=None)
    assert ended == wire.HasRead(number=2, pid=gone.pid, found=None)


async def test_what_was_seen_is_reported_with_the_question_it_answers(process: watchprocess._Process) -> None:
    prepared = watchprocess._Wanted(number=3, paths=(), numbers=())
    for number, one in ((3, prepared), (None, None)):
        container = containerwatch.FoundContainer(
            id="c", pid=1, began_at=1.0, is_late=False, prepared=one, found=None, read_at=2.0, read_s=0.1, unread=""
        )
        process._seen("pod-1", container)
        seen = reported(process)
        assert isinstance(seen, wire.Seen)
        assert (seen.uid, seen.container, seen.number) == ("pod-1", "c", number)
    process._looking("c", True)
    assert reported(process) == wire.Looking(container="c", is_over=True)


async def test_reports_that_nothing_takes_end_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_WAITING", 2)
    process = watchprocess._Process(tmp_path)
    process._looking("a", False)
    process._looking("a", True)
    with pytest.raises(asyncio.QueueFull):
        process._looking("b", False)


def test_a_process_that_ends_for_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(_: watchprocess._Process) -> None:
        raise ExceptionGroup("tasks", [asyncio.QueueFull()])

    monkeypatch.setattr(watchprocess._Process, "run", end)
    monkeypatch.setattr(telemetry, "configure", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["watchprocess", "/", "info", "auto"])
    with capture_logs() as logged:
        watchprocess.main()
    assert [one["event"] for one in logged] == ["container watch ends: the agent takes no reports"]
