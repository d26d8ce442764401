"""Says whether a container that ended is started again, and judges the rules for it in the API server's words. Pure.

Source: kubernetes pkg/apis/core/validation (validateContainerRestartPolicy, validateReadinessGates);
pkg/kubelet/container (ShouldContainerBeRestarted); KEP-5307.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from fairlead import errors
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.pod.restart import ContainerRestartRule

_POLICIES: Final = ("Always", "Never", "OnFailure")
_OPERATORS: Final = ("In", "NotIn")
_MOST_RULES, _MOST_VALUES = 20, 255
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_GATES: Final = "ReadinessGatesNotReady"


def policy(spec: core.PodSpec, item: core.Container) -> str:
    """Return a container's restart policy: its own, else its pod's."""
    return item.restart_policy or spec.restart_policy


def restarts(spec: core.PodSpec, item: core.Container, exit_code: int, *, is_init: bool) -> bool:
    """Return whether a container is started again after this exit code; the first rule that holds decides.

    An init container that ended with 0 is done, whatever its policy says; one that failed follows a pod that is
    `Always` as if it were `OnFailure`.
    """
    if is_init and exit_code == 0:
        return False
    if any(_holds(rule, exit_code) for rule in item.restart_policy_rules):
        return True
    word = policy(spec, item)
    return word == "Always" or (word == "OnFailure" and exit_code != 0)


def may_restart(spec: core.PodSpec, item: core.Container) -> bool:
    """Return whether some exit code lets a container be started again."""
    return policy(spec, item) != "Never" or bool(item.restart_policy_rules)


def _holds(rule: ContainerRestartRule, exit_code: int) -> bool:
    if rule.exit_codes is None:
        return False
    return (exit_code in rule.exit_codes.values) is (rule.exit_codes.operator == "In")


def problems(path: str, item: core.Container) -> Iterator[str]:
    """Yield what is wrong with a container's own restart policy and its rules."""
    if item.restart_policy and item.restart_policy not in _POLICIES:
        yield f"{path}.restartPolicy: {_unsupported(item.restart_policy, _POLICIES)}"
    rules = item.restart_policy_rules
    if rules and not item.restart_policy:
        yield f"{path}.restartPolicy: Required value: must specify restartPolicy when restart rules are used"
    if len(rules) > _MOST_RULES:
        yield f"{path}.restartPolicyRules: Too many: {len(rules)}: must have at most {_MOST_RULES} items"
    for index, rule in enumerate(rules[:_MOST_RULES]):
        where = f"{path}.restartPolicyRules[{index}]"
        if rule.action != "Restart":  # RestartAllContainers is alpha upstream, and not carried out here
            yield f"{where}.action: {_unsupported(rule.action, ('Restart',))}"
        if rule.exit_codes is None:
            yield f"{where}.exitCodes: Required value: must be specified"
            continue
        if rule.exit_codes.operator not in _OPERATORS:
            yield f"{where}.exitCodes.operator: {_unsupported(rule.exit_codes.operator, _OPERATORS)}"
        if (count := len(rule.exit_codes.values)) > _MOST_VALUES:
            yield f"{where}.exitCodes.values: Too many: {count}: must have at most {_MOST_VALUES} items"


def _unsupported(value: str, offered: Iterable[str]) -> str:
    listed = ", ".join(f'"{one}"' for one in offered)
    return f'Unsupported value: "{errors.readable(value[:80])}": supported values: {listed}'


# readiness gates


def gate_problems(spec: core.PodSpec) -> Iterator[str]:
    """Yield what is wrong with a pod's readiness gates."""
    for index, gate in enumerate(spec.readiness_gates):
        if problem := _type_problem(gate.condition_type):
            yield f"spec.readinessGates[{index}].conditionType: {problem}"


def _type_problem(text: str) -> str:
    domain, slash, name = text.rpartition("/")
    if _NAME.fullmatch(name) and (not slash or (len(domain) <= 253 and names.is_dns_subdomain(domain))):
        return ""
    rule = (
        "name part must consist of alphanumeric characters, '-', '_' or '.', at most 63, behind an optional DNS prefix"
    )
    return f'Invalid value: "{errors.readable(text[:80])}": {rule}'


def ready_condition(
    spec: core.PodSpec, conditions: Iterable[meta.Condition], *, is_ready: bool, at: str | None
) -> meta.Condition:
    """Return the condition `Ready` of a pod.

    Args: conditions: of the pod.   is_ready: whether its containers are.   at: the time now, RFC 3339.
    """
    found = {one.type: one.status for one in conditions}
    said = [
        f'corresponding condition of pod readiness gate "{gate.condition_type}" does not exist.'
        if gate.condition_type not in found
        else f'the status of pod readiness gate "{gate.condition_type}" is not "True", but {found[gate.condition_type]}'
        for gate in spec.readiness_gates
        if found.get(gate.condition_type) != "True"
    ]
    if not is_ready or not said:
        return meta.Condition(type="Ready", status="True" if is_ready else "False", last_transition_time=at)
    text = f"[{', '.join(said)}]" if len(said) > 1 else said[0]
    return meta.Condition(type="Ready", status="False", reason=_GATES, message=text, last_transition_time=at)


def kept_gates(
    spec: core.PodSpec, written: Iterable[meta.Condition], fresh: Iterable[meta.Condition]
) -> tuple[meta.Condition, ...]:
    """Return conditions to write: those of gates as they stand now, for other programs set them."""
    gates = {gate.condition_type for gate in spec.readiness_gates}
    if not gates:
        return tuple(written)
    return (*(one for one in written if one.type not in gates), *(one for one in fresh if one.type in gates))


def with_gates(pod: core.Pod, asked: Iterable[meta.Condition], *, at: str) -> core.PodStatus:
    """Return a pod's status with conditions that its readiness gates wait for.

    Raises: Invalid (`PodInvalid`): a condition that is no gate's, which its node alone writes, or a wrong status.
    """
    gates = {gate.condition_type for gate in pod.spec.readiness_gates}
    conditions, wrong = pod.status.conditions, list[str]()
    for index, one in enumerate(asked):
        where = f"status.conditions[{index}]"
        if one.type not in gates:
            listed = ", ".join(sorted(gates)) or "none"
            wrong.append(f'{where}.type: Forbidden: "{errors.readable(one.type[:80])}" is no readiness gate of the pod')
            wrong[-1] += f" (it has {listed})"
        elif one.status not in {"True", "False", "Unknown"}:
            wrong.append(f"{where}.status: {_unsupported(one.status, ('True', 'False', 'Unknown'))}")
        else:
            conditions = meta.with_condition(
                conditions,
                meta.Condition(
                    type=one.type, status=one.status, reason=one.reason, message=one.message, last_transition_time=at
                ),
            )
    if wrong:
        name = pod.metadata.name
        raise errors.Invalid(f'Pod "{name}" is invalid: {"; ".join(wrong)}', reason="PodInvalid", problems=wrong)
    return msgspec.structs.replace(pod.status, conditions=conditions)
