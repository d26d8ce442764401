"""Describes devices that several claims share, and how much each of them takes. Pure.

A device that is shared allows multiple allocations, and its capacities carry a policy: `unlimited` lets claims name an
amount of memory and takes nothing of those that name none, `memory` gives the whole memory to a claim that names none,
and a number admits that many shares beside. A policy is the scheduler's arithmetic alone, so the device says what holds
a container to its amount: nothing, or MPS.
Source: KEP-5075; kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/consumable_shares.go (names, policies).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.plan.dra import attribute
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource.device import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Device,
    DeviceCapacity,
    Quantity,
)

SHARES: Final = "shares"
ENFORCED_BY: Final = "fairlead.dev/memoryLimitEnforcedBy"
"""Attribute: what holds a container to the amount that its claim consumes."""
MOST: Final = 10_000


class Enforcement(enum.Enum):
    """What holds a container to its amount, as the attribute says it."""

    NOTHING = "nothing"
    MPS = "MPS"
    """The default limits of the GPU's control daemon, and the container's environment."""


@frozen
class Shares:
    """How one GPU's devices are shared."""

    takes_all: bool = False
    """A claim that names no amount of memory takes all of it."""
    count: int | None = None
    """Claims at once; None: no limit."""
    enforced_by: Enforcement = Enforcement.NOTHING


def parse_shares(text: str, enforced_by: Enforcement = Enforcement.NOTHING) -> Shares | None:
    """Return what a setting asks for, `unlimited`, `memory` or a number; None: empty, devices are not shared.

    Raises: Invalid (`SharesInvalid`).
    """
    word = text.strip()
    if not word:
        return None
    if word in {"unlimited", "memory"}:
        return Shares(takes_all=word == "memory", enforced_by=enforced_by)
    if word.isascii() and word.isdecimal() and len(word) < 6 and 0 < int(word) <= MOST:
        return Shares(count=int(word), enforced_by=enforced_by)
    message = f'"{text[:64]}" is not a way to share devices'
    raise errors.Invalid(message, reason="SharesInvalid", hint=f"unlimited, memory, or a number from 1 to {MOST}")


@frozen
class Limits:
    """What a claim's programs may have of a GPU that it shares."""

    memory_mib: int
    percentage: int | None = None
    """Of the multiprocessors; None: all."""


def limits_of(consumed: Mapping[str, Quantity], shares: Shares, *, memory_bytes: int) -> Limits:
    """Return what a claim's share is worth.

    Args:    consumed: capacity of the allocation, by name.   memory_bytes: of the GPU.
    Raises:  Invalid: an amount is none.
    """
    whole = memory_bytes // attribute.MIB
    named = _amount(consumed, attribute.MEMORY) // attribute.MIB
    if shares.count is None:
        return Limits(memory_mib=named or whole)
    count = min(max(_amount(consumed, SHARES), 1), shares.count)
    part = max(whole * count // shares.count, 1)
    return Limits(memory_mib=named or part, percentage=max(100 * count // shares.count, 1))


def _amount(consumed: Mapping[str, Quantity], name: str) -> int:
    found = consumed.get(name, consumed.get(f"{attribute.DRIVER}/{name}", "0"))
    return quantity.parse_whole(found)


def shared(device: Device, shares: Shares) -> Device:
    """Return a device as claims share it; its memory is rounded down to whole MiB, the step of requests."""
    capacity = dict(device.capacity)
    if (memory := capacity.get(attribute.MEMORY)) is not None:
        most = quantity.parse_whole(memory.value) // attribute.MIB * attribute.MIB
        capacity[attribute.MEMORY] = _memory(most, shares)
    if shares.count is not None:
        capacity[SHARES] = _counted(shares.count)
    said = {ENFORCED_BY: attribute.text(shares.enforced_by.value)}
    return msgspec.structs.replace(
        device, capacity=capacity, attributes={**device.attributes, **said}, allow_multiple_allocations=True
    )


def _memory(most: int, shares: Shares) -> DeviceCapacity:
    full, step = attribute.amount(most), attribute.amount(attribute.MIB)
    least = step if shares.takes_all else "0"
    return DeviceCapacity(
        value=full,
        request_policy=CapacityRequestPolicy(
            default=full if shares.takes_all else "0",
            valid_range=CapacityRequestPolicyRange(min=least, max=full, step=step),
        ),
    )


def _counted(count: int) -> DeviceCapacity:
    total = quantity.emit_quantity(count)
    bounds = CapacityRequestPolicyRange(min="1", max=total, step="1")
    return DeviceCapacity(value=total, request_policy=CapacityRequestPolicy(default="1", valid_range=bounds))
