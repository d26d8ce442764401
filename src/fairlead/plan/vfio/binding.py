"""Plans binding to VFIO and release from it, as ordered steps over whole units, and what undoes a half-done one.

Binding names the driver first (`driver_override`), then takes the function from its present driver, then has the kernel
look again: so nothing else can pick it up in between. `new_id` is never used, which would bind functions that come
later as well. Release is the same backwards. A function that is where it should be needs no step, so both can be done
again. A unit is bound whole or refused whole; other units are not held up by it.
Source: kernel Documentation/ABI/testing/sysfs-bus-pci (driver_override, unbind, drivers_probe).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.frozen import frozen
from fairlead.model.vfio import Function, Snapshot, is_vfio
from fairlead.plan.vfio import step, unit, variant, verdict
from fairlead.plan.vfio.step import Step


@frozen
class UnitPlan:
    """What is to be done with functions that go together."""

    functions: tuple[Function, ...]
    """In the order in which they are bound."""
    steps: tuple[Step, ...] = ()
    """Empty with no refusal: nothing is to be done."""
    refusals: tuple[verdict.Obstacle, ...] = ()
    """Why nothing may be done with this unit."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Whose plan it is."""
        return tuple(one.address for one in self.functions)


def plan_bind(
    snapshot: Snapshot, chosen: Iterable[str], holders: verdict.Holders = verdict.NOBODY
) -> tuple[UnitPlan, ...]:
    """Plan to bind functions, with all that goes where they go.

    Args:    chosen: addresses of functions of the snapshot.   holders: who has which function open.
    """
    return tuple(_plan_bind(snapshot, whole, holders) for whole in unit.list_units(snapshot, chosen))


def _plan_bind(snapshot: Snapshot, whole: tuple[Function, ...], holders: verdict.Holders) -> UnitPlan:
    waiting = [one for one in whole if not one.is_bound_to_vfio]
    if not waiting:
        return UnitPlan(functions=whole)
    found = [obstacle for one in whole for obstacle in verdict.judge(snapshot, one, holders).obstacles]
    refusals = tuple(dict.fromkeys(one for one in found if one.stage is verdict.Stage.BIND))
    if refusals:
        return UnitPlan(functions=whole, refusals=refusals)
    drivers = {one.address: variant.choose_driver(one, snapshot.host).driver for one in waiting}
    return UnitPlan(
        functions=whole,
        steps=(
            *(step.override(one, drivers[one.address]) for one in waiting),
            *(step.unbind(one.address) for one in waiting if one.driver),
            *(step.probe(one.address) for one in waiting),
            *(step.verify(one.address, drivers[one.address]) for one in waiting),
        ),
    )


def plan_release(
    snapshot: Snapshot, chosen: Iterable[str], holders: verdict.Holders = verdict.NOBODY
) -> tuple[UnitPlan, ...]:
    """Plan to give functions back to the drivers of their vendors. Args: as `plan_bind`."""
    return tuple(_plan_release(whole, holders) for whole in unit.list_units(snapshot, chosen))


def _plan_release(whole: tuple[Function, ...], holders: verdict.Holders) -> UnitPlan:
    waiting = [one for one in reversed(whole) if one.is_bound_to_vfio]
    marked = [one for one in reversed(whole) if one.is_bound_to_vfio or _is_stale(one)]
    refusals = tuple(obstacle for one in waiting for obstacle in verdict.list_held(one, holders))
    if refusals:
        return UnitPlan(functions=whole, refusals=refusals)
    return UnitPlan(
        functions=whole,
        steps=(
            *(step.override(one, "") for one in marked if one.override),
            *(step.unbind(one.address) for one in waiting),
            *(step.probe(one.address) for one in waiting),
            *(step.verify(one.address, "") for one in waiting),
        ),
    )


def _is_stale(one: Function) -> bool:
    """Return whether a function that is not on VFIO's driver is kept for it, as by a binding that did not work."""
    return bool(one.override) and is_vfio(one.override)


def plan_undo(before: Sequence[Function], now: Sequence[Function]) -> tuple[Step, ...]:
    """Plan to put functions back as they were before a plan that ended half-way.

    Args: before, now: the same functions in one order, as they were and as they are.
    """
    pairs = list(zip(before, now, strict=True))
    moved = [(was, one) for was, one in reversed(pairs) if was.driver != one.driver]
    changed = [was for was, one in reversed(pairs) if was.override != one.override or was.driver != one.driver]
    return (
        # Named while the kernel looks: what the override said before need not be the driver that had the function.
        *(step.override(was, was.driver) for was, _ in moved if was.driver),
        *(step.unbind(was.address) for was, one in moved if one.driver),
        *(step.probe(was.address) for was, _ in moved if was.driver),
        *(step.override(was, was.override) for was in changed),
        *(step.verify(was.address, was.driver) for was, _ in moved),
    )
