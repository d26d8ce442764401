"""Phases of a container: each from the end of the one before, and the last one open while it lasts."""

from __future__ import annotations

from fairlead.model.container.step import TraceStep
from fairlead.plan.pod import phase
from fairlead.wire.kubernetes import core, meta


def _step(reason: str, at: float) -> TraceStep:
    return TraceStep(layer="x", reason=reason, message="", at=at, duration_s=None)


def _pod(
    *, node: str = "one", started: float | None = None, ended: float | None = None, stopped: float | None = None
) -> core.Pod:
    state = core.ContainerStateUnion()
    if ended is not None:
        begin = None if started is None else meta.emit_time(started)
        state = core.ContainerStateUnion(
            terminated=core.ContainerStateTerminated(exit_code=0, started_at=begin, finished_at=meta.emit_time(ended))
        )
    elif started is not None:
        running = core.ContainerStateRunning(started_at=meta.emit_time(started))
        state = core.ContainerStateUnion(running=running)
    asked = None if stopped is None else core.StopRequest(requested_at=meta.emit_time(stopped))
    return core.Pod(
        metadata=meta.ObjectMeta(name="p", creation_timestamp=meta.emit_time(100)),
        spec=core.PodSpec(node_name=node),
        status=core.PodStatus(
            phase="Pending" if started is None else "Succeeded" if ended else "Running",
            container_statuses=(core.ContainerStatus(name="main", state=state),),
            stop_request=asked,
        ),
    )


def _shown(pod: core.Pod, *steps: TraceStep) -> list[tuple[str, float, float | None]]:
    return [(one.name, one.begin, one.end) for one in phase.phases(pod, steps)]


def test_one_that_waits_is_in_the_queue_and_nowhere_else() -> None:
    assert _shown(_pod(node="")) == [("queued", 100, None)]


def test_every_phase_ends_where_the_next_begins() -> None:
    steps = (_step("Scheduled", 105), _step("ContainerCreated", 109))
    assert _shown(_pod(started=110, ended=150, stopped=140), *steps) == [
        ("queued", 100, 105),
        ("preparing", 105, 109),
        ("starting", 109, 110),
        ("running", 110, 140),
        ("stopping", 140, 150),
    ]


def test_a_later_run_s_creation_is_no_start_and_times_that_run_backwards_take_nothing() -> None:
    steps = (_step("Scheduled", 120), _step("ContainerCreated", 115))
    assert _shown(_pod(started=110), *steps) == [("queued", 100, 120), ("preparing", 120, 120), ("running", 120, None)]
