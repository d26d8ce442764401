"""Remembers which nodes' kubelets refused pods of which shape, and until when such pods are kept away. Pure.

A kubelet refuses at admission what the scheduler cannot see: its topology manager finds no NUMA node that has all of a
pod's devices, or its device manager has none left. Such a pod is Failed, its controller recreates it, and the node
that refused would be the best one again. So pods that request the same stay away from the node for a while, longer each
time while pods that were refused are there. A refused pod that is removed is forgotten with what it says.

Source: kubernetes pkg/kubelet/lifecycle/predicate.go, pkg/kubelet/cm/topologymanager (reasons of rejected pods).
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead import backoff
from fairlead.wire.kubernetes import core

REASONS: Final = frozenset({"UnexpectedAdmissionError", "TopologyAffinityError"})
FIRST_S: Final = 30.0
LAST_S: Final = 600.0
"""First and longest time that such pods are kept from a node; it doubles with each refusal."""
WORDS: Final = "lately refused such a pod"

Shape = frozenset[tuple[str, int]]
"""What a pod requests, in thousandths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One pod that a kubelet refused."""

    shape: Shape
    reason: str
    at: float
    """Unix seconds."""


def of_pod(pod: core.Pod, requests: Mapping[str, int], now: float) -> Rejection | None:
    """Return what the kubelet of a pod's node said of it, None where it admitted it. Args: now: Unix seconds."""
    status = pod.status
    if status.phase != "Failed" or status.reason not in REASONS or not pod.spec.node_name:
        return None
    return Rejection(shape=frozenset(requests.items()), reason=status.reason, at=min(_started(pod, now), now))


def _started(pod: core.Pod, now: float) -> float:
    text = pod.status.start_time
    try:
        found = dt.datetime.fromisoformat(text) if text else None
    except ValueError:
        return now
    return now if found is None or found.tzinfo is None else found.timestamp()


def refused(there: Iterable[Rejection], now: float) -> tuple[dict[Shape, str], float]:
    """Return by shape why a node is kept out now, and when that changes next; never: infinity."""
    by_shape: dict[Shape, list[Rejection]] = {}
    for one in there:
        by_shape.setdefault(one.shape, []).append(one)
    found, due = dict[Shape, str](), math.inf
    for shape, all_of_it in by_shape.items():
        last = max(all_of_it, key=lambda one: (one.at, one.reason))
        ends_at = last.at + backoff.doubled(len(all_of_it) - 1, first_s=FIRST_S, last_s=LAST_S)
        if ends_at > now:
            found[shape] = last.reason
            due = min(due, ends_at)
    return found, due
