"""Pod sync: restarts, endings and refusals by table; and a pod living under any order of events."""

from __future__ import annotations

import dataclasses
import datetime as dt

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlead.plan.pod.life import podsync
from fairlead.plan.pod.life.podsync import Blocked, Kill, Plan, Remove, Resume, Seen, Start
from fairlead.wire.kubernetes import core, meta

_NOW = 1_700_000_000.0
_BACKOFF_S = 10.0


def _pod(
    *names: str,
    inits: tuple[str, ...] = (),
    policy: str = "Always",
    annotations: dict[str, str] | None = None,
    status: core.PodStatus | None = None,
) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name="train", namespace="default", uid="uid-1", annotations=annotations or {}),
        spec=core.PodSpec(
            containers=tuple(core.Container(name=name, image="i") for name in names or ("main",)),
            init_containers=tuple(core.Container(name=name, image="i") for name in inits),
            restart_policy=policy,
        ),
        status=status or core.PodStatus(),
    )


def _seen(phase: str, *, name: str = "main", attempt: int = 0, code: int = 0, ended: float = _NOW) -> Seen:
    return Seen(
        container=name,
        attempt=attempt,
        engine_name=f"{name}-{attempt}",
        container_id=f"fake://{name}-{attempt}",
        phase=phase,
        exit_code=code,
        started_at=None if phase == "created" else ended - 5,
        finished_at=ended if phase == "exited" else None,
    )


def _sync(pod: core.Pod, *seen: Seen, now: float = _NOW, blocked: dict[str, Blocked] | None = None) -> Plan:
    return podsync.sync(pod, seen, now=now, backoff_s=_BACKOFF_S, blocked=blocked or {})


def _with(pod: core.Pod, plan: Plan) -> core.Pod:
    return msgspec.structs.replace(pod, status=plan.status)


def _asked_to_stop(pod: core.Pod, *, grace_s: int | None = None) -> core.Pod:
    asked = core.StopRequest(requested_at="2024-01-01T00:00:00Z", grace_period_seconds=grace_s)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, stop_request=asked))


def _deleted(pod: core.Pod, *, grace_s: int | None = None) -> core.Pod:
    about = msgspec.structs.replace(
        pod.metadata, deletion_timestamp="2024-01-01T00:00:00Z", deletion_grace_period_seconds=grace_s
    )
    return msgspec.structs.replace(pod, metadata=about)


# the life of one container


def test_a_fresh_pod_starts_every_container_at_attempt_0() -> None:
    plan = _sync(_pod("a", "b"))
    assert plan.acts == (Start(container="a", attempt=0), Start(container="b", attempt=0))
    assert plan.status.phase == "Pending"


def test_a_running_container_is_left_alone_and_ready() -> None:
    plan = _sync(_pod(), _seen("running"))
    assert (plan.acts, plan.status.phase, plan.status.container_statuses[0].ready) == ((), "Running", True)


def test_a_created_container_is_resumed_not_created_again() -> None:
    assert _sync(_pod(), _seen("created")).acts == (Resume(container="main", engine_name="main-0"),)


@pytest.mark.parametrize(
    ("policy", "code", "phase", "restarts"),
    [
        ("Never", 0, "Succeeded", False),
        ("Never", 3, "Failed", False),
        ("OnFailure", 0, "Succeeded", False),
        ("OnFailure", 3, "Running", True),
        ("Always", 0, "Running", True),
        ("Always", 3, "Running", True),
    ],
)
def test_an_ended_container_restarts_as_the_policy_says(policy: str, code: int, phase: str, restarts: bool) -> None:
    plan = _sync(_pod(policy=policy), _seen("exited", code=code))
    assert plan.status.phase == phase
    assert plan.acts == ((Start(container="main", attempt=1),) if restarts else ())
    assert plan.is_over is not restarts


def test_the_pod_fails_only_when_its_last_container_has_ended() -> None:
    pod = _pod("a", "b", policy="Never")
    both = _seen("exited", name="a", code=2), _seen("running", name="b")
    assert _sync(pod, *both).status.phase == "Running"
    over = _sync(pod, both[0], _seen("exited", name="b"))
    assert (over.status.phase, over.status.message) == ("Failed", 'container "a" exited with 2')


def test_a_container_out_of_memory_says_so() -> None:
    killed = dataclasses.replace(_seen("exited", code=137), oom_killed=True)
    plan = _sync(_pod(policy="Never"), killed)
    assert (plan.status.phase, plan.status.reason) == ("Failed", "OOMKilled")


# what was created and never started holds devices and cannot be stopped: engines stop nothing that does not run


@pytest.mark.parametrize("grace_s", [None, 0])
def test_a_deleted_pods_container_that_never_started_is_removed_not_stopped(grace_s: int | None) -> None:
    pod = _deleted(_pod(), grace_s=grace_s)
    assert _sync(pod, _seen("created")).acts == (Remove(engine_name="main-0"),)
    over = _sync(pod)
    assert (over.is_over, over.forget) == (True, True)


def test_a_stopped_pods_container_that_never_started_is_removed_not_stopped() -> None:
    pod = _asked_to_stop(_pod())
    assert _sync(pod, _seen("created")).acts == (Remove(engine_name="main-0"),)
    over = _sync(pod)
    assert (over.is_over, over.status.reason) == (True, "Stopped")


def test_an_older_attempt_that_never_started_is_removed_not_stopped() -> None:
    plan = _sync(_pod(), _seen("created"), _seen("running", attempt=1))
    assert plan.acts == (Remove(engine_name="main-0"),)


# back-off


@pytest.mark.parametrize(
    ("attempt", "wait_s"), [(0, 0), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (40, 300)]
)
def test_back_off_doubles_from_the_second_restart_to_five_minutes(attempt: int, wait_s: int) -> None:
    seen = _seen("exited", attempt=attempt, code=1)
    start = (Start(container="main", attempt=attempt + 1),)
    assert _sync(_pod(), seen, now=_NOW + wait_s).acts == start
    if wait_s:
        early = _sync(_pod(), seen, now=_NOW + wait_s - 1)
        assert (early.acts, early.wake_at) == ((), _NOW + wait_s)


def test_a_container_in_back_off_shows_the_whole_wait_so_that_its_status_does_not_change_every_second() -> None:
    seen = _seen("exited", attempt=2, code=1)
    first = _sync(_pod(), seen, now=_NOW + 1)
    waiting = first.status.container_statuses[0].state.waiting
    assert waiting is not None
    assert waiting.reason == "CrashLoopBackOff"
    assert waiting.message == "back-off 20s restarting failed container=main pod=train"
    assert _sync(_with(_pod(), first), seen, now=_NOW + 15).status == first.status


def test_ten_good_minutes_are_followed_by_an_immediate_restart() -> None:
    long = dataclasses.replace(_seen("exited", attempt=5, code=1), started_at=_NOW - 600)
    assert _sync(_pod(), long).acts == (Start(container="main", attempt=6),)


def test_a_crash_looping_container_that_vanishes_keeps_its_count_its_end_and_its_back_off() -> None:
    pod = _with(_pod(), _sync(_pod(), _seen("exited", attempt=3, code=1), now=_NOW + 1))
    gone = _sync(pod, now=_NOW + 2)
    assert (gone.acts, gone.wake_at, gone.status) == ((), _NOW + 40, pod.status)
    assert _sync(pod, now=_NOW + 40).acts == (Start(container="main", attempt=4),)


def test_a_running_container_that_vanishes_waits_its_back_off_from_when_that_was_seen() -> None:
    pod = _with(_pod(), _sync(_pod(), _seen("running", attempt=3)))
    gone = _sync(pod, now=_NOW + 1)
    assert (gone.acts, gone.wake_at) == ((), _NOW + 1 + 40)
    later = _sync(_with(pod, gone), now=_NOW + 41)
    assert later.acts == (Start(container="main", attempt=4),)


def test_an_end_without_a_time_waits_from_when_it_was_first_reported() -> None:
    seen = dataclasses.replace(_seen("exited", attempt=1, code=1), finished_at=None)
    pod = _with(_pod(), _sync(_pod(), seen))
    assert _sync(pod, seen, now=_NOW + _BACKOFF_S).acts == (Start(container="main", attempt=2),)


# what vanished, what is left over


@pytest.mark.parametrize(
    ("is_before_boot", "reason", "words"),
    [
        (True, "MachineRestarted", "the machine was restarted while it ran"),
        (False, "ContainerStatusUnknown", "its end was not seen"),
    ],
)
def test_a_container_whose_end_the_engine_does_not_know_says_why(is_before_boot: bool, reason: str, words: str) -> None:
    lost = dataclasses.replace(_seen("exited", code=137), finished_at=None, is_before_boot=is_before_boot)
    status = _sync(_pod(policy="Never"), lost).status
    assert words in status.message
    ended = status.container_statuses[0].state.terminated
    assert ended is not None
    assert (ended.exit_code, ended.reason, words in ended.message) == (137, reason, True)
    killed = dataclasses.replace(_seen("exited", code=137), is_before_boot=is_before_boot)
    ended = _sync(_pod(policy="Never"), killed).status.container_statuses[0].state.terminated
    assert ended is not None
    assert (ended.reason, ended.message) == ("Error", "")


def test_a_vanished_container_counts_as_ended_with_137() -> None:
    pod = _with(_pod(policy="Never"), _sync(_pod(policy="Never"), _seen("running")))
    plan = _sync(pod)
    terminated = plan.status.container_statuses[0].state.terminated
    assert terminated is not None
    assert (terminated.exit_code, terminated.reason, plan.status.phase) == (137, "ContainerStatusUnknown", "Failed")
    assert (plan.acts, plan.is_over) == ((), True)


def test_a_created_container_that_vanished_never_ran_and_is_attempt_0_again() -> None:
    pod = _with(_pod(policy="Never"), _sync(_pod(policy="Never"), _seen("created")))
    assert _sync(pod).acts == (Start(container="main", attempt=0),)


def test_a_created_restart_that_vanished_is_the_same_attempt_again() -> None:
    pod = _with(_pod(), _sync(_pod(), _seen("exited", attempt=0, code=1), _seen("created", attempt=1)))
    assert _sync(pod, now=_NOW + 60).acts == (Start(container="main", attempt=1),)


def test_an_older_attempt_that_still_lives_is_killed_before_anything_starts() -> None:
    plan = _sync(_pod(), _seen("running", attempt=0), _seen("exited", attempt=1, code=1), now=_NOW + 60)
    assert plan.acts == (Kill(container="main", engine_name="main-0", grace_s=30.0),)


def test_the_last_two_attempts_are_kept_for_their_logs() -> None:
    ended = [_seen("exited", attempt=n, code=1) for n in range(3)]
    plan = _sync(_pod(), *ended, _seen("running", attempt=3))
    assert plan.acts == (Remove(engine_name="main-0"), Remove(engine_name="main-1"))


def test_a_restarted_container_shows_how_its_last_attempt_ended() -> None:
    plan = _sync(_pod(), _seen("exited", attempt=0, code=9), _seen("running", attempt=1))
    status = plan.status.container_statuses[0]
    assert status.last_state.terminated is not None
    assert (status.last_state.terminated.exit_code, status.restart_count) == (9, 1)
    alone = _sync(_with(_pod(), plan), _seen("running", attempt=1))
    assert alone.status == plan.status


# init containers


def test_init_containers_run_one_after_another_before_the_rest() -> None:
    pod = _pod(inits=("one", "two"))
    assert _sync(pod).acts == (Start(container="one", attempt=0),)
    assert _sync(pod, _seen("running", name="one")).acts == ()
    done = _seen("exited", name="one"), _seen("exited", name="two")
    assert _sync(pod, done[0]).acts == (Start(container="two", attempt=0),)
    assert _sync(pod, *done).acts == (Start(container="main", attempt=0),)


def test_a_failed_init_container_fails_a_pod_that_never_restarts() -> None:
    plan = _sync(_pod(inits=("one",), policy="Never"), _seen("exited", name="one", code=4))
    assert (plan.status.phase, plan.status.reason, plan.is_over) == ("Failed", "InitContainerFailed", True)
    assert plan.status.message == 'init container "one" exited with 4'


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_a_failed_init_container_runs_again_and_a_good_one_does_not(policy: str) -> None:
    pod = _pod(inits=("one",), policy=policy)
    assert _sync(pod, _seen("exited", name="one", code=4)).acts == (Start(container="one", attempt=1),)
    assert _sync(pod, _seen("exited", name="one")).acts == (Start(container="main", attempt=0),)


def test_a_finished_init_container_that_was_pruned_does_not_run_again() -> None:
    pod = _pod(inits=("one",))
    pod = _with(pod, _sync(pod, _seen("exited", name="one"), _seen("running")))
    assert _sync(pod, _seen("running")).acts == ()


# stopping and deleting


def test_a_deleted_pod_is_killed_then_removed_then_forgotten() -> None:
    pod = _deleted(_pod("a", "b"), grace_s=7)
    plan = _sync(pod, _seen("running", name="a"), _seen("exited", name="b"))
    assert plan.acts == (Kill(container="a", engine_name="a-0", grace_s=7.0),)
    assert not plan.is_over
    last = _sync(pod, _seen("exited", name="a"), _seen("exited", name="b"))
    assert last.acts == (Remove(engine_name="a-0"), Remove(engine_name="b-0"))
    assert last.is_over
    assert last.forget


def test_a_pod_asked_to_stop_ends_by_its_exit_codes_and_is_kept() -> None:
    pod = _asked_to_stop(_pod())
    assert _sync(pod, _seen("running")).acts == (Kill(container="main", engine_name="main-0", grace_s=30.0),)
    good, bad = _sync(pod, _seen("exited")), _sync(pod, _seen("exited", code=143))
    assert (good.status.phase, bad.status.phase) == ("Succeeded", "Failed")
    assert (good.status.reason, good.is_over, good.forget) == ("Stopped", True, False)


@pytest.mark.parametrize(("asked_s", "grace_s"), [(2, 2.0), (0, 0.0), (None, 30.0)])
def test_a_stop_may_carry_its_grace_and_the_request_stays_in_the_status(asked_s: int | None, grace_s: float) -> None:
    pod = _asked_to_stop(_pod(), grace_s=asked_s)
    plan = _sync(pod, _seen("running"))
    assert plan.acts == (Kill(container="main", engine_name="main-0", grace_s=grace_s),)
    assert plan.status.stop_request == pod.status.stop_request


@pytest.mark.parametrize(
    ("stop_s", "delete_s", "grace_s"), [(300, 2, 2.0), (2, 300, 2.0), (300, None, 300.0), (None, 2, 2.0)]
)
def test_of_a_stop_and_a_deletion_the_shorter_grace_counts(
    stop_s: int | None, delete_s: int | None, grace_s: float
) -> None:
    pod = _deleted(_asked_to_stop(_pod(), grace_s=stop_s), grace_s=delete_s)
    assert _sync(pod, _seen("running")).acts == (Kill(container="main", engine_name="main-0", grace_s=grace_s),)


def test_an_annotation_stops_nothing() -> None:
    pod = _pod(annotations={"fairlead.dev/stop": "1", "fairlead.dev/stop-grace": "0"})
    assert _sync(pod, _seen("running")).acts == ()


def test_an_ended_pod_keeps_its_status_even_where_somebody_starts_its_container_again() -> None:
    status = core.PodStatus(phase="Failed", reason="Stopped", message="stopped on request")
    plan = _sync(_pod(status=status), _seen("running"))
    assert (plan.acts, plan.status) == ((Kill(container="main", engine_name="main-0", grace_s=30.0),), status)


# what is in the way


def test_a_blocked_start_waits_with_its_reason_and_is_tried_again() -> None:
    block = Blocked(reason="ImageNotFound", message="no such image", is_final=False, retry_at=_NOW + 5)
    plan = _sync(_pod(), blocked={"main": block})
    waiting = plan.status.container_statuses[0].state.waiting
    assert waiting is not None
    assert (waiting.reason, plan.acts, plan.wake_at) == ("ImageNotFound", (), _NOW + 5)
    assert _sync(_with(_pod(), plan), now=_NOW + 5, blocked={"main": block}).acts == (
        Start(container="main", attempt=0),
    )


def test_a_final_block_fails_the_pod_after_its_other_containers_are_down() -> None:
    pod = _pod("a", "b", policy="Never")
    block = {"b": Blocked(reason="ImageNotFound", message="no such image", is_final=True)}
    first = _sync(pod, _seen("running", name="a"), blocked=block)
    assert (first.acts, first.is_over) == ((Kill(container="a", engine_name="a-0", grace_s=30.0),), False)
    last = _sync(pod, _seen("exited", name="a", code=143), blocked=block)
    assert (last.status.phase, last.status.reason, last.is_over) == ("Failed", "ImageNotFound", True)


def test_a_refused_pod_keeps_what_was_known_of_it() -> None:
    before = _sync(_pod()).status
    after = podsync.fail(_pod(status=before), "UnexpectedAdmissionError", "too few devices")
    assert (after.phase, after.reason, after.message) == ("Failed", "UnexpectedAdmissionError", "too few devices")
    assert (after.start_time, after.conditions) == (before.start_time, before.conditions)


def test_times_come_from_the_caller_alone() -> None:
    plan = _sync(_pod(), _seen("running"))
    stamp = dt.datetime.fromtimestamp(_NOW, dt.UTC)
    assert plan.status.start_time is not None
    assert dt.datetime.fromisoformat(plan.status.start_time) == stamp


class PodLife(RuleBasedStateMachine):
    """An engine, a store and a clock in three fields; the kubelet may die between any two acts."""

    policies = st.sampled_from(["Always", "OnFailure", "Never"])

    def __init__(self) -> None:
        super().__init__()
        self.pod = _pod()
        self.engine: dict[str, Seen] = {}
        self.blocked: dict[str, Blocked] = {}
        self.now = _NOW
        self.highest: dict[str, int] = {}
        self.ended_with: core.PodStatus | None = None
        self.is_gone = False

    @rule(policy=policies, mains=st.integers(1, 2), inits=st.integers(0, 2))
    @precondition(lambda self: not self.engine and not self.pod.status.phase)
    def choose(self, policy: str, mains: int, inits: int) -> None:
        self.pod = _pod(*"ab"[:mains], inits=tuple("xy"[:inits]), policy=policy)

    @rule(acts=st.integers(0, 4), starts=st.booleans())
    def kubelet(self, acts: int, starts: bool) -> None:
        """One sync; the kubelet dies after `acts` acts, perhaps between creating and starting a container."""
        seen = tuple(self.engine.values())
        plan = podsync.sync(self.pod, seen, now=self.now, backoff_s=_BACKOFF_S, blocked=self.blocked)
        again = podsync.sync(_with(self.pod, plan), seen, now=self.now, backoff_s=_BACKOFF_S, blocked=self.blocked)
        assert again.status == plan.status
        if plan.is_over:
            assert not any(one.phase != "exited" for one in seen)
        if self.pod.status.phase in core.ENDED_PHASES:
            assert plan.status == self.pod.status
        self.pod = _with(self.pod, plan)
        for act in plan.acts[:acts]:
            self.carry_out(act, starts=starts)
        if plan.forget and acts >= len(plan.acts):
            self.is_gone = not self.engine

    def carry_out(self, act: podsync.Act, *, starts: bool) -> None:
        if isinstance(act, Start):
            self.start(act, starts=starts)
        elif isinstance(act, Resume):
            self.put(self.engine[act.engine_name], phase="running", started_at=self.now)
        elif isinstance(act, Kill):
            assert self.engine[act.engine_name].phase == "running"
            self.put(self.engine[act.engine_name], phase="exited", exit_code=143, finished_at=self.now)
        else:
            assert self.engine[act.engine_name].phase != "running"
            del self.engine[act.engine_name]

    def start(self, act: Start, *, starts: bool) -> None:
        name = f"{act.container}-{act.attempt}"
        alive = [one for one in self.engine.values() if one.container == act.container and one.phase != "exited"]
        assert not alive, f"{name} started beside {alive}"
        assert name not in self.engine
        assert self.pod.status.phase not in core.ENDED_PHASES
        if self.pod.spec.restart_policy == "Never":
            assert act.attempt == 0
        assert act.attempt <= self.highest.get(act.container, -1) + 1
        self.highest[act.container] = max(act.attempt, self.highest.get(act.container, -1))
        created = _seen("created", name=act.container, attempt=act.attempt)
        self.put(created, **({"phase": "running", "started_at": self.now} if starts else {}))

    def put(self, seen: Seen, **changes: object) -> None:
        self.engine[seen.engine_name] = dataclasses.replace(seen, **changes)  # type: ignore[arg-type]  # fields by name

    @rule(data=st.data(), code=st.sampled_from([0, 1, 137]), oom=st.booleans(), timed=st.booleans())
    def container_ends(self, data: st.DataObject, code: int, oom: bool, timed: bool) -> None:
        running = [one for one in self.engine.values() if one.phase == "running"]
        if running:
            at = self.now if timed else None
            one = data.draw(st.sampled_from(running))
            self.put(one, phase="exited", exit_code=code, oom_killed=oom, finished_at=at)

    @rule(data=st.data())
    def container_vanishes(self, data: st.DataObject) -> None:
        if self.engine:
            del self.engine[data.draw(st.sampled_from(sorted(self.engine)))]

    @rule(seconds=st.sampled_from([0.5, 11.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from("abxy"), is_final=st.booleans())
    def start_is_blocked(self, name: str, is_final: bool) -> None:
        is_final = is_final and self.pod.spec.restart_policy == "Never"
        self.blocked[name] = Blocked(reason="E", message="m", is_final=is_final, retry_at=self.now + 5)

    @rule()
    def block_is_lifted(self) -> None:
        self.blocked.clear()

    @rule()
    def stop(self) -> None:
        if self.pod.status.phase not in core.ENDED_PHASES:  # the API leaves an ended pod as it is
            self.pod = _asked_to_stop(self.pod)

    @rule()
    def delete(self) -> None:
        self.pod = _deleted(self.pod)

    @invariant()
    def an_end_is_an_end(self) -> None:
        if self.ended_with is not None:
            assert self.pod.status == self.ended_with
        if self.pod.status.phase in core.ENDED_PHASES:
            self.ended_with = self.pod.status

    @invariant()
    def left_alone_it_comes_to_rest(self) -> None:
        """Nothing but the kubelet acting: a deleted or ended pod is down, any other runs or waits for a known time."""
        engine, pod, highest = dict(self.engine), self.pod, dict(self.highest)
        for _ in range(20):
            seen = tuple(self.engine.values())
            plan = podsync.sync(self.pod, seen, now=self.now, backoff_s=_BACKOFF_S, blocked=self.blocked)
            self.pod = _with(self.pod, plan)
            if not plan.acts:
                break
            for act in plan.acts:
                self.carry_out(act, starts=True)
        assert not plan.acts
        assert plan.wake_at is None or self.now < plan.wake_at <= self.now + 300
        assert plan.is_over or plan.wake_at is not None or any(one.phase == "running" for one in seen)
        self.engine, self.pod, self.highest = engine, pod, highest


TestPodLife = PodLife.TestCase
TestPodLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def _limited(started: float | None, limit_s: int) -> core.Pod:
    begun = None if started is None else dt.datetime.fromtimestamp(started, dt.UTC).isoformat()
    pod = _pod("main", status=core.PodStatus(phase="Running", start_time=begun))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, active_deadline_seconds=limit_s))


def test_a_pod_is_looked_at_again_when_its_time_is_up() -> None:
    plan = _sync(_limited(_NOW - 10, 60), _seen("running"))
    assert (plan.acts, plan.wake_at, plan.is_over) == ((), _NOW + 50, False)


def test_a_pod_that_ran_for_too_long_is_stopped_and_failed() -> None:
    pod = _limited(_NOW - 60, 60)
    killed = _sync(pod, _seen("running"))
    assert killed.acts == (Kill(container="main", engine_name="main-0", grace_s=30.0),)
    ended = _sync(_with(pod, killed), _seen("exited", code=137))
    assert (ended.acts, ended.is_over) == ((), True)
    assert (ended.status.phase, ended.status.reason) == ("Failed", "DeadlineExceeded")


def test_time_counts_from_the_first_look_of_the_node() -> None:
    assert _sync(_limited(None, 1)).acts == (Start(container="main", attempt=0),)


def test_a_pod_that_ended_in_time_stays_as_it_ended() -> None:
    pod = _limited(_NOW - 10, 60)
    once = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, restart_policy="Never"))
    plan = _sync(once, _seen("exited"))
    assert (plan.status.phase, plan.is_over, plan.wake_at) == ("Succeeded", True, None)
