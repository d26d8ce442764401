"""What a claim's status says is held to what the node offers: a device has one claim unless the node shares it."""

from __future__ import annotations

import dataclasses
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.model.ids import GPUUUID
from fairlead.plan.dra import preparation
from fairlead.plan.dra.offered import DRIVER, Kind, OfferedDevice
from fairlead.plan.dra.preparation import Node, Preparation
from fairlead.plan.lease import change
from fairlead.plan.lease.row import Facts, Row, State
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.device import Device
from fairlead.wire.kubernetes.resource.resourceclaim import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)

DEVICES: Final = {"gpu-0": "GPU-0", "gpu-1": "GPU-1", "gpu-1-mig": "GPU-2", "gpu-2-mig": "GPU-2"}
"""GPU by device."""


def offer(shared: frozenset[str]) -> Node:
    found = {
        name: OfferedDevice(
            name=name,
            kind=Kind.MIG if name.endswith("mig") else Kind.GPU,
            gpu=GPUUUID(gpu),
            device=Device(name=name, allow_multiple_allocations=True if name in shared else None),
        )
        for name, gpu in DEVICES.items()
    }
    return Node(driver=DRIVER, pool="here", devices=found, boot_id="b1")


def claim(uid: str, results: list[tuple[str, str]]) -> ResourceClaim:
    made = (
        DeviceRequestAllocationResult(request="gpus", driver=DRIVER, pool="here", device=device, share_id=share or None)
        for device, share in results
    )
    pod = ResourceClaimConsumerReference(resource="pods", name="p", uid=f"pod-of-{uid}")
    allocation = AllocationResult(devices=DeviceAllocationResult(results=tuple(made)))
    return ResourceClaim(
        metadata=ObjectMeta(namespace="team", name=uid, uid=uid),
        status=ResourceClaimStatus(allocation=allocation, reserved_for=(pod,)),
    )


names = st.sampled_from(sorted(DEVICES))
asked = st.lists(st.tuples(names, st.sampled_from(["", "s1", "s2", "s3"])), min_size=1, max_size=2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("prepare"), st.sampled_from(["a", "b", "c"]), asked),
        st.tuples(st.just("share"), st.frozensets(names)),
        st.tuples(st.just("end"), st.sampled_from(["a", "b", "c"])),
    ),
    max_size=14,
)


@given(steps)
def test_no_device_has_two_claims_but_by_shares_that_the_node_offered(found: list[tuple]) -> None:  # type: ignore[type-arg]
    node, noted, rows = offer(frozenset()), dict[str, Preparation](), dict[str, Row]()
    rows = {gpu: Row(key=gpu, state=State.FREE, boot_id="b1") for gpu in DEVICES.values()}
    granted = set[tuple[str, str, str]]()
    """Claim, device and share that were prepared while the device was offered to several."""
    for step, *rest in found:
        if step == "share":
            node = offer(rest[0])
        elif step == "end":
            noted.pop(rest[0], None)
            granted = {one for one in granted if one[0] != rest[0]}
            for key, row in rows.items():
                left = tuple(one for one in row.claims if one.holder != rest[0])
                rows[key] = dataclasses.replace(row, claims=left, state=State.HELD if left else State.FREE)
        else:
            prepare(rest[0], rest[1], node, noted, rows, granted)
        check(noted, rows, granted)


def prepare(
    uid: str,
    results: list[tuple[str, str]],
    node: Node,
    noted: dict[str, Preparation],
    rows: dict[str, Row],
    granted: set[tuple[str, str, str]],
) -> None:
    """Prepare as the driver does: plan, hold against the other notes, one transaction of the ledger."""
    known = noted.get(uid)
    try:
        wanted = preparation.plan(
            claim(uid, results), uid, node, at=1.0, known=known.shares if known is not None else {}
        ).preparation
        if known is not None and known.devices != wanted.devices:
            return  # it would be taken back first; that is the end of one and the beginning of another
        if (conflict := preparation.find_conflict(wanted, noted.values())) is not None:
            raise conflict
        own = {one.device for row in rows.values() for one in row.claims if one.holder == uid}
        asks = preparation.asks(wanted, DRIVER)
        changes = change.plan_hold(rows, asks, facts=Facts(at=1.0, boot_id="b1"), listed=own)
    except errors.FairleadError:
        return
    rows |= {one.after.key: one.after for one in changes}
    noted[uid] = wanted
    granted |= {
        (uid, one.device, one.share_id)
        for one in wanted.devices
        if one.share_id and node.devices[one.device].device.allow_multiple_allocations
    }


def check(noted: dict[str, Preparation], rows: dict[str, Row], granted: set[tuple[str, str, str]]) -> None:
    holders: dict[str, list[tuple[str, str, str]]] = {}
    for uid, found in noted.items():
        for one in found.devices:
            holders.setdefault(one.device, []).append((uid, one.device, one.share_id))
    for device, whose in holders.items():
        if len({uid for uid, _, _ in whose}) > 1:
            assert set(whose) <= granted, f"{device} is {whose}, of which the node shared {granted}"
    for row in rows.values():
        whole = [one for one in row.claims if not one.is_shared]
        assert not whole or len({one.holder for one in row.claims}) == 1
