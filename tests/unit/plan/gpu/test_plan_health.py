"""Verdicts on GPUs: the table is total, faults act at once, doubts persist first, and there is always a way back."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.gpu import GPU, Action, EventKind, GPUEvent, GPUHealth, UnreadableGPU
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu import health
from fairlead.plan.gpu.health import State, Verdict

UUID = GPUUUID("GPU-1")
POLICY = health.Policy(persist_s=10, hold_s=10, hold_limit_s=40, forget_s=100, settle_s=5)
LOST = UnreadableGPU(index=0, pci_bus_id=None, uuid=UUID, reason="Lost", message="fell off the bus")


def reading(**facts: object) -> GPU:
    good = GPU(uuid=UUID, index=0, minor=0, pci_bus_id="0000:01:00.0", name="X", memory_bytes=1)
    return dataclasses.replace(good, health=GPUHealth(**facts))  # type: ignore[arg-type]  # field names vary by case


def xid(number: int) -> GPUEvent:
    return GPUEvent(kind=EventKind.XID, uuid=UUID, xid=number)


def after_event(event: GPUEvent, verdict: Verdict | None = None, *, now: float = 0.0) -> Verdict:
    return health.judge_event(verdict or Verdict(), event, now=now, policy=POLICY)


def after_reading(verdict: Verdict, gpu: GPU | UnreadableGPU, *, now: float) -> Verdict:
    return health.judge_reading(verdict, gpu, now=now, policy=POLICY)


def test_the_table_answers_every_signal_in_every_state() -> None:
    assert set(health.TRANSITIONS) == set(State)
    assert all(set(row) == set(health.Signal) for row in health.TRANSITIONS.values())


def test_no_signal_offers_a_faulty_gpu_again_without_recovering_first() -> None:
    assert set(health.TRANSITIONS[State.FAULTY].values()).isdisjoint(health.OFFERED)


@pytest.mark.parametrize("number", [8, 13, 31, 43, 45, 63, 68, 92, 94, 154])
def test_errors_of_an_application_leave_the_gpu_healthy(number: int) -> None:
    assert after_event(xid(number)) == Verdict()


@pytest.mark.parametrize("number", [48, 74, 79, 95, 109, 119, 140, 9999])
def test_errors_of_the_gpu_take_it_out_at_once(number: int) -> None:
    verdict = after_event(xid(number))
    assert (verdict.state, verdict.is_healthy, verdict.reason) == (State.FAULTY, False, f"XID{number}")


def test_an_operator_overrides_single_xids() -> None:
    policy = dataclasses.replace(POLICY, xids={79: Action.IGNORE, 13: Action.RESET})
    assert health.judge_event(Verdict(), xid(79), now=0, policy=policy).is_healthy
    assert not health.judge_event(Verdict(), xid(13), now=0, policy=policy).is_healthy


def test_a_change_of_the_inventory_says_nothing_about_health() -> None:
    assert after_event(GPUEvent(kind=EventKind.CHANGED, uuid=None)) == Verdict()


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (GPUEvent(kind=EventKind.LOST, uuid=UUID), "Lost"),
        (GPUEvent(kind=EventKind.ECC_DOUBLE_BIT, uuid=UUID), "ECCUncorrected"),
    ],
)
def test_other_events_that_are_faults(event: GPUEvent, reason: str) -> None:
    assert after_event(event).reason == reason


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (LOST, "Lost"),
        (reading(recovery_action=1), "ResetRequired"),
        (reading(recovery_action=2), "RebootRequired"),
        (reading(recovery_action=99), "RecoveryRequired"),
        (reading(remap_failed=True), "RowRemapFailed"),
    ],
)
def test_readings_that_are_faults(gpu: GPU | UnreadableGPU, reason: str) -> None:
    verdict = after_reading(Verdict(), gpu, now=0)
    assert (verdict.is_healthy, verdict.reason) == (False, reason)


def test_heat_is_a_doubt_first_and_a_fault_when_it_persists() -> None:
    suspect = after_reading(Verdict(), reading(temperature_c=97), now=0)
    assert (suspect.state, suspect.is_healthy, suspect.reason) == (State.SUSPECT, True, "TemperatureHigh")
    assert health.recheck_s(suspect, now=4, policy=POLICY) == 6
    assert after_reading(suspect, reading(temperature_c=97), now=9).is_healthy
    assert not after_reading(suspect, reading(temperature_c=97), now=10).is_healthy


def test_a_suspect_that_stays_quiet_is_healthy_again() -> None:
    suspect = after_reading(Verdict(), reading(temperature_c=97), now=0)
    cooling = after_reading(suspect, reading(temperature_c=60), now=5)
    assert cooling.state is State.SUSPECT
    assert after_reading(cooling, reading(temperature_c=60), now=11).state is State.HEALTHY


def test_a_heat_that_comes_and_goes_does_not_add_up() -> None:
    verdict = after_reading(Verdict(), reading(temperature_c=97), now=0)
    verdict = after_reading(verdict, reading(temperature_c=60), now=8)
    verdict = after_reading(verdict, reading(temperature_c=97), now=11)
    assert verdict.state is State.SUSPECT


def test_a_pending_remap_is_remarked_and_never_keeps_a_gpu_back() -> None:
    verdict = after_reading(Verdict(), reading(remap_pending=True), now=0)
    for now in (10.0, 100.0):
        verdict = after_reading(verdict, reading(remap_pending=True), now=now)
    assert (verdict.is_healthy, verdict.reason) == (True, "RowRemapPending")
    assert health.recheck_s(verdict, now=100, policy=POLICY) is None


def test_a_lost_gpu_that_answers_again_is_held_back_then_healthy() -> None:
    faulty = after_reading(Verdict(), LOST, now=0)
    back = after_reading(faulty, reading(), now=20)
    assert (back.state, back.reason) == (State.RECOVERING, "Lost")
    assert health.recheck_s(back, now=24, policy=POLICY) == 6
    assert after_reading(back, reading(), now=29).state is State.RECOVERING
    healed = after_reading(back, reading(remap_pending=True), now=30)
    assert (healed.state, healed.reason) == (State.HEALTHY, "")


def test_a_latched_fault_outlives_good_readings_without_evidence_of_a_reset() -> None:
    faulty = after_event(xid(95))
    later = after_reading(faulty, reading(recovery_action=None), now=500)
    assert (later.state, later.reason) == (State.FAULTY, "XID95")


@pytest.mark.parametrize("now", [4.0, 5.0])
def test_the_driver_asking_for_no_recovery_ends_a_latched_fault_once_it_had_time(now: float) -> None:
    verdict = after_reading(after_event(xid(95)), reading(recovery_action=0), now=now)
    assert (verdict.state is State.RECOVERING) == (now >= POLICY.settle_s)


def test_a_fault_waits_for_the_driver_to_say_what_it_needs() -> None:
    assert health.recheck_s(after_event(xid(95)), now=1, policy=POLICY) == 4
    assert health.recheck_s(after_event(xid(95)), now=6, policy=POLICY) is None
    assert health.recheck_s(Verdict(), now=6, policy=POLICY) is None


def test_a_gpu_that_was_gone_and_is_back_counts_as_reset_and_keeps_its_root_cause() -> None:
    gone = after_reading(after_event(xid(79)), LOST, now=1)
    assert gone.reason == "XID79"
    assert after_reading(gone, reading(), now=2).state is State.RECOVERING


def test_a_reported_recovery_ends_a_latched_fault() -> None:
    recovered = GPUEvent(kind=EventKind.RECOVERED, uuid=UUID)
    assert after_event(recovered, after_event(xid(79)), now=3).state is State.RECOVERING
    assert after_event(recovered) == Verdict()


def test_each_relapse_doubles_the_hold_up_to_its_limit_until_it_is_forgotten() -> None:
    verdict, now, holds = Verdict(), 0.0, []
    for _ in range(4):
        verdict = after_reading(verdict, LOST, now=now)
        verdict = after_reading(verdict, reading(), now=now + 1)
        holds.append(verdict.hold_s)
        now += 2
    assert holds == [10, 20, 40, 40]
    healed = after_reading(verdict, reading(), now=now + 50)
    assert after_reading(healed, LOST, now=now + 60).hold_s == 40
    assert after_reading(healed, LOST, now=now + 200).hold_s == 10


Observation = tuple[float, GPU | UnreadableGPU | GPUEvent]
OBSERVATIONS = st.lists(
    st.tuples(
        st.floats(0.1, 30),
        st.sampled_from(
            [
                reading(),
                reading(temperature_c=99),
                reading(recovery_action=1),
                reading(recovery_action=0),
                reading(remap_pending=True),
                LOST,
                xid(79),
                xid(13),
                GPUEvent(kind=EventKind.RECOVERED, uuid=UUID),
            ]
        ),
    ),
    max_size=30,
)


def replay(observations: list[Observation]) -> tuple[list[tuple[float, Verdict]], float]:
    verdict, now, history = Verdict(), 0.0, []
    for wait, seen in observations:
        now += wait
        verdict = (
            after_event(seen, verdict, now=now) if isinstance(seen, GPUEvent) else after_reading(verdict, seen, now=now)
        )
        history.append((now, verdict))
    return history, now


@given(observations=OBSERVATIONS)
def test_whatever_happened_the_way_back_is_open(observations: list[Observation]) -> None:
    history, now = replay(observations)
    verdict = history[-1][1] if history else Verdict()
    verdict = after_event(GPUEvent(kind=EventKind.RECOVERED, uuid=UUID), verdict, now=now)
    for _ in range(3):
        now += POLICY.hold_limit_s
        verdict = after_reading(verdict, reading(), now=now)
    assert verdict.state is State.HEALTHY


@given(observations=OBSERVATIONS)
def test_a_gpu_is_never_offered_sooner_than_its_hold_after_a_fault(observations: list[Observation]) -> None:
    history, _ = replay(observations)
    last_bad = None
    for now, verdict in history:
        if verdict.state is State.FAULTY:
            last_bad = now
        if verdict.is_healthy and last_bad is not None:
            assert now - last_bad >= POLICY.hold_s - 1e-6
            last_bad = None


@given(observations=OBSERVATIONS)
def test_what_is_kept_back_always_says_why(observations: list[Observation]) -> None:
    history, _ = replay(observations)
    assert all(verdict.is_healthy or verdict.reason for _, verdict in history)
