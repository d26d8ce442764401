"""Counts the devices of claims for queues: those that are allocated, or as many as are asked for.

A device counts by its class, under the name that Kubernetes gives every class as an extended resource, and once more
under the extended resource that the class stands for: a queue's GPUs are counted whichever way they are asked for.
Source: kubernetes 1.37, resource.k8s.io/v1 (`DeviceClassSpec.extendedResourceName`, the implicit name of a class).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from fairlead.wire.kubernetes.resource.deviceclass import IMPLICIT_RESOURCE, DeviceClass
from fairlead.wire.kubernetes.resource.request import DeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim


def is_counted_for(claim: ResourceClaim, uid: str) -> bool:
    """Return whether a claim counts for a pod: it is the pod's own, or the pod is the first of those that share it."""
    users = claim.status.reserved_for
    return not users or users[0].uid == uid


def devices(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> Counter[str]:
    """Return how many devices a claim has or asks for, by resource; devices that it only looks at do not count."""
    found = Counter[str]()
    allocation = claim.status.allocation
    got = Counter(
        one.request for one in (allocation.devices.results if allocation is not None else ()) if not one.admin_access
    )
    for request in claim.spec.devices.requests or ():
        for label, name, count in _ways(request):
            if (counted := got[label] if allocation is not None else count) > 0:
                found[f"{IMPLICIT_RESOURCE}{name}"] += counted
                known = classes.get(name)
                if known is not None and known.spec.extended_resource_name:
                    found[known.spec.extended_resource_name] += counted
            if allocation is None:
                break  # the first alternative is what is asked for
    return found


def _ways(request: DeviceRequest) -> Iterator[tuple[str, str, int]]:
    """Yield the ways to meet a request: what results call it, its class, and how many devices it asks for.

    A request for all devices counts as one until it is known how many there are.
    """
    if request.exactly is not None:
        is_admin = bool(request.exactly.admin_access)
        yield request.name, request.exactly.device_class_name, 0 if is_admin else request.exactly.count or 1
    for way in request.first_available or ():
        yield f"{request.name}/{way.name}", way.device_class_name, way.count or 1
