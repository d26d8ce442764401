"""What workloads decide, where the contract of their controllers does not reach: times, numbers, judgements."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.workload import cronjob, indexes, podset, schedule, templated, validate
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.workloads.apps import Deployment, StatefulSet
from fairlead.wire.kubernetes.workloads.batch import CronJob, Job
from fairlead.wire.kubernetes.workloads.service import Service

_CONTAINER = {"name": "main", "image": "localhost/demo"}
_POD = {"spec": {"restartPolicy": "Never", "containers": [_CONTAINER]}}
_WEB = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [_CONTAINER]}}
_NOON = dt.datetime(2026, 2, 27, 12, 0, tzinfo=dt.UTC)


@given(st.sets(st.integers(0, 60)))
def test_indexes_come_back_as_they_were_written(numbers: set[int]) -> None:
    assert indexes.parse(indexes.emit(numbers), 61) == numbers


def test_indexes_are_written_as_kubernetes_has_them() -> None:
    assert indexes.emit({0, 2, 3, 4, 7, 8}) == "0,2-4,7,8"
    assert indexes.parse("0,x,5-,9-99999999999", 10) == {0, 9, 5}


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("*/20 * * * *", ["12:20", "12:40", "13:00"]),
        ("5,10 13 * * *", ["13:05", "13:10"]),
        ("0 9-10 * * mon", ["2026-03-02 09:00", "2026-03-02 10:00"]),
        ("0 0 1 * 5", ["2026-03-01 00:00", "2026-03-06 00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00"]),
        ("@daily", ["2026-02-28 00:00", "2026-03-01 00:00"]),
        ("30 4 * jan sun", ["2027-01-03 04:30"]),
    ],
)
def test_a_schedule_is_due_when_cron_says(text: str, times: list[str]) -> None:
    found, moment = [], _NOON
    for wanted in times:
        following = schedule.parse(text).after(moment)
        assert following is not None
        found.append(following.strftime("%Y-%m-%d %H:%M")[-len(wanted) :])
        moment = following
    assert found == times


def test_an_hour_that_is_repeated_has_its_times_twice_and_one_that_is_left_out_loses_none_for_good() -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    moment, found = dt.datetime(2026, 10, 25, 1, 50, tzinfo=zone), []
    for _ in range(6):
        following = schedule.parse("*/30 * * * *").after(moment)
        assert following is not None
        assert following.timestamp() > moment.timestamp()
        found.append(following.astimezone(dt.UTC).strftime("%H:%M"))
        moment = following
    assert found == ["00:00", "00:30", "01:00", "01:30", "02:00", "02:30"]
    spring = schedule.parse("30 2 * * *").after(dt.datetime(2026, 3, 29, 0, 0, tzinfo=zone))
    assert spring is not None
    assert spring.astimezone(dt.UTC).strftime("%d %H:%M") in {"29 00:30", "29 01:30"}


@pytest.mark.parametrize(
    "text", ["", "* * * *", "60 * * * *", "*/0 * * * *", "a * * * *", "5-1 * * * *", "* * * * 8", "9" * 500, "@often"]
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid, match="not a schedule"):
        schedule.parse(text)


def test_a_schedule_that_never_comes_is_none() -> None:
    assert schedule.parse("0 0 31 2 *").after(_NOON) is None


def _cron(**spec: Any) -> CronJob:
    document = {
        "metadata": {"name": "c", "uid": "u", "creationTimestamp": "2026-02-27T11:59:00Z"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": _POD}}, **spec},
    }
    return msgspec.convert(document, CronJob)


def test_of_times_that_were_missed_the_last_makes_a_job_of_its_own_name() -> None:
    now = _NOON.timestamp() + 150
    plan = cronjob.plan(_cron(), (), now, dt.UTC)
    assert plan.make is not None
    assert plan.make.metadata.name == f"c-{int((now - 30) // 60)}"
    assert plan.wake_s == 30
    again = cronjob.plan(msgspec.structs.replace(_cron(), status=plan.status), (), now, dt.UTC)
    assert again.make is None


def test_a_deadline_lets_old_times_go_and_a_suspended_one_makes_none() -> None:
    hourly = _cron(schedule="0 * * * *", startingDeadlineSeconds=60)
    assert cronjob.plan(hourly, (), _NOON.timestamp() + 300, dt.UTC).make is None
    assert cronjob.plan(_cron(suspend=True), (), _NOON.timestamp() + 300, dt.UTC).make is None


def _made(name: str, *, good: bool | None) -> Job:
    kind = {True: "Complete", False: "Failed"}.get(bool(good)) if good is not None else None
    conditions = [{"type": kind, "status": "True"}] if kind else []
    status = {"conditions": conditions, **({"completionTime": "2026-02-27T11:59:00Z"} if good else {})}
    return msgspec.convert({"metadata": {"name": name}, "spec": {"template": _POD}, "status": status}, Job)


def test_a_running_job_forbids_or_is_replaced_and_old_ones_go() -> None:
    running, now = _made("c-1", good=None), _NOON.timestamp() + 60
    forbidden = cronjob.plan(_cron(concurrencyPolicy="Forbid"), (running,), now, dt.UTC)
    assert (forbidden.make, forbidden.remove) == (None, ())
    replaced = cronjob.plan(_cron(concurrencyPolicy="Replace"), (running,), now, dt.UTC)
    assert replaced.make is not None
    assert replaced.remove == (running,)
    ended = tuple(_made(f"c-{number}", good=number % 2 == 0) for number in range(10))
    old = cronjob.plan(_cron(suspend=True), ended, now, dt.UTC).remove
    assert [one.metadata.name for one in old] == ["c-0", "c-2", "c-1", "c-3", "c-5", "c-7"]


def test_numbers_and_percentages_are_counted_as_upstream_rounds_them() -> None:
    assert podset.count("25%", 10, default=0, is_up=True) == 3
    assert podset.count("25%", 10, default=0, is_up=False) == 2
    assert podset.count(None, 4, default="25%", is_up=True) == 1
    assert podset.count(7, 10, default=0, is_up=True) == 7


def test_names_that_are_made_fit_and_differ() -> None:
    assert len(podset.name("a" * 300, "b" * 10)) <= 253
    assert podset.suffix("a") != podset.suffix("b")
    assert len(podset.suffix("a", 10)) == 10


_KINDS: dict[str, Any] = {"d": Deployment, "s": StatefulSet, "j": Job, "c": CronJob, "v": Service}
_DEPLOYMENT = {"selector": {"matchLabels": {"app": "web"}}, "template": _WEB}


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        ("d", {**_DEPLOYMENT, "replicas": -1}, "spec.replicas: Invalid value: -1"),
        ("d", {**_DEPLOYMENT, "replicas": 1001}, "spec.replicas: Invalid value"),
        ("d", {"template": _WEB}, "spec.selector: Required value"),
        ("d", {**_DEPLOYMENT, "selector": {"matchLabels": {"app": "other"}}}, "does not match template `labels`"),
        ("d", {**_DEPLOYMENT, "template": {**_WEB, **_POD}}, "restartPolicy: Unsupported value"),
        ("d", {**_DEPLOYMENT, "strategy": {"type": "Blue"}}, "spec.strategy.type: Unsupported value"),
        ("d", {**_DEPLOYMENT, "strategy": {"rollingUpdate": {"maxSurge": "lots"}}}, "maxSurge: Invalid value"),
        (
            "d",
            {**_DEPLOYMENT, "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}},
            "may not be 0 when `maxSurge` is 0",
        ),
        ("s", {**_DEPLOYMENT, "podManagementPolicy": "Chaos"}, "podManagementPolicy: Unsupported value"),
        ("s", {**_DEPLOYMENT, "volumeClaimTemplates": [{"metadata": {"name": "A"}}]}, "volumeClaimTemplates[0]"),
        ("j", {"template": {"spec": {"containers": [_CONTAINER]}}}, "restartPolicy: Required value"),
        ("j", {"template": _POD, "completionMode": "Indexed"}, "spec.completions: Required value"),
        ("j", {"template": _POD, "parallelism": -1}, "spec.parallelism: Invalid value"),
        ("j", {"template": _POD, "backoffLimit": -1}, "spec.backoffLimit: Invalid value"),
        ("c", {"schedule": "x", "jobTemplate": {"spec": {"template": _POD}}}, "spec.schedule: Invalid value"),
        (
            "c",
            {"schedule": "@daily", "timeZone": "../etc/passwd", "jobTemplate": {"spec": {"template": _POD}}},
            "unknown time zone",
        ),
        ("v", {"selector": {"a": "b"}}, "spec.ports: Required value"),
        ("v", {"ports": [{"port": 80}]}, "spec.selector: Required value"),
        ("v", {"selector": {"a": "b"}, "type": "ExternalName", "ports": [{"port": 80}]}, "spec.type: Unsupported"),
        ("v", {"selector": {"a": "b"}, "ports": [{"port": 0}]}, "spec.ports[0].port: Invalid value"),
        ("v", {"selector": {"a": "b"}, "ports": [{"port": 80, "nodePort": 30000}]}, "nodePort: Forbidden"),
        (
            "v",
            {"selector": {"a": "b"}, "type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]},
            "nodePort: Invalid value: 80",
        ),
        ("v", {"selector": {"a": "b"}, "ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]}, "Duplicate"),
    ],
)
def test_what_is_wrong_with_a_workload_is_named_by_its_path(kind: str, spec: dict[str, Any], words: str) -> None:
    item = msgspec.convert({"metadata": {"name": "x"}, "spec": spec}, _KINDS[kind])
    with pytest.raises(errors.Invalid) as caught:
        validate.check(item)
    assert words in caught.value.message


def test_good_workloads_pass_and_their_templates_can_be_changed() -> None:
    cron = _cron(timeZone="Europe/Berlin")
    validate.check(cron)

    def labelled(pod: Any) -> Any:
        return msgspec.structs.replace(pod, metadata=meta.ObjectMeta(name="x", labels={"a": "b"}))

    changed = templated.with_template(cron, labelled)
    assert changed.spec.job_template.spec.template.metadata == meta.ObjectMeta(labels={"a": "b"})
    pod = templated.pod_of(changed)
    assert pod is not None
    assert pod.metadata.name == "c"
    service = msgspec.convert({"spec": {}}, Service)
    assert templated.pod_of(service) is None
    assert templated.with_template(service, labelled) is service
    written = {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": {"spec": {"x": 1}}}}}}
    assert templated.written_pod(written)["spec"] == {"x": 1}
