"""Pods move to other nodes for larger ones, over a store: who moves, where the room is kept, and what is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from fairlead.control.scheduler import snapshot
from fairlead.plan.schedule.preempt import movable
from fairlead.settings import ControlSettings
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import policy
from tests.unit.control.scheduler.plane import Plane

_LONG_AGO = "2020-01-01T00:00:00Z"


def _owner(kind: str, uid: str = "web") -> tuple[meta.OwnerReference, ...]:
    return (meta.OwnerReference(api_version="apps/v1", kind=kind, name=uid, uid=uid, controller=True),)


async def _add(
    plane: Plane,
    name: str,
    gpus: int,
    node: str = "",
    *,
    kind: str = "ReplicaSet",
    started: str = _LONG_AGO,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> core.Pod:
    """Create a pod of a controller; with a node, it runs there since a time."""
    made = await plane.add_pod(name, gpus, annotations=annotations, labels={"app": name[:3]}, **spec)
    about = msgspec.structs.replace(made.metadata, owner_references=_owner(kind) if kind else ())
    made = await plane.store.update(msgspec.structs.replace(made, metadata=about))
    if node:
        await plane.placement.bind(made, node)
        bound = await plane.store.get(core.Pod, name, "default")
        status = core.PodStatus(phase="Running", start_time=started)
        made = await plane.store.update_status(msgspec.structs.replace(bound, status=status))
    return made


@pytest.fixture
def plane() -> Plane:
    return Plane(defragment="waiting", defragment_every_s=0, preemption=False)


async def _two_halves(plane: Plane) -> None:
    for name in ("a", "b"):
        await plane.add_node(name, 4)
    await _add(plane, "web-0", 2, "a")
    await _add(plane, "web-1", 2, "b")


async def test_a_pod_moves_for_one_that_fits_nowhere_and_the_room_is_kept_for_both(plane: Plane) -> None:
    await _two_halves(plane)
    async with plane.running():
        await plane.add_pod("big", 4)
        await plane.until_said("big", "Insufficient")

        async def moved() -> bool:
            return bool(plane.placement.ended)

        await plane.until(moved)
        (gone,) = plane.placement.ended
        left = {"web-0": "a", "web-1": "b"}[gone]
        # One that asks for as much comes before the one that the controller makes anew: the room is not its.
        await plane.add_pod("late", 2, priority=1000)
        await plane.until_said("late", "Insufficient")
        await _add(plane, "web-2", 2)
        bound = await plane.until_bound(["big", "web-2"])
        assert bound["big"] == left
        assert bound["web-2"] == next(name for name in ("a", "b") if name != left)
        assert "late" not in await plane.bound()
    assert plane.placement.ended == [gone]
    (said,) = await plane.messages("Moved")
    assert said == f"moved so that default/big fits on {left}; room is kept on {bound['web-2']}"


@pytest.mark.parametrize(
    "held", ["alone", "job", "annotation", "data", "young", "foreign", "daemon", "budget", "system"]
)
async def test_a_pod_that_may_not_move_stays_and_is_counted_with_the_reason(plane: Plane, held: str) -> None:
    for name in ("a", "b"):
        await plane.add_node(name, 4)
    more: dict[str, dict[str, object]] = {
        "alone": {"kind": ""},
        "job": {"kind": "Job"},
        "daemon": {"kind": "DaemonSet"},
        "annotation": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}},
        "data": {"volumes": (core.Volume(name="tmp", empty_dir=core.EmptyDirVolume()),)},
        "young": {"started": meta.now()},
        "foreign": {"scheduler_name": "default-scheduler"},
        "system": {"priority": 2_000_000_000},
    }
    for number, node in enumerate(("a", "b")):
        await _add(plane, f"web-{number}", 2, node, **more.get(held, {}))  # type: ignore[arg-type]
    if held == "budget":
        rule = meta.LabelSelector(match_labels={"app": "web"})
        about = meta.ObjectMeta(name="b", namespace="default")
        budget = policy.PodDisruptionBudget(metadata=about, spec=policy.BudgetSpec(selector=rule))
        await plane.store.create(budget)
    await plane.add_pod("big", 4)
    taken = await snapshot.take(plane.store, ControlSettings(), meta.now())
    found = await snapshot.plan_moves(taken, ControlSettings(preemption=False))
    assert not found.steps
    assert {pod.metadata.name for pod in found.unhelped} >= {"big"}
    assert sum(found.kept.values()) == (0 if held == "budget" else 2)
    assert len(found.kept) == (0 if held == "budget" else 1)


async def test_a_dry_run_proposes_what_the_scheduler_would_do_and_moves_nobody(plane: Plane) -> None:
    await _two_halves(plane)
    await plane.add_pod("big", 4)
    taken = await snapshot.take(plane.store, ControlSettings(), meta.now())
    found = await snapshot.plan_moves(snapshot.parse(snapshot.emit(taken)), ControlSettings(preemption=False))
    (step,) = found.steps
    assert step.is_waiting
    assert (step.goal.metadata.name, step.proposal.node) == ("big", "a")
    assert [(one.pod.name, one.pod.node, one.node) for one in step.proposal.moves] == [("web-0", "a", "b")]
    assert await plane.bound() == {"web-0": "a", "web-1": "b"}


async def test_room_is_kept_for_one_more_of_the_largest_size_and_then_nothing_moves(plane: Plane) -> None:
    await _two_halves(plane)
    await plane.add_node("c", 4)
    await _add(plane, "whole", 4, "c", kind="StatefulSet")
    taken = await snapshot.take(plane.store, ControlSettings(), meta.now())
    (step,) = (await snapshot.plan_moves(taken, ControlSettings())).steps
    assert (step.goal.metadata.name, step.is_waiting, len(step.proposal.moves)) == ("whole", False, 1)
    await plane.end("web-0")
    await _add(plane, "web-2", 2, "b")
    taken = await snapshot.take(plane.store, ControlSettings(), meta.now())
    assert not (await snapshot.plan_moves(taken, ControlSettings())).steps


async def test_no_more_pods_move_than_are_allowed_at_a_time(plane: Plane) -> None:
    for name in ("a", "b", "c"):
        await plane.add_node(name, 4)
        for number in range(2):
            await _add(plane, f"web-{name}{number}", 1, name)
    await plane.add_pod("big", 4)
    taken = await snapshot.take(plane.store, ControlSettings(), meta.now())
    assert not (await snapshot.plan_moves(taken, ControlSettings(defragment_moves=1))).steps
    (step,) = (await snapshot.plan_moves(taken, ControlSettings(defragment_moves=2))).steps
    assert len(step.proposal.moves) == 2


def test_every_annotation_that_decides_is_kept_in_a_snapshot() -> None:
    assert movable.ANNOTATIONS <= snapshot._ANNOTATIONS
