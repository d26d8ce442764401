"""Counts what is asked for in a cluster, and says when a table of it has aged. Pure.

`fgd` and `fairlead` weigh by it. Both rankings, by array and node by node, have one `Demand` each and feed it the same
changes, so both weigh by the same table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from fairlead.plan.schedule.queue.queue import Changes
from fairlead.plan.schedule.reference import Kind, NodeInfo, model_of

_PART: Final = 8
"""The table is rebuilt once one in this many of its pods or kinds came or went."""
_MOST_KINDS: Final = 128
"""The most frequent kinds are in it: a tenant must not choose how large it becomes."""
GPUS: Final = 256
"""GPUs of a node that policies tell apart: what a node says of itself must not decide how much work it makes."""
LARGEST: Final = 2**62
"""Amounts beyond it are equal to it; a request beyond it fits nowhere."""

WEIGHING: Final = frozenset({"fgd", "fairlead"})
"""Policies that look at the table."""

_Asked = TypeVar("_Asked")


class Demand:
    """What runs, and what was asked for and waits."""

    def __init__(self) -> None:
        """Begin with nothing asked for."""
        self.asked = Counter[Kind]()
        """How many pods of each kind are on nodes."""
        self.version = 0
        """Grows whenever the table is rebuilt."""
        self._table: Mapping[Kind, int] = {}
        self._has_aged = True
        self._total = 0
        """How many pods there were when the table was made."""
        self._weighed: Mapping[Kind, int] = {}
        """How many pods of each kind the table was made of: those on nodes, and those that wait."""
        self._unweighed = set[Kind]()
        """Kinds that wait and came after it was made."""

    def take(self, changes: Changes) -> None:
        """Take in nodes that changed."""
        for before, after in changes.values():
            for node, sign in ((before, -1), (after, 1)):
                for kind, count in node.kinds.items() if node is not None else ():
                    self.asked[kind] += sign * count
        self._has_aged |= any(is_moved(before, after) for before, after in changes.values())
        self._age()

    def note(self, kind: Kind) -> None:
        """Take in that a pod of a kind waits."""
        if kind not in self._weighed:
            self._unweighed.add(kind)
            self._age()

    def _age(self) -> None:
        grown, known = abs(self.asked.total() - self._total), len(self._weighed)
        self._has_aged |= grown * _PART > max(self._total, known) or len(self._unweighed) * _PART > known

    def table(self, waiting: Iterable[Kind]) -> Mapping[Kind, int]:
        """Return how often each kind is asked for, the most frequent first; rebuilt where it has aged.

        Args: waiting: the kinds of needs that were asked about lately.
        """
        if self._has_aged:
            counts = Counter(waiting)
            counts.update(self.asked)
            self._weighed = {kind: count for kind, count in sorted(counts.items()) if count > 0}
            self._total, self._unweighed, self._has_aged = self.asked.total(), set(), False
            bounded = Counter[Kind]()
            for kind, count in self._weighed.items():
                bounded[_bounded(kind)] += count
            self._table = dict(bounded.most_common(_MOST_KINDS))
            self.version += 1
        return self._table


def _bounded(kind: Kind) -> Kind:
    cpu, gpus, model = kind
    return min(cpu, LARGEST), min(gpus, GPUS), model


def is_moved(before: NodeInfo | None, after: NodeInfo | None) -> bool:
    """Return whether a node came, went, or offers something else than before."""
    if before is None or after is None:
        return before is not after
    return before.allocatable != after.allocatable or model_of(before.labels) != model_of(after.labels)


def most_frequent(table: Mapping[_Asked, int], share: float) -> Mapping[_Asked, int]:
    """Return the first rows of a table, which make up `share` of all requests."""
    total, found, so_far = sum(table.values()), dict[_Asked, int](), 0
    for kind, count in table.items():
        if so_far >= share * total:
            break
        found[kind] = count
        so_far += count
    return found
