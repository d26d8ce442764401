"""Describes claims of devices; without the web framework."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final

import msgspec

from fairlead.plan.claim.life import eviction, lifecycle
from fairlead.plan.dra import devicestatus
from fairlead.plan.pod import podstate
from fairlead.serve.v1.claims.allocation import AllocatedDevice, allocated
from fairlead.wire.fairlead import listing
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.request import DeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_IDLE: Final = "no container that waits names it: devices are given with a container's node"


class RequestedDevices(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a claim."""

    name: str
    device_class: Annotated[str, msgspec.Meta(description="of the devices; of alternatives: the first one's")]
    count: Annotated[int, msgspec.Meta(description="0: all that there are")]
    selectors: Annotated[tuple[str, ...], msgspec.Meta(description="CEL expressions that each device must meet")]


class ClaimedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device that is allocated to a claim, and how far it is prepared."""

    device: Annotated[str, msgspec.Meta(description="`DRIVER/POOL/NAME`, and `/SHARE` of a shared one")]
    state: Annotated[
        str,
        msgspec.Meta(
            description="prepared, preparing, failed, or unreported: its driver says nothing, or was not asked yet"
        ),
    ]
    step: Annotated[str, msgspec.Meta(description="how far it is, or why it failed: one word")] = ""
    message: Annotated[str, msgspec.Meta(description="the same for a person, with the next step")] = ""
    since: Annotated[str | None, msgspec.Meta(description="when it came there; null: not known")] = None
    gpu: Annotated[str, msgspec.Meta(description="UUID of its GPU; empty: not known")] = ""
    mig_device: Annotated[str, msgspec.Meta(description="UUID of the MIG device that it is; empty: none")] = ""
    enforced_by: Annotated[
        str, msgspec.Meta(description="what holds programs to their share of it; empty: it is not shared")
    ] = ""


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of devices."""

    name: str
    namespace: str
    state: Annotated[str, msgspec.Meta(description="waiting, allocated or removing")]
    requests: tuple[RequestedDevices, ...]
    devices: Annotated[tuple[str, ...], msgspec.Meta(description="what it holds: `DRIVER/POOL/DEVICE`")]
    used_by: Annotated[tuple[str, ...], msgspec.Meta(description="containers that it is reserved for")]
    owner: Annotated[str, msgspec.Meta(description="container that it was made for, and goes with; empty: none")]
    message: Annotated[str, msgspec.Meta(description="why it holds no devices; empty: it does")]
    labels: Mapping[str, str]
    created_at: str | None
    prepared: Annotated[
        tuple[ClaimedDevice, ...], msgspec.Meta(description="how far each device is prepared on its node")
    ] = ()
    allocated: Annotated[
        tuple[AllocatedDevice, ...], msgspec.Meta(description="its devices, where one claim is shown; not in lists")
    ] = ()
    allocated_at: Annotated[str | None, msgspec.Meta(description="when it got them; null: nothing says")] = None


class ClaimList(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of devices."""

    items: tuple[ClaimView, ...]
    next: listing.Next = ""


def claim_view(
    claim: ResourceClaim, pods: Iterable[core.Pod], slices: Iterable[ResourceSlice] | None = None
) -> ClaimView:
    """Describe a claim. Args: pods: of its namespace.   slices: that devices stand in; None: as a list has it."""
    about, owner = claim.metadata, lifecycle.owning_pod(claim)
    devices = tuple(str(id_) for id_, _ in eviction.devices(claim))
    allocation = claim.status.allocation
    is_held = allocation is not None
    return ClaimView(
        name=about.name,
        namespace=about.namespace,
        state="removing" if about.deletion_timestamp else "allocated" if is_held else "waiting",
        requests=tuple(map(_request, claim.spec.devices.requests or ())),
        devices=devices,
        used_by=tuple(one.name for one in claim.status.reserved_for),
        owner=owner.name if owner is not None else "",
        message="" if is_held else next(_why(claim, pods), _IDLE),
        labels=about.labels,
        created_at=about.creation_timestamp,
        prepared=claimed_devices(claim),
        allocated=() if slices is None else allocated(claim, slices),
        allocated_at=allocation.allocation_timestamp if allocation is not None else None,
    )


def claimed_devices(claim: ResourceClaim) -> tuple[ClaimedDevice, ...]:
    """Return how far each device that is allocated to a claim is prepared."""
    return tuple(
        ClaimedDevice(
            device=one.device,
            state=one.state,
            step=one.step,
            message=one.message,
            since=one.since,
            gpu=one.gpu,
            mig_device=one.mig_device,
            enforced_by=one.enforced_by,
        )
        for one in devicestatus.reports(claim)
    )


def _why(claim: ResourceClaim, pods: Iterable[core.Pod]) -> Iterator[str]:
    """Yield why pods that name a claim wait."""
    for pod in pods:
        waits = not pod.spec.node_name and not podstate.is_final(pod)
        if waits and claim.metadata.name in lifecycle.claim_names(pod) and (message := podstate.why(pod)[1]):
            yield f"{pod.metadata.name} waits: {message}"


def _request(one: DeviceRequest) -> RequestedDevices:
    way = one.exactly if one.exactly is not None else next(iter(one.first_available), None)
    if way is None:
        return RequestedDevices(name=one.name, device_class="", count=0, selectors=())
    return RequestedDevices(
        name=one.name,
        device_class=way.device_class_name,
        count=0 if way.allocation_mode == "All" else max(1, way.count),
        selectors=tuple(each.cel.expression for each in way.selectors if each.cel is not None),
    )
