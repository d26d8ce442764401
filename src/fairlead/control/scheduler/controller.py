"""Binds waiting pods: decisions come from `plan.schedule`, and every refusal is kept with its reasons.

One key stands for the whole queue, so decisions are made one after another from one cache. What is decided is assumed
at once and bound beside the next decision, by so many tasks as `BINDERS` says; steps are written by other tasks,
which never hold a binding up. Equal needs are judged once, pods that nothing helps are left alone (`queue`), only nodes
that changed are judged again (`ranking`), and between slices of judgements the event loop gets its turn.

Before nodes are judged `plan.schedule.workloads` is asked: a pod whose group is not complete, or whose queue has no
room for it, is parked; a group goes whole or not at all. For pods that fit nowhere `Preemptor` may have others end.

A binding carries the pod's uid and version: a writer that changed the pod meanwhile wins, the assumption is forgotten
and the pod looked at again. A binding whose answer was lost may have happened: nothing more is decided until the store
has said whether it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.control.scheduler import cachewatch, eventrecorder, holdback
from fairlead.control.scheduler.binding import binders
from fairlead.control.scheduler.capacityreport import CapacityReport
from fairlead.control.scheduler.defragment import Defragmenter
from fairlead.control.scheduler.eventrecorder import EventRecorder
from fairlead.control.scheduler.gangplacer import Diagnosis, GangPlacer, LoopCalls, Placed
from fairlead.control.scheduler.preemption import Ending, Preemptor
from fairlead.control.scheduler.queuereport import QueueReport
from fairlead.control.scheduler.wakeups import Wakeups
from fairlead.control.scheduler.watchdog import Watchdog
from fairlead.model.container.step import TraceStep
from fairlead.plan.claim import gate
from fairlead.plan.schedule import constraint, constraints
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.cache.entry import Held
from fairlead.plan.schedule.constraint import Reservation
from fairlead.plan.schedule.group import domain
from fairlead.plan.schedule.group.gang import Gang
from fairlead.plan.schedule.preempt import movable
from fairlead.plan.schedule.queue.queue import Group, SchedulingQueue
from fairlead.plan.schedule.ranking import SLICE
from fairlead.plan.schedule.rankings import PlainRankings, Rankings
from fairlead.plan.schedule.reference import PodInfo
from fairlead.plan.schedule.shard.pool import Shard
from fairlead.plan.schedule.summary import Summary
from fairlead.plan.schedule.trial import Trial
from fairlead.plan.schedule.workloads import Workloads
from fairlead.settings import ControlSettings
from fairlead.store.port import PatchingStore
from fairlead.store.subresource import Placement
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.scheduling import podgroup

UNRECORDED_S: Final = 5.0
"""After this, steps that the store did not take are written again."""
RETRY_S: Final = 30.0
"""After which a pod is tried again whose binding was refused; twice as long each time, up to ten minutes."""
GANG_S: Final = 30.0
"""How long the place of a gang's pod is kept whose binding has to be tried again."""
BINDERS: Final = 16
"""Bindings in flight."""
STALLED_S: Final = 120.0
"""Longer than any slice of judgements or request takes: a round that gave no heartbeat for so long hangs."""
_LOOK: Final = 10
"""What looking at a pod costs beside judging nodes, in judgements."""
_QUEUE: Final = "pending-pods"
_RACED: Final = (errors.Conflict, errors.NotFound)
_REFUSED: Final = (errors.Invalid, errors.Denied)


@dataclass(frozen=True, slots=True)
class _Binding:
    """A pod that is bound to a node."""

    pod: core.Pod
    node: str
    step: TraceStep
    reserved: tuple[Reservation, ...]
    """What is written first."""


class Scheduler:
    """Binds pods that carry our scheduler name."""

    name = "scheduler"

    def __init__(  # noqa: PLR0913 - what is composed is said in one place
        self,
        store: PatchingStore,
        placement: Placement,
        settings: ControlSettings,
        *,
        rankings: Rankings | None = None,
        groups: tuple[type[podgroup.PodGroup], ...] = podgroup.KINDS,
        meter: telemetry.Meter = telemetry.UNMETERED,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] | None = time.time,
        more: Sequence[constraints.Make] = (),
    ) -> None:
        """Take the store, what binds pods in it, and the name we answer to; `clock` gives monotonic seconds.

        Args: rankings: what judges nodes; None: node by node.   groups: whose PodGroups the store may have.
              date: Unix seconds, for `Cache`.   more: constraints that one machine alone has.
        """
        self._group_kinds, self._spreads = groups, settings.default_spread
        self._store = store
        self._placement = placement
        self._meter = meter
        self._workloads = works = Workloads(half_life_s=settings.usage_half_life_s, pod_policies=settings.pod_policies)
        self._queue = SchedulingQueue(clock, queue_of=works.queue_of, choose=works.choose)
        self._cache = Cache(
            self._queue,
            lambda pod: pod.spec.scheduler_name == settings.scheduler_name,
            clock,
            workloads=works,
            date=date,
            levels=domain.levels_of(settings.topology_levels),
            shard=Shard(settings.shard_label, settings.shard),
            made=constraints.made(
                gate.of_setting(settings.feature_gates), is_best=settings.claimed_devices == "best", more=more
            ),
        )
        known = (self._cache, works, self._queue)
        self._preemptor = Preemptor(*known, (store, placement), date or time.time, settings)
        self._moves = Defragmenter(*known, self._preemptor, settings, (clock, date or time.time))
        self._watchdog = Watchdog(*known, meter, clock)
        self._report = QueueReport(store, works, clock)
        self._capacity = CapacityReport(meter, clock)
        self._rankings = PlainRankings(settings.policy) if rankings is None else rankings
        self._wakeups = Wakeups(*known, self._preemptor, self._rankings)
        loop = LoopCalls(judge=self._judge, absorb=self._wakeups.absorb, group=self._groups)
        self._placer = GangPlacer(self._cache, loop)
        self._step = functools.partial(eventrecorder.step, self._rankings.policy)
        self._doubtful: dict[str, core.Pod] = {}
        """Pods by uid whose binding was sent and not answered."""
        self._unanswered: tuple[Reservation, ...] = ()
        """Reservations that were sent and not answered."""
        self._recorder = EventRecorder(store, self._cache, self._queue, self._alive)
        self._news = asyncio.Event()
        """Set when a watch reported a change, or a task of this round ended."""
        self._busy = 0
        """Tasks of this round."""
        self._slots = asyncio.Semaphore(BINDERS)
        self._broken: errors.FairleadError | None = None
        """Why this round ends before its time: the store does not answer."""
        self._judged = 0
        """Judgements since the event loop had its turn."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods and nodes; and, where they are served, groups, queues and disruption budgets."""
        around = cachewatch.WatchedState(self._cache, self._workloads, self._queue, self._preemptor, self._report)
        spread = cachewatch.selectors(self._cache) if self._spreads else ()
        return (
            *cachewatch.watches(self._cache, self._changed),
            *spread,
            *around.watches(self._group_kinds, self._changed),
        )

    def _changed(self) -> Iterable[str]:
        self._news.set()
        return (_QUEUE,)

    async def reconcile(self, _key: str) -> float | None:
        """Look at pods until none is left and everything is bound and written, or the store is away."""
        await self._resolve_doubts()
        self._broken = None
        self._recorder.begin()
        self._report.wake()
        async with asyncio.TaskGroup() as tasks:
            while self._broken is None:
                self._news.clear()
                await self._decide(tasks)
                await self._move(tasks)
                self._capacity.say(self._cache.views, self._queue.kinds)
                if self._report.is_due:
                    self._start(tasks, self._report.write(self._fail), "reports queues")
                if not self._busy:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_soonest(*self._times())):
                        await self._news.wait()
        if self._broken is not None:
            raise self._broken
        late_s = UNRECORDED_S if self._recorder.is_behind else None
        return _soonest(*self._times(), late_s, self._report.due_s, self._cache.rejections_due_s())

    def _times(self) -> tuple[float | None, ...]:
        """Return the seconds after which something is to be looked at."""
        times = self._queue.next_due_s(), self._cache.settles_in_s(), self._cache.expires_in_s()
        return *times, self._moves.due_s, self._watchdog.due_s

    async def _resolve_doubts(self) -> None:
        for uid, pod in tuple(self._doubtful.items()):
            found = None
            with contextlib.suppress(errors.NotFound):
                found = await self._store.get(core.Pod, pod.metadata.name, pod.metadata.namespace)
            self._cache.correct(uid, found)
            del self._doubtful[uid]
        while self._unanswered:
            await binders.resolve(self._store, self._cache, self._unanswered[:1])
            self._unanswered = self._unanswered[1:]

    # decisions

    async def _decide(self, tasks: asyncio.TaskGroup) -> None:
        """Look at every pod that is to be looked at, one after another."""
        for uid in self._cache.expire():
            self._queue.recall(uid)
        self._tell(tasks)
        while self._broken is None:
            await self._take_changes()
            self._queue.release()
            pod = self._queue.pop()
            self._meter.set(telemetry.PENDING, len(self._queue))
            if pod is None:
                if await self._watch():
                    continue
                return
            try:
                await self._look(pod, tasks)
            finally:
                self._queue.end_looks()
            self._release_part(pod, tasks)
            self._tell(tasks)
            await self._worked(_LOOK)

    async def _take_changes(self) -> None:
        """Wake the pods that may fit on nodes that changed."""
        async for count in self._wakeups.take():
            await self._worked(count)

    async def _worked(self, count: int) -> None:
        """Count judgements, and give the event loop its turn after a slice of them."""
        self._judged += count
        if self._judged >= SLICE:
            self._judged = 0
            self._alive()
            await asyncio.sleep(0)

    def _alive(self) -> None:
        """Give a heartbeat within a round; the work queue gives those at its begin and end."""
        self._meter.heartbeat(f"{self.name} of {_QUEUE}", STALLED_S)

    async def _look(self, pod: core.Pod, tasks: asyncio.TaskGroup) -> None:
        if self._is_kept_back(pod):
            return
        gang = self._workloads.gang(pod.metadata.uid)
        pods = (pod,) if gang is None else gang.chosen()
        if gang is not None and self._is_kept_back_by(pod, gang, pods):
            return
        key = gang.key if gang is not None else self._workloads.standing(pod)
        groups = self._groups(pods, key)
        group = self._queue.group_of(pod.metadata.uid)
        if not groups or group is None:
            self._queue.block(pod.metadata.uid)
            return
        has_room = any(self._cache.find_held(one) for one in (pod, *pods))
        if group.refusal is not None and not has_room and not self._queue.is_judged(pod.metadata.uid):
            if not group.is_woken:  # else it is judged again in a moment
                self._refuse(pod, "Unschedulable", group.refusal.message, group.refusal)
        elif gang is not None:
            for one in pods:
                self._queue.take(one.metadata.uid)
            await self._look_at_gang(gang, pods, tasks)
        else:
            await self._look_at_one(pod, group, tasks)

    def _is_kept_back(self, pod: core.Pod) -> bool:
        """Return whether something other than nodes keeps a pod waiting, and record the reason."""
        if found := holdback.own(self._cache, pod):
            self._cache.release(pod.metadata.uid)
            self._queue.block(pod.metadata.uid)
            self._refuse(pod, *found)
            return True
        token, words = self._workloads.refusal(pod.metadata.uid)
        if token:
            self._queue.park(pod.metadata.uid, self._workloads.alike(pod.metadata.uid))
            self._refuse(pod, token, words)
        return bool(token)

    def _is_kept_back_by(self, pod: core.Pod, gang: Gang, pods: tuple[core.Pod, ...]) -> bool:
        """Tell whether something of another pod keeps the gang waiting, or the pod is not among the first of it."""
        if found := holdback.of_gang(self._cache, pod, gang, pods):
            self._queue.park(pod.metadata.uid, ("beyond", *gang.key))
            self._refuse(pod, *found)
        return found is not None

    def _groups(self, pods: Iterable[core.Pod], key: tuple[str, ...]) -> list[Group]:
        """Return the groups of pods that are placed at once; none where the need of one cannot be read."""
        found = []
        for pod in pods:
            try:
                found.append(self._queue.group(pod, self._cache.need(pod), of=key))
            except errors.Invalid as error:
                self._meter.add(telemetry.DECISIONS, "failed")
                self._refuse(pod, "SchedulerError", error.message)
                return []
        return found

    async def _look_at_one(self, pod: core.Pod, group: Group, tasks: asyncio.TaskGroup) -> None:
        had = self._let_go((pod,))
        with telemetry.timed("pod placed", pod=pod.metadata.name) as timing:
            found, blockers = await self._judge(group.need)
            if found.node is None and (room := self._preemptor.lendable(pod)):
                with Trial(self._cache) as trial:
                    for one in room:
                        trial.lend(one.pod.metadata.uid)
                    found, blockers = await self._judge(group.need)
        self._meter.observe(telemetry.DECISION, timing.duration_s)
        if found.node is None:
            self._queue.rest(group, found, blockers)
        if group.members.get(pod.metadata.uid) is not pod:
            return  # bound, changed or deleted while it was judged
        if self._cache.concerned(group.need).key() != group.need.key():
            self._queue.put(pod)  # a pod came meanwhile whose rules are about this one
            return
        if found.node is None:
            words = self._make_room((pod,), tasks, had)
            if not words:
                self._give_back(pod, blockers, tasks)
            self._refuse(pod, "Unschedulable", f"{found.message}{words}", found, duration_s=timing.duration_s)
        elif (reserved := self._cache.reserve(pod, group.need, found.node)) is None:
            self._queue.delay(pod)
        elif binders.waiting(reserved):
            reserved = tuple(one.while_held() for one in reserved)
            self._cache.assume_reserved(reserved)
            self._cache.hold(pod, found.node, for_s=binders.hold_s(reserved))
            words = binders.words(group.need, found.node, reserved)
            self._refuse(pod, binders.reason(reserved), words, found, duration_s=timing.duration_s)
            self._start(tasks, self._have_made(pod, reserved), f"writes what {pod.metadata.name} needs")
        else:
            group.refusals = 0
            self._cache.assume_reserved(reserved)
            step = self._step("Scheduled", eventrecorder.assigned(pod, found), found, duration_s=timing.duration_s)
            await self._bind_beside(_Binding(pod, found.node, step, reserved), tasks)

    async def _look_at_gang(self, gang: Gang, pods: tuple[core.Pod, ...], tasks: asyncio.TaskGroup) -> None:
        """Assume a place for each pod that the gang lacks, then bind them all; or take all of it back."""
        had = self._let_go(tuple(gang.waiting.values()))
        with telemetry.timed("gang placed", pod=gang.name) as timing, Trial(self._cache) as trial:
            placed = await self._placer.place(gang, pods, trial)
            if not placed.waits:
                trial.commit()
        if placed.refusal is not None:
            self._refuse_gang(gang, pods, placed.refusal, tasks, had)
        if placed.waits:
            self._hold_gang(placed, tasks)
            return
        for pod, summary in placed.found:
            step = self._step("Scheduled", eventrecorder.assigned(pod, summary), summary, duration_s=timing.duration_s)
            reserved = placed.reserved.get(pod.metadata.uid, ())
            await self._bind_beside(_Binding(pod, summary.node or "", step, reserved), tasks)
        whole = self._workloads.gangs.of(pods[0].metadata.uid) if placed.found else None
        for uid in whole.waiting if whole is not None else ():
            self._queue.recall(uid)  # those beyond the minimum may go now

    def _hold_gang(self, placed: Placed, tasks: asyncio.TaskGroup) -> None:
        """Hold room for every pod of a gang until what all of them need is written; none is bound before."""
        self._wakeups.absorb()
        held = {uid: tuple(one.while_held() for one in found) for uid, found in placed.reserved.items()}
        every = tuple(one for reserved in held.values() for one in reserved)
        with Trial(self._cache) as trial:
            trial.reserve(every)  # until their tasks have said so to the store, no other pod takes the same
            trial.commit()
        for pod, summary in placed.found:
            words = binders.words(self._cache.need(pod), summary.node or "", every)
            self._cache.hold(pod, summary.node or "", for_s=binders.hold_s(every))
            self._refuse(pod, binders.reason(every), words, summary)
        for pod, _ in placed.found:
            if reserved := held.get(pod.metadata.uid, ()):
                self._start(tasks, self._have_made(pod, reserved), f"writes what {pod.metadata.name} needs")

    def _refuse_gang(
        self, gang: Gang, pods: tuple[core.Pod, ...], why: Diagnosis, tasks: asyncio.TaskGroup, had: tuple[Held, ...]
    ) -> None:
        refusal, blockers = why
        # Forgetting an assumption queues the pod again without its group of equal needs: groups are looked up again.
        for group in {one.key: one for one in self._groups(pods, gang.key)}.values():
            self._queue.rest(group, refusal, blockers)
        words = self._make_room(pods, tasks, had)
        for pod in pods:
            if not words:
                self._give_back(pod, blockers, tasks)
            self._refuse(pod, "Unschedulable", f"{refusal.message}{words}", refusal)

    def _give_back(self, pod: core.Pod, blockers: frozenset[str], tasks: asyncio.TaskGroup) -> None:
        """Give back what a pod that fits nowhere has of constraints that refuse it nodes, so that it may elsewhere."""
        if blockers & constraint.FILTERS.keys() and (given := self._cache.give_back(pod)):
            self._cache.assume_reserved(given)
            self._start(tasks, self._have_made(pod, given), f"gives back what {pod.metadata.name} has")

    def _let_go(self, pods: tuple[core.Pod, ...]) -> tuple[Held, ...]:
        """Take back the room held for pods that are judged now; returns what it was."""
        released = [self._cache.release(self._cache.find_held(pod)) for pod in pods]
        return tuple(one for one in released if one is not None)

    def _make_room(self, pods: tuple[core.Pod, ...], tasks: asyncio.TaskGroup, had: tuple[Held, ...]) -> str:
        """Have other pods end, or hold room, for pods that fit nowhere; returns a sentence for their message, or "".

        Args: had: the room that was held for them until now.
        """
        if barred := next((pod for pod in pods if self._queue.is_barred(pod.metadata.uid)), None):
            # Others would end, or wait, for a pod that then is not bound: once for each of its tries.
            whose = "it" if barred is pods[0] and len(pods) == 1 else barred.metadata.name
            return f" No room is made for it: the binding of {whose} was refused, and it has not changed since."
        found = self._preemptor.find(pods, had_room=any(not one.is_waited_for for one in had))
        plan, endings = found or (None, ())
        words = self._preemptor.take(pods, plan, endings) if plan is not None else ""
        if not words:
            words = self._preemptor.reserve(pods, had)
        if not words:
            return ""
        for pod in pods if not had else ():
            self._queue.stir(pod.metadata.uid)
        for one in endings:
            self._start(tasks, self._end(one), f"ends {one.pod.metadata.name}")
        return f" {words[0].upper()}{words[1:]}."

    def _release_part(self, pod: core.Pod, tasks: asyncio.TaskGroup) -> None:
        """End what is bound of a gang that a stop between two bindings left in part, where the rest finds no room."""
        for one in self._preemptor.release_part(self._workloads.gang(pod.metadata.uid), pod):
            self._start(tasks, self._end(one), f"ends {one.pod.metadata.name}")

    async def _watch(self) -> bool:
        """Look, where it is time for that, for pods that were overlooked; returns whether it was time."""
        if self._watchdog.due_s != 0:
            return False
        async for pod, words in self._watchdog.run(self._judge, self._rankings, self._news.is_set):
            self._recorder.note(pod, self._step("Overlooked", words, None, duration_s=None))
        for uid in self._preemptor.next_heads():
            self._queue.retry(uid)
        return True

    async def _move(self, tasks: asyncio.TaskGroup) -> None:
        """Have pods move elsewhere for larger ones, where it is time for that."""
        if self._moves.due_s != 0:
            return
        await self._take_changes()
        for one in self._moves.endings():
            self._start(tasks, self._end(one), f"moves {one.pod.metadata.name}")

    def plan_moves(self) -> movable.Plan:
        """Return which pods could move now so that larger ones fit, and one more of the largest size; moves none."""
        self._wakeups.absorb()
        return self._moves.plan(is_for_largest=True)

    async def _end(self, ending: Ending) -> None:
        self._recorder.note(ending.pod, self._step(ending.event, ending.why, None, duration_s=None))
        try:
            await self._preemptor.end(ending)
        except errors.FairleadError as error:
            self._broken = error

    async def _judge(self, need: PodInfo) -> Diagnosis:
        """Return where the need fits, and which filters refused; nothing has changed by then."""
        self._wakeups.absorb()
        ranking = self._rankings.of(need)
        while True:
            for count in ranking.refresh(self._cache.views):
                await self._worked(count)
            if self._cache.is_current:
                found = ranking.summary()
                return found, frozenset() if found.fitting else ranking.blockers
            self._wakeups.absorb()

    async def _have_made(self, pod: core.Pod, reserved: tuple[Reservation, ...]) -> None:
        try:
            await binders.bind(self._store, self._cache, reserved)
        except _RACED as error:
            self._cache.release(pod.metadata.uid)
            self._queue.delay(pod)
            telemetry.log.info("pod is decided again", pod=pod.metadata.name, reason=error.reason)
        except _REFUSED as error:
            self._cache.release(pod.metadata.uid)
            self._defer(pod, error)
        except errors.FairleadError as error:
            self._unanswered += reserved
            self._queue.delay(pod)
            self._fail(error)

    # bindings

    async def _bind_beside(self, binding: _Binding, tasks: asyncio.TaskGroup) -> None:
        pod = binding.pod
        if not self._cache.is_assumed(pod.metadata.uid):
            self._cache.assume(pod, binding.node)
        self._recorder.withdraw(pod.metadata.uid)
        await self._slots.acquire()
        if self._broken is not None:
            self._cache.forget(pod.metadata.uid)
            self._cache.withdraw_reserved(binding.reserved)
            self._slots.release()
            return
        self._start(tasks, self._bind(binding), f"binds {pod.metadata.name}")

    async def _bind(self, binding: _Binding) -> None:
        pod, node = binding.pod, binding.node
        uid = pod.metadata.uid
        is_reserved = False
        telemetry.crash_point("scheduler.before-bind")
        try:
            await binders.bind(self._store, self._cache, binding.reserved)
            pod = await binders.make(self._store, self._cache, binding.reserved, pod)
            is_reserved = True
            await self._placement.bind(pod, node)
        except _RACED as error:
            await self._unmake(binding)
            self._meter.add(telemetry.DECISIONS, "lost")
            self._cache.forget(uid)
            if self._workloads.gangs.of(uid) is not None:
                self._cache.hold(pod, node, for_s=GANG_S)  # the others are bound: its place is not for other pods
            self._queue.delay(pod)
            telemetry.log.debug("pod changed while it was placed", pod=pod.metadata.name, reason=error.reason)
        except _REFUSED as error:
            await self._unmake(binding)
            self._defer(pod, error)
        except errors.FairleadError as error:
            self._doubtful[uid] = pod
            if not is_reserved:
                self._unanswered += binding.reserved
            self._broken = error
        else:
            self._cache.confirm(uid)
            self._queue.settle(uid)
            self._meter.add(telemetry.DECISIONS, "bound")
            telemetry.crash_point("scheduler.after-bind")
            telemetry.log.info("pod bound", pod=pod.metadata.name, node=node)
            self._recorder.note(pod, binding.step)
        finally:
            self._slots.release()

    def _defer(self, pod: core.Pod, error: errors.FairleadError) -> None:
        """Delay a pod that the store refuses: the pods behind it are placed without waiting."""
        uid, name = pod.metadata.uid, pod.metadata.name
        self._meter.add(telemetry.DECISIONS, "failed")
        self._cache.forget(uid)
        self._queue.bar(uid)
        self._queue.delay(pod, first_s=RETRY_S, last_s=20 * RETRY_S)
        self._refuse(pod, "SchedulerError", error.message)
        telemetry.log.warning("pod cannot be placed", pod=name, reason=error.reason, error=error.message)

    async def _unmake(self, binding: _Binding) -> None:
        """Remove what was made for a binding that failed; what stays is removed when the pod is looked at again."""
        try:
            await binders.undo(self._store, self._cache, binding.reserved, binding.pod)
        except errors.FairleadError as error:
            name = binding.pod.metadata.name
            telemetry.log.warning("claim not removed", pod=name, reason=error.reason, error=error.message)

    def _start(self, tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None], name: str) -> None:
        self._busy += 1
        tasks.create_task(work, name=name).add_done_callback(self._ended)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._busy -= 1
        self._alive()
        self._news.set()

    # words

    def _refuse(
        self, pod: core.Pod, reason: str, message: str, found: Summary | None = None, *, duration_s: float | None = None
    ) -> None:
        step = self._step("FailedScheduling", message, found, duration_s=duration_s)
        if self._recorder.refuse(pod, reason, step) and found is not None:
            self._meter.add(telemetry.DECISIONS, "refused")

    def _tell(self, tasks: asyncio.TaskGroup) -> None:
        """Start a task that writes the waiting steps."""
        if self._recorder.has_work:
            self._start(tasks, self._recorder.run(lambda: self._broken is not None, self._fail), "tells")

    def _fail(self, error: errors.FairleadError) -> None:
        self._broken = error


def _soonest(*times: float | None) -> float | None:
    return min((one for one in times if one is not None), default=None)
