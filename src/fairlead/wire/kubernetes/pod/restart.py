"""Declares by which exit codes a container is started again, and what a pod's readiness waits for.

Source: k8s.io/api/core/v1 types.go: ContainerRestartRule, PodReadinessGate.
"""

from __future__ import annotations

from fairlead.wire.kubernetes.meta import Wire


class ContainerRestartRuleOnExitCodes(Wire, frozen=True):
    """Which exit codes a rule is about."""

    operator: str = ""
    """`In` or `NotIn`."""
    values: tuple[int, ...] = ()


class ContainerRestartRule(Wire, frozen=True):
    """What is done with a container that ended with such an exit code."""

    action: str = ""
    """`Restart`."""
    exit_codes: ContainerRestartRuleOnExitCodes | None = None


class PodReadinessGate(Wire, frozen=True):
    """A condition of the pod's status that somebody else sets, without which it is not ready."""

    condition_type: str = ""
