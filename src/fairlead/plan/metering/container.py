"""Says what one container has held of GPUs so far, and what verified them before. Pure.

It counts as `usage` does: the time of the lease, divided evenly between the namespaces that shared the GPU, and within
one namespace between its pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from fairlead.plan.metering import price, usage
from fairlead.plan.metering.price import Pricing
from fairlead.wire.kubernetes import core, gpulease
from fairlead.wire.kubernetes.gpudevice import Holder
from fairlead.wire.kubernetes.gpulease import GPULease
from fairlead.wire.text import timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a container has cost so far. Amounts are microseconds of GPU."""

    held: int
    unpriced: int
    """Of it, of GPUs that have no price."""
    amount: Decimal
    hourly: Decimal
    """What an hour costs as it is now."""


def leases_of(pod: core.Pod, leases: Iterable[GPULease]) -> tuple[GPULease, ...]:
    """Return the possessions that a pod had a part in, the oldest first; a namesake's are not its own."""
    found = (one for one in leases if any(_is_of(holder, pod, one) for holder in one.status.holders))
    return tuple(sorted(found, key=lambda one: (one.spec.held_at, one.metadata.name)))


def _is_of(holder: Holder, pod: core.Pod, lease: GPULease) -> bool:
    about = pod.metadata
    if holder.pod_uid:  # its name may have been another then
        return holder.pod_uid == about.uid
    if (holder.namespace, holder.pod) != (about.namespace, about.name):
        return False
    ended = timestamp.parse(lease.status.ended_at) if lease.status.ended_at else None
    return ended is None or ended >= timestamp.unix_seconds(about.creation_timestamp or "")


def standing(
    pod: core.Pod, leases: Iterable[GPULease], models: Mapping[str, str], pricing: Pricing, *, now: float
) -> Standing:
    """Return what a pod has cost.

    Args: leases: all there are, since two of one GPU may overlap.   models: product names by name of the GPUDevice.
          now: Unix seconds.
    """
    every = {one.metadata.name: one for one in leases}
    mine = {one.metadata.name for one in leases_of(pod, every.values())}
    gpus = {every[name].spec.gpu for name in mine}
    near = [one for one in every.values() if one.spec.gpu in gpus]
    held = unpriced = 0
    amount = hourly = Decimal(0)
    for one in usage.intervals(near, models, now=now).items:
        if one.lease not in mine:
            continue
        parts = _parts(pod, every[one.lease])
        took = (one.end - one.begin) // parts
        held += took
        if (found := pricing.find(one.model)) is None:
            unpriced += took
            continue
        amount += price.cost(found.hourly, took)
        if every[one.lease].status.state not in gpulease.ENDED:
            hourly += price.cost(found.hourly, usage.HOUR // parts)
    return Standing(held=held, unpriced=unpriced, amount=amount, hourly=hourly)


def _parts(pod: core.Pod, lease: GPULease) -> int:
    """Return how many there are of the parts that a lease is divided into, of which the pod has one."""
    pods = {(one.namespace, one.pod_uid or one.pod) for one in lease.status.holders}
    return len({namespace for namespace, _ in pods}) * sum(one == pod.metadata.namespace for one, _ in pods)
