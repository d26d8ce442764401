"""Carries out planned changes of MIG partitions, step by step, GPU by GPU.

What a step does is on the silicon at once, so nothing has to be remembered: after a crash the next plan starts from
what stands. A GPU whose change fails keeps what was done and hinders no other GPU. A device that its holder has just
let go of may be busy for a moment still; what destroys is tried again for as long as that takes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.model.mig import Slot
from fairlead.plan.mig import change
from fairlead.silicon.port import Partitioner

PATIENCE_S: Final = 10.0
_BACKOFF_S: Final = (0.1, 1.0)
Act = change.Act


async def apply_changes(
    partitioner: Partitioner,
    changes: Iterable[change.Change],
    *,
    told: Callable[[change.Change, change.Step], None] = lambda _, __: None,
    patience_s: float = PATIENCE_S,
    skips_reset: bool = False,
) -> None:
    """Carry out the changes of all GPUs.

    Args:   told: called before each step.   patience_s: how long a device that is busy is waited for.
            skips_reset: leave a GPU whose mode counts after a reset only as it is, its mode pending.
    Raises: the error of the first GPU whose change failed, after the others were changed; its message names them all.
    """
    failed: list[tuple[change.Change, errors.FairleadError]] = []
    for one in changes:
        try:
            await _apply(partitioner, one, told, patience_s, skips_reset=skips_reset)
        except errors.FairleadError as error:
            telemetry.log.warning("mig change failed", gpu=one.gpu.gpu, reason=error.reason, error=error.message)
            failed.append((one, error))
    if failed:
        first = failed[0][1]
        message = "; ".join(f"GPU {one.gpu.index}: {error.message}" for one, error in failed)
        raise type(first)(message, reason=first.reason, hint=first.hint)


async def _apply(
    partitioner: Partitioner,
    one: change.Change,
    told: Callable[[change.Change, change.Step], None],
    patience_s: float,
    *,
    skips_reset: bool,
) -> None:
    gpu, made = one.gpu.gpu, dict[Slot, int]()
    for step in one.steps:
        telemetry.crash_point(f"mig.before-{step.act.name.lower().replace('_', '-')}")
        told(one, step)
        match step:
            case change.Step(act=Act.DESTROY_COMPUTE, instance=int(instance), compute=int(compute)):
                await _patiently(functools.partial(partitioner.destroy_compute, gpu, instance, compute), patience_s)
            case change.Step(act=Act.DESTROY_INSTANCE, instance=int(instance)):
                await _patiently(functools.partial(partitioner.destroy_instance, gpu, instance), patience_s)
            case change.Step(act=Act.SET_MODE | Act.RESET):
                is_due = step.act is Act.RESET or await partitioner.set_mode(gpu, is_enabled=step.is_enabled)
                if is_due and skips_reset:
                    return
                if is_due:
                    telemetry.crash_point("mig.before-reset")
                    await _patiently(functools.partial(partitioner.reset, gpu), patience_s)
            case change.Step(act=Act.CREATE_INSTANCE, slot=Slot() as slot):
                made[slot] = await partitioner.create_instance(gpu, slot)
            case change.Step(act=Act.CREATE_COMPUTE, slot=Slot() as slot):
                instance = made[slot] if step.instance is None else step.instance
                await partitioner.create_compute(gpu, instance, step.slices)
            case _:
                raise AssertionError(f"{step!r} lacks what its act needs, or nothing carries that act out")
    telemetry.crash_point("mig.after-change")


async def _patiently(call: Callable[[], Awaitable[None]], patience_s: float) -> None:
    """Repeat a call that is refused while the device is in use, until it is free or patience ends."""
    waits = Backoff(first_s=_BACKOFF_S[0], last_s=_BACKOFF_S[1], jitter=0)
    loop = asyncio.get_running_loop()
    end = loop.time() + patience_s
    while True:
        try:
            return await call()
        except errors.Conflict:
            if loop.time() >= end:
                raise
        await asyncio.sleep(waits.next())
