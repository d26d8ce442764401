"""Counts neighbours by GPU and by what they do, for the metrics."""

from __future__ import annotations

import collections

from fairlead import telemetry
from fairlead.node.lease.neighbours.finder import Found


class NeighbourCounts:
    """Keeps the figures as the last look found them."""

    def __init__(self, meter: telemetry.Meter) -> None:
        """Have said nothing yet."""
        self._meter = meter
        self._said: set[tuple[str, str]] = set()

    def note(self, found: Found) -> None:
        """Say how many there are now; of those that are gone, none."""
        now = collections.Counter((gpu, one.use.value) for gpu, each in found.items() for one in each)
        for labels in self._said | now.keys():
            self._meter.set(telemetry.NEIGHBOURS, now[labels], *labels)
        self._said |= now.keys()
