"""Declares who answers questions about figures over time: this machine's own file, or a Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fairlead.frozen import frozen
from fairlead.serve.history.view import GPUMetricsList, HistoryView, MetricsView
from fairlead.wire.kubernetes import core

Sees = Callable[[str], float | None]
"""Returns since when a caller may see what a namespace held, in Unix seconds; None: it may not."""


@frozen
class Question:
    """A period as it was asked for."""

    since: float
    """Unix seconds."""
    until: float
    step_s: int | None = None
    """None: one that a person can read."""


class History(Protocol):
    """Figures over time."""

    async def of_container(self, pod: core.Pod, asked: Question) -> MetricsView:
        """Return a container's figures, and those of its GPUs while it held them. Raises: RequestError."""
        ...

    async def of_gpu(self, gpu: str, asked: Question, *, sees: Sees | None = None) -> MetricsView:
        """Return the figures of a GPU or MIG device.

        Args:    gpu: UUID, or index of the GPU.   sees: what the caller may; None: all of the machine.
        Raises:  NotFound (`GPUUnknown`); RequestError.
        """
        ...

    async def of_gpus(self, *, sees: Sees | None = None) -> GPUMetricsList:
        """Return all GPUs at a glance."""
        ...

    def describe(self) -> HistoryView:
        """Return how figures are kept."""
        ...
