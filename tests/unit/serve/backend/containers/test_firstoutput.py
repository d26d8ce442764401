"""When a container of a cluster wrote first, from the head of its log."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator

import pytest

from fairlead import errors
from fairlead.serve.backend.containers import firstoutput
from fairlead.store.subresource import LogOptions
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.text import timestamp

STARTED = 1_700_000_000.0


@dataclasses.dataclass
class Logs:
    """An API server's logs of one container."""

    chunks: tuple[bytes, ...] = ()
    hangs: bool = False
    failure: errors.FairleadError | None = None
    asked: list[LogOptions] = dataclasses.field(default_factory=list)
    read: int = 0
    is_closed: bool = False

    async def logs(self, pod: core.Pod, container: str, options: LogOptions) -> AsyncGenerator[bytes, None]:
        assert container == "main"
        self.asked.append(options)
        try:
            if self.failure is not None:
                raise self.failure
            for chunk in self.chunks:
                self.read += 1
                yield chunk
            if self.hangs:
                await asyncio.Event().wait()
        finally:
            self.is_closed = True


def pod(*, restarts: int = 0, state: str = "running", uid: str = "u-1", started: float = STARTED) -> core.Pod:
    when = timestamp.emit(started)
    ran = core.ContainerStateTerminated(exit_code=0, started_at=when, finished_at=timestamp.emit(started + 9))
    states = {
        "running": core.ContainerStateUnion(running=core.ContainerStateRunning(started_at=when)),
        "ended": core.ContainerStateUnion(terminated=ran),
        "waiting": core.ContainerStateUnion(waiting=core.ContainerStateWaiting(reason="ContainerCreating")),
    }
    last = core.ContainerStateUnion(terminated=ran) if restarts else core.ContainerStateUnion()
    status = core.ContainerStatus(name="main", restart_count=restarts, state=states[state], last_state=last)
    return core.Pod(
        metadata=meta.ObjectMeta(name="train", namespace="team", uid=uid),
        spec=core.PodSpec(containers=(core.Container(name="main", image="x"),)),
        status=core.PodStatus(container_statuses=(status,)),
    )


def line(after_s: float) -> bytes:
    return timestamp.emit(STARTED + after_s).encode() + b" hello\n"


@pytest.mark.parametrize("state", ["running", "ended"])
async def test_the_first_lines_time_is_read_once_and_no_more_of_the_log(state: str) -> None:
    logs = Logs((line(2.5), b"x" * 65536, b"x" * 65536))
    outputs = firstoutput.LogFirstOutputs(logs=logs)
    for _ in range(3):
        assert await outputs.first_output(pod(state=state)) == pytest.approx(STARTED + 2.5)
    assert (len(logs.asked), logs.read, logs.is_closed) == (1, 1, True)
    assert logs.asked[0] == LogOptions(timestamps=True)


async def test_a_time_that_comes_in_pieces_is_one() -> None:
    text = line(1.25)
    logs = Logs((text[:4], text[4:9], text[9:]))
    assert await firstoutput.LogFirstOutputs(logs=logs).first_output(pod()) == pytest.approx(STARTED + 1.25)


async def test_of_a_container_that_was_started_again_the_first_run_counts_while_its_log_is_kept() -> None:
    logs = Logs((line(1.0),))
    assert await firstoutput.LogFirstOutputs(logs=logs).first_output(pod(restarts=1)) == pytest.approx(STARTED + 1.0)
    assert [one.previous for one in logs.asked] == [True]
    logs = Logs((line(1.0),))
    assert await firstoutput.LogFirstOutputs(logs=logs).first_output(pod(restarts=2)) is None
    assert await firstoutput.LogFirstOutputs(logs=logs).first_output(pod(state="waiting")) is None
    assert logs.asked == []


@pytest.mark.parametrize(
    "logs",
    [
        Logs(),
        Logs((b"no time at all\n",)),
        Logs((b"\x1b[2J" * 40,)),
        Logs((line(3601.0),)),
        Logs(hangs=True),
        Logs(failure=errors.Denied("no", reason="Forbidden", hint="ask")),
        Logs(failure=errors.Unavailable("its kubelet is away", reason="Http502")),
    ],
    ids=["nothing", "no-time", "escapes", "after-an-hour", "never-ends", "denied", "away"],
)
async def test_what_cannot_be_read_is_not_known_and_not_asked_for_at_each_look(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firstoutput, "_DEADLINE_S", 0.05)
    outputs = firstoutput.LogFirstOutputs(logs=logs)
    young = pod(started=STARTED)
    assert await outputs.first_output(young) is None
    assert await outputs.first_output(young) is None
    assert len(logs.asked) == 1
    assert logs.is_closed


async def test_an_output_that_comes_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs()
    outputs = firstoutput.LogFirstOutputs(logs=logs)
    now = time.time()
    assert await outputs.first_output(pod(started=now)) is None
    logs.chunks = (timestamp.emit(now + 0.5).encode() + b" x\n",)
    monkeypatch.setattr(time, "time", lambda: now + 1.5)
    assert await outputs.first_output(pod(started=now)) == pytest.approx(now + 0.5)


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firstoutput, "_MOST", 3)
    logs = Logs((line(1.0),))
    outputs = firstoutput.LogFirstOutputs(logs=logs)
    for number in range(10):
        await outputs.first_output(pod(uid=f"u-{number}"))
    assert len(outputs._known) == 3
