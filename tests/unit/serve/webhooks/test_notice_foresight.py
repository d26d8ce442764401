"""What is to come for a pod: long waits, ends that are near, ill GPUs; each with a mark of its own."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.plan.gpu import podcondition
from fairlead.serve.webhooks import foresight
from fairlead.serve.webhooks.foresight import Times
from fairlead.serve.webhooks.port import ENDS_SOON, SICK, WAITS
from fairlead.wire.kubernetes import core, meta

_NOW = 1_800_000_000.0
_TIMES = Times(wait_s=600, ahead_s=300)


def _pod(*, age_s: float = 0, node: str = "n", deadline: int | None = None, **status: Any) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name="p", namespace="n", uid="u", creation_timestamp=meta.emit_time(_NOW - age_s)),
        spec=core.PodSpec(node_name=node, active_deadline_seconds=deadline),
        status=core.PodStatus(**{"phase": "Running", **status}),
    )


def _kinds(pod: core.Pod, times: Times = _TIMES) -> list[str]:
    return [one.kind for one in foresight.facts(pod, _NOW, times)]


def test_who_waits_for_long_is_told_with_why() -> None:
    assert _kinds(_pod(age_s=599, node="", phase="Pending")) == []
    why = meta.Condition(type="PodScheduled", status="False", reason="Unschedulable", message="8 are taken")
    (fact,) = foresight.facts(_pod(age_s=600, node="", phase="Pending", conditions=(why,)), _NOW, _TIMES)
    assert (fact.kind, fact.data) == (WAITS, {"minutes": 10, "reason": "Unschedulable", "message": "8 are taken"})
    assert _kinds(_pod(age_s=600, node="", phase="Pending"), Times(wait_s=0)) == []
    assert _kinds(_pod(age_s=600)) == []


@pytest.mark.parametrize(
    ("deadline", "ran_s", "is_told"), [(3600, 3299, False), (3600, 3300, True), (400, 299, False), (400, 300, True)]
)
def test_a_time_limit_is_told_of_ahead_and_a_short_one_by_a_quarter(
    deadline: int, ran_s: float, *, is_told: bool
) -> None:
    pod = _pod(deadline=deadline, start_time=meta.emit_time(_NOW - ran_s))
    assert (_kinds(pod) == [ENDS_SOON]) is is_told


def test_idle_gpus_and_a_request_to_stop_have_their_causes() -> None:
    idle = core.IdleNotice(since="s", warned_at="w", action="stop", acts_at="a", message="m")
    (fact,) = foresight.facts(_pod(idle_notice=idle), _NOW, _TIMES)
    assert (fact.data["cause"], fact.data["acts_at"], fact.mark) == ("idle GPUs", "a", "idle GPUs s")
    unknown = core.IdleNotice(since="s", warned_at="w", action=core.IDLE_UNKNOWN)
    assert _kinds(_pod(idle_notice=unknown)) == []
    stop = core.StopRequest(requested_at="r", reason="Preempted", message="for b")
    (fact,) = foresight.facts(_pod(stop_request=stop), _NOW, _TIMES)
    assert (fact.kind, fact.data["cause"], fact.data["message"]) == (ENDS_SOON, "preemption", "for b")
    assert _kinds(_pod(stop_request=core.StopRequest(requested_at="r"))) == []


def test_an_ill_gpu_is_told_of_until_it_is_well() -> None:
    ill = meta.Condition(type=podcondition.CONDITION, status="False", reason="XID79", message="GPU-1: fell off")
    (fact,) = foresight.facts(_pod(conditions=(ill,)), _NOW, _TIMES)
    assert (fact.kind, fact.mark) == (SICK, "XID79")
    well = meta.Condition(type=podcondition.CONDITION, status="True", reason="GPURecovered")
    assert _kinds(_pod(conditions=(well,))) == []


def test_nothing_is_to_come_for_what_has_ended() -> None:
    stop = core.StopRequest(requested_at="r", reason="Preempted")
    assert _kinds(_pod(phase="Failed", stop_request=stop)) == []


@pytest.mark.parametrize("component", ["fairlead-scheduler", "mallory"])
def test_an_event_counts_only_as_ours(component: str) -> None:
    event = core.Event(
        metadata=meta.ObjectMeta(name="e", namespace="n"),
        involved_object=core.ObjectReference(kind="Pod", name="p", namespace="n", uid="u"),
        reason=foresight.AHEAD,
        message="m",
        source=core.EventSource(component=component),
    )
    assert (foresight.of_event(event) is not None) is (component == "fairlead-scheduler")
