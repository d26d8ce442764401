"""Possessions as the ledger's transitions tell of them, and the objects that show them."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead.plan.lease import change, possession
from fairlead.plan.lease.possession import Possession
from fairlead.plan.lease.row import Claim, Facts, Row, State
from fairlead.plan.lease.table import Event
from fairlead.wire.kubernetes import gpudevice, gpulease
from fairlead.wire.kubernetes.gpulease import GPULease

KEY = "GPU-1"
BOOT = "boot-1"


class Story:
    """One GPU's row, moved by the shipped table, and the possession that is told of it."""

    def __init__(self) -> None:
        self.row = Row(key=KEY, state=State.FREE, epoch=4, boot_id=BOOT, verdict="quick", verdict_epoch=4)
        self.at = 100.0
        self.steps: list[tuple[Row, str, float]] = []
        self.seen: Possession | None = None

    def go(self, event: Event, **facts: object) -> Possession:
        self.at += 10
        told = dataclasses.replace(Facts(at=self.at, boot_id=BOOT, epoch=self.row.epoch), **facts)  # type: ignore[arg-type]
        self.row = change.transition(self.row, event, told).after
        self.steps.append((self.row, event.value, self.at))
        self.seen = possession.advance(self.seen, self.row, event=event.value, at=self.at)
        assert self.seen is not None
        return self.seen

    def have(self, device: str = "gpu-1", pod: str = "train") -> Possession:
        self.go(Event.ALLOCATED, claims=(Claim(device=device, resource="nvidia.com/gpu"),))
        named = Claim(device=device, resource="nvidia.com/gpu", namespace="lab", pod=pod, container="main")
        return self.go(Event.SEEN, claims=(named,))

    def give_back(self) -> Possession:
        self.go(Event.RELEASED, is_orphan=True)
        return self.go(Event.CLOSED)

    def verify(self) -> Possession:
        self.go(Event.SCRUB_BEGUN)
        self.go(Event.SCRUBBED)
        return self.go(Event.PASSED, verdict="r-7")


def test_a_possession_is_told_from_its_allocation_to_the_verification_after_it() -> None:
    story = Story()
    held = story.have()
    assert (held.state, held.began, held.released) == (gpulease.HELD, 110.0, 0.0)
    assert [(claim.pod, claim.at) for claim in held.claims] == [("train", 110.0)]
    closed = story.give_back()
    assert (closed.state, closed.released, closed.ended) == (gpulease.RELEASED, 130.0, 140.0)
    assert not closed.is_over
    clean = story.verify()
    assert (clean.state, clean.verified, clean.report, clean.ended) == (gpulease.VERIFIED, 170.0, "r-7", 140.0)
    assert clean.is_over
    assert [claim.pod for claim in clean.claims] == ["train"], "the row forgot it, the possession does not"


def test_the_next_tenant_has_a_possession_of_its_own() -> None:
    story = Story()
    first = story.have()
    story.give_back()
    done = story.verify()
    second = story.have(pod="infer")
    assert second.epoch > first.epoch
    assert second.began > done.verified
    assert [claim.pod for claim in second.claims] == ["infer"]


def test_a_gpu_kept_back_says_so_and_why_until_it_is_verified() -> None:
    story = Story()
    story.have()
    condemned = story.go(Event.QUARANTINED, by="root", reason="ByHand", message="fan noise")
    assert (condemned.state, condemned.reason) == (gpulease.HELD, "ByHand")
    story.go(Event.RELEASED, is_orphan=True)
    story.go(Event.CLOSED)
    kept = story.go(Event.CONDEMNED)
    assert (kept.state, kept.message) == (gpulease.QUARANTINED, "fan noise")
    story.go(Event.PARDONED, by="root")
    assert story.verify().state == gpulease.VERIFIED


def test_steps_that_are_told_twice_or_late_change_nothing() -> None:
    story = Story()
    story.have()
    story.give_back()
    story.verify()
    story.have(pod="infer")
    found = story.seen
    for row, event, at in (*story.steps, *story.steps[-2:]):
        found = possession.advance(found, row, event=event, at=at)
    assert found == story.seen


def test_a_possession_that_began_before_the_history_is_as_old_as_its_claim() -> None:
    story = Story()
    story.have()
    found = possession.advance(None, story.row, event="", at=9999.0)
    assert found is not None
    assert (found.began, found.epoch, found.state) == (110.0, story.row.lease, gpulease.HELD)
    idle = dataclasses.replace(story.row, state=State.DIRTY, claims=())
    assert possession.advance(None, idle, event="", at=9999.0) is None


def test_a_gpu_that_nobody_had_has_no_possession() -> None:
    assert possession.advance(None, Row(key=KEY, state=State.FREE), event=Event.PASSED.value, at=1.0) is None


def test_an_object_shows_who_had_the_gpu_and_since_when() -> None:
    story = Story()
    story.have()
    story.give_back()
    shown = possession.show(story.verify(), name="gpu-1-5", device="gpu-1", node="worker-1")
    assert shown.spec.held_at == "1970-01-01T00:01:50.000000Z"
    assert (shown.spec.epoch, shown.spec.gpu_device, shown.spec.node_name) == (story.row.lease, "gpu-1", "worker-1")
    assert (shown.status.state, shown.status.held_by, shown.status.report) == (gpulease.VERIFIED, "lab/train", "r-7")
    assert shown.status.ended_at == "1970-01-01T00:02:20.000000Z"


def test_a_ledger_that_counts_anew_takes_no_other_possessions_name() -> None:
    one = Possession(gpu=KEY, epoch=5, began=100.0)
    later = Possession(gpu=KEY, epoch=5, began=900.5)
    there = possession.show(one, name="gpu-1-5", device="gpu-1", node="worker-1")
    assert possession.plan_name("gpu-1", one) == "gpu-1-5"
    assert possession.plan_name("gpu-1", one, there) == "gpu-1-5"
    assert possession.plan_name("gpu-1", later, there) == "gpu-1-5-900"


def test_a_holder_keeps_the_uid_under_which_it_was_first_known() -> None:
    def status(uid: str) -> gpulease.GPULeaseStatus:
        holder = gpudevice.Holder(namespace="lab", pod="train", pod_uid=uid)
        return gpulease.GPULeaseStatus(state=gpulease.HELD, holders=(holder,))

    def now(_: str, __: str) -> str:
        return "of-a-later-pod"

    assert possession.with_pods(status(""), status("first"), now).holders[0].pod_uid == "first"
    assert possession.with_pods(status(""), status(""), now).holders[0].pod_uid == "of-a-later-pod"


@pytest.mark.parametrize("state", sorted(gpulease.STATES))
def test_only_a_lease_that_has_not_ended_is_lost(state: str) -> None:
    spec = gpulease.GPULeaseSpec(node_name="n", gpu=KEY, gpu_device="gpu-1", epoch=1, held_at="1970-01-01T00:00:01Z")
    found = GPULease(spec=spec, status=gpulease.GPULeaseStatus(state=state))
    made = possession.lose(found, at=5.0, reason="NodeGone", message="gone")
    assert (made is None) is (state in gpulease.ENDED)
    if made is not None:
        assert (made.status.state, made.status.reason) == (gpulease.LOST, "NodeGone")
        assert made.status.ended_at == "1970-01-01T00:00:05.000000Z"


def test_old_leases_are_those_that_ended_before() -> None:
    def lease(state: str, ended: str) -> GPULease:
        spec = gpulease.GPULeaseSpec(node_name="n", gpu=KEY, gpu_device="g", epoch=1, held_at="")
        return GPULease(spec=spec, status=gpulease.GPULeaseStatus(state=state, ended_at=ended))

    old = lease(gpulease.VERIFIED, "1970-01-01T00:00:05Z")
    kept = (
        lease(gpulease.VERIFIED, "1970-01-01T00:01:05Z"),
        lease(gpulease.HELD, ""),
        lease(gpulease.RELEASED, "no time"),
    )
    assert possession.find_old((old, *kept), before=60.0) == (old,)
