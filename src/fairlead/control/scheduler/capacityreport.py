"""Sets the metrics of free devices and of the pods that fit on them, at most every `EVERY_S`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fairlead import telemetry
from fairlead.plan.schedule import capacity
from fairlead.plan.schedule.reference import Kind, NodeInfo

EVERY_S: Final = 15.0


class CapacityReport:
    """What was said last, and when the next is due."""

    def __init__(self, meter: telemetry.Meter, clock: Callable[[], float]) -> None:
        """Take where figures go; `clock` gives monotonic seconds."""
        self._meter, self._clock, self._said_at = meter, clock, -EVERY_S

    def say(self, nodes: Mapping[str, NodeInfo], waiting: Callable[[], Iterable[Kind]]) -> None:
        """Set the metrics, unless `EVERY_S` is not over yet. Args: waiting: returns the kinds of the pods that wait."""
        if self._clock() - self._said_at < EVERY_S:
            return
        self._said_at = self._clock()
        for one in capacity.capacities(nodes.values(), Counter(waiting())):
            labels = (one.resource, one.model)
            self._meter.set(telemetry.FREE_DEVICES, one.free, *labels)
            self._meter.set(telemetry.LARGEST_POD, one.largest, *labels)
            if one.fragmented is not None:
                self._meter.set(telemetry.FRAGMENTED, one.fragmented, *labels)
