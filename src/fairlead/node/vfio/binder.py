"""Binds this node's NVIDIA GPUs to VFIO where the settings or the node's label ask for it, and never takes them back.

What cannot be bound (a process has it open, its group is not viable) is logged once with what mends it, left as it is,
and tried again. Neither another label nor an agent's end undoes a binding: `fairlead vfio release` does, for a person.
Source: NVIDIA GPU operator, the label `nvidia.com/gpu.workload.config`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from fairlead import telemetry
from fairlead.model.vfio import Snapshot
from fairlead.node.inventory import latest
from fairlead.node.vfio import executor

BIND: Final = "bind"
LABEL: Final = "label"
"""Values of `node.vfio`: bind at once, and where the label says so."""
WORKLOAD: Final = "nvidia.com/gpu.workload.config"
PASSTHROUGH: Final = "vm-passthrough"
AGAIN_S: Final = 60.0
_NVIDIA: Final = 0x10DE

Labels = latest.Latest[Mapping[str, str] | None]


class Binds(Protocol):
    """What binds functions (`executor.Executor`)."""

    async def scan(self) -> Snapshot:
        """Read the machine now."""
        ...

    async def bind(self, addresses: Collection[str]) -> tuple[executor.Outcome, ...]:
        """Bind functions with all that goes with them."""
        ...


class Binder:
    """Keeps this node's GPUs bound to VFIO."""

    def __init__(self, binds: Binds, policy: str, changed: Callable[[], None]) -> None:
        """Bind nothing yet. Args: policy: value of `node.vfio`.   changed: called when something was bound."""
        self._binds, self._policy, self._changed = binds, policy, changed
        self._said: set[str] = set()
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Bind soon: a function may have been put in."""
        self._poked.set()

    async def run(self, labels: Labels | None) -> None:
        """Bind, for ever. Args: labels: of this node; None: nothing knows them."""
        if self._policy not in {BIND, LABEL}:
            return
        async with asyncio.TaskGroup() as tasks:
            if labels is not None:
                tasks.create_task(self._follow(labels), name="passthrough: labels")
            while True:
                self._poked.clear()
                if self._policy == BIND or (labels is not None and (labels.value or {}).get(WORKLOAD) == PASSTHROUGH):
                    await self._bind()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await self._poked.wait()

    async def _follow(self, labels: Labels) -> None:
        """Poke whenever the node's labels are others, for ever."""
        while True:
            await labels.wait(labels.version)
            self.poke()

    async def _bind(self) -> None:
        snapshot = await self._binds.scan()
        due = [one.address for one in snapshot.gpus if one.vendor == _NVIDIA and not one.is_bound_to_vfio]
        if not due:
            return
        outcomes = await self._binds.bind(due)
        for outcome in outcomes:
            names = ", ".join(one.address for one in outcome.functions)
            if outcome.is_good:
                telemetry.log.info("gpu bound to vfio", pci=names)
                continue
            why = [one.sentence for one in outcome.refusals]
            if outcome.failure is not None:
                why = [outcome.failure.message, *outcome.left]
            self._say(names, "; ".join(why))
        if any(outcome.is_good for outcome in outcomes):
            self._changed()

    def _say(self, names: str, why: str) -> None:
        if why not in self._said:
            telemetry.log.warning("gpu not bound to vfio", pci=names, error=why)
        self._said.add(why)
