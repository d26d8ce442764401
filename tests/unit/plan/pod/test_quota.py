"""Quotas: what counts, what is let in, and the API server's words where it is not."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.pod import quota
from fairlead.wire.kubernetes import core, meta

_GPU = "nvidia.com/gpu"


def _pod(name: str = "p", phase: str = "", **resources: str) -> core.Pod:
    wanted = {name.replace("gpu", _GPU): value for name, value in resources.items()}
    container = core.Container(name="main", resources=core.ResourceRequirements(requests=wanted, limits=wanted))
    return core.Pod(
        metadata=meta.ObjectMeta(name=name),
        spec=core.PodSpec(containers=(container,)),
        status=core.PodStatus(phase=phase),
    )


def _quota(hard: dict[str, str], *, name: str = "gpu-quota", **more: object) -> core.ResourceQuota:
    spec = core.ResourceQuotaSpec(hard=hard, **more)  # type: ignore[arg-type]  # scopes and scope_selector
    return core.ResourceQuota(metadata=meta.ObjectMeta(name=name), spec=spec)


def _refusal(pod: core.Pod, *quotas: core.ResourceQuota, others: tuple[core.Pod, ...] = ()) -> str:
    """Return the words of the refusal, "" where the pod is let in."""
    try:
        quota.check(pod, quotas, others)
    except errors.Denied as error:
        return error.message if error.reason == "Forbidden" else error.reason
    return ""


def test_a_pod_beyond_the_quota_is_refused_with_what_it_asked_what_is_used_and_the_limit() -> None:
    gpus = _quota({"requests.nvidia.com/gpu": "8"})
    assert _refusal(_pod("big", gpu="3"), gpus, others=(_pod(gpu="4"), _pod(gpu="2"))) == (
        'pods "big" is forbidden: exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=3, '
        "used: requests.nvidia.com/gpu=6, limited: requests.nvidia.com/gpu=8"
    )
    assert not _refusal(_pod(gpu="2"), gpus, others=(_pod(gpu="4"), _pod(gpu="2")))


def test_all_resources_that_are_exceeded_are_named_in_order() -> None:
    hard = {"requests.memory": "2Gi", "limits.cpu": "1", "pods": "9", "requests.cpu": "8"}
    text = _refusal(_pod(cpu="1500m", memory="3Gi"), _quota(hard))
    assert text.endswith(
        "requested: limits.cpu=1500m,requests.memory=3Gi, used: limits.cpu=0,requests.memory=0, "
        "limited: limits.cpu=1,requests.memory=2Gi"
    )


def test_ended_pods_take_nothing_but_count_as_objects() -> None:
    ended = (_pod(phase="Succeeded", gpu="8"), _pod(phase="Failed", gpu="8"))
    assert not _refusal(_pod(gpu="8"), _quota({"requests.nvidia.com/gpu": "8", "pods": "1"}), others=ended)
    assert "count/pods=2" in _refusal(_pod(), _quota({"count/pods": "2"}), others=ended)


def test_cpu_and_memory_must_be_stated_where_they_are_counted_and_devices_need_not() -> None:
    hard = {"requests.cpu": "4", "limits.memory": "4Gi", "requests.nvidia.com/gpu": "1"}
    assert _refusal(_pod("p"), _quota(hard)) == (
        'pods "p" is forbidden: failed quota: gpu-quota: must specify limits.memory for: main; requests.cpu for: main'
    )
    assert not _refusal(_pod(cpu="1", memory="1Gi"), _quota(hard))


@pytest.mark.parametrize(
    ("scope", "pod", "counts"),
    [
        ("BestEffort", _pod(), True),
        ("BestEffort", _pod(cpu="1"), False),
        ("NotBestEffort", _pod(cpu="1"), True),
        ("NotBestEffort", _pod(gpu="1"), False),
        ("NotTerminating", _pod(), True),
        ("Terminating", _pod(), False),
        ("PriorityClass", _pod(), False),
        ("CrossNamespacePodAffinity", _pod(), False),
        ("Unheard", _pod(), False),
    ],
)
def test_a_quota_counts_the_pods_of_its_scope_only(scope: str, pod: core.Pod, counts: bool) -> None:
    assert bool(_refusal(pod, _quota({"pods": "0"}, scopes=(scope,)))) is counts


@pytest.mark.parametrize(
    ("operator", "values", "counts"),
    [("In", ("high",), True), ("In", ("low",), False), ("NotIn", ("low",), True), ("Exists", (), True)],
)
def test_priority_classes_are_chosen_by_operator(operator: str, values: tuple[str, ...], counts: bool) -> None:
    rule = core.ScopedSelector(scope_name="PriorityClass", operator=operator, values=values)
    limit = _quota({"pods": "0"}, scope_selector=core.ScopeSelector(match_expressions=(rule,)))
    pod = core.Pod(metadata=meta.ObjectMeta(name="p"), spec=core.PodSpec(priority_class_name="high"))
    assert bool(_refusal(pod, limit)) is counts


def test_limits_on_other_kinds_are_not_ours() -> None:
    assert not _refusal(_pod(), _quota({"services": "0", "limits.nvidia.com/gpu": "0", "count/secrets": "0"}))


def test_the_first_quota_by_name_answers() -> None:
    text = _refusal(_pod(), _quota({"pods": "0"}, name="b"), _quota({"pods": "0"}, name="a"))
    assert "exceeded quota: a," in text


def test_huge_pages_count_by_both_names() -> None:
    assert quota.usage(_pod(**{"hugepages-2Mi": "4Mi"}))["requests.hugepages-2Mi"] == Fraction(2**22)
    assert "hugepages-2Mi=4Mi" in _refusal(_pod(**{"hugepages-2Mi": "4Mi"}), _quota({"hugepages-2Mi": "2Mi"}))


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 16))
def test_pods_let_in_one_after_another_never_exceed_the_limit(sizes: list[int], limit: int) -> None:
    gpus = _quota({"requests.nvidia.com/gpu": str(limit)})
    inside: list[core.Pod] = []
    for number, size in enumerate(sizes):
        pod = _pod(f"p{number}", **({"gpu": str(size)} if size else {}))
        before = quota.used(gpus, inside)["requests.nvidia.com/gpu"]
        if not _refusal(pod, gpus, others=tuple(inside)):
            inside.append(pod)
        else:
            assert before + size > limit
    assert quota.used(gpus, inside)["requests.nvidia.com/gpu"] <= limit


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (_quota({"requests.nvidia.com/gpu": "8"}), ""),
        (_quota({}), ""),
        (_quota({"pods": "1"}, name=""), "metadata.name: Required value"),
        (_quota({"pods": "-1"}), 'spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0'),
        (_quota({"pods": "many"}), 'spec.hard[pods]: Invalid value: "many"'),
        *(
            (_quota({name: "1"}), "")
            for name in ("limits.cpu", "requests.storage", "count/jobs.batch", "hugepages-2Mi")
        ),
        (_quota({"gold.storageclass.storage.k8s.io/requests.storage": "1Gi"}), ""),
        *(
            (_quota({name: "1"}), "must be a standard resource type or fully qualified")
            for name in ("gpus", "cpus", "", "a\0", "x/\x1b[31m", "x/y/z", "/cpu", "limits.pods")
        ),
    ],
)
def test_a_quota_whose_limits_mean_nothing_is_refused(one: core.ResourceQuota, said: str) -> None:
    if not said:
        quota.check_limits(one)
        return
    with pytest.raises(errors.Invalid) as refused:
        quota.check_limits(one)
    assert said in refused.value.message
