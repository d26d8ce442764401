"""What doctor says of reservations that cannot be met and of workloads whose controllers do not act."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import errors
from fairlead.cli.doctor import finding
from fairlead.cli.doctor.planned import idling, reservations, workloads
from fairlead.serve.v1.objects.view import ObjectList
from fairlead.serve.v1.reservations.view import ReservationView, WindowView


def reserved(name: str, gpus: int, begin: str, end: str, *, released: tuple[str, ...] = ()) -> ReservationView:
    return ReservationView(
        name=name,
        namespace="default",
        gpus=gpus,
        state="upcoming",
        start=begin,
        end=end,
        first=begin,
        zone="UTC",
        duration_seconds=3600,
        repeat="",
        until="",
        gpu_hours=1,
        windows=(WindowView(start=begin, end=end),),
        released=released,
    )


MORNING = reserved("morning", 4, "2026-12-01T09:00:00Z", "2026-12-01T12:00:00Z")
NOON = reserved("noon", 4, "2026-12-01T11:00:00Z", "2026-12-01T13:00:00Z")
LATER = reserved("later", 4, "2026-12-01T12:00:00Z", "2026-12-01T14:00:00Z")


def levels(*items: ReservationView, capacity: int = 8, no_show_min: float = 30) -> list[str]:
    seen = reservations.Facts(items=items, capacity=capacity, no_show_min=no_show_min)
    return [one.level for one in reservations.check(seen)]


def test_windows_that_fit_are_good_and_one_ends_where_the_next_begins() -> None:
    assert levels(MORNING, NOON) == ["ok"]
    assert levels(MORNING, LATER, capacity=4) == ["ok"]
    assert levels() == []


def test_a_machine_that_lost_gpus_cannot_keep_what_it_promised() -> None:
    seen = reservations.Facts(items=(MORNING, NOON), capacity=7, no_show_min=30)
    (found,) = reservations.check(seen)
    assert found.level == "fail"
    assert "from 2026-12-01T11:00:00Z on 8 GPUs are reserved, and 7 can be given" in found.what
    assert "default/morning, default/noon" in found.what


def test_windows_that_nobody_used_and_a_setting_that_never_gives_them_back_are_named() -> None:
    unused = reserved("unused", 1, "2026-12-02T09:00:00Z", "2026-12-02T10:00:00Z", released=("2026-12-01T09:00:00Z",))
    seen = reservations.Facts(items=(unused,), capacity=8, no_show_min=0)
    found = list(reservations.check(seen))
    assert [one.level for one in found] == ["warn", "warn", "ok"]
    assert "default/unused (1)" in found[0].what
    assert "reserve.no_show_min is 0" in found[1].what


class Service:
    """Answers for objects, one answer after the other."""

    def __init__(self, *answers: dict[str, list[dict[str, Any]]]) -> None:
        self.answers = list(answers)

    def call(self, _method: str, path: str, _type: object, **_: object) -> ObjectList:
        plural = path.rpartition("/")[2]
        now = self.answers[0]
        if plural == "jobs" and len(self.answers) > 1:
            self.answers.pop(0)
        if plural not in now:
            raise errors.NotFound("no such kind", reason="KindUnknown")
        return ObjectList(items=tuple(now[plural]))


def deployment(generation: int, observed: int, *conditions: dict[str, str]) -> dict[str, Any]:
    about = {"name": "web", "namespace": "default", "generation": generation}
    return {"metadata": about, "status": {"observedGeneration": observed, "conditions": list(conditions)}}


def collect(*answers: dict[str, list[dict[str, Any]]]) -> workloads.Facts:
    return workloads.collect(Service(*answers), timeout_s=1, sleep=lambda _: None)  # type: ignore[arg-type]


def test_a_change_that_no_controller_acts_on_is_a_failure() -> None:
    seen = collect({"deployments": [deployment(3, 2)], "jobs": []}, {"deployments": [deployment(3, 2)], "jobs": []})
    (found,) = workloads.check(seen)
    assert (found.level, "deployment/default/web" in found.what) == ("fail", True)


def test_a_change_that_is_under_way_is_none() -> None:
    seen = collect({"deployments": [deployment(3, 2)], "jobs": []}, {"deployments": [deployment(3, 3)], "jobs": []})
    assert [one.level for one in workloads.check(seen)] == ["ok"]


def test_a_rollout_that_does_not_get_on_and_a_job_that_was_given_up_have_their_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "\x1b[2Jlate"}
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}
    job = {"metadata": {"name": "j", "namespace": "a", "generation": 1}, "status": {"conditions": [failed]}}
    found = list(workloads.check(collect({"deployments": [deployment(1, 1, late)], "jobs": [job]})))
    assert [one.level for one in found] == ["warn", "warn"]
    assert "ProgressDeadlineExceeded" in found[0].what
    finding.show(found[0])
    assert "\x1b" not in capsys.readouterr().out
    assert "job/a/j (BackoffLimitExceeded: too often)" in found[1].what


def test_a_service_without_workloads_has_nothing_to_say() -> None:
    assert list(workloads.check(collect({}))) == []


def test_a_policy_for_idle_gpus_that_cannot_act_is_named() -> None:
    assert list(idling.check(idling.Facts())) == []
    assert [one.level for one in idling.check(idling.Facts(sources=("idle.action=stop",)))] == ["ok"]
    (blind,) = idling.check(idling.Facts(sources=('queue "vision"',), has_figures=False))
    assert blind.level == "warn"
    assert 'though queue "vision" says so' in blind.what
    (mig,) = idling.check(idling.Facts(sources=("idle.action=stop",), unjudged=("red/train",)))
    assert "red/train" in mig.what
    assert "MIG" in mig.why
