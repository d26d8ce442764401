"""Gives a pod the number that orders the queue, from the name of its priority class, as an API server does. Pure.

A pod that states a number and no class keeps the number: on one machine no other component resolves it.
Source: kubernetes plugin/pkg/admission/priority; pkg/apis/scheduling/types.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fairlead import errors
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.coordination import PriorityClass

HIGHEST: Final = 1_000_000_000
"""HighestUserDefinablePriority."""
SYSTEM: Final[Mapping[str, int]] = {
    "system-cluster-critical": 2 * HIGHEST,
    "system-node-critical": 2 * HIGHEST + 1000,
}


def resolve(pod: core.Pod, present: Iterable[PriorityClass]) -> core.Pod:
    """Return the pod with the number of its class; of none, with that of the default class, where there is one.

    Raises: Invalid: the class is not there, or the pod states another number.
    """
    known = {one.metadata.name: one for one in present}
    name = pod.spec.priority_class_name
    if not name and pod.spec.priority is None:
        default = max((one for one in known.values() if one.global_default), key=lambda one: one.value, default=None)
        return pod if default is None else _with(pod, default.metadata.name, default.value)
    if not name:
        return pod
    values = {**{one: item.value for one, item in known.items()}, **SYSTEM}
    if name not in values:
        offered = ", ".join(f"{one} ({value})" for one, value in sorted(values.items(), key=lambda pair: pair[1]))
        message = f'no PriorityClass with name "{name}" was found (there are: {offered})'
        raise errors.Invalid(message, reason="PriorityClassNotFound", hint="--priority takes a number as well")
    if pod.spec.priority not in {None, values[name]}:
        message = f'priority {pod.spec.priority} is not that of PriorityClass "{name}", which is {values[name]}'
        raise errors.Invalid(message, reason="PriorityInvalid", hint="give the one or the other")
    return _with(pod, name, values[name])


def check(item: PriorityClass) -> None:
    """Refuse a class that Kubernetes would not take. Raises: Invalid."""
    name, value = item.metadata.name, item.value
    problem = ""
    if not name:
        problem = "metadata.name: Required value"
    elif name.startswith("system-"):
        problem = f'metadata.name: Forbidden: "{name}": names that begin with system- are the system\'s own'
    elif not -HIGHEST <= value <= HIGHEST:
        problem = f"value: Forbidden: {value}: at most {HIGHEST}, at least {-HIGHEST}"
    if problem:
        raise errors.Invalid(f'PriorityClass "{name}" is invalid: {problem}', reason="PriorityClassInvalid")


def _with(pod: core.Pod, name: str, value: int) -> core.Pod:
    spec = msgspec.structs.replace(pod.spec, priority=value, priority_class_name=name)
    return msgspec.structs.replace(pod, spec=spec)
