"""Every pod that waits is in one place of the queue from which something takes it: drawn events, one after another."""

from __future__ import annotations

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.queue.queue import Changes, SchedulingQueue, State
from fairlead.plan.schedule.reference import UNIT, NodeInfo, PodInfo
from fairlead.plan.schedule.summary import Summary
from fairlead.wire.kubernetes import core, meta

GPU = "nvidia.com/gpu"
_NAMES = st.sampled_from([f"p{number}" for number in range(6)])
_ENDS = st.sampled_from(["refuse", "refuse", "refuse", "park", "block", "hold", "stir", "later", "volumes"])
_FULL = Summary(nodes=1, fitting=0, best=(), reasons=())
_GATE = (core.SchedulingGate(name="example.com/wait"),)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _pod(name: str, version: int, priority: int = 0, *, gated: bool = False) -> core.Pod:
    about = meta.ObjectMeta(name=name, uid=name, resource_version=str(version))
    return core.Pod(metadata=about, spec=core.PodSpec(priority=priority, scheduling_gates=_GATE if gated else ()))


def _node(free: int, **more: object) -> NodeInfo:
    return NodeInfo(name="n", is_ready=True, allocatable={GPU: free * UNIT}, **more)  # type: ignore[arg-type]


class QueueMachine(RuleBasedStateMachine):
    """The queue, driven as the scheduler drives it; pods ask for one of two amounts, so that groups have siblings."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.queues = Clock(), dict[str, str]()
        self.queue = SchedulingQueue(self.clock, queue_of=lambda uid: self.queues.get(uid, ""))
        self.free, self.version = 0, 0
        self.held: set[str] = set()

    def _gpus(self, uid: str) -> int:
        return 2 if uid == "p5" else 1

    # events of pods

    @rule(name=_NAMES, priority=st.integers(0, 1), gated=st.booleans(), anew=st.booleans())
    def put(self, name: str, priority: int, gated: bool, anew: bool) -> None:
        self.version += 1
        if anew:  # as the cache does for a pod that changed
            self.queue.drop(name)
        self.queue.put(_pod(name, self.version, priority, gated=gated))

    @rule(name=_NAMES)
    def write(self, name: str) -> None:
        """Take in the condition that was written on a pod."""
        if name in self.queue:
            self.version += 1
            gated = self.queue.state(name) is State.GATED
            self.queue.replace(_pod(name, self.version, gated=gated))

    @rule(name=_NAMES, gone=st.booleans())
    def drop(self, name: str, gone: bool) -> None:
        self.held.discard(name)
        self.queue.drop(name)
        if gone:
            self.queue.settle(name)

    @rule(names=st.lists(_NAMES, unique=True))
    def list_anew(self, names: list[str]) -> None:
        """Begin anew, as when a watch breaks or another process leads."""
        self.queue.clear()
        self.held.clear()
        for name in names:
            self.queue.put(_pod(name, self.version))

    # a look, in each way in which it may end

    @rule(
        ends=st.lists(_ENDS, min_size=1, max_size=4),
        is_refused=st.booleans(),
        meanwhile=st.lists(st.sampled_from(["", "", "", "put", "recall", "retry", "drop", "replace"]), max_size=3),
        of=st.sampled_from([(), (), (), ("gang",)]),
    )
    def decide(self, ends: list[str], is_refused: bool, meanwhile: list[str], of: tuple[str, ...]) -> None:
        """Look at pods until none is left: the first looks end as drawn, the others with what the node says."""
        for _ in range(20):
            pod = self.queue.pop()
            if pod is None:
                break
            end = ends.pop() if ends else "refuse"
            self._look(pod, end, meanwhile.pop() if meanwhile else "", of, is_refused=is_refused)
            self.queue.end_looks()

    def _look(self, pod: core.Pod, end: str, meanwhile: str, of: tuple[str, ...], *, is_refused: bool) -> None:
        uid = pod.metadata.uid
        self._let_go(uid)
        if end in ("park", "block"):
            self.queue.park(uid, ("queue", "team")) if end == "park" else self.queue.block(uid)
            return
        group = self.queue.group(pod, PodInfo(requests={GPU: self._gpus(uid) * UNIT}), of=of)
        if not self.queue.is_judged(uid):
            return
        self._meanwhile(meanwhile, pod)
        if self._gpus(uid) > self.free:
            self.queue.rest(group, _FULL, frozenset({"NodeResourcesFit"}))
            self._make_room(uid, end)
        elif group.members.get(uid) is pod:
            self._bind(pod, is_refused=is_refused, waits_for_volumes=end == "volumes")

    def _meanwhile(self, event: str, pod: core.Pod) -> None:
        uid = pod.metadata.uid
        if event == "put":
            self.queue.put(_pod(uid, self.version))
        elif event == "recall":
            self.queue.recall(uid)
        elif event == "retry":
            self.queue.retry(uid)
        elif event == "drop":
            self.queue.drop(uid)
        elif event == "replace":
            self.queue.replace(_pod(uid, self.version))

    def _bind(self, pod: core.Pod, *, is_refused: bool, waits_for_volumes: bool) -> None:
        uid = pod.metadata.uid
        if waits_for_volumes:
            self._hold(uid)
            return
        self.free -= self._gpus(uid)
        self.queue.drop(uid)
        if is_refused:  # the binding failed: the assumption is forgotten, and the pod delayed
            self.free += self._gpus(uid)
            self.queue.put(pod)
            self.queue.delay(pod)
        else:
            self.queue.settle(uid)

    def _make_room(self, uid: str, end: str) -> None:
        if end in ("hold", "stir"):
            self._hold(uid)
            self.queue.stir(uid)
        elif end == "later":
            self.queue.look_after(uid, 5.0)

    def _hold(self, uid: str) -> None:
        if uid in self.queue:
            self.held.add(uid)
            self.queue.hold(uid)

    def _let_go(self, uid: str) -> None:
        if uid in self.held:
            self.held.remove(uid)
            self.queue.let_go(uid)

    # what happens beside

    @rule(free=st.integers(0, 3), other=st.booleans())
    def change_node(self, free: int, other: bool) -> None:
        """Have a node's free amount change, or more of it than its pods."""
        before, self.free = _node(self.free), free
        after = _node(free, labels={"a": "b"}) if other else _node(free)
        changes: Changes = {"n": (before, after)}
        tuple(self.queue.wake(changes))

    @rule(name=_NAMES)
    def recall(self, name: str) -> None:
        self.queue.recall(name)

    @rule(name=_NAMES)
    def retry(self, name: str) -> None:
        self.queue.retry(name)

    @rule(name=_NAMES)
    def room_expires(self, name: str) -> None:
        self._let_go(name)

    @rule(name=_NAMES, wait_s=st.sampled_from([0.0, 1.0, 400.0]))
    def look_after(self, name: str, wait_s: float) -> None:
        self.queue.look_after(name, wait_s)

    @rule(name=_NAMES, queue=st.sampled_from(["", "team"]))
    def change_queue(self, name: str, queue: str) -> None:
        self.queues[name] = queue
        self.queue.reorder()

    @precondition(lambda self: self.queue.parked())
    @rule()
    def unpark(self) -> None:
        for key, uid in self.queue.parked():
            self.queue.unpark(key, uid)

    @rule(seconds=st.sampled_from([0.1, 5.0, 10.0, 300.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.queue.release()

    # what holds

    @invariant()
    def each_pod_is_in_one_place(self) -> None:
        assert self.queue.problems() == {}

    @invariant()
    def each_pod_is_looked_at_in_the_end(self) -> None:
        """Have time pass, nodes free, and all that holds pods back end: each is looked at."""
        queue, clock = copy.deepcopy(self.queue), Clock()
        clock.now = self.clock.now
        queue._clock = clock
        queue._queue_of = lambda _uid: ""
        for uid in self.held:
            queue.let_go(uid)
        waiting = {uid for uid in (f"p{number}" for number in range(6)) if uid in queue}
        for uid in waiting:
            if queue.state(uid) is State.GATED:
                queue.put(_pod(uid, 0))
        found = set[str]()
        for _ in range(3):
            clock.now += 1000.0
            queue.release()
            while queue.parked():
                for key, uid in queue.parked():
                    queue.unpark(key, uid)
            while (pod := queue.pop()) is not None:
                found.add(pod.metadata.uid)
                queue.drop(pod.metadata.uid)
        assert found == waiting

    @invariant()
    def no_pod_rests_that_a_changed_node_takes(self) -> None:
        """A group whose pods fit is about to be judged, within the longest back-off."""
        for group in self.queue.resting():
            if group.members and reference.first_refusal(group.need, _node(self.free)) is None:
                is_due = group.is_woken or any(self.queue.state(uid) is not State.REFUSED for uid in group.members)
                assert is_due or group.rested_at == self.clock.now


TestQueueStates = QueueMachine.TestCase
TestQueueStates.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
