"""Lists the names of labels and annotations that more than one room reads.

The `io.kubernetes.*` labels are those that a real kubelet puts on the containers it has a runtime create; tools that
read them work on ours as well. The others are ours.
"""

from __future__ import annotations

from typing import Final

OWN: Final = "fairlead.dev"
"""Domain of the names that only Fairlead writes, on whatever object."""


def is_own(name: str) -> bool:
    """Return whether a label or annotation is of our domain, or of one below it: only we may set it."""
    domain, slash, _ = name.rpartition("/")
    return bool(slash) and (domain == OWN or domain.endswith(f".{OWN}"))


# labels of an engine's container
POD_UID: Final = "io.kubernetes.pod.uid"
POD_NAME: Final = "io.kubernetes.pod.name"
POD_NAMESPACE: Final = "io.kubernetes.pod.namespace"
CONTAINER_NAME: Final = "io.kubernetes.container.name"
ATTEMPT: Final = "fairlead.dev/attempt"
"""Counts from 0: how often the container had been started before."""
NODE: Final = "fairlead.dev/node"
HOME: Final = "fairlead.dev/home"
"""Unique id of the state folder whose container it is."""

DEVICES: Final = "fairlead.dev/devices"
"""JSON, resource to the ids of the devices that its node's kubelet granted."""

# annotations of a pod
TENANT: Final = "fairlead.dev/tenant"
"""The tenancy that asked for the pod, in whatever namespace it is: the rules for tenants bind it."""

# annotations of an event
STEP: Final = "fairlead.dev/step"
"""JSON, one step of a trace."""
