"""Decides whether a pod has a container of its own that holds its namespaces. Pure."""

from __future__ import annotations

from fairlead.plan.pod.values import downward
from fairlead.wire.kubernetes import core


def has_sandbox(spec: core.PodSpec) -> bool:
    """Return whether a container of the pod's own holds its namespaces, on one machine.

    One container has none, unless it is to know the pod's address before it starts, or the sandbox is to be process 1.
    """
    if len(spec.containers) + len(spec.init_containers) > 1 or spec.share_process_namespace:
        return True
    return downward.needs_address(spec) and not spec.host_network
