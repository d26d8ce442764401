"""Decides when pods must leave devices with a NoExecute taint, and what the status of a taint's rule says. Pure.

A taint is borne as long as every toleration for it says, counted from when it was added. A toleration without an effect
bears NoExecute too, as the API documents it and the allocator reads it (the reference's controller does not: there such
a claim is allocated and evicted in turn).
Source: kubernetes 1.37 pkg/controller/devicetainteviction/device_taint_eviction.go (behaviour).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.plan.claim.life import lifecycle
from fairlead.plan.claim.pool.candidate import DeviceID
from fairlead.plan.claim.search import fit
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.device import DeviceTaint
from fairlead.wire.kubernetes.resource.devicetaintrule import EVICTION_IN_PROGRESS, DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult, ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

NO_EXECUTE: Final = "NoExecute"
_DONE: Final = frozenset({"Completed", "PodsPendingEviction"})
"""Reasons of a condition after which pods were evicted."""


@dataclass(frozen=True, slots=True)
class Taint:
    """One taint of a device, and who set it."""

    taint: DeviceTaint
    origin: str
    """As a person names it."""
    rule: str = ""
    """Uid of the rule; empty: the device's driver set it."""
    since: str | None = None
    """When its object was made, for a taint that does not say since when it is."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """When a pod must go, and why."""

    at: float
    """Unix seconds."""
    origins: tuple[str, ...]
    rules: frozenset[str]
    """Uids."""


Find = Callable[[DeviceID], Iterable[Taint]]
"""Returns the taints of a device."""


def of_slices(slices: Iterable[ResourceSlice]) -> Mapping[DeviceID, tuple[Taint, ...]]:
    """Return the taints that drivers set, by device; slices of a pool count at its highest generation."""
    every = tuple(slices)
    newest = dict[tuple[str, str], int]()
    for one in every:
        pool = one.spec.driver, one.spec.pool.name
        newest[pool] = max(newest.get(pool, one.spec.pool.generation), one.spec.pool.generation)
    found = dict[DeviceID, tuple[Taint, ...]]()
    for one in every:
        pool = one.spec.driver, one.spec.pool.name
        for device in one.spec.devices if one.spec.pool.generation == newest[pool] else ():
            origin, since = f"the driver of {pool[1]}/{device.name}", one.metadata.creation_timestamp
            taints = tuple(Taint(taint, origin, since=since) for taint in device.taints)
            found[DeviceID(*pool, device.name)] = taints
    return found


def of_rule(rule: DeviceTaintRule) -> Taint:
    """Return the taint of a rule."""
    about = rule.metadata
    return Taint(rule.spec.taint, f"DeviceTaintRule {about.name}", rule=about.uid, since=about.creation_timestamp)


def selects(rule: DeviceTaintRule, device: DeviceID) -> bool:
    """Return whether a rule taints a device, published or not."""
    chosen = rule.spec.device_selector
    if chosen is None:
        return False
    wanted = (chosen.driver, chosen.pool, chosen.device)
    return all(one in {None, had} for one, had in zip(wanted, device, strict=True))


def devices(claim: ResourceClaim) -> Iterator[tuple[DeviceID, DeviceRequestAllocationResult]]:
    """Yield the devices that a claim is allocated."""
    allocation = claim.status.allocation
    for one in allocation.devices.results if allocation is not None else ():
        yield DeviceID(one.driver, one.pool, one.device), one


def of_pod(pod: core.Pod, claims: Iterable[ResourceClaim], find: Find) -> Eviction | None:
    """Return when a pod must leave its devices; None: never. Args: claims: those that the pod names."""
    if not pod.spec.node_name or lifecycle.is_done(pod):
        return None
    uses = (one for one in claims if any(user.uid == pod.metadata.uid for user in one.status.reserved_for))
    found = tuple(due for claim in uses for id_, result in devices(claim) for due in _due(result, find(id_)))
    if not found:
        return None
    return Eviction(
        at=min(at for at, _ in found),
        origins=tuple(sorted({taint.origin for _, taint in found})),
        rules=frozenset(taint.rule for _, taint in found if taint.rule),
    )


def _due(result: DeviceRequestAllocationResult, taints: Iterable[Taint]) -> Iterator[tuple[float, Taint]]:
    """Yield when each taint is not borne any more."""
    for one in taints:
        if one.taint.effect != NO_EXECUTE:
            continue
        since = meta.timestamp(one.taint.time_added or one.since) or 0.0
        borne = [each.toleration_seconds for each in result.tolerations if fit.tolerates(each, one.taint)]
        if None not in borne:
            yield since + min((max(0, seconds) for seconds in borne if seconds is not None), default=0), one


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What a rule concerns."""

    published: int
    """Devices in slices that it selects."""
    allocated: int
    """Of claims."""
    pending: Sequence[core.Pod]
    """Pods that have to go, or would if its effect were NoExecute."""
    evicted: int
    """Pods that were evicted because of it since this process began."""


def condition(rule: DeviceTaintRule, seen: Census, *, now: str) -> meta.Condition:
    """Return how far the eviction of a rule is, in the words of the reference."""
    before = meta.find_condition(rule.status.conditions, EVICTION_IN_PROGRESS)
    effect = rule.spec.taint.effect
    where = len({pod.metadata.namespace for pod in seen.pending})
    reason, message, is_going = "OtherEffect", "Eviction only happens for the NoExecute effect.", False
    if effect == NO_EXECUTE:
        was_going = before is not None and before.reason in _DONE
        reason, message = ("Completed" if seen.evicted or was_going else "NotStarted"), ""
        if seen.pending:
            reason, is_going = "PodsPendingEviction", True
            needed = _count(len(seen.pending), "pod needs", "pods need")
            message = f"{needed} to be evicted in {_count(where, 'namespace', 'different namespaces')}."
    elif effect == "None":
        reason = "NoEffect"
        message = (
            f"{_count(seen.published, 'published device', 'published devices')} selected. "
            f"{_count(seen.allocated, 'allocated device', 'allocated devices')} selected. "
            f"{_count(len(seen.pending), 'pod', 'pods')} would be evicted in "
            f"{_count(where, 'namespace', 'different namespaces')} if the effect was NoExecute."
        )
    if seen.evicted:
        gone = f"{_count(seen.evicted, 'pod', 'pods')} evicted since starting the controller."
        message = f"{message} {gone}".strip()
    return meta.Condition(
        type=EVICTION_IN_PROGRESS,
        status="True" if is_going else "False",
        reason=reason,
        message=message,
        last_transition_time=now,
        observed_generation=rule.metadata.generation,
    )


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
