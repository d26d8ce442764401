"""Charges from leases: never more than the wall time of a GPU, every microsecond once, and what it costs."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
from collections import defaultdict
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.metering import focus, price, reconcile, usage
from fairlead.plan.metering.usage import HOUR, MICROS, Charge
from fairlead.wire.kubernetes import gpulease
from tests.unit.plan.metering.leases import MODELS, lease

NOW = 1_800_000_000.0
_PRICES = price.read("H100=2.50, *=0.333333", "EUR")

_leases = st.builds(
    lease,
    name=st.uuids().map(str),
    began=st.integers(0, 400_000).map(lambda before: NOW - 400_000 + before / 16),
    ended=st.none() | st.integers(0, 400_000).map(lambda before: NOW - 400_000 + before / 16),
    gpu=st.integers(1, 2),
    of=st.lists(st.sampled_from(("red", "blue", "lab")), max_size=3),
)


def _charges(*leases: gpulease.GPULease, begin: float = 0.0, end: float = NOW) -> list[Charge]:
    found = usage.intervals(leases, MODELS, now=NOW)
    return list(usage.charges(found.items, begin=int(begin * MICROS), end=int(end * MICROS)))


@given(st.lists(_leases, max_size=8), st.integers(0, 400_000), st.integers(0, 400_000))
def test_the_sum_over_everybody_never_exceeds_the_wall_time_of_a_gpu(
    leases: list[gpulease.GPULease], begin: int, length: int
) -> None:
    since = NOW - 400_000 + begin
    charges = _charges(*leases, begin=since, end=since + length)
    for gpu in ("GPU-1", "GPU-2"):
        own = [one for one in charges if one.gpu == gpu]
        assert sum(one.amount for one in own) <= length * MICROS
        spans = sorted({(one.begin, one.end) for one in own})
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@given(_leases, st.integers(1, 399_999))
def test_periods_side_by_side_add_up_to_the_whole(one: gpulease.GPULease, cut: int) -> None:
    middle = NOW - 400_000 + cut
    halves = [*_charges(one, end=middle), *_charges(one, begin=middle)]
    assert sum(part.amount for part in halves) == sum(part.amount for part in _charges(one))


def test_every_charge_lies_within_one_hour_of_the_clock() -> None:
    begin = NOW - NOW % 3600 - 9000
    assert [(one.begin // HOUR, one.amount // MICROS) for one in _charges(lease("a", begin, begin + 7200))] == [
        (int(begin // 3600), 1800),
        (int(begin // 3600) + 1, 3600),
        (int(begin // 3600) + 2, 1800),
    ]


def test_a_gpu_that_several_share_is_divided_without_a_rest() -> None:
    charges = _charges(lease("a", NOW - 1, NOW, of=("red", "blue", "lab", "red")))
    by_namespace: dict[str, int] = defaultdict(int)
    for one in charges:
        by_namespace[one.namespace] += one.amount
    assert dict(by_namespace) == {"blue": 333_334, "lab": 333_333, "red": 333_333}


def test_a_lease_that_overlaps_counts_from_the_end_of_the_one_before_and_that_is_said() -> None:
    found = usage.intervals([lease("b", NOW - 50, NOW - 10), lease("a", NOW - 100, NOW - 40)], MODELS, now=NOW)
    assert [(one.lease, (one.end - one.begin) // MICROS) for one in found.items] == [("a", 60), ("b", 30)]
    assert found.notes == ("lease b overlaps a on the same GPU: 10 s of it are not counted",)


def test_leases_that_follow_each_other_within_the_same_second_are_not_remarked_on() -> None:
    found = usage.intervals([lease("a", NOW - 9, NOW - 4), lease("b", NOW - 4.2, NOW)], MODELS, now=NOW)
    assert found.notes == ()


def test_leases_that_overlap_are_one_remark() -> None:
    several = [lease(name, NOW - 100 + 10 * at, NOW - 80 + 10 * at) for at, name in enumerate("abcd")]
    found = usage.intervals(several, MODELS, now=NOW)
    assert found.notes == (
        "3 leases overlap another on the same GPU: 30 s of them are not counted; "
        "lease b overlaps a on the same GPU, for one",
    )


def test_a_lease_that_lies_within_another_counts_for_nothing() -> None:
    found = usage.intervals([lease("a", NOW - 100, NOW), lease("b", NOW - 50, NOW - 40)], MODELS, now=NOW)
    assert [one.lease for one in found.items] == ["a"]
    assert found.notes == ("lease b overlaps a on the same GPU: 10 s of it are not counted",)


def test_a_lease_that_does_not_say_when_it_ended_is_left_out_and_named() -> None:
    found = usage.intervals([lease("a", NOW - 9, None, state=gpulease.LOST)], MODELS, now=NOW)
    assert found.items == ()
    assert "lease a is left out" in found.notes[0]


def test_a_held_gpu_is_charged_until_now_and_one_nobody_is_known_of_to_no_one() -> None:
    (held,) = _charges(lease("a", NOW - 10, None, of=()))
    assert (held.amount, held.namespace) == (10 * MICROS, "")


@pytest.mark.parametrize(
    ("prices", "currency"),
    [("H100", "USD"), ("=1", "USD"), ("H100=-1", "USD"), ("H100=1e9", "USD"), ("A=1.1234567", "USD"), ("", "usd")],
)
def test_prices_that_cannot_be_read_are_named(prices: str, currency: str) -> None:
    with pytest.raises(errors.Invalid, match=r"metering\.(prices|currency): ") as caught:
        price.read(prices, currency)
    assert caught.value.reason == "PricesInvalid"


def test_the_first_price_whose_model_is_part_of_the_name_counts() -> None:
    pricing = price.read("h100=2.5,NVIDIA=1", "USD")
    assert [found and found.hourly for found in map(pricing.find, (*MODELS.values(), "AMD"))] == [
        Decimal("2.5"),
        Decimal(1),
        None,
    ]


def test_focus_rows_add_up_to_the_report_and_their_quantity_times_price_to_their_cost() -> None:
    charges = _charges(lease("a", NOW - 10_000.5, NOW - 3), lease("b", NOW - 500, None, gpu=2, of=("red", "lab")))
    text = "".join(focus.rows(charges, _PRICES, {"red": "Team Red"}))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert tuple(rows[0]) == focus.COLUMNS
    assert len(rows) == len(charges)
    for row in rows:
        exact = Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"])
        assert abs(exact - Decimal(row["BilledCost"])) <= Decimal("0.000001")
        assert row["ChargePeriodStart"] < row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]
        assert row["BillingPeriodStart"] <= row["ChargePeriodStart"]
    assert {row["SubAccountName"] for row in rows} == {"lab", "Team Red"}


@pytest.mark.parametrize("begin", ["=", "+", "@", "\n", "\uff1d"])
def test_a_name_from_outside_is_no_formula_of_a_spreadsheet(begin: str) -> None:
    (_, line) = focus.rows(_charges(lease("a", NOW - 1, NOW)), _PRICES, {"lab": f'{begin}cmd|"/c calc"!A1'})
    (row,) = csv.DictReader(io.StringIO(",".join(focus.COLUMNS) + "\n" + line))
    assert row["SubAccountName"].startswith(f"'{begin}cmd")


@given(st.lists(_leases, max_size=8), st.integers(0, 400_000), st.integers(1, 400_000))
def test_what_is_charged_holds_against_the_clock(leases: list[gpulease.GPULease], before: int, length: int) -> None:
    begin = NOW - before
    found = _charges(*leases, begin=begin, end=begin + length)
    for one in reconcile.reconcile(found, begin=int(begin * MICROS), end=int((begin + length) * MICROS)):
        assert one.excess == 0
        assert 0 < one.charged <= one.wall == length * MICROS


def test_a_gpu_that_two_are_charged_for_at_once_is_found_in_its_hour_alone() -> None:
    (one,) = _charges(lease("a", NOW - 3600, NOW))
    twice = dataclasses.replace(one, lease="b", namespace="blue", amount=one.amount // 2)
    day = {"begin": one.begin - 86400 * MICROS, "end": one.end}
    (found,) = reconcile.reconcile([one, twice], **day)
    assert found.charged < found.wall
    assert (found.gpu, found.excess) == ("GPU-1", one.amount // 2)
    (fine,) = reconcile.reconcile([one], **day)
    assert fine.excess == 0
