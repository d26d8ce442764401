"""Policies of pods: by class, by queue and its ancestors, else the scheduler's."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.schedule.fairshare import tree
from fairlead.plan.schedule.policy import podclass
from fairlead.plan.schedule.workloads import Workloads
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import queue


def _pod(namespace: str = "red", *, priority_class: str = "", **labels: str) -> core.Pod:
    about = meta.ObjectMeta(name="p", namespace=namespace, uid="1", labels=labels)
    return core.Pod(metadata=about, spec=core.PodSpec(priority_class_name=priority_class, scheduler_name="fairlead"))


def _queue(name: str, **spec: Any) -> queue.Queue:
    return queue.Queue(metadata=meta.ObjectMeta(name=name), spec=queue.QueueSpec(**spec))


@pytest.mark.parametrize(
    ("pod", "policy"),
    [
        (_pod(app="serve"), "spread"),
        (_pod(priority_class="batch"), "fgd"),
        (_pod(app="serve", priority_class="batch"), "spread"),  # the first of the setting
        (_pod(app="other"), ""),
        (_pod(), "packed"),  # a label without a value, or none at all, is not the empty value
    ],
)
def test_the_first_class_that_a_pod_is_of_decides(pod: core.Pod, policy: str) -> None:
    classes = podclass.classes_of("app=serve:spread, priorityClassName=batch:fgd")
    found = podclass.policy_of(pod, classes)
    assert found == ("" if policy == "packed" else policy)


@pytest.mark.parametrize("text", ["app=serve", "app=serve:sparse", "=x:packed", "app:packed", "a=b=c:packed"])
def test_a_setting_that_cannot_be_carried_out_is_refused_with_its_entry(text: str) -> None:
    with pytest.raises(errors.Invalid, match=r"control\.pod_policies") as caught:
        podclass.classes_of(f"app=ok:packed,{text}")
    assert text in caught.value.message


def test_a_queue_without_a_policy_has_its_nearest_ancestors() -> None:
    specs = (("top", "", "spread"), ("mid", "top", ""), ("low", "mid", ""), ("own", "mid", "fgd"))
    made = tree.Tree(tree.spec_of(_queue(name, parent=parent, policy=policy)) for name, parent, policy in specs)
    found = {name: made.policy(name) for name in ("top", "mid", "low", "own", tree.DEFAULT)}
    assert found == {"top": "spread", "mid": "spread", "low": "spread", "own": "fgd", tree.DEFAULT: ""}


def test_a_queue_with_a_policy_that_is_not_there_says_so_and_is_not_carried_out() -> None:
    works = Workloads()
    works.note_queue(_queue("team", policy="dense"))
    assert works.invalid["team"].startswith('queue "team": there is no policy "dense"')


def test_a_class_goes_before_the_queue() -> None:
    works = Workloads(pod_policies="app=serve:spread")
    works.note_queue(_queue("team", namespaces=("red",), policy="fgd"))
    serve, other, foreign = _pod(app="serve"), _pod(), _pod("blue")
    found = []
    for pod in (serve, other, foreign):
        works.put(pod)
        found.append(works.policy_of(pod))
    assert found == ["spread", "fgd", ""]
