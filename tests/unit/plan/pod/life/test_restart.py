"""Restart rules by exit codes, and readiness gates: what is refused, and how a pod lives by them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.plan.pod.life import podsync, restart
from fairlead.plan.pod.life.podsync import Seen, Start
from fairlead.wire.kubernetes import core, meta

_NOW = 1_700_000_000.0
_IN_42 = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
_NOT_IN_1 = {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [0, 1]}}


def _pod(policy: str = "Never", *, gates: tuple[str, ...] = (), init: bool = False, **item: Any) -> core.Pod:
    main = {"name": "main", "image": "i"}
    spec: dict[str, Any] = {"restartPolicy": policy, "readinessGates": [{"conditionType": one} for one in gates]}
    spec |= {"containers": [main if init else main | item]}
    spec |= {"initContainers": [{"name": "first", "image": "i", **item}]} if init else {}
    about = meta.ObjectMeta(name="p", namespace="default", uid="u")
    return core.Pod(metadata=about, spec=msgspec.convert(spec, core.PodSpec))


def _ended(code: int, *, name: str = "main", attempt: int = 0) -> Seen:
    return Seen(
        container=name,
        attempt=attempt,
        engine_name=f"{name}-{attempt}",
        container_id=f"fake://{name}-{attempt}",
        phase="exited",
        exit_code=code,
        started_at=_NOW - 5,
        finished_at=_NOW,
    )


def _running() -> Seen:
    return Seen(
        container="main", attempt=0, engine_name="m", container_id="fake://m", phase="running", started_at=_NOW - 5
    )


def _sync(pod: core.Pod, *seen: Seen) -> podsync.Plan:
    return podsync.sync(pod, seen, now=_NOW, backoff_s=10.0, blocked={})


@pytest.mark.parametrize(
    ("policy", "item", "code", "phase"),
    [
        ("Never", {"restartPolicy": "Never", "restartPolicyRules": [_IN_42]}, 42, "Running"),
        ("Never", {"restartPolicy": "Never", "restartPolicyRules": [_IN_42]}, 1, "Failed"),
        ("Never", {"restartPolicy": "Never", "restartPolicyRules": [_IN_42]}, 0, "Succeeded"),
        ("Never", {"restartPolicy": "Never", "restartPolicyRules": [_NOT_IN_1]}, 1, "Failed"),
        ("Never", {"restartPolicy": "Never", "restartPolicyRules": [_NOT_IN_1]}, 7, "Running"),
        ("Never", {"restartPolicy": "OnFailure"}, 1, "Running"),
        ("Never", {"restartPolicy": "OnFailure"}, 0, "Succeeded"),
        ("Always", {"restartPolicy": "Never"}, 3, "Failed"),
        ("Never", {"restartPolicy": "Always"}, 0, "Running"),
    ],
)
def test_a_containers_own_rules_go_before_its_pods_policy(
    policy: str, item: dict[str, Any], code: int, phase: str
) -> None:
    plan = _sync(_pod(policy, **item), _ended(code))
    assert (plan.status.phase, bool(plan.acts)) == (phase, phase == "Running")
    assert not plan.acts or plan.acts == (Start(container="main", attempt=1),)
    assert plan.is_over is (phase != "Running")


@pytest.mark.parametrize(
    ("policy", "item", "code", "starts"),
    [
        ("Always", {"restartPolicy": "Never"}, 1, False),
        ("Never", {"restartPolicy": "OnFailure"}, 1, True),
        ("Never", {"restartPolicy": "Never", "restartPolicyRules": [_IN_42]}, 42, True),
    ],
)
def test_an_init_container_that_failed_follows_its_own_rules(
    policy: str, item: dict[str, Any], code: int, starts: bool
) -> None:
    plan = _sync(_pod(policy, init=True, **item), _ended(code, name="first"))
    assert (plan.acts == (Start(container="first", attempt=1),)) is starts
    assert (plan.status.phase == "Failed") is not starts


def test_an_init_container_that_succeeded_is_done_whatever_its_rules_say() -> None:
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [0]}}]
    pod = _pod(init=True, restartPolicy="Never", restartPolicyRules=rules)
    assert _sync(pod, _ended(0, name="first")).acts == (Start(container="main", attempt=0),)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"restartPolicyRules": [_IN_42]}, "restartPolicy: Required value: must specify restartPolicy when restart"),
        ({"restartPolicy": "Sometimes"}, 'restartPolicy: Unsupported value: "Sometimes"'),
        (
            {"restartPolicyRules": [{"exitCodes": _IN_42["exitCodes"]}]},
            'restartPolicyRules[0].action: Unsupported value: ""',
        ),
        (
            {"restartPolicyRules": [{**_IN_42, "action": "RestartAllContainers"}]},
            'action: Unsupported value: "RestartAllContainers": supported values: "Restart"',
        ),
        ({"restartPolicyRules": [{"action": "Restart"}]}, "restartPolicyRules[0].exitCodes: Required value"),
        (
            {"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "Equals"}}]},
            'exitCodes.operator: Unsupported value: "Equals": supported values: "In", "NotIn"',
        ),
        ({"restartPolicyRules": [_IN_42] * 21}, "restartPolicyRules: Too many: 21: must have at most 20 items"),
        (
            {"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1] * 256}}]},
            "restartPolicyRules[0].exitCodes.values: Too many: 256: must have at most 255 items",
        ),
    ],
)
def test_wrong_rules_are_refused_by_their_path(item: dict[str, Any], said: str) -> None:
    given = item if item.keys() == {"restartPolicyRules"} and said.startswith("restartPolicy: R") else None
    with pytest.raises(errors.Invalid) as refused:
        admission.admit(_pod(**(given or {"restartPolicy": "Never", **item})))
    assert f"spec.containers[0].{said}" in refused.value.message or said in refused.value.message


# readiness gates


def _ready(pod: core.Pod) -> meta.Condition:
    found = meta.find_condition(_sync(pod, _running()).status.conditions, "Ready")
    assert found is not None
    return found


def _told(pod: core.Pod, **conditions: str) -> core.Pod:
    asked = [meta.Condition(type=f"example.com/{name}", status=value) for name, value in conditions.items()]
    return msgspec.structs.replace(pod, status=restart.with_gates(pod, asked, at="2024-01-01T00:00:00Z"))


def test_a_pod_is_ready_once_its_gates_are() -> None:
    pod = _pod(gates=("example.com/open", "example.com/warm"))
    said = _ready(pod)
    assert (said.status, said.reason) == ("False", "ReadinessGatesNotReady")
    assert 'pod readiness gate "example.com/warm" does not exist.' in said.message
    said = _ready(_told(pod, open="True", warm="False"))
    assert said.message == 'the status of pod readiness gate "example.com/warm" is not "True", but False'
    said = _ready(_told(pod, open="True", warm="True"))
    assert (said.status, said.reason) == ("True", "")
    # What is reported is the reason for no other report.
    plan = _sync(_told(pod, open="True"), _running())
    assert _sync(msgspec.structs.replace(pod, status=plan.status), _running()).status == plan.status


def test_only_gates_are_set_and_a_report_of_the_node_leaves_them() -> None:
    pod = _pod(gates=("example.com/open",))
    with pytest.raises(errors.Invalid, match=r'status\.conditions\[0\]\.type: Forbidden: "Ready" is no readiness gate'):
        restart.with_gates(pod, [meta.Condition(type="Ready", status="True")], at="")
    with pytest.raises(errors.Invalid, match=r'status\.conditions\[0\]\.status: Unsupported value: "Yes"'):
        restart.with_gates(pod, [meta.Condition(type="example.com/open", status="Yes")], at="")
    fresh = _told(pod, open="True").status.conditions
    stale = _told(pod, open="False").status.conditions
    assert restart.kept_gates(pod.spec, stale, fresh) == fresh
    assert restart.kept_gates(_pod().spec, stale, ()) == stale


@pytest.mark.parametrize("name", ["", "a b", "/x", "x" * 64, "-x", "A.b/\0"])
def test_a_gate_without_a_name_is_refused_by_its_path(name: str) -> None:
    with pytest.raises(errors.Invalid, match=r"spec\.readinessGates\[0\]\.conditionType: Invalid value"):
        admission.admit(_pod(gates=(name,)))
