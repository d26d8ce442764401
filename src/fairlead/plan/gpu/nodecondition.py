"""Decides what a Node says about the health of its GPUs: a condition, and by choice a taint. Pure.

The condition is there as soon as the node has GPUs, and True while each of them is well, so that tools which repair
nodes by their conditions have one to read. The taint is there only while a GPU is ill: it keeps pods off a whole node
for one GPU, so it is there only by a setting. Both name the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead.plan.gpu import health, label
from fairlead.wire.kubernetes import core, meta

CONDITION: Final = "fairlead.dev/GPUHealthy"
TAINT: Final = "fairlead.dev/gpu-unhealthy"
WELL: Final = "GPUsHealthy"
SEVERAL: Final = "SeveralReasons"
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """How the GPUs of a node are."""

    count: int
    ill: tuple[tuple[str, health.Verdict], ...]
    """GPUs and MIG devices that are not offered, by UUID and in its order."""

    @property
    def reason(self) -> str:
        """Why the node is not whole; `GPUsHealthy` where it is."""
        reasons = {verdict.reason for _, verdict in self.ill}
        return WELL if not reasons else reasons.pop() if len(reasons) == 1 else SEVERAL

    @property
    def message(self) -> str:
        """Say which devices are ill; at most eight of them."""
        if not self.ill:
            return f"{self.count} GPU{'s' if self.count != 1 else ''}, none of them ill"
        named = [f"{uuid}: {verdict.message or verdict.reason}" for uuid, verdict in self.ill[:_MOST_NAMED]]
        rest = len(self.ill) - len(named)
        return "; ".join([*named, *([f"and {rest} more"] if rest else [])])


def judge(count: int, verdicts: Iterable[tuple[str, health.Verdict]]) -> NodeHealth | None:
    """Return how a node's GPUs are; None: it has none. Args: verdicts: of GPUs and MIG devices, by UUID."""
    if not count:
        return None
    ill = sorted((one for one in verdicts if not one[1].is_healthy), key=lambda one: one[0])
    return NodeHealth(count=count, ill=tuple(ill))


def plan_condition(node: core.Node, found: NodeHealth | None, *, now: str) -> core.Node:
    """Return the node with the condition that it should have; the same where it has it, or has no GPU.

    A message alone is no reason to write: it may hold a reading that changes from scan to scan.
    """
    if found is None:
        return node
    old = meta.find_condition(node.status.conditions, CONDITION)
    status = "False" if found.ill else "True"
    if old is not None and (old.status, old.reason) == (status, found.reason):
        return node
    wanted = meta.Condition(
        type=CONDITION, status=status, reason=found.reason, message=found.message, last_transition_time=now
    )
    conditions = meta.with_condition(node.status.conditions, wanted)
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=conditions))


def without_condition(node: core.Node) -> core.Node:
    """Return the node without our condition."""
    conditions = tuple(one for one in node.status.conditions if one.type != CONDITION)
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=conditions))


def plan_taint(node: core.Node, found: NodeHealth | None, *, effect: str) -> core.Node:
    """Return the node with the taint that it should have; others' taints stay. Args: effect: empty: none ever."""
    kept = tuple(one for one in node.spec.taints if one.key != TAINT)
    wanted = kept
    if effect and found is not None and found.ill:
        wanted = (*kept, core.Taint(key=TAINT, value=label.label_value(found.reason), effect=effect))
    if set(wanted) == set(node.spec.taints):
        return node
    return msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=wanted))
