"""Moves pods to other nodes so that larger ones fit: looks for moves at intervals, and holds room for those it makes.

What is proposed (`plan.schedule.preempt.movable`) is held at once: the room on the node that is cleared for the pod
that waits, and the room where each moved pod goes for the one that its controller recreates (`Cache.keep`), so that no
other pod takes either. Nothing more is moved until all of those came, or their time is over. Off unless
`control.defragment` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fairlead import telemetry
from fairlead.control.scheduler.preemption import SLACK_S, Ending, Preemptor, named
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.preempt import movable
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.reference import gpus_of
from fairlead.plan.schedule.workloads import Workloads
from fairlead.settings import ControlSettings
from fairlead.wire.kubernetes import core

OFF: Final = "off"
_MOVED: Final = "moved:"
_LEAST_S: Final = 1.0
"""Between two searches, at the least, whatever `control.defragment_every_s` says."""


class Defragmenter:
    """Chooses moves; the scheduler's loop asks it once all waiting pods are judged."""

    def __init__(
        self,
        cache: Cache,
        workloads: Workloads,
        queue: SchedulingQueue,
        preemptor: Preemptor,
        settings: ControlSettings,
        clocks: tuple[Callable[[], float], Callable[[], float]],
    ) -> None:
        """Take what is known of pods and nodes; `clocks` give monotonic and Unix seconds."""
        self._cache, self._workloads, self._queue, self._preemptor = cache, workloads, queue, preemptor
        self._settings = settings
        self._clock, self._date = clocks
        self._searched_at = self._clock()
        self._kept: set[str] = set()
        """Under which uids room is kept for pods that were moved, and for blocks."""

    @property
    def due_s(self) -> float | None:
        """Seconds until moves are looked for again, None where they never are."""
        if self._settings.defragment == OFF:
            return None
        return max(0.0, self._searched_at + max(_LEAST_S, self._settings.defragment_every_s) - self._clock())

    def endings(self) -> tuple[Ending, ...]:
        """Return the pods that are moved now; room is held for all of them and for those they move for."""
        if self.due_s != 0:
            return ()
        self._searched_at = self._clock()
        self._kept &= self._cache.held.keys()
        if any(uid.startswith(_MOVED) for uid in self._kept):
            return ()
        for uid in self._kept:
            self._cache.release(uid)  # a block: those who left it are elsewhere
        self._kept.clear()
        with telemetry.timed("moves looked for"):
            found = self.plan(is_for_largest=self._settings.defragment == "largest")
        return tuple(one for step in found.steps for one in self._carry_out(step))

    def plan(self, *, is_for_largest: bool) -> movable.Plan:
        """Return the moves that are proved now; every change of pods and nodes has been taken in."""
        waiting = (pod for pod in self._queue.refused() if pod.metadata.uid not in self._cache.held)
        options = movable.Options(
            scheduler_name=self._settings.scheduler_name,
            moves=self._settings.defragment_moves,
            min_runtime_s=self._settings.defragment_min_runtime_s,
            is_for_largest=is_for_largest,
            now=self._date(),
        )
        return movable.propose(self._cache, self._workloads, self._preemptor.budgets, waiting, options)

    def _carry_out(self, step: movable.Step) -> tuple[Ending, ...]:
        moves, goal = step.proposal.moves, step.goal
        pods = {pod.metadata.uid: pod for pod, _ in self._cache.placed()}
        for_s = max(pods[one.pod.uid].spec.termination_grace_period_seconds for one in moves) + SLACK_S
        if step.is_waiting:
            self._cache.hold(goal, step.proposal.node, for_s=for_s)
        else:
            self._keep(goal, step.proposal.node, for_s)
        found = list[Ending]()
        for one in moves:
            pod = pods[one.pod.uid]
            self._keep(movable.anew(pod, f"{_MOVED}{one.pod.uid}"), one.node, for_s)
            self._workloads.end(one.pod.uid)
            why = f"moved so that {self._whose(step, pod)} fits on {step.proposal.node}; room is kept on {one.node}"
            found.append(Ending(pod=pod, why=why, event="Moved", condition="Defragmentation"))
        return tuple(found)

    def _keep(self, pod: core.Pod, node: str, for_s: float) -> None:
        self._cache.keep(pod, node, for_s=for_s)
        self._kept.add(pod.metadata.uid)

    def _whose(self, step: movable.Step, reader: core.Pod) -> str:
        if step.is_waiting:
            return named([step.goal], reader)[0]
        return f"one more pod of {gpus_of(self._cache.need(step.goal).requests)} GPUs"
