"""Builds small clusters of devices for tests of the allocator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.plan.claim import allocate, default, expression
from fairlead.plan.claim.gate import DEFAULTS, Gates
from fairlead.plan.claim.pool import held, pool
from fairlead.plan.claim.pool.held import Held
from fairlead.plan.claim.refusal import Allocation, Refusal
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

Document = dict[str, Any]
SITE = pool.Site(name="node-1", labels={"zone": "a"})
DRIVER = "gpu.example.com"
ANY = "true"
matches = expression.matcher()


def read(kind: str, document: Document) -> Any:
    """Read one object of v1."""
    return dialect.read({"apiVersion": dialect.V1, "kind": kind, **document}).item


def device(name: str, *, attributes: Mapping[str, Any] | None = None, **rest: Any) -> Document:
    """Return a device; attributes by name, with plain values."""
    kinds = {str: "string", int: "int", bool: "bool"}
    found = {
        key: {f"{kinds[type(value[0])]}s": value} if isinstance(value, list) else {kinds[type(value)]: value}
        for key, value in (attributes or {}).items()
    }
    return {"name": name, **({"attributes": found} if found else {}), **rest}


def counted(name: str, amounts: Mapping[str, Any], *, counter_set: str = "set", **rest: Any) -> Document:
    """Return a device that takes counters."""
    counters = {key: {"value": str(value)} for key, value in amounts.items()}
    return device(name, consumesCounters=[{"counterSet": counter_set, "counters": counters}], **rest)


def published(
    devices: Sequence[Document] = (), *, name: str = "slice", driver: str = DRIVER, pool_name: str = "pool", **spec: Any
) -> ResourceSlice:
    """Return a slice of the node; `count` and `generation` are those of its pool."""
    where = {} if {"nodeSelector", "allNodes", "perDeviceNodeSelection"} & set(spec) else {"nodeName": SITE.name}
    number = {"generation": spec.pop("generation", 1), "resourceSliceCount": spec.pop("count", 1)}
    full = {"driver": driver, "pool": {"name": pool_name, **number}, **where, **spec}
    if devices:
        full["devices"] = list(devices)
    item: ResourceSlice = read("ResourceSlice", {"metadata": {"name": name}, "spec": full})
    return item


def counters(sets: Mapping[str, Mapping[str, Any]], **spec: Any) -> ResourceSlice:
    """Return the slice of a pool's counters."""
    shared = [
        {"name": name, "counters": {key: {"value": str(value)} for key, value in one.items()}}
        for name, one in sets.items()
    ]
    return published(**{"name": "counters", "count": 2, "sharedCounters": shared, **spec})


def request(name: str = "gpu", **fields: Any) -> Document:
    """Return a request for devices of the class `any`."""
    return {"name": name, "exactly": {"deviceClassName": "any", **fields}}


def claim(*requests: Document, name: str = "claim", **devices: Any) -> ResourceClaim:
    """Return a claim with the defaults of an API server."""
    document = {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests), **devices}}}
    item: ResourceClaim = read("ResourceClaim", document)
    return default.claim(item)


def device_class(name: str = "any", expression: str = ANY, **spec: Any) -> DeviceClass:
    """Return a class of one selector."""
    document = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}], **spec}}
    item: DeviceClass = read("DeviceClass", document)
    return item


CLASSES = {"any": device_class()}


def run(
    claims: ResourceClaim | Sequence[ResourceClaim],
    slices: Iterable[ResourceSlice],
    *,
    having: Held = held.NOTHING,
    gates: Gates = DEFAULTS,
    **rest: Any,
) -> Allocation | Refusal:
    """Allocate on the node, with ids of shares that count."""
    every = [claims] if isinstance(claims, ResourceClaim) else claims
    ids = itertools.count()
    rest = {"classes": CLASSES, "matches": matches, "share_ids": lambda: f"share-{next(ids)}", **rest}
    classes = rest.pop("classes")
    return allocate.allocate(every, classes, pool.Pools(slices, gates).on(SITE), having, gates=gates, **rest)


def names(found: Allocation | Refusal) -> list[str]:
    """Return the devices of an answer, in order."""
    assert isinstance(found, Allocation), found.message
    return [one.device for each in found.results for one in each.devices.results]


def refused(found: Allocation | Refusal) -> Refusal:
    """Return a refusal."""
    assert isinstance(found, Refusal), names(found)
    return found
