"""Remembers which processes have a GPU open that was given back, and since when.

A pod's last process is still ending when its kubelet reports the pod's end: for a moment the GPU is given back and
open. A kubelet that hears `Unhealthy` in that moment fails the next pod for good, so the GPU stays offered for
`PATIENCE_S`, and Allocate waits for the process instead.
Source: kubernetes pkg/kubelet/cm/devicemanager (devicesToAllocate: "no healthy devices present").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fairlead.model.neighbour import Neighbour
from fairlead.plan.lease.row import Row, State

PATIENCE_S: Final = 6.0
"""How long a GPU stays offered that was given back and is open: longer than Allocate waits for it."""
_GIVEN_BACK: Final = frozenset({State.RELEASING, State.DIRTY})
_WAITING: Final = _GIVEN_BACK | {State.UNKNOWN}


class Openers:
    """Processes that had GPUs open, or may have had, at the last look; a GPU is named by its row's key."""

    def __init__(self, *, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        """Know none yet.   Args: patience_s: seconds.   clock: monotonic, in seconds."""
        self._patience_s, self._clock = patience_s, clock
        self._processes: dict[str, tuple[str, ...]] = {}
        self._neighbours: dict[str, tuple[Neighbour, ...]] = {}
        self._since: dict[str, float] = {}

    def saw(self, row: Row, processes: tuple[str, ...], neighbours: tuple[Neighbour, ...] = ()) -> None:
        """Take in a look at a GPU whose row was this one. Args: neighbours: those that keep it, beside them."""
        self._processes[row.key], self._neighbours[row.key] = processes, neighbours
        if row.state in _GIVEN_BACK and processes:
            self._since.setdefault(row.key, self._clock())
        else:
            self._since.pop(row.key, None)

    def of(self, row: Row) -> tuple[str, ...]:
        """Return the processes that keep a GPU from its next tenant; none where the ledger does not wait for them."""
        return self._processes.get(row.key, ()) if row.state in _WAITING else ()

    def neighbours(self, row: Row) -> tuple[Neighbour, ...]:
        """Return the programs that Fairlead did not start and that keep a GPU; none where a pod has the GPU."""
        return self._neighbours.get(row.key, ()) if row.state in _WAITING else ()

    def is_ending(self, row: Row) -> bool:
        """Return whether a GPU is kept by processes that have not had the time yet to end."""
        if row.state not in _GIVEN_BACK or not self.of(row):
            return False
        return self._clock() - self._since.get(row.key, self._clock()) < self._patience_s
