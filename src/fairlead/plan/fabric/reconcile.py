"""Compares the partitions that are active with those that the ledger's holders need, and plans what to do. Pure.

The ledger decides: a partition is needed from the moment its GPUs are held until the ledger let them go, which it does
after the partition is inactive. The Manager resolves no overlap, so whatever is in the way is deactivated first. It is
not while a machine may use its GPUs still: then the partition that is needed waits, and the reason says for what.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from types import MappingProxyType

from fairlead.frozen import frozen
from fairlead.plan.fabric.lattice import Lattice


class Verb(enum.Enum):
    """What is done to a partition."""

    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"


@frozen
class Change:
    """One call of the Manager's."""

    verb: Verb
    partition: int


@frozen
class Changes:
    """What has to be done, in order, and what cannot be done now."""

    steps: tuple[Change, ...] = ()
    waiting: Mapping[int, str]
    """Partitions that are needed and cannot be activated now, and why."""
    strays: frozenset[int] = frozenset()
    """Active partitions without a holder whose GPUs a machine may use: left as they are."""


def plan(
    lattice: Lattice,
    needed: Collection[int],
    used: Collection[int] = (),
    *,
    due: Mapping[int, str] = MappingProxyType({}),
) -> Changes:
    """Return the calls that make the active partitions those that are needed.

    Args: needed: ids of partitions whose GPUs the ledger has given away.
          used: module numbers that a machine may still have, and that no needed partition has.
          due: module numbers of GPUs that must be reset before they may be in an active partition, each with why.
    """
    active = lattice.active
    using = frozenset(used)
    spare = active - frozenset(needed)
    strays = frozenset(one for one in spare if _members(lattice, one) & using)
    ended = sorted(spare - strays)
    waiting, begun = dict[int, str](), list[int]()
    for one in sorted(frozenset(needed) - active):
        why = _obstacle(lattice, one, strays, [*begun, *sorted(active & frozenset(needed))])
        why = why or next((due[module] for module in sorted(_members(lattice, one)) if module in due), "")
        if why:
            waiting[one] = why
        else:
            begun.append(one)
    steps = [Change(verb=Verb.DEACTIVATE, partition=one) for one in ended]
    steps += [Change(verb=Verb.ACTIVATE, partition=one) for one in begun]
    return Changes(steps=tuple(steps), waiting=waiting, strays=strays)


def _obstacle(lattice: Lattice, partition: int, strays: Collection[int], held: Collection[int]) -> str:
    if lattice.find(partition) is None:
        return f"the Fabric Manager offers no partition {partition}"
    others = lattice.overlapping(partition)
    if (stray := next((one for one in sorted(strays) if one in others), None)) is not None:
        return f"partition {stray} has a GPU of it and may still be used"
    if (other := next((one for one in held if one in others), None)) is not None:
        return f"partition {other}, which is held too, has a GPU of it"
    return ""


def _members(lattice: Lattice, partition: int) -> frozenset[int]:
    found = lattice.find(partition)
    return frozenset(found.modules) if found is not None else frozenset()
