"""Starts are counted once, their first output is found late or never, and a slow one is an event."""

from __future__ import annotations

import time

import pytest

from fairlead import errors, telemetry
from fairlead.control.node.startphase import StartPhases
from fairlead.model.container.step import TraceStep
from fairlead.store import tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core, meta


class Meter:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def observe(self, metric: telemetry.Metric, _seconds: float, *labels: str) -> None:
        assert metric is telemetry.START_PHASE
        self.seen.append((labels[0], labels[1]))

    def add(self, metric: telemetry.Metric, *labels: str) -> None: ...
    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None: ...
    def heartbeat(self, loop: str, within_s: float | None) -> None: ...


class World:
    def __init__(self, objectives: str = "") -> None:
        self.store, self.meter, self.wrote = MemoryStore(), Meter(), list[float | Exception | None]()
        self.one = StartPhases(self.store, self._output, objectives=objectives, meter=self.meter)

    async def _output(self, _pod: core.Pod) -> float | None:
        found = self.wrote.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def started(self, *, before_s: float = 0.0, sandbox_s: float = 0.2) -> core.Pod:
        now = time.time() + 1 - before_s
        state = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at=meta.emit_time(now)))
        status = core.PodStatus(phase="Running", container_statuses=(core.ContainerStatus(name="main", state=state),))
        spec = core.PodSpec(containers=(core.Container(name="main", image="x"),))
        pod = await self.store.create(core.Pod(metadata=meta.ObjectMeta(name="a", namespace="default"), spec=spec))
        pod = core.Pod(metadata=pod.metadata, spec=pod.spec, status=status)
        for layer, reason, at in (("api", "Accepted", now), ("engine", "ContainerStarted", now + sandbox_s)):
            step = TraceStep(layer=layer, reason=reason, message="", at=at, duration_s=0.1)
            await tracerecorder.record(self.store, tracerecorder.reference(pod), step)
        return pod

    async def turn(self, pod: core.Pod) -> float | None:
        (watch,) = self.one.watches()
        for key in watch.keys(Change(kind=ChangeKind.MODIFIED, object=pod)):
            assert key == pod.metadata.uid
        return await self.one.reconcile(pod.metadata.uid)

    async def reasons(self, pod: core.Pod) -> list[str]:
        return [one.reason for one in await tracerecorder.list_steps(self.store, tracerecorder.reference(pod))]


async def test_a_start_is_counted_once_and_its_first_output_when_it_is_there() -> None:
    world = World()
    pod = await world.started()
    world.wrote = [None, errors.Unavailable("x", reason="y"), time.time() + 5]
    assert await world.turn(pod)
    assert await world.turn(pod)
    assert await world.turn(pod) is None
    assert await world.turn(pod) is None
    assert world.meter.seen == [("admission", "0"), ("sandbox", "0"), ("first output", "0")]
    assert (await world.reasons(pod)).count("FirstOutput") == 1


async def test_what_an_earlier_process_counted_is_not_counted_again() -> None:
    world = World("0=0.01s")
    pod = await world.started(before_s=60)
    world.wrote = [None]
    assert await world.turn(pod)
    assert world.meter.seen == []
    assert "StartSlow" not in await world.reasons(pod)


@pytest.mark.parametrize(("objectives", "is_slow"), [("", False), ("0=1s", False), ("0=0.1s", True), ("1=0.1s", False)])
async def test_one_that_took_too_long_is_an_event_that_names_the_phase(objectives: str, is_slow: bool) -> None:
    world = World(objectives)
    pod = await world.started()
    world.wrote = [None]
    await world.turn(pod)
    assert ("StartSlow" in await world.reasons(pod)) is is_slow
    if is_slow:
        steps = await tracerecorder.list_steps(world.store, tracerecorder.reference(pod))
        (slow,) = [one for one in steps if one.reason == "StartSlow"]
        assert slow.facts["phase"] == "sandbox"
        assert "sandbox took 0.2 s of it" in slow.message


def test_objectives_that_are_none_end_the_start_of_the_service() -> None:
    with pytest.raises(errors.Invalid):
        World("soon")
