"""Claims count as they were decided until the watch says so too; nothing looks free by a late word."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.plan.claim.pool.candidate import CounterID, DeviceID
from fairlead.plan.schedule.claim.known import ECHO_S, KnownClaims
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from tests.unit.control.scheduler.claimplane import DRIVER, read

POOL = (DRIVER, "a")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def claim(version: str, *devices: str, users: tuple[str, ...] = (), name: str = "c") -> ResourceClaim:
    status: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": one, "uid": one} for one in users]}
    if devices:
        results = [{"request": "r", "driver": DRIVER, "pool": "a", "device": one} for one in devices]
        status["allocation"] = {"devices": {"results": results}}
    about = {"name": name, "namespace": "d", "uid": f"uid-{name}", "resourceVersion": version}
    found: ResourceClaim = read("ResourceClaim", {"metadata": about, "status": status})
    return found


def held(known: KnownClaims) -> set[str]:
    return known.held([POOL]).pool(*POOL).names()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(clock: Clock) -> KnownClaims:
    return KnownClaims(shares=True, clock=clock)


def test_what_is_assumed_counts_and_is_taken_back(known: KnownClaims) -> None:
    before, after = claim("1"), claim("1", "gpu-0", users=("p",))
    known.note(before)
    assert known.assume(after) == {POOL}
    assert held(known) == {"gpu-0"}
    assert not known.is_written("uid-c")
    assert known.withdraw(before, after) == {POOL}
    assert held(known) == set()
    assert known.find("d", "c") is before


def test_a_second_user_is_taken_back_without_the_first(known: KnownClaims) -> None:
    seen = claim("1")
    first, second = claim("1", "gpu-0", users=("p",)), claim("1", "gpu-0", users=("p", "q"))
    known.note(seen)
    known.assume(first)
    known.assume(second)
    known.withdraw(first, second)
    assert known.find("d", "c") is first
    known.withdraw(seen, first)
    assert known.find("d", "c") is seen


def test_a_late_event_of_before_our_write_frees_nothing(known: KnownClaims, clock: Clock) -> None:
    before, after = claim("1"), claim("1", "gpu-0", users=("p",))
    known.note(before)
    known.assume(after)
    known.note(claim("2"))  # another writer's label, of before our write
    assert held(known) == {"gpu-0"}
    known.confirm(after, claim("3", "gpu-0", users=("p",)))
    assert known.is_written("uid-c")
    known.note(claim("2"))
    assert held(known) == {"gpu-0"}
    known.note(claim("3", "gpu-0", users=("p",)))  # the echo
    known.note(claim("4"))  # it was freed since
    assert held(known) == set()


def test_an_echo_that_never_comes_is_waited_for_so_long_and_no_longer(known: KnownClaims, clock: Clock) -> None:
    before, after = claim("1"), claim("1", "gpu-0", users=("p",))
    known.note(before)
    known.assume(after)
    known.confirm(after, claim("3", "gpu-0", users=("p",)))
    known.note(claim("4"))  # after a list that began anew: freed, or late, who knows
    assert held(known) == {"gpu-0"}
    clock.now = ECHO_S + 1
    known.note(claim("1", name="other"))
    assert held(known) == set()


def test_an_echo_that_is_faster_than_the_answer_is_the_end_of_it(known: KnownClaims) -> None:
    before, after = claim("1"), claim("1", "gpu-0", users=("p",))
    known.note(before)
    known.assume(after)
    written = claim("3", "gpu-0", users=("p",))
    known.note(written)
    known.confirm(after, written)
    known.note(claim("4"))
    assert held(known) == set()


def test_what_is_assumed_outlives_a_list_that_begins_anew(known: KnownClaims) -> None:
    known.note(claim("1"))
    known.note(claim("1", "gpu-1", name="other"))
    known.assume(claim("1", "gpu-0", users=("p",)))
    known.forget()
    assert held(known) == {"gpu-0"}
    assert known.find("d", "other") is None
    assert known.find("d", "c") is not None


def test_a_claim_that_is_gone_holds_nothing(known: KnownClaims) -> None:
    found = claim("1", "gpu-0")
    known.note(found)
    assert known.note(found, is_gone=True) == {POOL}
    assert held(known) == set()
    assert known.is_empty


def test_what_a_held_device_took_of_counters_is_remembered_until_it_is_free(known: KnownClaims) -> None:
    found = claim("1", "mig-0")
    known.note(found)
    device = DeviceID(*POOL, "mig-0")
    consumed = ((CounterID(*POOL, "gpu-0", "slices"), 7),)
    known.take_out([(device, consumed), (DeviceID(*POOL, "free"), consumed)])
    assert dict(known.held([POOL]).remembered) == {device: consumed}
    known.note(msgspec.structs.replace(claim("2")))
    assert dict(known.held([POOL]).remembered) == {}


def test_what_the_store_says_ends_every_doubt(known: KnownClaims) -> None:
    known.note(claim("1"))
    known.assume(claim("1", "gpu-0", users=("p",)))
    known.settle("uid-c", claim("2"))
    assert held(known) == set()
    known.assume(claim("2", "gpu-0", users=("p",)))
    known.settle("uid-c", None)
    assert held(known) == set()
    assert known.find("d", "c") is None
