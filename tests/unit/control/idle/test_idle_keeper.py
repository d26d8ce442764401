"""The controller of idle GPUs: warns, takes back, ends, puts back into the queue, and does nothing without figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fairlead import errors
from fairlead.control.idle.keeper import POLL_S, IdleKeeper
from fairlead.plan.history.figure import Row
from fairlead.plan.idle.judge import Measured, Window
from fairlead.plan.idle.policy import Policy
from fairlead.store.embedded.placement import EmbeddedPlacement
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling.queue import IdleSpec, Queue
from tests.unit.control.scheduler.plane import GPU, Plane

_START = 1_800_000_000.0
_STOP = Policy(action="stop", below_percent=5, after_s=600, warn_s=300, source="idle.action")


class _Figures:
    """Loads by device: the same at every sample; None: there are none."""

    def __init__(self) -> None:
        self.loads: dict[str, float | None] = {}
        self.is_kept = True

    async def measured(self, uid: str, devices: Iterable[str], window: Window) -> Measured:
        if not self.is_kept:
            raise errors.Unavailable("/var/lib/fairlead/history.db: no space", reason="HistoryUnreachable")
        begin, found = int(window.since // 10 + 1) * 10, dict[str, list[Row]]()
        for one in devices:
            load = self.loads.get(one, 0.0)
            moments = range(begin, int(window.until), 10)
            found[one] = [Row(at=at, weight=1, means=(load,), peaks=(load,)) for at in moments if load is not None]
        return Measured(devices=found)


class World:
    """A machine with a clock of its own."""

    def __init__(self, default: Policy = _STOP) -> None:
        self.plane, self.figures, self.default = Plane(), _Figures(), default
        self.placement = EmbeddedPlacement(self.plane.store)
        self.at, self.requeued = _START, list[str]()
        self.keeper = self.begun()

    def begun(self) -> IdleKeeper:
        """Return the controller of a process that has just started."""

        async def requeue(pod: core.Pod) -> None:
            self.requeued.append(pod.metadata.name)

        begin = self.at
        return IdleKeeper(
            self.plane.store,
            self.placement,
            self.default,
            self.figures,
            requeue=requeue,
            owner=lambda namespace: "ann" if namespace == "user-1000" else "",
            now=lambda: self.at,
            clock=lambda: self.at - begin,
        )

    async def run(
        self, name: str = "train", *, namespace: str = "default", devices: str = "GPU-1", **given: Any
    ) -> None:
        pod = await self.plane.add_pod(name, 1, namespace=namespace, **given)
        await self.plane.placement.bind(pod, "a")
        granted = core.ResourceStatus(
            name=GPU, resources=tuple(core.ResourceHealth(resource_id=one) for one in devices.split())
        )
        running = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at=meta.emit_time(self.at)))
        main = core.ContainerStatus(name="main", state=running, allocated_resources_status=(granted,))
        status = core.PodStatus(phase="Running", container_statuses=(main,), start_time=meta.emit_time(self.at))
        fresh = await self.plane.store.get(core.Pod, name, namespace)
        await self.plane.store.update_status(msgspec.structs.replace(fresh, status=status))

    async def after(self, seconds: float) -> float | None:
        self.at += seconds
        return await self.keeper.reconcile("")

    async def pod(self, name: str = "train", namespace: str = "default") -> core.Pod:
        return await self.plane.store.get(core.Pod, name, namespace)

    async def notice(self, name: str = "train", namespace: str = "default") -> core.IdleNotice | None:
        return (await self.pod(name, namespace)).status.idle_notice

    async def stop(self, name: str = "train", namespace: str = "default") -> core.StopRequest | None:
        return (await self.pod(name, namespace)).status.stop_request


async def test_the_owner_hears_first_and_then_the_container_is_ended() -> None:
    world = World()
    await world.run()
    await world.after(599)
    assert await world.notice() is None
    assert await world.after(1) == POLL_S
    notice = await world.notice()
    assert notice is not None
    assert notice.action == "stop"
    assert notice.acts_at == meta.emit_time(_START + 900)
    (said,) = await world.plane.messages("GPUsIdleAhead")
    assert said.startswith("its GPUs are below 5 % since 10 minutes (idle.action): it is ended at ")
    assert await world.after(290) == 10
    assert len(await world.plane.messages("GPUsIdleAhead")) == 1
    assert await world.stop() is None
    await world.after(10)
    stop = await world.stop()
    assert stop is not None
    assert (stop.reason, stop.message) == ("GPUsIdle", "its GPUs were below 5 % for 15 minutes (idle.action)")
    await world.after(600)
    assert len(await world.plane.messages("GPUsIdle")) == 1
    assert await world.plane.messages("GPUsInUse") == []


async def test_who_uses_the_gpu_again_is_left_alone_and_hears_it() -> None:
    world = World()
    await world.run()
    await world.after(600)
    world.figures.loads["GPU-1"] = 60.0
    await world.after(299)
    assert await world.notice() is None
    (said,) = await world.plane.messages("GPUsInUse")
    assert said == "the warning about its idle GPUs is taken back: GPU-1: 60 %"
    world.figures.loads["GPU-1"] = 0.0
    await world.after(300)
    assert await world.stop() is None
    assert len(await world.plane.messages("GPUsIdleAhead")) == 2


async def test_a_service_that_is_killed_after_the_warning_grants_the_whole_time_again() -> None:
    world = World()
    await world.run()
    await world.after(600)
    world.at += 3600  # it is down for an hour
    world.keeper = world.begun()
    await world.after(0)
    notice = await world.notice()
    assert notice is not None
    assert notice.acts_at == meta.emit_time(world.at + 300)
    await world.after(299)
    assert await world.stop() is None
    await world.after(1)
    assert await world.stop() is not None


async def test_a_clock_that_jumps_shortens_no_warning() -> None:
    world = World()
    elapsed = [0.0]
    await world.run()
    world.keeper._clock = lambda: elapsed[0]
    await world.after(600)
    await world.after(86400)  # the wall clock alone
    assert await world.stop() is None
    elapsed[0] = 300
    await world.after(0)
    assert await world.stop() is not None


async def test_without_figures_nothing_is_done_and_that_is_said_once() -> None:
    world = World()
    world.figures.loads["MIG-1"] = None
    await world.run(devices="MIG-1")
    await world.after(600)
    await world.after(86400)
    assert await world.stop() is None
    notice = await world.notice()
    assert notice is not None
    assert notice.action == core.IDLE_UNKNOWN
    (said,) = await world.plane.messages("GPUsNotJudged")
    assert "no figures of the load of MIG-1" in said
    world.figures.loads["MIG-1"] = 50.0
    await world.after(30)
    assert await world.notice() is None


async def test_figures_that_cannot_be_read_end_nobody_and_say_nothing_of_the_machine() -> None:
    world = World()
    await world.run()
    await world.after(600)
    world.figures.is_kept = False
    await world.after(3600)
    assert await world.stop() is None
    said = " ".join([*await world.plane.messages("GPUsInUse"), *await world.plane.messages("GPUsNotJudged")])
    assert said
    assert "/var" not in said


async def test_a_tenant_is_neither_freed_by_what_it_says_nor_by_a_queue_it_names() -> None:
    world = World()
    await world.plane.add_queue("free", idle=IdleSpec(action="off"))
    labels: Mapping[str, str] = {"kueue.x-k8s.io/queue-name": "free", "fairlead.dev/idle": "exempt"}
    await world.run(labels=labels, annotations={"fairlead.dev/idle-exempt": "true"})
    await world.after(600)
    assert await world.notice() is not None


async def test_the_neighbour_on_the_same_gpu_ends_nobody() -> None:
    world = World()
    await world.run("mine", namespace="red", devices="GPU-1::0")
    await world.run("theirs", namespace="blue", devices="GPU-1::1")
    world.figures.loads = {"GPU-1::0": 90.0, "GPU-1::1": 90.0}  # the board's load, whoever makes it
    await world.after(7200)
    assert await world.notice("mine", "red") is None
    assert await world.notice("theirs", "blue") is None


async def test_exempt_accounts_and_containers_are_left_alone() -> None:
    world = World(Policy(**{**_fields(_STOP), "exempt": frozenset({"ann", "red/a"})}))
    await world.run("a", namespace="user-1000")
    await world.run("a", namespace="red")
    await world.run("b", namespace="red")
    await world.after(600)
    assert await world.notice("a", "user-1000") is None
    assert await world.notice("a", "red") is None
    assert await world.notice("b", "red") is not None


def _fields(one: Policy) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("action", "below_percent", "after_s", "warn_s", "source")}


async def test_what_may_be_restarted_goes_back_to_the_queue() -> None:
    world = World(Policy(**{**_fields(_STOP), "action": "requeue"}))
    await world.run("again", restart_policy="Always")
    await world.run("once", restart_policy="Never")
    await world.after(600)
    await world.after(300)
    assert world.requeued == ["again"]
    assert await world.stop("again") is None
    assert await world.stop("once") is not None


async def test_a_policy_that_is_switched_off_takes_its_warnings_back() -> None:
    world = World(Policy(**{**_fields(_STOP), "action": "off"}))
    await world.plane.add_queue("red", namespaces=("red",), idle=IdleSpec(action="stop"))
    await world.run(namespace="red")
    await world.after(600)
    assert await world.notice(namespace="red") is not None
    queue = await world.plane.store.get(Queue, "red")
    await world.plane.store.update(
        msgspec.structs.replace(queue, spec=msgspec.structs.replace(queue.spec, idle=IdleSpec(action="off")))
    )
    await world.after(300)
    assert await world.notice(namespace="red") is None
    assert await world.stop(namespace="red") is None


async def test_one_that_has_just_begun_again_is_not_judged_by_the_time_before() -> None:
    world = World()
    await world.run()
    await world.after(500)
    pod = await world.pod()
    (main,) = pod.status.container_statuses
    again = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at=meta.emit_time(world.at)))
    status = msgspec.structs.replace(
        pod.status, container_statuses=(msgspec.structs.replace(main, state=again, restart_count=1),)
    )
    await world.plane.store.update_status(msgspec.structs.replace(pod, status=status))
    await world.after(200)
    assert await world.notice() is None
    await world.after(400)
    assert await world.notice() is not None
