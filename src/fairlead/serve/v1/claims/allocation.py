"""Describes what was allocated to a claim, device by device: where it is, how it is shared, and what enforces that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from fairlead.plan.claim.pool.candidate import DeviceID
from fairlead.plan.dra import share
from fairlead.wire.kubernetes.resource.device import Device, DeviceAttribute
from fairlead.wire.kubernetes.resource.resourceclaim import (
    AllocatedDeviceStatus,
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from fairlead.wire.nvidia import claimconfig

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


class DeviceConditionView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a driver reports of a device."""

    type: str
    status: Annotated[str, msgspec.Meta(description="True, False or Unknown")]
    reason: str = ""
    message: str = ""
    since: Annotated[str | None, msgspec.Meta(description="since when it is so; null: nothing says")] = None


class AllocatedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a claim."""

    id: Annotated[str, msgspec.Meta(description="`DRIVER/POOL/DEVICE`")]
    request: Annotated[str, msgspec.Meta(description="request that it was allocated for")]
    node: Annotated[str, msgspec.Meta(description="node of its slice; empty: not one node's, or no longer published")]
    gpu: Annotated[str, msgspec.Meta(description="UUID of the GPU that it is, or is a part of; empty: not known")]
    model: str
    profile: Annotated[str, msgspec.Meta(description="of a MIG device; empty: it is none")]
    consumed: Annotated[
        Mapping[str, str], msgspec.Meta(description="of a shared device: what this claim takes of its capacity")
    ]
    is_admin: Annotated[bool, msgspec.Meta(description="it is looked at, whether or not another claim has it")]
    sharing: Annotated[
        str, msgspec.Meta(description="how programs share it, by the claim's or its class's configuration")
    ]
    enforced_by: Annotated[
        str,
        msgspec.Meta(description="what holds programs to their share of its memory: MPS, nothing; empty: not shared"),
    ]
    conditions: Annotated[tuple[DeviceConditionView, ...], msgspec.Meta(description="as its driver reports them")]


def allocated(claim: ResourceClaim, slices: Iterable[ResourceSlice]) -> tuple[AllocatedDevice, ...]:
    """Return the devices of a claim in the order of its requests."""
    found = claim.status.allocation
    if found is None:
        return ()
    published = _published(claim, slices)
    reported = {(one.driver, one.pool, one.device, one.share_id): one for one in claim.status.devices}
    return tuple(
        _device(
            one,
            published.get(DeviceID(one.driver, one.pool, one.device)),
            reported.get((one.driver, one.pool, one.device, one.share_id)),
            _sharing(one, found.devices.config),
        )
        for one in found.devices.results
    )


def _published(claim: ResourceClaim, slices: Iterable[ResourceSlice]) -> Mapping[DeviceID, tuple[str, Device]]:
    """Return the claim's devices as their newest slices have them, with the node of each."""
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    wanted = {DeviceID(one.driver, one.pool, one.device) for one in results}
    pools = {(one.driver, one.pool) for one in wanted}
    own = [one for one in slices if (one.spec.driver, one.spec.pool.name) in pools]
    found: dict[DeviceID, tuple[str, Device]] = {}
    for one in sorted(own, key=lambda each: each.spec.pool.generation):
        for device in one.spec.devices:
            id_ = DeviceID(one.spec.driver, one.spec.pool.name, device.name)
            if id_ in wanted:
                found[id_] = (one.spec.node_name or "", device)
    return found


def _device(
    result: DeviceRequestAllocationResult,
    published: tuple[str, Device] | None,
    reported: AllocatedDeviceStatus | None,
    sharing: str,
) -> AllocatedDevice:
    node, device = published or ("", None)
    attributes: Mapping[str, DeviceAttribute] = device.attributes if device is not None else {}
    is_shared = device is not None and device.allow_multiple_allocations is True
    return AllocatedDevice(
        id=f"{result.driver}/{result.pool}/{result.device}",
        request=result.request,
        node=node,
        gpu=_text(attributes, "parentUUID") or _text(attributes, "uuid"),
        model=_text(attributes, "productName"),
        profile=_text(attributes, "profile"),
        consumed={name: str(amount) for name, amount in result.consumed_capacity.items()},
        is_admin=bool(result.admin_access),
        sharing=sharing,
        enforced_by=_text(attributes, share.ENFORCED_BY) if is_shared else "",
        conditions=tuple(
            DeviceConditionView(
                type=one.type,
                status=one.status,
                reason=one.reason,
                message=one.message,
                since=one.last_transition_time,
            )
            for one in ((reported.conditions if reported is not None else None) or ())
        ),
    )


def _text(attributes: Mapping[str, DeviceAttribute], name: str) -> str:
    found = attributes.get(name)
    return (found.string or "") if found is not None else ""


def _sharing(result: DeviceRequestAllocationResult, configs: Iterable[DeviceAllocationConfiguration]) -> str:
    """Return how programs share a device, in words; of several configurations the last one that says so counts."""
    said = ""
    for config in configs:
        request = result.request.partition("/")[0]
        is_meant = not config.requests or not {request, result.request}.isdisjoint(config.requests)
        if is_meant and config.opaque is not None and config.opaque.driver == result.driver:
            said = ", ".join(_words(config.opaque.parameters)) or said
    return said


def _words(parameters: Any) -> Iterator[str]:
    config, _ = claimconfig.read(parameters)
    sharing = getattr(config, "sharing", None)
    if isinstance(sharing, claimconfig.TimeSlicing):
        length = sharing.interval.name.lower() if sharing.interval is not None else "default"
        yield f"programs take turns ({length} time slices)"
    elif isinstance(sharing, claimconfig.MPSSharing):
        yield "programs calculate at the same time, by MPS"
        if sharing.thread_percentage is not None:
            yield f"each on {sharing.thread_percentage} % of the multiprocessors"
        if sharing.memory_bytes is not None:
            yield f"each with {_amount(sharing.memory_bytes)} of memory"


def _amount(count: int) -> str:
    return f"{count / _GIB:.3g} GiB" if count >= _GIB else f"{count / _MIB:.3g} MiB"
