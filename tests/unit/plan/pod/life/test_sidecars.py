"""Sidecars and probed containers: the order at start and end, restarts, and what conditions say."""

from __future__ import annotations

import dataclasses

import msgspec

from fairlead.plan.pod.life import podsync
from fairlead.plan.pod.life.health import Health
from fairlead.plan.pod.life.podsync import Kill, Plan, Seen, Start
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.pod.probe import ExecAction, Probe

_NOW = 1_700_000_000.0
_PROBE = Probe(exec=ExecAction(command=("true",)))


def _pod(*inits: core.Container, policy: str = "Always", main: core.Container | None = None) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name="p", namespace="default", uid="u"),
        spec=core.PodSpec(
            containers=(main or core.Container(name="main", image="i"),), init_containers=inits, restart_policy=policy
        ),
    )


def _sidecar(name: str, **more: object) -> core.Container:
    return msgspec.convert({"name": name, "image": "i", "restartPolicy": "Always", **more}, core.Container)


def _seen(name: str, phase: str = "running", *, attempt: int = 0, code: int = 0) -> Seen:
    return Seen(
        container=name,
        attempt=attempt,
        engine_name=f"{name}-{attempt}",
        container_id=f"fake://{name}-{attempt}",
        phase=phase,
        exit_code=code,
        started_at=_NOW - 5,
        finished_at=_NOW if phase == "exited" else None,
    )


def _sync(pod: core.Pod, *seen: Seen, **healths: Health) -> Plan:
    known = {f"fake://{name.replace('_', '-')}-0": one for name, one in healths.items()}
    return podsync.sync(pod, seen, now=_NOW, backoff_s=10.0, blocked={}, healths=known)


def _condition(plan: Plan, name: str) -> str:
    found = meta.find_condition(plan.status.conditions, name)
    assert found is not None
    return found.status


def test_containers_start_in_the_order_of_the_list_and_a_sidecar_is_not_waited_for() -> None:
    pod = _pod(_sidecar("log"), core.Container(name="load", image="i"))
    assert _sync(pod).acts == (Start(container="log", attempt=0),)
    assert _sync(pod, _seen("log")).acts == (Start(container="load", attempt=0),)
    assert _sync(pod, _seen("log"), _seen("load")).acts == ()
    plan = _sync(pod, _seen("log"), _seen("load", "exited"))
    assert plan.acts == (Start(container="main", attempt=0),)
    assert _condition(plan, "Initialized") == "True"


def test_a_sidecar_with_a_startup_probe_holds_the_rest_up_until_it_has_started() -> None:
    pod = _pod(_sidecar("db", startupProbe={"exec": {"command": ["true"]}}))
    plan = _sync(pod, _seen("db"))
    assert plan.acts == ()
    assert plan.status.init_container_statuses[0].started is False
    assert _condition(plan, "Initialized") == "False"
    assert _sync(pod, _seen("db"), db=Health()).acts == (Start(container="main", attempt=0),)


def test_a_sidecar_that_ends_is_started_again_whatever_the_pod_s_policy_and_nothing_else_is() -> None:
    pod = _pod(_sidecar("log"), policy="Never")
    plan = _sync(pod, _seen("log", "exited"), _seen("main"))
    assert plan.acts == (Start(container="log", attempt=1),)
    assert plan.status.phase == "Running"
    assert _condition(plan, "Initialized") == "True"
    assert _condition(plan, "Ready") == "False"


def test_when_the_containers_have_ended_the_sidecars_are_stopped_last_one_first_and_then_the_pod_is_over() -> None:
    pod = _pod(_sidecar("a"), _sidecar("b"), policy="Never")
    running = _sync(pod, _seen("a"), _seen("b"), _seen("main"))
    pod = msgspec.structs.replace(pod, status=running.status)
    first = _sync(pod, _seen("a"), _seen("b"), _seen("main", "exited"))
    assert [act.container for act in first.acts if isinstance(act, Kill)] == ["b"]
    assert first.status.phase == "Running"
    second = _sync(pod, _seen("a"), _seen("b", "exited", code=137), _seen("main", "exited"))
    assert [act.container for act in second.acts if isinstance(act, Kill)] == ["a"]
    ended = (_seen("a", "exited", code=143), _seen("b", "exited", code=137), _seen("main", "exited"))
    last = _sync(pod, *ended)
    assert last.is_over
    assert last.status.phase == "Succeeded"


def test_the_end_of_a_pod_fails_by_its_containers_and_not_by_its_sidecars() -> None:
    pod = _pod(_sidecar("a"), policy="Never")
    last = _sync(pod, _seen("a", "exited"), _seen("main", "exited", code=3))
    assert (last.status.phase, last.is_over) == ("Failed", True)


def test_a_deleted_pod_s_sidecars_live_until_its_containers_are_down_and_share_their_grace() -> None:
    pod = _pod(_sidecar("a"))
    due = meta.emit_time(_NOW + 4)
    about = msgspec.structs.replace(pod.metadata, deletion_timestamp=due, deletion_grace_period_seconds=30)
    pod = msgspec.structs.replace(pod, metadata=about)
    plan = _sync(pod, _seen("a"), _seen("main"))
    assert [act.container for act in plan.acts if isinstance(act, Kill)] == ["main"]
    (kill,) = _sync(pod, _seen("a"), _seen("main", "exited")).acts
    assert isinstance(kill, Kill)
    assert (kill.container, kill.grace_s) == ("a", 4.0)


def test_an_init_container_that_fails_for_good_ends_the_sidecars_before_it() -> None:
    pod = _pod(_sidecar("a"), core.Container(name="load", image="i"), policy="Never")
    plan = _sync(pod, _seen("a"), _seen("load", "exited", code=1))
    assert [act.container for act in plan.acts if isinstance(act, Kill)] == ["a"]
    over = _sync(pod, _seen("a", "exited"), _seen("load", "exited", code=1))
    assert over.status.phase == "Failed"


def test_a_container_is_ready_only_when_its_probe_says_so_and_so_is_the_pod() -> None:
    pod = _pod(main=core.Container(name="main", image="i", readiness_probe=_PROBE))
    plan = _sync(pod, _seen("main"))
    assert (plan.status.container_statuses[0].ready, _condition(plan, "Ready")) == (False, "False")
    plan = _sync(pod, _seen("main"), main=Health())
    assert (plan.status.container_statuses[0].ready, _condition(plan, "Ready")) == (True, "True")
    assert plan.status.container_statuses[0].started is True


def test_what_a_probe_gives_up_is_stopped_with_the_probe_s_grace_and_started_again() -> None:
    pod = _pod(main=core.Container(name="main", image="i", liveness_probe=_PROBE))
    bad = Health(failure="Liveness probe failed: no", grace_s=3)
    (kill,) = _sync(pod, _seen("main"), main=bad).acts
    assert kill == Kill(engine_name="main-0", grace_s=3.0, container="main", why="Liveness probe failed: no")
    assert _sync(pod, _seen("main", "exited", code=137), main=bad).acts == (Start(container="main", attempt=1),)


def test_a_reported_status_is_believed_by_a_kubelet_that_was_started_again() -> None:
    pod = _pod(main=core.Container(name="main", image="i", readiness_probe=_PROBE))
    ready = _sync(pod, _seen("main"), main=Health())
    again = _sync(msgspec.structs.replace(pod, status=ready.status), _seen("main"))
    assert again.status == ready.status


def test_the_last_word_of_a_container_is_the_message_of_its_end() -> None:
    plan = _sync(_pod(policy="Never"), dataclasses.replace(_seen("main", "exited", code=1), message="disk is full"))
    ended = plan.status.container_statuses[0].state.terminated
    assert ended is not None
    assert ended.message == "disk is full"
