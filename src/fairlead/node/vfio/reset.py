"""Carries out the plan by which a GPU is reset between two tenants, and says whether it is clean then.

Clean means: every step that the plan has was carried out, and the plan leaves nothing out. A Function Level Reset alone
promises nothing about memory, and the flag of a finished scrub may be that of an earlier one where no bus reset came
before it; `node.vfio_clean=reset` lets a board without such a flag, or without a bus of its own, pass after whatever
reset it has. What was not done is a reason, never a pass.

The caller holds the GPU's node, so nobody uses it meanwhile. Each write is a process of its own with a limit.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead import command, errors, telemetry
from fairlead.kernel.programs import sysfswrite
from fairlead.model.vfio import Function, Snapshot
from fairlead.plan.vfio import resetting
from fairlead.plan.vfio.step import DEVICES, Act, Step
from fairlead.silicon.vfio import attribute, registers

WRITE_S: Final = 15.0
"""Longest that one write may take: the kernel itself waits up to a second for a function after its reset, or more."""
FAILED: Final = "ResetFailed"
NOT_WHOLE: Final = "ResetNotWhole"
NOT_SCRUBBED: Final = "ScrubFlagMissing"
_PROGRAM: Final = str(Path(sysfswrite.__file__))
_LOOK_S: Final = 0.05
_SILENT: Final = b"\xff\xff\xff\xff"


class Resetter:
    """Resets this machine's functions."""

    def __init__(self, root: Path, *, needs_erased: bool) -> None:
        """Take the root that has /sys. Args: needs_erased: whether memory must say that it is erased."""
        self._root, self._needs_erased = root, needs_erased

    async def reset(self, snapshot: Snapshot, gpu: Function) -> None:
        """Reset a GPU that nobody uses. Raises: DeviceFault: it is not clean, and why; Conflict: it may not be."""
        plan = resetting.plan_reset(snapshot, [gpu.address])
        if plan.refusals:
            found = plan.refusals[0]
            raise errors.Conflict(found.message, reason=found.why.value, hint=found.mend or None)
        is_reset = any(step.act is Act.RESET for step in plan.steps)
        if not is_reset or (self._needs_erased and not plan.is_whole):
            why = "; ".join(plan.reasons) or "nothing resets it"
            hint = "a person who accepts less sets node.vfio_clean=reset" if is_reset else None
            raise errors.DeviceFault(f"{gpu.address} cannot be cleaned: {why}", reason=NOT_WHOLE, hint=hint)
        for step in plan.steps:
            await self._carry_out(step, gpu)

    async def _carry_out(self, step: Step, gpu: Function) -> None:
        if step.path:
            await self._write(step)
        elif step.act is Act.ANSWERS:
            await self._until(lambda: self._answers(step.address), step, "did not answer on the bus")
        elif step.act is Act.SCRUBBED and self._needs_erased:
            await self._until(lambda: self._is_scrubbed(step.address), step, "did not say that its memory is erased")
        telemetry.log.debug("gpu reset step", gpu=gpu.identity.key, pci=step.address, reason=step.act.value)

    async def _write(self, step: Step) -> None:
        argv = (sys.executable, "-I", "-S", _PROGRAM, str(self._root / step.path), step.text)
        try:
            done = await command.run(argv, env=command.base_env(), timeout_s=WRITE_S, largest=4096)
        except errors.Unavailable as error:
            message = f"writing {step.path} did not end within {WRITE_S:g} s"
            hint = "the kernel waits for the board: see dmesg; the machine may have to be started anew"
            raise errors.DeviceFault(message, reason=FAILED, hint=hint) from error
        if done.code:
            message = f"{step.address} could not be reset: {step.path}: {done.last_line}"
            raise errors.DeviceFault(message, reason=FAILED, hint="`fairlead vfio check` says what resets it")

    async def _until(self, is_so: Callable[[], bool], step: Step, what: str) -> None:
        until = time.monotonic() + step.limit_s
        while not await asyncio.to_thread(is_so):
            if time.monotonic() > until:
                message = f"{step.address} {what} within {step.limit_s:g} s after its reset"
                reason = NOT_SCRUBBED if step.act is Act.SCRUBBED else FAILED
                raise errors.DeviceFault(message, reason=reason, hint="see dmesg, and take the board out if it goes on")
            await asyncio.sleep(_LOOK_S)

    def _answers(self, address: str) -> bool:
        try:
            head = attribute.read(f"{self._root}/{DEVICES}/{address}/config", size=4)
        except OSError:
            return False
        return len(head) == len(_SILENT) and head != _SILENT

    def _is_scrubbed(self, address: str) -> bool:
        try:
            with registers.opened(self._root, address) as opened:
                return registers.is_scrubbed(opened) is True
        except OSError:
            return False
