"""A pod's priority by the name of its class, in an API server's rules."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.pod import priority
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.coordination import PriorityClass


def _class(name: str, value: int, *, default: bool = False) -> PriorityClass:
    return PriorityClass(metadata=meta.ObjectMeta(name=name), value=value, global_default=default)


def _pod(name: str = "", number: int | None = None) -> core.Pod:
    return core.Pod(spec=core.PodSpec(priority_class_name=name, priority=number))


CLASSES = (_class("urgent", 1000), _class("late", -5))


@pytest.mark.parametrize(
    ("pod", "number"),
    [
        (_pod("urgent"), 1000),
        (_pod("late"), -5),
        (_pod("urgent", 1000), 1000),
        (_pod("system-node-critical"), 2_000_001_000),
        (_pod("", 7), 7),
        (_pod(), None),
    ],
)
def test_a_class_gives_its_number(pod: core.Pod, number: int | None) -> None:
    assert priority.resolve(pod, CLASSES).spec.priority == number


def test_the_default_class_is_that_of_pods_that_name_none() -> None:
    classes = (*CLASSES, _class("usual", 3, default=True))
    found = priority.resolve(_pod(), classes).spec
    assert (found.priority, found.priority_class_name) == (3, "usual")
    assert priority.resolve(_pod("", 0), classes).spec.priority == 0


def test_an_unknown_class_is_refused_with_those_there_are() -> None:
    with pytest.raises(errors.Invalid, match=r'"nosuch" was found \(there are: late \(-5\), urgent \(1000\), system-'):
        priority.resolve(_pod("nosuch"), CLASSES)
    with pytest.raises(errors.Invalid, match="which is 1000"):
        priority.resolve(_pod("urgent", 1), CLASSES)


@pytest.mark.parametrize(("name", "value"), [("", 1), ("system-mine", 1), ("a", 1_000_000_001), ("a", -1_000_000_001)])
def test_a_class_that_kubernetes_would_not_take_is_refused(name: str, value: int) -> None:
    with pytest.raises(errors.Invalid):
        priority.check(_class(name, value))
