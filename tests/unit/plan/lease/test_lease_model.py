"""Looks at every state that the ledger's shipped rules can reach, and finds each rule that is taken out missed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from fairlead.plan.lease import change, table
from fairlead.plan.lease.row import Claim, Facts, Row, State
from fairlead.plan.lease.table import Event, Rule
from tests.leaseworld import Fabric, Model, PodPlan, ThirdGate, Violated, hold_each

ONE = (PodPlan("A", (0,)), PodPlan("B", (0,)))
SLOT = (PodPlan("A", (0,)), PodPlan("B", (0, 1)))
THREE = (PodPlan("A", (0,)), PodPlan("B", (0, 1)), PodPlan("A", (1,)))


def without(guard: str) -> table.Rules:
    """Drop one guard wherever it stands."""
    return dataclasses.replace(table.SHIPPED, guards={**table.GUARDS, guard: lambda _row, _facts: True})


def with_rows(rows: Mapping[tuple[State, Event], Rule]) -> table.Rules:
    return dataclasses.replace(table.SHIPPED, table={**table.TABLE, **rows})


def test_no_gpu_is_in_two_hands_and_none_is_handed_on_unverified_with_one_gpu() -> None:
    assert Model(pods=ONE).explore() > 500


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pods", [SLOT, THREE], ids=["a GPU and a slot of two", "and a third pod"])
def test_no_gpu_is_in_two_hands_and_none_is_handed_on_unverified(pods: tuple[PodPlan, ...]) -> None:
    assert Model(pods=pods).explore() > 10_000


CLAIM = (PodPlan("A", (0,), claim="c"), PodPlan("B", (0,)))
CLAIMS = (PodPlan("A", (0,), claim="c"), PodPlan("B", (0,), claim="d"))
SHARED = (PodPlan("A", (0,), claim="c"), PodPlan("A", (0,), claim="c"), PodPlan("B", (0,)))


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param(CLAIM, id="a claim beside the device plugin"),
        pytest.param(CLAIMS, id="two claims"),
        pytest.param(SHARED, id="a claim of two pods", marks=pytest.mark.slow),
    ],
)
def test_claims_keep_to_the_same_rules(pods: tuple[PodPlan, ...]) -> None:
    assert Model(pods=pods).explore() > 300


@pytest.mark.parametrize(
    ("model", "invariant"),
    [
        pytest.param(Model(pods=CLAIM, counts_notes=False), "I9, I11", id="a prepared claim is no holder"),
        pytest.param(Model(pods=SHARED, waits_for_all=False), "I12", id="a claim is taken from under a pod"),
        pytest.param(Model(pods=CLAIMS, rules=without("no process")), "I", id="release with a process on it"),
    ],
)
def test_a_rule_of_claims_that_is_left_out_is_found_violated(model: Model, invariant: str) -> None:
    with pytest.raises(Violated, match=f"^{invariant}"):
        model.explore()


IGNORES_LEDGER = with_rows(
    {(state, Event.ALLOCATED): Rule(target=State.HELD, bumps=True) for state in (State.HELD, State.RELEASING)}
)
ASSUMES_CLEAN = with_rows(
    {
        (State.UNKNOWN, Event.IDENTIFIED): Rule(target=State.FREE, guards=("current", "no pod"), bumps=True),
    }
)


@pytest.mark.parametrize(
    ("model", "invariant"),
    [
        pytest.param(Model(pods=ONE, rules=IGNORES_LEDGER), "I", id="1: Allocate does not ask the ledger"),
        pytest.param(Model(pods=ONE, rules=ASSUMES_CLEAN), "I5", id="2: a lost ledger is assumed clean"),
        pytest.param(Model(pods=ONE, rules=without("no pod")), "I9, I11", id="3: release without the pod gone"),
        pytest.param(Model(pods=ONE, rules=without("no process")), "I", id="4: release with a process on it"),
        pytest.param(Model(pods=ONE, rules=without("a named pod")), "I9, I11", id="5: release before the pod is named"),
        pytest.param(Model(pods=SLOT, hold=hold_each), "I9, I11", id="6: the members of a slot one by one"),
    ],
)
def test_a_rule_that_is_left_out_is_found_violated(model: Model, invariant: str) -> None:
    with pytest.raises(Violated, match=f"^{invariant}"):
        model.explore()


def test_a_late_report_that_is_not_fenced_is_found_violated() -> None:
    with pytest.raises(Violated, match=r"^I\d"):
        Model(pods=ONE, rules=without("current"), keeps_stale=True, loses_ledger=False).explore()


PAIR = (PodPlan("A", (0,)), PodPlan("B", (0, 1)))
PAIRS = (PodPlan("A", (0, 1)), PodPlan("B", (0, 1)))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pods", [PAIR, PAIRS], ids=["a GPU and a slot of two", "two slots of two"])
def test_no_gpu_is_in_a_partition_of_another_slot(pods: tuple[PodPlan, ...]) -> None:
    assert Model(pods=pods, fabric=Fabric(), loses_ledger=False).explore() > 1_000


@pytest.mark.parametrize(
    ("fabric", "pods", "invariant"),
    [
        pytest.param(Fabric(waits_for_partition=False), PAIR, "I3", id="shown before its partition is active"),
        pytest.param(
            Fabric(waits_for_end=False), PAIR, "I3", id="switched off under a machine", marks=pytest.mark.slow
        ),
        pytest.param(
            Fabric(holds_back=False), PAIR, "I3", id="cleaned while its partition is active", marks=pytest.mark.slow
        ),
        pytest.param(Fabric(asks_if_known=False), PAIR, "I12", id="given while it is not known what is active"),
    ],
)
def test_a_rule_of_partitions_that_is_left_out_is_found_violated(
    fabric: Fabric, pods: tuple[PodPlan, ...], invariant: str
) -> None:
    with pytest.raises(Violated, match=f"^{invariant}"):
        Model(pods=pods, fabric=fabric, loses_ledger=False).explore()


@pytest.mark.parametrize(
    "pods", [ONE, pytest.param(SLOT, id="a slot of two", marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_no_gpu_that_is_passed_through_is_given_or_reset_while_another_has_its_node(pods: tuple[PodPlan, ...]) -> None:
    assert Model(pods=pods, gate=ThirdGate()).explore() > 500


@pytest.mark.parametrize(
    ("gate", "invariant"),
    [
        pytest.param(ThirdGate(takes_before_allocate=False), "I13", id="given without the node taken"),
        pytest.param(ThirdGate(lets_go_after_held=False), "I13", id="let go before the ledger says Held"),
        pytest.param(ThirdGate(takes_before_dirty=False), "I14", id="Dirty without the node taken"),
        pytest.param(
            ThirdGate(takes_before_dirty=False, has_strangers=False), "I14 g0 is reset while pod", id="machines alone"
        ),
    ],
)
def test_a_rule_of_the_third_gate_that_is_left_out_is_found_violated(gate: ThirdGate, invariant: str) -> None:
    with pytest.raises(Violated, match=f"^{invariant}"):
        Model(pods=ONE, gate=gate).explore()


FENCED = {rule for rule, row in table.TABLE.items() if "current" in row.guards}


@pytest.mark.parametrize("rule", sorted(FENCED, key=str), ids=lambda rule: f"{rule[0].value}-{rule[1].value}")
def test_every_report_of_an_earlier_epoch_is_refused(rule: tuple[State, Event]) -> None:
    state, event = rule
    row = Row(key="g", state=state, epoch=7, boot_id="b", claims=(Claim(device="g", pod="p"),))
    facts = Facts(epoch=6, boot_id="b", is_orphan=True, is_listed=event is Event.ADOPTED)
    assert "current" in change.find_refusal(row, event, facts)


def test_every_report_about_what_was_seen_is_fenced() -> None:
    reports = {
        Event.IDENTIFIED, Event.ADOPTED, Event.SCRUB_BEGUN, Event.SCRUBBED, Event.SCRUB_FAILED, Event.PASSED,
        Event.FAILED, Event.TIMED_OUT, Event.GAVE_UP, Event.SEEN, Event.LEFT, Event.RELEASED, Event.CLOSED, Event.STUCK,
        Event.DOUBTED, Event.POSTPONED,
    }  # fmt: skip
    assert {rule for rule in table.TABLE if rule[1] in reports} == FENCED
