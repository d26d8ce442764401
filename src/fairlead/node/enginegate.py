"""Judges whether the engine that serves the kubelet would start containers without their devices, and logs it once.

What is given away depends on it, so it is a part of the core: the plugins refuse while `problem` is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.node.engines import kubeletengine, runtimecheck
from fairlead.node.inventory import latest
from fairlead.plan.gpu.allocation import answer

ENGINE_PATIENCE_S: Final = 10.0
"""After this without a word about the engine that serves the kubelet the agent says so."""

_HANGING_S: Final = 60.0
"""To look through a few files takes longer only where a file system hangs."""

Judged = Callable[[tuple[str, ...], errors.Unavailable | None], None]


class EngineGate:
    """The engines that may serve the kubelet, and why devices must not be handed to them."""

    def __init__(
        self, stated: str, *, root: Path, options: Callable[[], answer.AllocateOptions], judged: Judged
    ) -> None:
        """Take what is stated of the engine. Args: options: how Allocate answers.   judged: gets each new judgement."""
        self._engine = kubeletengine.KubeletEngine(stated, root=root)
        self._options, self._judged = options, judged
        self.problem = self._find()
        """Why this node's engine would, or may, start containers without their devices."""
        self._told: errors.Unavailable | None = None

    def _find(self) -> errors.Unavailable | None:
        return answer.find_problem(self._options(), self._engine.engines.value)

    def judge(self) -> None:
        """Judge anew, after the engine or the form of the answers changed; reports a judgement that differs."""
        self.problem = self._find()
        if self._engine.engines.value:
            self._tell()

    async def run(self, node: latest.Latest[str] | None, changed: Callable[[], None]) -> None:
        """Follow the engine, for ever. Args: node: the Node's word for it.   changed: called after each judgement."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._engine.run(node), name="engine")
            tasks.create_task(self._tell_unknown(), name="engine: unknown")
            async for _ in self._engine.engines.changes():
                self.judge()
                changed()

    async def _tell_unknown(self) -> None:
        """Say that the engine is not known; the publisher has a moment for it after the agent's start."""
        await asyncio.sleep(ENGINE_PATIENCE_S)
        if not self._engine.engines.value:
            self._tell()

    def _tell(self) -> None:
        before, self._told = self._told, self.problem
        if (self.problem.reason if self.problem else "") == (before.reason if before else ""):
            return
        if self.problem is not None:
            sentence = errors.sentence(self.problem)
            telemetry.log.warning("nothing is allocated", reason=self.problem.reason, error=sentence)
        self._judged(self._engine.engines.value, self.problem)


async def find_unread(
    options: answer.AllocateOptions, root: Path, meter: telemetry.Meter
) -> errors.FairleadError | None:
    """Return why nothing on this node reads what Allocate answers, None where something does; it is logged."""
    meter.heartbeat("engines' files", _HANGING_S)
    problem = await asyncio.to_thread(runtimecheck.find_problem, options, root)
    if problem is not None:
        telemetry.log.warning("no runtime for these devices", reason=problem.reason, error=errors.sentence(problem))
    return problem
