"""Says how many pods of a PodDisruptionBudget may be ended now. Pure.

Source: kubernetes pkg/controller/disruption (disruption.go: getExpectedPodCount, updatePdbStatus).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fairlead.plan.workload import podset
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling.policy import BudgetStatus, PodDisruptionBudget

ALLOWED: Final = "DisruptionAllowed"


def covers(item: PodDisruptionBudget, pod: core.Pod) -> bool:
    """Return whether a pod is one of a budget's: an empty selector takes all of its namespace, none takes none."""
    selector = item.spec.selector
    if selector is None or pod.metadata.namespace != item.metadata.namespace:
        return False
    return not selector.match_labels or podset.matches(selector.match_labels, pod.metadata.labels)


def status(
    item: PodDisruptionBudget, pods: Iterable[core.Pod], replicas: Mapping[str, int], now: float
) -> BudgetStatus:
    """Return what a budget says.

    Args: pods: of its namespace.   replicas: by the uid of what may own pods, how many it is to have.   now: Unix
          seconds.
    """
    mine = [one for one in pods if covers(item, one) and one.status.phase not in core.ENDED_PHASES]
    healthy = sum(map(podset.is_ready, mine))
    owners, unknown = _owners(mine, replicas)
    least, most_missing = item.spec.min_available, item.spec.max_unavailable
    if isinstance(least, int):
        expected, unknown = len(mine), ""
        wanted = least
    elif most_missing is not None:
        expected = sum(owners.values())
        wanted = expected - podset.count(most_missing, expected, default=0, is_up=True)
    else:
        expected = sum(owners.values()) if least is not None else 0
        wanted = podset.count(least, expected, default=0, is_up=True)
    wanted = max(0, wanted)
    allowed = 0 if unknown or not expected else max(0, healthy - wanted)
    said = ("True", "SufficientPods", "") if allowed else ("False", "InsufficientPods", "")
    if unknown:
        said = ("False", "SyncFailed", unknown)
    condition = meta.Condition(
        type=ALLOWED, status=said[0], reason=said[1], message=said[2], last_transition_time=meta.emit_time(now)
    )
    return msgspec.structs.replace(
        item.status,
        observed_generation=item.metadata.generation,
        expected_pods=expected,
        current_healthy=healthy,
        desired_healthy=wanted,
        disruptions_allowed=allowed,
        conditions=meta.with_condition(item.status.conditions, condition),
    )


def _owners(mine: Iterable[core.Pod], replicas: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """Return by owner how many pods it is to have, and which pod has none that says."""
    found = dict[str, int]()
    for one in mine:
        owner = next((of for of in one.metadata.owner_references if of.controller), None)
        if owner is None or owner.uid not in replicas:
            of = f"{owner.kind.lower()} {owner.name}, which is not scaled" if owner is not None else "nothing"
            return {}, f"pod {one.metadata.name} is owned by {of}: write minAvailable as a number"
        found[owner.uid] = replicas[owner.uid]
    return found, ""
