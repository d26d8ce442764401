"""Says by which policy a pod is placed: its class's, else its queue's, else the scheduler's. Pure.

A class is what pods have in common that say nothing of placement themselves: a label, or their priority class. An
operator names classes in the setting `control.pod_policies`, the first that a pod is of decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.settings.control import POLICIES
from fairlead.wire.kubernetes import core

PRIORITY_CLASS: Final = "priorityClassName"
"""The key that stands for the pod's priority class; any other is a label."""
_FORM: Final = re.compile(r"(?P<key>[A-Za-z0-9./_-]+)=(?P<value>[A-Za-z0-9._-]*):(?P<policy>[a-z]+)")
_HINT: Final = "write app=serve:spread,priorityClassName=batch:packed"


@dataclass(frozen=True, slots=True)
class PodClass:
    """Pods with one value of a label, or of one priority class, and how they are placed."""

    key: str
    value: str
    policy: str

    def has(self, pod: core.Pod) -> bool:
        """Return whether a pod is of the class."""
        if self.key == PRIORITY_CLASS:
            return pod.spec.priority_class_name == self.value
        return pod.metadata.labels.get(self.key) == self.value


def classes_of(text: str) -> tuple[PodClass, ...]:
    """Return the classes that a setting names, in its order.

    Raises: Invalid (`PodPolicyInvalid`): an entry is not KEY=VALUE:POLICY, or there is no such policy.
    """
    return tuple(_class(entry.strip()) for entry in text.split(",") if entry.strip())


def _class(entry: str) -> PodClass:
    found = _FORM.fullmatch(entry)
    if found is None:
        message = f'control.pod_policies "{entry}" is not of the form KEY=VALUE:POLICY'
        raise errors.Invalid(message, reason="PodPolicyInvalid", hint=_HINT)
    if found["policy"] not in POLICIES:
        message = f'control.pod_policies "{entry}": there is no policy "{found["policy"]}"'
        raise errors.Invalid(message, reason="PodPolicyInvalid", hint=f"one of {', '.join(POLICIES)}")
    return PodClass(found["key"], found["value"], found["policy"])


def policy_of(pod: core.Pod, classes: tuple[PodClass, ...]) -> str:
    """Return the policy of the first class that a pod is of; "" where it is of none."""
    return next((one.policy for one in classes if one.has(pod)), "")
