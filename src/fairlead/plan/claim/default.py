"""Fills in the defaults of the objects of resource.k8s.io, as the API server does before it looks at anything.

Source: kubernetes 1.37 pkg/apis/resource/v1/defaults.go and zz_generated.defaults.go.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from fairlead.wire.kubernetes.resource.device import DeviceToleration
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.poolstatusrequest import ResourcePoolStatusRequest
from fairlead.wire.kubernetes.resource.request import DeviceRequest, DeviceSubRequest, ExactDeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

R = TypeVar("R", ExactDeviceRequest, DeviceSubRequest)

EXACT_COUNT: Final = "ExactCount"
POOLS: Final = 100


def claim(item: ResourceClaim) -> ResourceClaim:
    """Return a claim whose requests name their allocation mode and count, and its tolerations their operator."""
    status = item.status
    if status.allocation is not None:
        devices = status.allocation.devices
        results = tuple(
            msgspec.structs.replace(one, tolerations=_tolerations(one.tolerations)) for one in devices.results
        )
        allocated = msgspec.structs.replace(devices, results=results)
        status = msgspec.structs.replace(
            status, allocation=msgspec.structs.replace(status.allocation, devices=allocated)
        )
    return msgspec.structs.replace(item, spec=claim_spec(item.spec), status=status)


def claim_template(item: ResourceClaimTemplate) -> ResourceClaimTemplate:
    """Return a template with the defaults of the claim that it describes."""
    spec = msgspec.structs.replace(item.spec, spec=claim_spec(item.spec.spec))
    return msgspec.structs.replace(item, spec=spec)


def claim_spec(spec: ResourceClaimSpec) -> ResourceClaimSpec:
    """Return the spec of a claim with its defaults."""
    requests = tuple(_request(one) for one in spec.devices.requests or ())
    return msgspec.structs.replace(spec, devices=msgspec.structs.replace(spec.devices, requests=requests))


def resource_slice(item: ResourceSlice, now: str) -> ResourceSlice:
    """Return a slice whose taints say since when they are.

    Args:    now: RFC 3339, in whole seconds.
    """
    devices = tuple(
        msgspec.structs.replace(one, taints=tuple(_taint(taint, now) for taint in one.taints)) if one.taints else one
        for one in item.spec.devices
    )
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))


def taint_rule(item: DeviceTaintRule, now: str) -> DeviceTaintRule:
    """Return a rule whose taint says since when it is, as `resource_slice`."""
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, taint=_taint(item.spec.taint, now)))


def pool_status_request(item: ResourcePoolStatusRequest) -> ResourcePoolStatusRequest:
    """Return a request that says how many pools it wants at most."""
    if item.spec.limit is not None:
        return item
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, limit=POOLS))


def _request(item: DeviceRequest) -> DeviceRequest:
    exactly = item.exactly and _devices(item.exactly)
    return msgspec.structs.replace(
        item, exactly=exactly, first_available=tuple(_devices(one) for one in item.first_available)
    )


def _devices(item: R) -> R:
    mode = item.allocation_mode or EXACT_COUNT
    count = 1 if mode == EXACT_COUNT and item.count == 0 else item.count
    return msgspec.structs.replace(item, allocation_mode=mode, count=count, tolerations=_tolerations(item.tolerations))


def _tolerations(items: tuple[DeviceToleration, ...]) -> tuple[DeviceToleration, ...]:
    return tuple(one if one.operator else msgspec.structs.replace(one, operator="Equal") for one in items)


def _taint(item: Any, now: str) -> Any:
    return item if item.time_added is not None else msgspec.structs.replace(item, time_added=now)
