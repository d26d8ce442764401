"""Finds what must go together: a GPU with its board's other functions, and all that shares an IOMMU group with them.

VFIO hands out groups, so a function that is bound while another of its group is not helps nobody. Drawn in is only
what passthrough is about: a network card or a disk in the same group belongs to the machine, stays with it, and is what
stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.model.vfio import Function, FunctionKind, GroupMember, Snapshot


def list_units(snapshot: Snapshot, chosen: Iterable[str]) -> list[tuple[Function, ...]]:
    """Return the units that the chosen functions belong to, in the order chosen; none twice.

    A unit is in the order in which it is bound: auxiliary functions before their GPUs.
    Args: chosen: addresses of functions of the snapshot.
    """
    units: list[tuple[Function, ...]] = []
    for address in chosen:
        if not any(one.address == address for unit in units for one in unit):
            units.append(_unit(snapshot, address))
    return units


def _unit(snapshot: Snapshot, address: str) -> tuple[Function, ...]:
    found: dict[str, Function] = {}
    waiting = [address]
    while waiting:
        one = snapshot.find(waiting.pop())
        # A virtual function is never drawn in: while one exists its board is not touched.
        if one is None or one.address in found or one.kind is FunctionKind.VIRTUAL:
            continue
        found[one.address] = one
        waiting += [member.address for member in one.members]
        waiting += [other.address for other in snapshot.functions if one.address == _owner(other)]
        waiting += [_owner(one)]
    order = {one.address: place for place, one in enumerate(snapshot.functions)}
    return tuple(sorted(found.values(), key=lambda one: (one.kind is FunctionKind.GPU, order[one.address])))


def _owner(one: Function) -> str:
    return one.board if one.kind is FunctionKind.AUXILIARY else ""


def list_strangers(unit: Sequence[Function]) -> list[GroupMember]:
    """Return the functions that share a group with a unit, are none of passthrough's, and keep the group closed."""
    own = {one.address for one in unit}
    members = {member.address: member for one in unit for member in one.members if member.address not in own}
    return [member for member in members.values() if member.is_in_the_way]
