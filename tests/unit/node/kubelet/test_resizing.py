"""A node's part of other sizes: what is written to which cgroup, in which order, and what is tried again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import msgspec
import pytest

from fairlead import errors
from fairlead.engine.port import ContainerPhase, ContainerState
from fairlead.kernel.cgrouplimits import Limits
from fairlead.node.kubelet.resizing import AGAIN_S, Outcome, Resizing
from fairlead.plan.pod.running import resize
from fairlead.wire.kubernetes import core, meta, names

_GIB = 1 << 30


class _Cgroup:
    def __init__(self, limits: Limits, used: int = 0) -> None:
        self.now, self.used, self.writes = limits, used, list[Limits]()
        self.is_refusing = False

    def limits(self) -> Limits:
        return self.now

    def used_bytes(self) -> int:
        return self.used

    def write(self, wanted: Limits) -> None:
        if self.is_refusing:
            raise errors.Unavailable("the kernel does not take the limit: busy", reason="LimitRefused")
        self.writes.append(wanted)
        self.now = wanted


class _Node:
    def __init__(self) -> None:
        self.cgroups: dict[str, _Cgroup] = {}
        self.order: list[str] = []
        self.said: list[tuple[str, str]] = []
        self.resizing = Resizing({"cpu": "8", "memory": "16Gi"}, self._record, self._find)

    def _find(self, _pid: int, container: str) -> _Cgroup:
        if container not in self.cgroups:
            raise errors.NotFound(container, reason="CgroupUnknown")
        self.order.append(container)
        return self.cgroups[container]

    async def _record(
        self,
        _pod: core.Pod,
        _layer: str,
        reason: str,
        message: str,
        /,
        *,
        facts: Mapping[str, object],
        is_warning: bool = False,
    ) -> None:
        self.said.append((reason, message))

    async def look(self, pod: core.Pod, *others: core.Pod) -> Outcome:
        states = [_state(one.name) for one in pod.spec.containers]
        return await self.resizing.carry_out(pod, states, [pod, *others], grace_s=3)


def _state(name: str) -> ContainerState:
    labels = {names.CONTAINER_NAME: name}
    return ContainerState(
        engine="podman", id=name, name=f"fl-{name}", phase=ContainerPhase.RUNNING, labels=labels, image="i", pid=7
    )


def _pod(uid: str = "p", policy: str = "", **sizes: tuple[dict[str, str], dict[str, str]]) -> core.Pod:
    """Return a pod that runs. Args: sizes: by container, what it asks for and what it has."""
    restart = (core.ContainerResizePolicy(resource_name="memory", restart_policy=policy),) if policy else ()
    running = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at="2027-01-01T00:00:00Z"))
    return core.Pod(
        metadata=meta.ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=core.PodSpec(
            containers=tuple(
                core.Container(
                    name=name,
                    image="i",
                    resources=core.ResourceRequirements(limits=asked, requests=asked),
                    resize_policy=restart,
                )
                for name, (asked, _) in sizes.items()
            ),
        ),
        status=core.PodStatus(
            phase="Running",
            container_statuses=tuple(
                core.ContainerStatus(
                    name=name, state=running, resources=core.ResourceRequirements(limits=has, requests=has)
                )
                for name, (_, has) in sizes.items()
            ),
        ),
    )


async def test_what_is_asked_is_written_once_and_said() -> None:
    node = _Node()
    node.cgroups["main"] = _Cgroup(Limits(cpu=1.0, memory_bytes=_GIB))
    pod = _pod(main=({"cpu": "2", "memory": "2Gi"}, {"cpu": "1", "memory": "1Gi"}))
    found = await node.look(pod)
    assert node.cgroups["main"].writes == [Limits(cpu=2.0, memory_bytes=2 * _GIB)]
    status = found.told(pod, pod.status).container_statuses[0]
    assert status.resources == core.ResourceRequirements(
        limits={"cpu": "2", "memory": "2Gi"}, requests={"cpu": "2", "memory": "2Gi"}
    )
    (said,) = node.said
    assert said[0] == "ResizeCompleted"
    assert "main: cpu limit 1 -> 2, memory limit 1Gi -> 2Gi" in said[1]


async def test_memory_in_use_is_not_taken_away_and_it_is_tried_again() -> None:
    node = _Node()
    node.cgroups["main"] = _Cgroup(Limits(memory_bytes=4 * _GIB), used=3 * _GIB)
    pod = _pod(main=({"memory": "2Gi"}, {"memory": "4Gi"}))
    for _ in range(2):
        found = await node.look(pod)
    assert node.cgroups["main"].writes == []
    assert found.again_s == AGAIN_S
    (condition,) = found.told(pod, pod.status).conditions
    assert (condition.type, condition.reason) == (resize.IN_PROGRESS, resize.ERROR)
    assert "memory limit (2048 MiB) below current usage (3072 MiB)" in condition.message
    assert [reason for reason, _ in node.said] == ["ResizeError"]
    node.cgroups["main"].used = 0
    assert (await node.look(pod)).told(pod, pod.status).conditions == ()


async def test_less_is_written_before_more_and_more_not_where_less_failed() -> None:
    node = _Node()
    node.cgroups = {"first": _Cgroup(Limits(cpu=1.0)), "second": _Cgroup(Limits(cpu=4.0))}
    pod = _pod(first=({"cpu": "3"}, {"cpu": "1"}), second=({"cpu": "2"}, {"cpu": "4"}))
    node.cgroups["second"].is_refusing = True
    await node.look(pod)
    assert node.cgroups["first"].writes == []
    node.cgroups["second"].is_refusing = False
    await node.look(pod)
    assert (node.order[-2:], node.cgroups["first"].now) == (["second", "first"], Limits(cpu=3.0))


async def test_a_container_whose_policy_says_so_is_restarted_with_its_new_size() -> None:
    node = _Node()
    node.cgroups["main"] = _Cgroup(Limits(memory_bytes=_GIB))
    pod = _pod(policy="RestartContainer", main=({"memory": "2Gi"}, {"memory": "1Gi"}))
    found = await node.look(pod)
    assert [one.engine_name for one in found.kills] == ["fl-main"]
    assert node.cgroups["main"].writes == []
    assert found.pod.spec.containers[0].resources.limits == {"memory": "2Gi"}


async def test_what_does_not_fit_now_is_looked_at_again_when_another_pod_goes() -> None:
    node = _Node()
    node.cgroups["main"] = _Cgroup(Limits(cpu=1.0))
    pod, other = _pod(main=({"cpu": "4"}, {"cpu": "1"})), _pod("o", main=({"cpu": "6"}, {"cpu": "6"}))
    found = await node.look(pod, other)
    assert found.pod.spec.containers[0].resources.limits == {"cpu": "1"}  # a restart would have that
    assert node.resizing.deferred == {"p"}
    assert (await node.look(pod)).pod == pod
    assert (node.resizing.deferred, node.cgroups["main"].now) == (set(), Limits(cpu=4.0))


async def test_two_that_grow_at_once_never_get_more_than_there_is() -> None:
    node = _Node()
    node.cgroups["main"] = _Cgroup(Limits(cpu=1.0))
    first, second = (_pod(uid, main=({"cpu": "5"}, {"cpu": "1"})) for uid in ("a", "b"))
    assert not (await node.look(first, second)).decision.reason
    assert (await node.look(second, first)).decision.reason == resize.DEFERRED


@pytest.mark.parametrize("by", ["first look", "later"])
async def test_limits_that_somebody_wrote_over_are_written_anew(by: str) -> None:
    node = _Node()
    node.cgroups["main"] = _Cgroup(Limits(cpu=1.0))
    has = {"cpu": "2"}
    if by == "later":
        await node.look(_pod(main=(has, {"cpu": "1"})))
        node.cgroups["main"].now = Limits(cpu=1.0)
        await node.resizing.hold_all()
    else:
        await node.look(_pod(main=(has, has)))
    assert node.cgroups["main"].now == Limits(cpu=2.0)


class _Slow(_Cgroup):
    """Its first write waits for the test."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.is_writing, self.may_write = threading.Event(), threading.Event()

    def write(self, wanted: Limits) -> None:
        if not self.is_writing.is_set():
            self.is_writing.set()
            self.may_write.wait(2)
        super().write(wanted)


async def test_a_look_beside_a_resize_never_keeps_the_old_limits() -> None:
    node = _Node()
    node.cgroups["main"] = _Cgroup(Limits(cpu=1.0))
    await node.look(_pod(main=({"cpu": "2"}, {"cpu": "1"})))
    slow = node.cgroups["main"] = _Slow(Limits(cpu=1.0))  # somebody wrote over it
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(node.resizing.hold_all())
        assert await asyncio.to_thread(slow.is_writing.wait, 2)
        await node.look(_pod(main=({"cpu": "3"}, {"cpu": "2"})))
        slow.may_write.set()
    await node.resizing.hold_all()
    assert slow.now == Limits(cpu=3.0)


async def test_a_limit_that_the_kernel_reads_as_none_is_written_once() -> None:
    node = _Node()
    huge = {"memory": "4Ei"}
    node.cgroups["main"] = _Cgroup(Limits(memory_bytes=_GIB))
    pod = _pod(main=(huge, {"memory": "1Gi"}))
    main = msgspec.structs.replace(pod.spec.containers[0], resources=core.ResourceRequirements(limits=huge))
    spec = msgspec.structs.replace(pod.spec, containers=(main,))
    await node.look(msgspec.structs.replace(pod, spec=spec))
    assert len(node.cgroups["main"].writes) == 1
    node.cgroups["main"].now = Limits()
    await node.resizing.hold_all()
    assert len(node.cgroups["main"].writes) == 1


async def test_what_ends_is_left_alone() -> None:
    node = _Node()
    pod = _pod(main=({"cpu": "2"}, {"cpu": "1"}))
    stopped = core.StopRequest(requested_at="2027-01-01T00:00:00Z")
    status = core.PodStatus(phase="Running", container_statuses=pod.status.container_statuses, stop_request=stopped)
    ending = core.Pod(metadata=pod.metadata, spec=pod.spec, status=status)
    found = await node.look(ending)
    (told,) = found.told(ending, status).container_statuses
    assert told.resources == status.container_statuses[0].resources  # it says what it has
    assert (node.order, node.said) == ([], [])
