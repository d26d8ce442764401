"""Says which claim meets a pod's extended resources on nodes that do not offer these themselves.

A DeviceClass stands for the resource that its spec names, and for one of its own name. Where a node has any of a
resource the amount decides; where it has none a scheduler makes one claim for all such resources of the pod.
Source: kubernetes 1.37 pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go and
dynamic-resource-allocation deviceclass/extendedresourcecache (behaviour).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

import msgspec

from fairlead import errors
from fairlead.plan.claim.default import EXACT_COUNT
from fairlead.plan.claim.validate.request import REQUESTS_MOST
from fairlead.plan.pod.admission import is_extended
from fairlead.wire.kubernetes import core, meta, quantity
from fairlead.wire.kubernetes.resource.deviceclass import IMPLICIT_RESOURCE, DeviceClass
from fairlead.wire.kubernetes.resource.request import DeviceClaim, DeviceRequest, ExactDeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import EXTENDED_RESOURCE_CLAIM, ResourceClaim, ResourceClaimSpec

Mapped = core.ContainerExtendedResourceRequest


@dataclass(frozen=True, slots=True)
class Requests:
    """What the claim asks for, and which request of it answers for which container."""

    requests: tuple[DeviceRequest, ...] = ()
    """By name: containers are counted from 0, init containers first."""
    mappings: tuple[Mapped, ...] = ()


def served(classes: Iterable[DeviceClass]) -> Mapping[str, str]:
    """Return the class that stands for each extended resource.

    Where several name one the newest does, so that a class can be replaced; of those of one second the first by name.
    """
    by_age = sorted(classes, key=lambda one: one.metadata.name, reverse=True)
    by_age.sort(key=lambda one: one.metadata.creation_timestamp or "")
    named = {name: one.metadata.name for one in by_age if is_extended(name := one.spec.extended_resource_name or "")}
    return named | {f"{IMPLICIT_RESOURCE}{one.metadata.name}": one.metadata.name for one in by_age}


def asked(pod: core.Pod, classes: Mapping[str, str]) -> frozenset[str]:
    """Return the resources that a pod asks for and that a class stands for. Args: classes: see `served`."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return frozenset(name for one in containers for name in _requests(one) if name in classes and _amount(one, name))


def lacking(resources: Collection[str], allocatable: Mapping[str, str | int | float]) -> frozenset[str]:
    """Return those of the resources that a node has none of: a claim is to meet them there."""
    return frozenset(name for name in resources if _whole(allocatable.get(name, 0)) <= 0)


def requests(pod: core.Pod, resources: Collection[str], classes: Mapping[str, str]) -> Requests:
    """Return what the claim for some resources of a pod asks for. Args: classes: see `served`."""
    found = [_of_resource(pod, name, classes[name]) for name in sorted(resources)]
    return Requests(
        requests=tuple(sorted(chain.from_iterable(one.requests for one in found), key=lambda one: one.name)),
        mappings=tuple(chain.from_iterable(one.mappings for one in found)),
    )


def problems(pod: core.Pod, resources: Collection[str], classes: Mapping[str, str]) -> tuple[str, ...]:
    """Return why no server takes the claim, in words. Args: see `requests`."""
    count = len(requests(pod, resources, classes).requests)
    if count <= REQUESTS_MOST:
        return ()
    return (f"its extended resources need a claim of {count} requests, and a claim has {REQUESTS_MOST} at most",)


def claim(pod: core.Pod, wanted: Requests) -> ResourceClaim:
    """Return the claim that meets extended resources of a pod, without the end of its name, which is random."""
    about = pod.metadata
    owner = meta.OwnerReference(
        api_version=pod.API_VERSION, kind=pod.KIND, name=about.name, uid=about.uid, controller=True
    )
    return ResourceClaim(
        metadata=meta.ObjectMeta(
            name=f"{about.name}-extended-resources",
            namespace=about.namespace,
            annotations={EXTENDED_RESOURCE_CLAIM: "true"},
            owner_references=(owner,),
        ),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=wanted.requests)),
    )


def _of_resource(pod: core.Pod, resource: str, of_class: str) -> Requests:
    """Return the requests for one resource.

    Containers that run beside each other have one each. An init container that ends uses those of the containers after
    it, and of what such ones lack beyond that the most is requested once, since they run one after the other. They are
    left out where the claim has too many requests without them (`REQUESTS_MOST`): no server takes it.
    """
    lasting: dict[int, DeviceRequest] = {}
    mappings = list[Mapped]()
    for at, one in _containers(pod, passing=False):
        if amount := _amount(one, resource):
            lasting[at] = _request(at, one, resource, of_class, amount)
            mappings.append(_mapped(one, resource, lasting[at]))
    more, of_passing = list[DeviceRequest](), list[Mapped]()
    for at, one in _containers(pod, passing=True) if len(lasting) <= REQUESTS_MOST else ():
        lacks = _amount(one, resource)
        for index, later in lasting.items():
            if index >= at and lacks > 0:
                of_passing.append(_mapped(one, resource, later))
                lacks -= _count(later)
        if lacks > 0:
            more.append(_request(at, one, resource, of_class, lacks))
            of_passing.append(_mapped(one, resource, more[-1]))
    if more:
        most, names = max(more, key=_count), {one.name for one in more}
        renamed = (msgspec.structs.replace(one, request_name=most.name) for one in of_passing)
        pairs = zip(of_passing, renamed, strict=True)
        of_passing = [after if before.request_name in names else before for before, after in pairs]
        more = [most]
    return Requests(requests=(*more, *lasting.values()), mappings=(*mappings, *of_passing))


def _containers(pod: core.Pod, *, passing: bool) -> Iterator[tuple[int, core.Container]]:
    """Yield containers with their places. Args: passing: init containers that end, or all others."""
    init = pod.spec.init_containers
    for at, one in enumerate((*init, *pod.spec.containers)):
        if passing is (at < len(init) and one.restart_policy != "Always"):
            yield at, one


def _request(at: int, container: core.Container, resource: str, of_class: str, count: int) -> DeviceRequest:
    place = sorted(_requests(container)).index(resource)
    exactly = ExactDeviceRequest(device_class_name=of_class, allocation_mode=EXACT_COUNT, count=count)
    return DeviceRequest(name=f"container-{at}-request-{place}", exactly=exactly)


def _mapped(container: core.Container, resource: str, request: DeviceRequest) -> Mapped:
    return Mapped(container_name=container.name, resource_name=resource, request_name=request.name)


def _count(request: DeviceRequest) -> int:
    return request.exactly.count if request.exactly is not None else 0


def _requests(container: core.Container) -> Mapping[str, str | int | float]:
    """Return what a container requests, as the API server stores it: a limit is a request where none is said."""
    return {**container.resources.limits, **container.resources.requests}


def _amount(container: core.Container, resource: str) -> int:
    return max(0, _whole(_requests(container).get(resource, 0)))


def _whole(amount: str | float) -> int:
    """Return an amount; 0 where it is none, or a fraction, which no device can be."""
    try:
        found: Fraction = quantity.parse_quantity(amount)
    except errors.FairleadError:
        return 0
    return found.numerator if found.denominator == 1 else 0
