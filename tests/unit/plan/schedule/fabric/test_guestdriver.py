"""Which pods are held to a driver's version, on which nodes, and what is said: the pure half."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead.plan.schedule import constraints, reference, summary
from fairlead.plan.schedule.fabric import guestdriver
from fairlead.plan.schedule.fabric.guestdriver import Ask, GuestDrivers
from fairlead.plan.schedule.queue import hint
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.workload import RuntimeClass

_SLOT = "nvidia.com/h100-sxm5-80gb-x4"


def _class(driver: str | None, name: str = "kata-x4") -> RuntimeClass:
    annotations = {} if driver is None else {names.GUEST_DRIVER: driver}
    return RuntimeClass(metadata=meta.ObjectMeta(name=name, annotations=annotations), handler="kata")


def _pod(resource: str = _SLOT, runtime_class: str = "kata-x4", count: int = 1) -> core.Pod:
    wanted = core.ResourceRequirements(limits={resource: count}, requests={resource: count})
    spec = core.PodSpec(containers=(core.Container(name="c", resources=wanted),), runtime_class_name=runtime_class)
    return core.Pod(metadata=meta.ObjectMeta(name="p", namespace="d", uid="p"), spec=spec)


def _node(manager: str | None, name: str = "n") -> reference.NodeInfo:
    labels = {} if manager is None else {names.FABRIC_MANAGER: manager}
    return reference.NodeInfo(name=name, labels=labels, allocatable={_SLOT: 1000, "pods": 10_000})


def _made(*classes: RuntimeClass) -> GuestDrivers:
    made = GuestDrivers()
    for one in classes:
        made.note(one)
    return made


@pytest.mark.parametrize(
    ("driver", "pod", "is_held"),
    [
        ("580.95.05", _pod(), True),
        ("580.95.05", _pod("nvidia.com/h100-sxm5-80gb-x1", count=2), False),
        ("580.95.05", _pod("nvidia.com/gpu", count=8), False),
        ("580.95.05", _pod(runtime_class=""), False),
        ("580.95.05", _pod(runtime_class="kata-x8"), False),
        ("580.95.05", _pod(count=0), False),
        ("", _pod(), False),
        (None, _pod(), False),
        ("  ", _pod(), False),
    ],
)
def test_only_slots_of_several_gpus_of_a_class_that_says_its_driver_are_held_to_it(
    driver: str | None, pod: core.Pod, is_held: bool
) -> None:
    assert _made(_class(driver)).concerns(pod) is is_held


def test_an_amount_that_cannot_be_read_is_left_to_who_says_so() -> None:
    wanted = core.ResourceRequirements(limits={_SLOT: "many"})
    spec = core.PodSpec(containers=(core.Container(name="c", resources=wanted),), runtime_class_name="kata-x4")
    assert not _made(_class("1.2")).concerns(core.Pod(spec=spec))


@pytest.mark.parametrize(
    ("manager", "fits"), [("580.95.05", True), (None, True), ("", True), ("580.126.09", False), ("580.95", False)]
)
def test_a_node_is_refused_where_both_versions_are_known_and_differ(manager: str | None, fits: bool) -> None:
    need = reference.PodInfo(requests={_SLOT: 1000}, asks=(Ask("580.95.05"),))
    refusal = reference.first_refusal(need, _node(manager))
    assert (refusal is None) is fits
    if refusal is not None:
        assert refusal[0] == guestdriver.FILTER


def test_the_refusal_names_both_versions_and_what_mends_it_in_the_length_that_is_kept() -> None:
    need = reference.PodInfo(requests={_SLOT: 1000}, asks=(Ask("580.126.09"),))
    said = reference.place(need, [_node("570.158.01", "a"), _node("570.158.01", "b")]).message
    assert said == (
        "0/2 nodes are available: 2 node(s) had Fabric Manager 570.158.01 and the pod's RuntimeClass boots driver "
        "580.126.09 (for NVLink: install Manager 580.126.09 there, or take a class that boots 570.158.01)."
    )


@pytest.mark.parametrize("driver", ["x" * 250_000, "1.2\n0/0 nodes are available: all is well", "\x1b[31m1.2", "é\0"])
def test_an_annotation_of_anything_is_compared_and_shown_short_on_one_line(driver: str) -> None:
    made = _made(_class(driver))
    ask = made.ask(_pod())
    assert ask is not None
    need = reference.PodInfo(requests={_SLOT: 1000}, asks=(ask,))
    said = reference.place(need, [_node("580.95.05")]).message
    assert "580.95.05" in said
    assert said.isprintable()
    assert len(said) < 260


def test_what_a_class_says_now_counts_and_pods_that_wait_are_looked_at_again() -> None:
    made = _made(_class("1.2"))
    assert made.ask(_pod()) == Ask("1.2")
    same = made.note(_class("1.2"))
    assert not same.concerns
    changed = made.note(_class("1.3"))
    assert (changed.concerns, changed.pods) == (True, None)
    assert made.ask(_pod()) == Ask("1.3")
    assert made.note(_class("1.3"), is_gone=True).concerns
    assert not made.concerns(_pod())
    made.note(_class("1.3"))
    made.forget(RuntimeClass)
    assert not made.concerns(_pod())


@pytest.mark.parametrize(
    ("before", "after", "is_better"),
    [("1.1", "1.2", True), ("1.1", None, True), (None, "1.1", True), ("1.1", "1.1", False)],
)
def test_a_node_whose_version_changes_has_pods_tried_again(
    before: str | None, after: str | None, is_better: bool
) -> None:
    found = hint.improved(_node(before), _node(after))
    assert (guestdriver.FILTER in found) is is_better
    changed = dataclasses.replace(_node(before), allocatable={})
    assert guestdriver.FILTER not in hint.improved(_node(before), changed)


def test_the_scheduler_knows_the_constraint() -> None:
    assert GuestDrivers in constraints.ALL
    assert RuntimeClass in constraints.KINDS
    assert len(guestdriver.words("580.126.09", "570.158.01")) <= summary._WHY
