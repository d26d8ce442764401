"""Knows which GPUs of NVLink 5 were reset since the Fabric Manager began: the others keep what an earlier one set up.

In its shared mode a Manager programs the GPUs of NVLink 5 too, and they keep that until they are reset. So after each
start of the Manager every one is due: a free one is reset at once, one that a tenant has when it comes back, and no
partition with one that is due is activated. A reset counts only where the same Manager was there from before it until
after it. Which start it was, and which GPUs were reset since, is on disk before anything follows from it.
Source: NVIDIA gpu-driver-container, issue 909.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from fairlead.model.driver import PassthroughGPU
from fairlead.node.fabric.memory import FabricMemory

Reset = Callable[[PassthroughGPU], Awaitable[None]]
"""Resets a GPU and waits until its memory is scrubbed. Raises: FairleadError: why it is not clean."""


class Resets:
    """The resets since the Manager that answers now began."""

    def __init__(self, memory: FabricMemory, gpus: Callable[[], Iterable[PassthroughGPU]]) -> None:
        """Know no Manager yet. Args: gpus: returns this node's GPUs that are passed through."""
        self._memory, self._gpus = memory, gpus
        self._start = ""
        """Of the Manager that answers now; empty: none does."""
        self._losses = 0
        """How often a Manager that had answered was lost: the same one may answer again, or seem to."""

    def is_due(self, key: str) -> bool:
        """Return whether a GPU must be reset before a tenant gets it; while no Manager answers none counts as due."""
        known = bool(self._start) and key not in self._memory.reset
        return known and any(gpu.is_nvlink5 for gpu in self._gpus() if str(gpu.key) == key)

    @property
    def due_modules(self) -> Mapping[int, str]:
        """Return the module numbers of the GPUs that are due, each with why its partition waits."""
        return {
            gpu.module: f"GPU {gpu.module} ({gpu.address}) was not reset since the Fabric Manager began: NVLink 5 "
            "keeps what an earlier one set up; it is reset when its pod has ended"
            for gpu in self._gpus()
            if gpu.module is not None and gpu.is_nvlink5 and str(gpu.key) not in self._memory.reset
        }

    async def meet(self, start: str) -> bool:
        """Note which start of the Manager answers; returns whether it is another one than before."""
        is_new = start != self._memory.start
        if is_new:
            await asyncio.to_thread(self._memory.note_start, start)
        self._start = start
        return is_new

    def lose(self) -> None:
        """Count no reset from now on until a Manager answers: another one may have begun after it."""
        self._start = ""
        self._losses += 1

    def counting(self, reset: Reset) -> Reset:
        """Return a reset that is counted."""

        async def carry_out(one: PassthroughGPU) -> None:
            start, losses = self._start, self._losses
            await reset(one)
            if start and (start, losses) == (self._start, self._losses):
                await asyncio.to_thread(self._memory.note_reset, start, str(one.key))

        return carry_out
