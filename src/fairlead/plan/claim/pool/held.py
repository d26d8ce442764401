"""Says which devices claims have already, by pool, and who has them.

A claim with admin access holds nothing. What a device consumes of its pool's counters is read from its slice; where
the slice no longer has the device, only what is remembered here tells it (`remember`), and where nothing is remembered
the pool's counters are not known and none of them is given away.
Source: kubernetes 1.37 pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go (behaviour).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.plan.claim.pool.candidate import CounterID, DeviceID, billionths
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult, ResourceClaim

PoolName = tuple[str, str]
"""Driver and pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPool:
    """What is held of one pool, by the device's name."""

    devices: Mapping[str, str]
    """Who has a device for itself."""
    shares: Mapping[str, tuple[str, ...]]
    """Who shares a device, once a share."""
    capacity: Mapping[str, Mapping[str, int]]
    """What the shares of a device consume of its capacity, in billionths."""

    def __contains__(self, device: str) -> bool:
        return device in self.devices or device in self.shares or device in self.capacity

    def names(self) -> set[str]:
        """Return every device of which something is held."""
        return {*self.devices, *self.shares, *self.capacity}


_FREE: Final = HeldPool(devices={}, shares={}, capacity={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Devices that claims have; `plus` and `minus` return changed ones and copy only the pools that change."""

    pools: Mapping[PoolName, HeldPool]
    remembered: Mapping[DeviceID, tuple[tuple[CounterID, int], ...]]
    """What devices consume that their slices no longer have."""

    def pool(self, driver: str, pool: str) -> HeldPool:
        """Return what is held of a pool, in which perhaps nothing is."""
        return self.pools.get((driver, pool), _FREE)

    def plus(self, holder: str, results: Iterable[DeviceRequestAllocationResult], *, shares: bool = True) -> Held:
        """Return these and the devices of one more claim.

        Args:    holder: the claim's name, in words.   shares: the gate DRAConsumableCapacity is on.
        """
        return self._changed(holder, results, 1, shares=shares)

    def minus(self, holder: str, results: Iterable[DeviceRequestAllocationResult], *, shares: bool = True) -> Held:
        """Return these without the devices of a claim, which must have been added with the same words."""
        return self._changed(holder, results, -1, shares=shares)

    def remember(self, device: DeviceID, consumes: Iterable[tuple[CounterID, int]]) -> Held:
        """Return these, with what a device consumes of counters for when its slice no longer has it."""
        return Held(pools=self.pools, remembered={**self.remembered, device: tuple(consumes)})

    def _changed(
        self, holder: str, results: Iterable[DeviceRequestAllocationResult], sign: int, *, shares: bool
    ) -> Held:
        pools = dict(self.pools)
        for result in results:
            if result.admin_access:
                continue
            name = (result.driver, result.pool)
            is_share = shares and result.share_id is not None
            change = _shared if is_share else _dedicated
            pools[name] = change(pools.get(name, _FREE), holder, result, sign)
        return Held(pools=pools, remembered=self.remembered)


NOTHING: Final = Held(pools={}, remembered={})


def of_claims(claims: Iterable[ResourceClaim], *, shares: bool = True) -> Held:
    """Return what the allocated ones of these claims hold."""
    pools: dict[PoolName, tuple[dict[str, str], dict[str, tuple[str, ...]], dict[str, dict[str, int]]]] = {}
    for claim in claims:
        allocation = claim.status.allocation
        for result in allocation.devices.results if allocation is not None else ():
            if result.admin_access:
                continue
            devices, shared, capacity = pools.setdefault((result.driver, result.pool), ({}, {}, {}))
            if not shares or result.share_id is None:
                devices[result.device] = holder(claim)
                continue
            shared[result.device] = (*shared.get(result.device, ()), holder(claim))
            consumed = capacity.setdefault(result.device, {}) if result.consumed_capacity else {}
            for key, amount in result.consumed_capacity.items():
                consumed[key] = consumed.get(key, 0) + billionths(amount)
    return Held(
        pools={
            name: HeldPool(devices=devices, shares=shared, capacity=capacity)
            for name, (devices, shared, capacity) in pools.items()
        },
        remembered={},
    )


def holder(claim: ResourceClaim) -> str:
    """Return a claim's name, in words that say whose it is."""
    meta = claim.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def _dedicated(pool: HeldPool, holder: str, result: DeviceRequestAllocationResult, sign: int) -> HeldPool:
    devices = dict(pool.devices)
    if sign > 0:
        devices[result.device] = holder
    else:
        devices.pop(result.device, None)
    return HeldPool(devices=devices, shares=pool.shares, capacity=pool.capacity)


def _shared(pool: HeldPool, holder: str, result: DeviceRequestAllocationResult, sign: int) -> HeldPool:
    device = result.device
    shares, capacity = dict(pool.shares), dict(pool.capacity)
    holders = list(shares.pop(device, ()))
    if sign > 0:
        holders.append(holder)
    elif holder in holders:
        holders.remove(holder)
    consumed = dict(capacity.pop(device, {}))
    for key, amount in result.consumed_capacity.items():
        consumed[key] = consumed.get(key, 0) + sign * billionths(amount)
    if holders:
        shares[device] = tuple(holders)
    if any(consumed.values()) or (holders and consumed):
        capacity[device] = consumed
    return HeldPool(devices=pool.devices, shares=shares, capacity=capacity)
