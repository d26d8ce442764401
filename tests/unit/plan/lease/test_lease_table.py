"""Holds the transition table and its code to what possession promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.lease import change, table
from fairlead.plan.lease.row import Claim, Facts, Row, State
from fairlead.plan.lease.table import Event

BOOT = "boot"


def ask(*keys: str, is_shared: bool = False, device: str = "") -> tuple[change.Ask, ...]:
    return tuple(change.Ask(key=key, claims=(Claim(device=device or key, is_shared=is_shared),)) for key in keys)


def row(state: State, key: str = "g0", **fields: object) -> Row:
    return Row(key=key, state=state, epoch=5, boot_id=BOOT, **fields)  # type: ignore[arg-type]  # fields of Row


def test_nothing_but_a_verdict_leads_into_free() -> None:
    assert {rule for rule, found in table.TABLE.items() if found.target is State.FREE} == {
        (State.VERIFYING, Event.PASSED)
    }


def test_nothing_but_releasing_leads_out_of_held() -> None:
    assert {found.target for (state, _), found in table.TABLE.items() if state is State.HELD} == {
        State.HELD,
        State.RELEASING,
    }


def test_quarantine_and_maintenance_end_only_by_a_person() -> None:
    for (state, event), rule in table.TABLE.items():
        if state in {State.QUARANTINED, State.MAINTENANCE} and rule.target is not state:
            assert "a person" in rule.guards, event


def test_every_state_is_reached_and_only_held_is_published() -> None:
    assert {rule.target for rule in table.TABLE.values()} == set(State)
    assert [state for state in State if change.is_published(row(state))] == [State.HELD]


def test_every_guard_is_asked_for_and_known() -> None:
    assert {name for rule in table.TABLE.values() for name in rule.guards} == set(table.GUARDS)


@given(st.sampled_from(State), st.sampled_from(Event), st.booleans(), st.booleans(), st.sampled_from([4, 5, None]))
def test_what_is_not_in_the_table_is_refused_and_the_epoch_never_falls(
    state: State, event: Event, is_listed: bool, has_openers: bool, epoch: int | None
) -> None:
    before = row(state, claims=(Claim(device="g0"),))
    facts = Facts(epoch=epoch, boot_id=BOOT, is_listed=is_listed, openers=("x",) if has_openers else (), by="root")
    if (state, event) not in table.TABLE:
        with pytest.raises(errors.Conflict, match="has no transition"):
            change.transition(before, event, facts)
    elif not change.find_refusal(before, event, facts):
        after = change.transition(before, event, facts).after
        assert after.epoch >= before.epoch
        assert after.key == before.key


def test_an_allocation_of_two_holds_both_or_none() -> None:
    rows = {"g0": row(State.FREE), "g1": row(State.DIRTY, "g1")}
    with pytest.raises(errors.Unavailable) as caught:
        change.plan_hold(rows, ask("g0", "g1"), facts=Facts(boot_id=BOOT))
    assert caught.value.reason == change.NOT_READY
    rows["g1"] = row(State.FREE, "g1")
    changes = change.plan_hold(rows, ask("g0", "g1"), facts=Facts(boot_id=BOOT, at=9.0))
    assert [(one.after.state, one.after.epoch, one.after.lease) for one in changes] == [(State.HELD, 6, 6)] * 2


def test_a_held_gpu_is_given_again_only_to_whom_the_kubelet_names() -> None:
    rows = {"g0": row(State.HELD, claims=(Claim(device="g0"),))}
    with pytest.raises(errors.Conflict) as caught:
        change.plan_hold(rows, ask("g0"), facts=Facts(boot_id=BOOT))
    assert caught.value.reason == change.HELD
    assert change.plan_hold(rows, ask("g0"), facts=Facts(boot_id=BOOT), listed={"g0"}) == ()


def test_replicas_of_one_gpu_join_and_a_whole_gpu_does_not() -> None:
    rows = {"g0": row(State.HELD, claims=(Claim(device="g0::0", is_shared=True),))}
    (joined,) = change.plan_hold(rows, ask("g0", is_shared=True, device="g0::1"), facts=Facts(boot_id=BOOT))
    assert [claim.device for claim in joined.after.claims] == ["g0::0", "g0::1"]
    with pytest.raises(errors.Conflict):
        change.plan_hold(rows, ask("g0"), facts=Facts(boot_id=BOOT))
    with pytest.raises(errors.Conflict):
        change.plan_hold(rows, ask("g0", is_shared=True, device="g0::0"), facts=Facts(boot_id=BOOT))


@pytest.mark.parametrize("state", [State.QUARANTINED, State.MAINTENANCE, State.GONE])
def test_a_gpu_that_waits_for_a_person_is_refused_with_the_next_step(state: State) -> None:
    with pytest.raises(errors.DeviceFault, match="XID 79") as caught:
        change.plan_hold({"g0": row(state, message="XID 79")}, ask("g0"), facts=Facts(boot_id=BOOT))
    assert caught.value.hint is not None
    assert "lease release g0" in caught.value.hint


def test_a_gpu_condemned_while_held_goes_into_quarantine_when_it_comes_back() -> None:
    held = row(State.HELD, claims=(Claim(device="g0", pod="p"),))
    facts = Facts(by="root", reason="Suspect", message="smells")
    condemned = change.transition(held, Event.QUARANTINED, facts).after
    assert condemned.state is State.HELD
    released = change.transition(condemned, Event.RELEASED, Facts(epoch=5)).after
    dirty = change.transition(released, Event.CLOSED, Facts(epoch=6)).after
    with pytest.raises(errors.Conflict, match="wanted"):
        change.transition(dirty, Event.SCRUB_BEGUN, Facts(epoch=7))
    kept = change.transition(dirty, Event.CONDEMNED, Facts()).after
    assert (kept.state, kept.reason, kept.message) == (State.QUARANTINED, "Suspect", "smells")


def test_a_shared_gpu_comes_back_device_by_device() -> None:
    both = (Claim(device="g0::0", is_shared=True, pod="p"), Claim(device="g0::1", is_shared=True, pod="q"))
    held = row(State.HELD, claims=both)
    left = change.transition(held, Event.LEFT, Facts(epoch=5, claims=both[:1])).after
    assert left.claims == both[1:]
    with pytest.raises(errors.Conflict, match="others stay"):
        change.transition(left, Event.LEFT, Facts(epoch=6, claims=both[1:]))


def test_a_verdict_of_another_boot_frees_nothing() -> None:
    with pytest.raises(errors.Conflict, match="this boot"):
        change.transition(row(State.VERIFYING), Event.PASSED, Facts(epoch=5, boot_id="earlier"))


@pytest.mark.parametrize(
    ("state", "then"),
    [
        (State.FREE, State.UNKNOWN),
        (State.VERIFYING, State.UNKNOWN),
        (State.RELEASING, State.UNKNOWN),
        (State.HELD, State.HELD),
        (State.QUARANTINED, State.QUARANTINED),
    ],
)
def test_after_a_reboot_only_what_was_held_or_kept_back_keeps_its_state(state: State, then: State) -> None:
    before = row(state)
    assert change.restart_events(before, "next") == (Event.REBOOTED,)
    after = change.transition(before, Event.REBOOTED, Facts(boot_id="next")).after
    assert (after.state, after.boot_id) == (then, "next")


def test_an_agent_that_begins_again_voids_a_verification_under_way() -> None:
    before = row(State.VERIFYING)
    assert change.restart_events(before, BOOT) == (Event.RESTARTED,)
    assert change.transition(before, Event.RESTARTED, Facts()).after.epoch == 6
