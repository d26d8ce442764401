"""Declares PodDisruptionBudgets: how many of some pods may be ended now.

Source: k8s.io/api/policy/v1 types.go.
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.meta import Condition, LabelSelector, ObjectMeta, Wire


class BudgetSpec(Wire, frozen=True):
    """Pods that the budget covers."""

    selector: LabelSelector | None = None
    """None selects nothing."""
    min_available: int | str | None = None
    """Pods that must serve, a number or a percentage of those that there are to be."""
    max_unavailable: int | str | None = None
    """Pods that may be missing; never beside `min_available`."""


class BudgetStatus(Wire, frozen=True):
    """What the disruption controller has counted."""

    disruptions_allowed: int = 0
    """Pods that may be ended now."""
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class PodDisruptionBudget(Wire, frozen=True):
    """One budget."""

    API_VERSION: ClassVar[str] = "policy/v1"
    KIND: ClassVar[str] = "PodDisruptionBudget"
    PLURAL: ClassVar[str] = "poddisruptionbudgets"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()
