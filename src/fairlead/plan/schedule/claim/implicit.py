"""Says what claim meets a pod's extended resources on a node that offers none of them, and how it is made.

A DeviceClass may stand for a resource. Where a node has any of it the amount decides, as ever; where it has none a
claim does, which is made for the pod once its devices are chosen, and never used by another try. Until it is made it
counts under a uid of ours, which no server gives.
Source: kubernetes 1.37 pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go (behaviour).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from fairlead.plan.claim import extended
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.claim.validate.request import REQUESTS_MOST
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.request import DeviceClaim, DeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import EXTENDED_RESOURCE_CLAIM, ResourceClaim, ResourceClaimSpec

NAME: Final = "<extended-resources>"
"""What is said of the claim before it has a name; no object can have it."""
_NEW: Final = "new/"
_LONGEST: Final = 58
"""Characters of a name before its random end; an API server's."""
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
Suffix = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Met:
    """An extended resource that a class stands for; equal for pods that ask alike."""

    resource: str
    spec: bytes
    requests: tuple[DeviceRequest, ...] = field(compare=False)
    """What the claim asks for where it is to meet the resource."""


@dataclass(frozen=True, slots=True)
class Creation:
    """A claim that is to be made for a pod."""

    claim: ResourceClaim
    """As it counts, with its devices; its uid is not a server's."""
    told: core.PodExtendedResourceClaimStatus
    """What the pod's status says of it."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A claim of an earlier try that is to go."""

    uid: str
    namespace: str
    name: str
    pod: str
    """Uid."""
    pod_name: str


def of_pod(pod: core.Pod, served: Mapping[str, str]) -> tuple[Met, ...]:
    """Return the resources of a pod that a class stands for, by name. Args: served: see `extended.served`."""
    found = ((name, extended.requests(pod, (name,), served).requests) for name in sorted(extended.asked(pod, served)))
    return tuple(Met(name, msgspec.json.encode(requests), requests) for name, requests in found)


def lacking(every: Iterable[Met], allocatable: Mapping[str, int]) -> tuple[Met, ...]:
    """Return those of which a node has none."""
    return tuple(one for one in every if allocatable.get(one.resource, 0) <= 0)


@functools.lru_cache(maxsize=256)
def wanted(every: tuple[Met, ...]) -> ResourceClaim:
    """Return the claim that meets resources, as nodes are judged by it."""
    requests = sorted((request for one in every for request in one.requests), key=lambda one: one.name)
    return ResourceClaim(
        metadata=ObjectMeta(name=NAME), spec=ResourceClaimSpec(devices=DeviceClaim(requests=tuple(requests)))
    )


def problem(claim: ResourceClaim) -> str:
    """Return why no server takes the claim; empty: it does."""
    count = len(claim.spec.devices.requests or ())
    if count <= REQUESTS_MOST:
        return ""
    return f"extended resources need a claim of {count} requests, and a claim has {REQUESTS_MOST} at most"


def creation(pod: core.Pod, every: Iterable[Met], served: Mapping[str, str], suffix: Suffix) -> Creation:
    """Return the claim that is to be made for a pod, without its devices."""
    asked = extended.requests(pod, {one.resource for one in every}, served)
    made = extended.claim(pod, asked)
    base = f"{made.metadata.name}-"[:_LONGEST]
    name = f"{base}{suffix()}"
    about = msgspec.structs.replace(made.metadata, uid=f"{_NEW}{pod.metadata.uid}", name=name, generate_name=base)
    told = core.PodExtendedResourceClaimStatus(request_mappings=asked.mappings, resource_claim_name=name)
    return Creation(msgspec.structs.replace(made, metadata=about), told)


def removal(claim: ResourceClaim, pod: core.Pod) -> Removal:
    """Return what removes a claim that was made for a pod."""
    about, whose = claim.metadata, pod.metadata
    return Removal(uid=about.uid, namespace=about.namespace, name=about.name, pod=whose.uid, pod_name=whose.name)


def is_new(claim: ResourceClaim) -> bool:
    """Return whether a claim is not made yet."""
    return claim.metadata.uid.startswith(_NEW)


def made_for(claim: ResourceClaim) -> str:
    """Return the uid of the pod for whose extended resources a claim was made, "" where it was not."""
    if claim.metadata.annotations.get(EXTENDED_RESOURCE_CLAIM) != "true":
        return ""
    owner = lifecycle.owning_pod(claim)
    return "" if owner is None else owner.uid


def with_status(pod: core.Pod, told: core.PodExtendedResourceClaimStatus) -> core.Pod:
    """Return a pod whose status names its claim."""
    status = msgspec.structs.replace(pod.status, extended_resource_claim_status=told)
    return msgspec.structs.replace(pod, status=status)


def random_suffix() -> str:
    """Return the end of a name, as an API server draws it."""
    return "".join(random.SystemRandom().choices(_LETTERS, k=5))
