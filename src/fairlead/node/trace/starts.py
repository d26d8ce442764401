"""Counts the starts of a node's containers by phases beside a real kubelet, and records those that took too long.

On one machine the controller `startphase` does the same from what every layer recorded. Here there are only the pod and
the node's own steps: what Kubernetes dates is dated to the second, a pull is part of `sandbox`, and nobody reads a
container's first output.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

from fairlead import telemetry
from fairlead.model.container.step import TraceStep
from fairlead.plan import trace
from fairlead.plan.sandbox import startphase
from fairlead.store import tracerecorder
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, meta

CountStart = Callable[[core.Pod, Iterable[TraceStep], telemetry.Meter], Awaitable[bool]]


async def count_none(_pod: core.Pod, _steps: Iterable[TraceStep], _meter: telemetry.Meter) -> bool:
    """Count nothing."""
    return True


class Starts:
    """The starts that this agent saw."""

    def __init__(self, store: Store, node: str, *, objectives: str) -> None:
        """Take where slow starts are recorded. Args: objectives: as `startphase.parse_objectives`. Raises: as that."""
        self._store, self._node = store, node
        self._objectives = startphase.parse_objectives(objectives)
        self._began = time.time()

    async def count(self, pod: core.Pod, steps: Iterable[TraceStep], meter: telemetry.Meter) -> bool:
        """Count one pod's start. Returns whether nothing is left to do: it was counted, or an earlier agent's.

        Args: steps: what this node recorded of the pod; without its container's start nothing is counted.
        """
        found = startphase.phases(_dated(pod, steps))
        if not startphase.is_whole(found):
            return False
        if found[-1].end < self._began:
            return True
        size = startphase.size(pod)
        startphase.observe(found, size, meter)
        slow = startphase.judge(found, self._objectives, size, at=time.time())
        if slow is None:
            return True
        about = tracerecorder.reference(pod)
        return await tracerecorder.record(self._store, about, slow, host=self._node, once=startphase.SLOW)


def _dated(pod: core.Pod, steps: Iterable[TraceStep]) -> tuple[TraceStep, ...]:
    """Return the steps with the pod's acceptance and its scheduler's choice, as the object dates them."""
    known = trace.with_acceptance(tuple(steps), pod)
    bound = next((one for one in pod.status.conditions if one.type == "PodScheduled" and one.status == "True"), None)
    at = meta.timestamp(bound.last_transition_time) if bound is not None else None
    if at is None:
        return known
    step = TraceStep(layer="scheduler", reason="Scheduled", message="", at=max(at, min(one.at for one in known)))
    return (*known, step)
