"""Evaluates node selectors and node affinity: which nodes a pod must have and which it prefers.

Pure; labels and names in, truth or weight out. A malformed term (an operator without its values) takes no
node, as in kube-scheduler; `problems` says at admission why it cannot be read, in the API server's words.
Source: component-helpers scheduling/corev1/nodeaffinity; kubernetes pkg/apis/core/validation (ValidateNodeSelector).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fairlead.wire.kubernetes import core, selector

_NAME: Final = "metadata.name"
_EMPTY: Final = core.NodeAffinity()
_MANY: Final = frozenset({"In", "NotIn"})
_NONE: Final = frozenset({"Exists", "DoesNotExist"})
_REQUIRED: Final = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"


def of_pod(spec: core.PodSpec) -> core.NodeAffinity:
    """Return the pod's node affinity, an empty one where it has none."""
    return (spec.affinity.node_affinity if spec.affinity else None) or _EMPTY


def is_allowed(
    node_selector: Mapping[str, str], wanted: core.NodeAffinity, *, name: str, labels: Mapping[str, str]
) -> bool:
    """Return whether a node has every label of the selector and meets one of the required terms, if there are any."""
    if any(labels.get(key) != value for key, value in node_selector.items()):
        return False
    required = wanted.required_during_scheduling_ignored_during_execution
    return required is None or any(_meets(term, name, labels) for term in required.node_selector_terms)


def missed(
    node_selector: Mapping[str, str], wanted: core.NodeAffinity, *, name: str, labels: Mapping[str, str]
) -> tuple[str, ...]:
    """Return what a node lacks of the selector and of the first required term, each as a label and what it has."""
    lacked = [(f"{key}={value}", key) for key, value in node_selector.items() if labels.get(key) != value]
    required = wanted.required_during_scheduling_ignored_during_execution
    if required is not None and not any(_meets(term, name, labels) for term in required.node_selector_terms):
        for term in required.node_selector_terms[:1]:
            unmet = [item for item in term.match_expressions if not _holds(item, labels)]
            unmet += [item for item in term.match_fields if not _holds(item, {_NAME: name})]
            lacked += [(" ".join((item.key, item.operator, *item.values)), item.key) for item in unmet]
    has = {**labels, _NAME: name}
    return tuple(f"{asked} (it has {f'{key}={has[key]}' if key in has else f'no {key}'})" for asked, key in lacked)


def weight(wanted: core.NodeAffinity, *, name: str, labels: Mapping[str, str]) -> int:
    """Return the sum of the weights of the preferences that a node meets."""
    preferences = wanted.preferred_during_scheduling_ignored_during_execution
    return sum(item.weight for item in preferences if _meets(item.preference, name, labels))


def _meets(term: core.NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {_NAME: name}
    return all(_holds(item, labels) for item in term.match_expressions) and all(
        item.key == _NAME and item.operator in _MANY and _holds(item, fields) for item in term.match_fields
    )


def _holds(item: core.NodeSelectorRequirement, values: Mapping[str, str]) -> bool:
    if _problem(item):
        return False
    return selector.Requirement(item.key, item.operator, item.values).matches(values)


def problems(spec: core.PodSpec) -> Iterator[str]:
    """Yield what an API server would refuse in the pod's node affinity, path by path."""
    wanted = of_pod(spec)
    required = wanted.required_during_scheduling_ignored_during_execution
    if required is not None:
        if not required.node_selector_terms:
            yield f"{_REQUIRED}.nodeSelectorTerms: Required value: must have at least one node selector term"
        for number, term in enumerate(required.node_selector_terms):
            yield from _term_problems(f"{_REQUIRED}.nodeSelectorTerms[{number}]", term)
    for number, item in enumerate(wanted.preferred_during_scheduling_ignored_during_execution):
        path = f"{_PREFERRED}[{number}]"
        if not 1 <= item.weight <= 100:
            yield f"{path}.weight: Invalid value: {item.weight}: must be in the range 1-100"
        yield from _term_problems(f"{path}.preference", item.preference)


def _term_problems(path: str, term: core.NodeSelectorTerm) -> Iterator[str]:
    for number, item in enumerate(term.match_expressions):
        if problem := _problem(item):
            yield f"{path}.matchExpressions[{number}].{problem}"
    for number, item in enumerate(term.match_fields):
        where = f"{path}.matchFields[{number}]"
        if item.key != _NAME:
            yield f'{where}.key: Invalid value: "{item.key}": not a valid field selector key'
        if item.operator not in _MANY:
            yield f'{where}.operator: Invalid value: "{item.operator}": not a valid selector operator'
        elif len(item.values) != 1:
            hint = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            yield f"{where}.values: Required value: {hint}"


def _problem(item: core.NodeSelectorRequirement) -> str:
    if item.operator not in selector.OPERATORS:
        return f'operator: Invalid value: "{item.operator}": not a valid selector operator'
    if item.operator in _MANY and not item.values:
        return "values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
    if item.operator in _NONE and item.values:
        return "values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
    if item.operator not in _MANY | _NONE and len(item.values) != 1:
        return "values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
    return ""
