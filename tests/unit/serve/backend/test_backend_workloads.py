"""Whose the pods of a workload are, and what of them is kept."""

from __future__ import annotations

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.pod import machine
from fairlead.serve.backend import place, workloads
from fairlead.serve.backend.containers import checks
from fairlead.store.embedded.memory import MemoryStore
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


async def test_a_namespace_keeps_so_many_objects_of_a_kind_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "MOST", 2)
    kept = workloads.LocalWorkloads(store=MemoryStore(), here=machine.Here())
    where = place.Everywhere().new("default")
    for name in ("a", "b"):
        item = core.ConfigMap(metadata=meta.ObjectMeta(name=name), data={"k": "v"})
        assert await kept.keep(item, where, {}) == "created"
        assert await kept.keep(item, where, {}) == "unchanged"
    with pytest.raises(errors.Denied, match="has 2 configmaps"):
        await kept.keep(core.ConfigMap(metadata=meta.ObjectMeta(name="c")), where, {})
