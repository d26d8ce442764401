"""Whose the pods of a workload are, and what of them is kept."""

from __future__ import annotations

import msgspec

from fairlead.plan.pod import machine
from fairlead.serve.backend import workloads
from fairlead.serve.backend.containers import checks
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.workloads.batch import Job

_POD = core.Pod(
    metadata=meta.ObjectMeta(name="p", namespace="user-7", finalizers=("batch.kubernetes.io/job-tracking",)),
    spec=msgspec.convert({"containers": [{"name": "c", "image": "demo"}]}, core.PodSpec),
)


def _owner(**marks: str) -> Job:
    return Job(metadata=meta.ObjectMeta(name="j", namespace="user-7", annotations=marks))


def test_a_controller_s_pod_keeps_what_the_controller_takes_away_itself() -> None:
    asked = workloads.submission(_POD, _owner())
    stored = checks.admit(asked, (), machine.Here()).pod
    assert stored.metadata.finalizers == _POD.metadata.finalizers
    assert names.TENANT not in stored.metadata.annotations


def test_the_pods_of_a_user_s_workload_are_that_user_s_and_counted_as_such() -> None:
    asked = workloads.submission(_POD, _owner(**{names.TENANT: "user-7", workloads.MOST_DEVICES: "2"}))
    assert (asked.place.is_tenants, asked.place.most_devices, asked.place.namespace) == (True, 2, "user-7")
    stored = checks.admit(asked, (), machine.Here()).pod
    assert stored.metadata.annotations[names.TENANT] == "user-7"


def test_a_mark_that_is_no_number_limits_nothing() -> None:
    assert workloads.submission(_POD, _owner(**{workloads.MOST_DEVICES: "many"})).place.most_devices == 0
