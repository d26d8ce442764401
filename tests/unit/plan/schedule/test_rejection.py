"""What kubelets refused keeps like pods off the node: for a while, longer each time, and no other pod."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.plan.schedule import rejection
from fairlead.wire.kubernetes import core
from tests.unit.plan.schedule.cache.test_scheduler_cache import World, _node, _pod

_AT = "2026-01-02T03:04:05Z"
_UNIX = 1767323045.0


def _failed(reason: str = "TopologyAffinityError", *, started: str = _AT, uid: str = "f", gpus: int = 2) -> core.Pod:
    pod = _pod(uid, "a", gpus=gpus)
    status = core.PodStatus(phase="Failed", reason=reason, start_time=started)
    return msgspec.structs.replace(pod, status=status)


def test_a_node_is_skipped_for_equal_pods_with_doubling_bounded_waits() -> None:
    found = [rejection.Rejection(shape=frozenset({("gpu", 2)}), reason="R", at=float(at)) for at in range(9)]
    ends = [rejection.refused(found[:count], 8.0)[1] - found[count - 1].at for count in (1, 2, 3, 9)]
    assert ends == [30.0, 60.0, 120.0, 600.0]
    assert rejection.refused(found, 8.0 + 600.0) == ({}, float("inf"))


@pytest.mark.parametrize("started", ["", "never", "9999-01-01T00:00:00Z", "2026-01-02T03:04:05"])
def test_a_time_that_cannot_be_is_now(started: str) -> None:
    found = rejection.of_pod(_failed(started=started), {"gpu": 2}, _UNIX)
    assert found is not None
    assert found.at == _UNIX


def test_only_a_kubelets_refusal_counts() -> None:
    assert rejection.of_pod(_failed("Evicted"), {}, _UNIX) is None
    assert rejection.of_pod(_pod("p", "a", phase="Running"), {}, _UNIX) is None


def _world(now: float) -> World:
    world = World()
    world.cache = type(world.cache)(world.queue, lambda _pod: True, lambda: world.now, date=lambda: now)
    return world


def test_what_is_kept_step_by_step_is_what_is_there_whatever_came_first() -> None:
    ahead, behind = _world(_UNIX + 10), _world(_UNIX + 10)
    ahead.cache.note_node(_node("a"))
    ahead.cache.note_pod(_failed())
    behind.cache.note_pod(_failed())
    behind.cache.note_node(_node("a"))
    assert ahead.views() == behind.views()
    assert list(ahead.views()["a"].rejected.values()) == ["TopologyAffinityError"]
    ahead.cache.note_pod(_failed(), is_gone=True)
    behind.cache.forget_pods()
    assert not ahead.views()["a"].rejected
    assert not behind.views()["a"].rejected
    assert behind.cache.rejections_due_s() is None


def test_a_refusal_of_long_ago_does_not_count_and_a_node_that_is_gone_is_not_waited_for() -> None:
    world = _world(_UNIX + 10)
    world.cache.note_node(_node("a"))
    world.cache.note_pod(_failed(started="2026-01-02T03:00:00Z"))
    assert not world.views()["a"].rejected
    world.cache.note_pod(_failed(uid="g"))
    assert world.cache.rejections_due_s() == 50.0  # the second of this shape
    world.cache.note_node(_node("a"), is_gone=True)
    assert world.cache.rejections_due_s() is None
