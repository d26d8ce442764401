"""What one container has cost: its own possessions alone, divided where it shared, and at prices of now."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from fairlead.plan.metering import container, price
from fairlead.plan.metering.usage import MICROS
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpulease import GPULease
from tests.unit.plan.metering.leases import MODELS, lease

PRICING = price.read("H100=3.6", "EUR")


def _pod(uid: str = "u1", namespace: str = "lab", created: float = 0) -> core.Pod:
    about = meta.ObjectMeta(name="p", namespace=namespace, uid=uid, creation_timestamp=meta.emit_time(created))
    return core.Pod(metadata=about)


def _of(found: GPULease, *uids: str) -> GPULease:
    (first, *_) = found.status.holders
    holders = tuple(msgspec.structs.replace(first, pod=f"p{n or ''}", pod_uid=uid) for n, uid in enumerate(uids))
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, holders=holders))


def test_a_container_costs_what_it_held_and_goes_on_while_it_holds() -> None:
    leases = [_of(lease("a", 0, 1000), "u1"), _of(lease("b", 1000, None), "u1"), _of(lease("c", 0, None, gpu=2), "u1")]
    found = container.standing(_pod(), leases, MODELS, PRICING, now=2000)
    assert (found.held / MICROS, found.unpriced / MICROS) == (4000, 2000)
    assert (found.amount, found.hourly) == (Decimal("2.000000"), Decimal("3.600000"))


def test_pods_that_shared_a_gpu_have_a_part_each() -> None:
    shared = _of(lease("a", 0, 1000), "u1", "u2")
    assert container.standing(_pod(), [shared], MODELS, PRICING, now=2000).amount == Decimal("0.500000")
    other = lease("a", 0, 1000, of=["lab", "other"])
    assert container.standing(_pod(), [other], MODELS, PRICING, now=2000).amount == Decimal("0.500000")


def test_a_namesake_is_not_charged_for_what_was_held_before_it() -> None:
    before = lease("a", 0, 1000)
    assert container.leases_of(_pod(created=1500), [before]) == ()
    assert container.leases_of(_pod(created=500), [before]) == (before,)
    assert container.leases_of(_pod("u9"), [_of(before, "u1")]) == ()


def test_a_container_with_another_name_by_now_is_charged_by_its_uid() -> None:
    held = _of(lease("a", 0, 1000), "u2", "u1")
    assert container.leases_of(_pod("u1"), [held]) == (held,)  # it was p1 then
