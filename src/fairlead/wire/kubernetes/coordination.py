"""Declares Leases, by which one of several processes leads, and PriorityClasses, which order a scheduler's queue.

Source: k8s.io/api/coordination/v1 and scheduling/v1 types.go.
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.meta import ObjectMeta, Wire


class LeaseSpec(Wire, frozen=True):
    """Holder of the lease, since when, and for how long after its last renewal."""

    holder_identity: str = ""
    """Empty: no holder."""
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0
    """How often it went from one holder to another."""


class Lease(Wire, frozen=True):
    """A claim that ends unless it is renewed."""

    API_VERSION: ClassVar[str] = "coordination.k8s.io/v1"
    KIND: ClassVar[str] = "Lease"
    PLURAL: ClassVar[str] = "leases"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class PriorityClass(Wire, frozen=True):
    """A name for a priority."""

    API_VERSION: ClassVar[str] = "scheduling.k8s.io/v1"
    KIND: ClassVar[str] = "PriorityClass"
    PLURAL: ClassVar[str] = "priorityclasses"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    """Higher goes first."""
    global_default: bool = False
    """Of pods that name none."""
    description: str = ""
    preemption_policy: str = ""
