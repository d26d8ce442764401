"""Declares PodDisruptionBudgets: how many of some pods may be ended now.

Source: k8s.io/api/policy/v1 types.go.
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.meta import LabelSelector, ObjectMeta, Wire


class BudgetSpec(Wire, frozen=True):
    """Pods that the budget covers."""

    selector: LabelSelector | None = None
    """None selects nothing."""


class BudgetStatus(Wire, frozen=True):
    """Number of evictions that the disruption controller allows now."""

    disruptions_allowed: int = 0


class PodDisruptionBudget(Wire, frozen=True):
    """One budget."""

    API_VERSION: ClassVar[str] = "policy/v1"
    KIND: ClassVar[str] = "PodDisruptionBudget"
    PLURAL: ClassVar[str] = "poddisruptionbudgets"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()
