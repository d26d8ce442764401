"""Compares two versions of a pod: what of it a decision reads. Pure."""

from __future__ import annotations

import msgspec

from fairlead.plan.schedule import reference
from fairlead.wire.kubernetes import core


def bound(pod: core.Pod, node: str) -> core.Pod:
    """Return a pod as it is with a node."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def is_over(pod: core.Pod) -> bool:
    """Return whether a pod has ended."""
    return pod.status.phase in core.ENDED_PHASES


def is_same(known: core.Pod, pod: core.Pod) -> bool:
    """Return whether a pod with a node is the same in all that decisions read of it."""
    one, other = known.metadata, pod.metadata
    if (one.labels, one.deletion_timestamp is None) != (other.labels, other.deletion_timestamp is None):
        return False
    return known.spec == pod.spec and is_over(known) == is_over(pod)


def asks_same(known: core.Pod, pod: core.Pod) -> bool:
    """Return whether two versions of a pod that waits differ in their status alone."""
    one, other = known.metadata, pod.metadata
    if (one.labels, one.annotations, one.deletion_timestamp) != (other.labels, other.annotations, None):
        return False
    return known.spec == pod.spec and not is_over(known) and not is_over(pod)


def is_echo(known: core.Pod, pod: core.Pod) -> bool:
    """Return whether a watch says of a pod what our own write said already."""
    version = known.metadata.resource_version
    return bool(version) and version == pod.metadata.resource_version and known == pod


def is_anew(pod: core.Pod, kept: core.Pod) -> bool:
    """Return whether a pod has the controller of one that is to come, and asks for the same."""
    owners = ([one.uid for one in each.metadata.owner_references if one.controller] for each in (pod, kept))
    mine, theirs = owners
    if not mine or mine != theirs:
        return False
    return reference.pod_info(pod).requests == reference.pod_info(kept).requests
