"""Finds pods that wait although they fit: which groups of equal needs to ask nodes about again, and what answers mean.

Pure. A group at rest is judged again when a node changes for it (`hint`), and at the latest after `queue.REST_S`. Where
a change was missed its pods wait beside room until then, so every `EVERY_S` the scheduler asks, of what it remembers of
each node, whether a group fits that was not tried for `AFTER_S`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlead.plan.schedule.group import domain
from fairlead.plan.schedule.queue.queue import Group, Key
from fairlead.plan.schedule.reference import NodeInfo, PodInfo

EVERY_S: Final = 10.0
"""Between two rounds of questions."""
AFTER_S: Final = 10.0
"""How long a group that fits may go untried: the longest back-off of one that is woken (`queue.LAST_WAIT_S`)."""
MOST: Final = 64
"""Groups asked about in one round."""
SHARE: Final = 0.01
"""Of the scheduler's time that the questions may take."""


def suspects(groups: Iterable[Group], now: float, asked: Mapping[Key, float]) -> list[Group]:
    """Return the groups to ask about, at rest for `AFTER_S` and not about to be judged; those asked least lately first.

    Args: asked: by key, when each was asked about last.
    """
    found = [
        group
        for group in groups
        if group.refusal is not None
        and group.members
        and group.rested_at <= now - AFTER_S
        and not (group.is_woken and group.due_at > now - AFTER_S)
    ]
    return sorted(found, key=lambda group: (asked.get(group.key, 0.0), group.rested_at))[:MOST]


def may_fit(needs: Sequence[PodInfo], fitting: Mapping[Key, Iterable[NodeInfo]]) -> bool:
    """Return whether pods that are placed at once may fit, by counting; that they do, only trying tells.

    Args: fitting: by need, the nodes that take one pod of it.
    """
    counts, known = Counter(need.key() for need in needs), {need.key(): need for need in needs}
    return all(
        sum(domain.slots(known[key], node) for node in fitting.get(key, ())) >= count for key, count in counts.items()
    )


def words(node: str, untried_s: float) -> str:
    """Return what is said of a pod that fitted and was not tried."""
    where = f"node {node} has room for it" if node else "it fitted"
    return f"{where}, and it was not tried for {untried_s:.0f} s: a fault of the scheduler, which tries it now"
