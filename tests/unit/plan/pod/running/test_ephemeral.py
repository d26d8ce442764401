"""Ephemeral containers: what is refused, by its path, and how a pod's life goes with them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.plan.pod.life import podsync
from fairlead.plan.pod.life.podsync import Kill, Remove, Seen, Start
from fairlead.plan.pod.running import ephemeral
from fairlead.wire.kubernetes import core, meta

_NOW = 1_700_000_000.0


def _pod(policy: str = "Always", **more: Any) -> core.Pod:
    spec = {"restartPolicy": policy, "containers": [{"name": "main", "image": "i"}], **more}
    return core.Pod(
        metadata=meta.ObjectMeta(name="p", namespace="default", uid="u"), spec=msgspec.convert(spec, core.PodSpec)
    )


def _item(**fields: Any) -> core.EphemeralContainer:
    return msgspec.convert({"name": "look", "image": "tools", **fields}, core.EphemeralContainer)


def _seen(name: str, phase: str, *, attempt: int = 0, code: int = 0) -> Seen:
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


def _sync(pod: core.Pod, *seen: Seen) -> podsync.Plan:
    return podsync.sync(pod, seen, now=_NOW, backoff_s=10.0, blocked={})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "Not A Name"}, "spec.ephemeralContainers[0].name: Invalid value"),
        ({"name": "main"}, 'spec.ephemeralContainers[0].name: Duplicate value: "main"'),
        ({"image": "A B"}, "spec.ephemeralContainers[0].image: Invalid value"),
        ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "resources: Forbidden: cannot be set for an Ephemeral"),
        ({"ports": [{"containerPort": 80}]}, "ports: Forbidden: cannot be set for an Ephemeral Container"),
        ({"livenessProbe": {"exec": {"command": ["x"]}}}, "livenessProbe: Forbidden"),
        ({"lifecycle": {}}, "lifecycle: Forbidden"),
        ({"restartPolicy": "Always"}, "restartPolicy: Forbidden"),
        ({"targetContainerName": "other"}, 'targetContainerName: Not found: "other"'),
        ({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, 'volumeMounts[0].name: Not found: "v"'),
        ({"command": ["a\0b"]}, "must not contain NUL"),
    ],
)
def test_what_it_may_not_have_is_refused_by_its_path(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        ephemeral.added(_pod(), _item(**fields))
    assert said in refused.value.message


def test_a_pod_is_never_stored_with_one() -> None:
    pod = ephemeral.added(_pod(), _item())
    with pytest.raises(errors.Invalid, match=r"spec\.ephemeralContainers: Forbidden: cannot be set on create"):
        admission.admit(pod)


def test_nothing_joins_a_pod_that_has_ended_or_a_sandbox_of_its_own() -> None:
    ended = msgspec.structs.replace(_pod(), status=core.PodStatus(phase="Succeeded"))
    with pytest.raises(errors.Conflict, match="nothing can join it"):
        ephemeral.added(ended, _item())
    with pytest.raises(errors.Unavailable, match="whose namespaces are its own"):
        ephemeral.added(_pod(runtimeClassName="gvisor"), _item())


def test_a_pod_has_so_many_and_no_more() -> None:
    pod = _pod()
    for number in range(ephemeral.MOST):
        pod = ephemeral.added(pod, _item(name=f"look-{number}"))
    with pytest.raises(errors.Conflict, match="at most 32 join one"):
        ephemeral.added(pod, _item(name="one-more"))


def test_it_is_started_once_and_has_no_part_in_the_pods_phase() -> None:
    pod = ephemeral.added(_pod(), _item())
    plan = _sync(pod, _seen("main", "running"))
    assert plan.acts == (Start(container="look", attempt=0),)
    plan = _sync(msgspec.structs.replace(pod, status=plan.status), _seen("main", "running"), _seen("look", "running"))
    (status,) = plan.status.ephemeral_container_statuses
    assert (plan.acts, status.ready) == ((), False)
    ended = _seen("look", "exited", code=3)
    plan = _sync(msgspec.structs.replace(pod, status=plan.status), _seen("main", "running"), ended)
    (status,) = plan.status.ephemeral_container_statuses
    assert status.state.terminated is not None
    assert (plan.acts, plan.status.phase, status.state.terminated.exit_code) == ((), "Running", 3)
    # The engine forgot it: what is reported of it counts, and it is not started again.
    assert _sync(msgspec.structs.replace(pod, status=plan.status), _seen("main", "running")).acts == ()


def test_one_that_cannot_be_started_fails_nothing() -> None:
    pod = ephemeral.added(_pod("Never"), _item())
    block = podsync.Blocked(reason="ErrImagePull", message="no such image", is_final=False, retry_at=_NOW + 5)
    plan = podsync.sync(pod, (_seen("main", "running"),), now=_NOW, backoff_s=10.0, blocked={"look": block})
    (status,) = plan.status.ephemeral_container_statuses
    assert status.state.waiting is not None
    assert (status.state.waiting.reason, plan.status.phase, plan.wake_at) == ("ErrImagePull", "Running", _NOW + 5)


def test_it_ends_with_the_pods_containers() -> None:
    pod = ephemeral.added(_pod("Never"), _item())
    plan = _sync(pod, _seen("main", "exited"), _seen("look", "running"))
    assert [act.engine_name for act in plan.acts if isinstance(act, Kill)] == ["look-0"]
    assert not plan.is_over
    plan = _sync(pod, _seen("main", "exited"), _seen("look", "exited", code=137))
    assert (plan.is_over, plan.status.phase) == (True, "Succeeded")


def test_no_attempt_is_removed_before_those_that_may_be_in_its_namespaces() -> None:
    pod = ephemeral.added(_pod(), _item())
    old = [_seen("main", "exited", attempt=0), _seen("main", "exited", attempt=1), _seen("main", "running", attempt=2)]
    assert _sync(pod, *old, _seen("look", "running")).acts == ()
    found = _sync(pod, *old, _seen("look", "exited")).acts
    assert found == (Remove(engine_name="look-0"), Remove(engine_name="main-0"))
    about = msgspec.structs.replace(pod.metadata, deletion_timestamp="2024-01-01T00:00:00Z")
    gone = _sync(msgspec.structs.replace(pod, metadata=about), _seen("main", "exited"), _seen("look", "exited"))
    assert gone.acts == (Remove(engine_name="look-0"), Remove(engine_name="main-0"))
