"""Says who has what: each claim, what it asks for or has, where, and for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from fairlead import errors
from fairlead.cli.layer.dra import note
from fairlead.cli.layer.dra.read import Objects
from fairlead.plan.dra import devicestatus
from fairlead.wire.kubernetes.resource.request import DeviceRequest, DeviceSubRequest, ExactDeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult, ResourceClaim

SHOWN: Final = 100
_NAMES: Final = 5


class GivenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a claim."""

    device: str
    """`DRIVER/POOL/NAME`."""
    request: str
    admin_access: bool = False
    """The claim looks at it, and does not have it."""
    share: str = ""
    """Id of its share, where the device is shared."""
    consumes: dict[str, str] = {}
    """What the share takes of the device's capacity."""
    state: str = ""
    """`prepared`, `preparing` or `failed` on its node; `unreported`: its driver says nothing of it."""
    step: str = ""
    """How far it is, or why it failed."""
    since: str = ""
    message: str = ""
    """The same for a person, with the next step."""
    enforced_by: str = ""
    """What holds programs to their share of it."""


class GivenClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim."""

    claim: str
    state: str
    """`waiting`, `allocated` (no pod uses it yet) or `reserved`."""
    is_deleted: bool
    """Its deletion has begun."""
    node: str
    """Where its devices are; empty where it waits."""
    reserved_for: tuple[str, ...]
    """`pod web`."""
    asks: tuple[str, ...]
    """`2 gpu.example.com`, once a request."""
    devices: tuple[GivenDevice, ...]


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Who has what."""

    claims: tuple[GivenClaim, ...]
    counts: dict[str, int]
    """Claims by state, those that are not shown too."""
    left_out: tuple[str, ...] = ()


def given(found: Objects, *, namespace: str, every: bool) -> Given:
    """Return the claims, by namespace and name. Args: namespace: empty: of all.   every: however many there are."""
    claims = sorted(
        (one for one in found.of(ResourceClaim) if not namespace or one.metadata.namespace == namespace),
        key=lambda one: (one.metadata.namespace, one.metadata.name),
    )
    shown = claims if every else claims[:SHOWN]
    more = f"not shown: {note.count(len(claims) - len(shown), 'claim')}; --all shows them"
    return Given(
        claims=tuple(map(_claim, shown)),
        counts=dict(sorted(Counter(map(_state, claims)).items())),
        left_out=(*((more,) if len(shown) < len(claims) else ()), *note.unread(found)),
    )


def _claim(claim: ResourceClaim) -> GivenClaim:
    allocation, about = claim.status.allocation, claim.metadata
    results = allocation.devices.results if allocation is not None else ()
    users = [f"{one.resource.removesuffix('s') or 'user'} {one.name}" for one in claim.status.reserved_for]
    return GivenClaim(
        claim=errors.readable(f"{about.namespace}/{about.name or about.generate_name}"),
        state=_state(claim),
        is_deleted=about.deletion_timestamp is not None,
        node=errors.readable(note.nodes_of(allocation.node_selector)) if allocation is not None else "",
        reserved_for=tuple(map(errors.readable, users)),
        asks=tuple(errors.readable(_asks(one)) for one in claim.spec.devices.requests or ()),
        devices=tuple(map(_device, results, devicestatus.reports(claim))),
    )


def _state(claim: ResourceClaim) -> str:
    if claim.status.allocation is None:
        return "waiting"
    return "reserved" if claim.status.reserved_for else "allocated"


def _device(one: DeviceRequestAllocationResult, report: devicestatus.Report) -> GivenDevice:
    return GivenDevice(
        device=errors.readable(f"{one.driver}/{one.pool}/{one.device}"),
        request=errors.readable(one.request),
        admin_access=bool(one.admin_access),
        share=errors.readable(one.share_id or ""),
        consumes={errors.readable(key): errors.readable(str(value)) for key, value in one.consumed_capacity.items()},
        state=report.state,
        step=errors.readable(report.step),
        since=errors.readable(report.since or ""),
        message=errors.readable(report.message),
        enforced_by=errors.readable(report.enforced_by),
    )


def _asks(request: DeviceRequest) -> str:
    if request.exactly is not None:
        return _count(request.exactly)
    return " or ".join(map(_count, request.first_available))


def _count(one: ExactDeviceRequest | DeviceSubRequest) -> str:
    return f"{'all' if one.allocation_mode == 'All' else one.count or 1} {one.device_class_name}"


def lines(found: Given) -> Iterator[str]:
    """Yield who has what for a terminal."""
    if found.claims:
        rows = [("CLAIM", "STATE", "NODE", "FOR", "DEVICES")]
        for one in found.claims:
            state = f"{one.state}, deleted" if one.is_deleted else one.state
            users = note.listed(one.reserved_for, most=_NAMES)
            rows.append((one.claim, state, one.node, users, _devices(one)))
        yield from note.table(rows)
        for one in found.claims:
            for text in _reports(one):
                yield from note.wrapped(f"{one.claim}: {text}", indent=4, first=2)
    told = ", ".join(f"{number} {state}" for state, number in found.counts.items())
    yield f"{note.count(sum(found.counts.values()), 'claim')}{f': {told}' if told else ''}."
    for text in found.left_out:
        yield from note.wrapped(text, indent=2, first=0)


def _devices(one: GivenClaim) -> str:
    if one.state == "waiting":
        return f"wants {'; '.join(one.asks) or 'nothing'}"
    return ", ".join(map(_named, one.devices)) or "none"


def _reports(one: GivenClaim) -> Iterator[str]:
    """Yield what is worth a line of a claim's devices: what is not prepared, and what holds programs to their share."""
    for device in one.devices:
        if device.state in {"preparing", "failed"}:
            said = "being prepared" if device.state == "preparing" else "not prepared"
            yield f"{device.device} is {said} ({device.step}, since {device.since or 'unknown'}): {device.message}"
        if device.enforced_by:
            yield f"{device.device}: share held by: {device.enforced_by}"


def _named(one: GivenDevice) -> str:
    consumed = " ".join(f"{key} {value}" for key, value in one.consumes.items())
    share = f" (share{f' of {consumed}' if consumed else ''})" if one.share else ""
    return f"{one.device}{share}{' (looks on)' if one.admin_access else ''}"
