"""Plans how GPUs are reset between tenants: each by itself, then by their bus, then until their memory is erased.

A Function Level Reset ends what a function does and promises nothing about its memory. A bus reset reaches further, and
hits every function below the bridge: it is planned only where all of those are in the set and nobody has one open. On
Hopper and later the hardware then erases its memory and says so. What cannot be done is a reason in the plan, and a
reset with a reason is never called clean.
Source: kernel Documentation/ABI/testing/sysfs-bus-pci (reset, reset_method, reset_subordinate); kernel
drivers/pci/pci.c, pci_parent_bus_reset: `bus` is for a function that is alone on its bus.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.vfio import Function, FunctionKind, Snapshot
from fairlead.plan.vfio import step, unit, verdict
from fairlead.plan.vfio.step import Act, Step

ANSWER_S: Final = 5.0
"""How long a function may take to answer after a reset."""
SCRUB_S: Final = 5.0
"""How long a GPU may take to erase its memory."""
_NVIDIA: Final = 0x10DE
_ALONE: Final = ("flr", "af_flr")


@frozen
class ResetPlan:
    """What is to be done with a set of functions, and what of it cannot be."""

    functions: tuple[Function, ...] = ()
    steps: tuple[Step, ...] = ()
    refusals: tuple[verdict.Obstacle, ...] = ()
    """Why nothing may be done: not one step is there then."""
    reasons: tuple[str, ...] = ()
    """What cannot be done, one line each; the steps do the rest."""

    @property
    def is_whole(self) -> bool:
        """Whether it does all that there is to do."""
        return not self.refusals and not self.reasons


def plan_reset(
    snapshot: Snapshot,
    chosen: Iterable[str],
    holders: verdict.Holders = verdict.NOBODY,
    *,
    scrub_s: float = SCRUB_S,
) -> ResetPlan:
    """Plan to reset functions that nobody has, with all that goes where they go; nothing else is hit.

    Args:    chosen: addresses of functions of the snapshot.   holders: who has which function open.
             scrub_s: seconds that erasing memory may take.
    """
    functions = tuple(one for whole in unit.list_units(snapshot, chosen) for one in whole)
    refusals = tuple(obstacle for one in functions for obstacle in _refusals(one, holders))
    if refusals:
        return ResetPlan(functions=functions, refusals=refusals)
    reasons: list[str] = []
    steps = [one for function in functions for one in _alone(function, reasons)]
    steps += _by_bus(functions, reasons)
    steps += [Step(act=Act.ANSWERS, address=one.address, limit_s=ANSWER_S) for one in functions]
    for one in functions:
        if one.kind is FunctionKind.GPU and one.vendor == _NVIDIA:
            steps.append(Step(act=Act.SCRUBBED, address=one.address, limit_s=scrub_s))
        elif one.kind is FunctionKind.GPU:
            reasons.append(f"{one.address} has no flag that says that its memory is erased")
    return ResetPlan(functions=functions, steps=tuple(steps), reasons=tuple(reasons))


def plan_left(snapshot: Snapshot, chosen: Iterable[str]) -> tuple[Step, ...]:
    """Return the steps that mend what a reset left that was killed in its middle: a bus reset as the only choice.

    A function that can be reset by itself, and of which the kernel says `bus` alone, was left so: whoever chose that
    for good would never have a clean GPU.
    Source: kernel Documentation/ABI/testing/sysfs-bus-pci (reset_method: `default`).
    """
    functions = (one for whole in unit.list_units(snapshot, chosen) for one in whole)
    return tuple(
        step.choose_default(one.address)
        for one in functions
        if one.is_bound_to_vfio and one.has_flr and one.reset_methods == (step.BUS,)
    )


def without_erasing(plan: ResetPlan) -> ResetPlan:
    """Return a plan for which any reset is enough, whether or not memory says that it is erased."""
    is_reset = any(one.act is Act.RESET for one in plan.steps)
    steps = tuple(one for one in plan.steps if one.act is not Act.SCRUBBED)
    return dataclasses.replace(plan, steps=steps, reasons=() if is_reset else plan.reasons)


def _refusals(one: Function, holders: verdict.Holders) -> list[verdict.Obstacle]:
    found = verdict.list_held(one, holders)
    if one.driver and not one.is_bound_to_vfio:
        message = f"{one.address} is bound to {one.driver}, which would lose it in a reset"
        mend = f"fairlead vfio bind {one.address}"
        found.append(
            verdict.Obstacle(why=verdict.Why.OTHER_DRIVER, stage=verdict.Stage.BIND, message=message, mend=mend)
        )
    if one.kind is FunctionKind.VIRTUAL or one.virtual_functions:
        message = f"{one.address} is, or has, a virtual function that a tenant may have"
        found.append(verdict.Obstacle(why=verdict.Why.VIRTUAL_FUNCTIONS, stage=verdict.Stage.BIND, message=message))
    return found


def _alone(one: Function, reasons: list[str]) -> tuple[Step, ...]:
    """Return the steps of a Function Level Reset."""
    methods = one.reset_methods
    if methods is None:  # before Linux 5.15: the kernel takes the first that works, and a Function Level Reset is that
        if one.has_flr:
            return (step.plain_reset(one.address),)
        reasons.append(f"{one.address} has no function level reset")
        return ()
    via = next((name for name in _ALONE if name in methods), None)
    if via is None:
        reasons.append(f"{one.address} has no function level reset (it has: {', '.join(methods) or 'none'})")
        return ()
    return step.reset(one.address, " ".join(methods), via)


def _by_bus(functions: Sequence[Function], reasons: list[str]) -> list[Step]:
    """Return the steps of bus resets, one for each bridge."""
    bridges: dict[str, list[Function]] = {}
    for one in functions:
        if one.bridge:
            bridges.setdefault(one.bridge, []).append(one)
        elif one.kind is not FunctionKind.AUXILIARY:
            reasons.append(f"{one.address} has no bridge of its own to reset it by")
    chosen = {one.address: one for one in functions}
    return [found for bridge, below in bridges.items() for found in _by_bridge(bridge, below, chosen, reasons)]


def _by_bridge(
    bridge: str, below: Sequence[Function], chosen: Mapping[str, Function], reasons: list[str]
) -> tuple[Step, ...]:
    hit = {other for one in below for other in (one.address, *one.neighbours)}
    others = sorted(hit - chosen.keys())
    if others:
        named = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        reasons.append(f"a bus reset by {bridge} would hit {named} too, which was not named")
        return ()
    first = below[0]
    if len(hit) == 1 and first.reset_methods and step.BUS in first.reset_methods:
        return step.reset(first.address, " ".join(first.reset_methods), step.BUS)
    if first.bridge_resets:
        return (step.reset_below(bridge),)
    what = f"{len(hit)} functions are below it" if len(hit) > 1 else "the kernel offers none for it"
    reasons.append(f"no bus reset by {bridge}: {what}, and it has no reset_subordinate (Linux 6.13)")
    return ()
