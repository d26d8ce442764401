"""Evaluates label selectors, and taints against tolerations: Kubernetes' rules as pure functions.

Source: apimachinery pkg/labels/selector.go (grammar, operators); component-helpers scheduling/corev1/nodeaffinity
(`Gt`, `Lt`, terms); core/v1 toleration.go (`ToleratesTaint`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.wire.kubernetes import core

OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")

_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_COMPARISON = re.compile(r"([^\s=!<>()]+)\s*(==|=|!=|>|<)\s*([^\s=!<>()]*)")
_PRESENCE = re.compile(r"(!?)\s*([^\s=!<>()]+)")
_COMMA = re.compile(r",(?![^(]*\))")
_COMPARED: Final = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
_WORD = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on labels."""

    key: str
    operator: str
    """One of `OPERATORS`."""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet the condition; an absent label meets `NotIn` and `DoesNotExist` only."""
        present, value = self.key in labels, labels.get(self.key, "")
        match self.operator:
            case "In":
                return present and value in self.values
            case "NotIn":
                return not present or value not in self.values
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case _:
                return present and _compare(self.operator, value, self.values[0])


def _compare(operator: str, value: str, bound: str) -> bool:
    if not _WHOLE.fullmatch(value) or not _WHOLE.fullmatch(bound):
        return False
    return int(value) > int(bound) if operator == "Gt" else int(value) < int(bound)


def parse(text: str) -> tuple[Requirement, ...]:
    """Read `a=b,c!=d,e in (x,y),!f`; all must hold, an empty text takes everything.

    Raises: Invalid (`SelectorInvalid`).
    """
    if not text.strip():
        return ()
    return tuple(_parse_one(part.strip(), text) for part in _COMMA.split(text))


def _parse_one(part: str, text: str) -> Requirement:
    if found := _SET.fullmatch(part):
        values = tuple(sorted({value.strip() for value in found[3].split(",")}))
        return _checked(Requirement(found[1], "In" if found[2] == "in" else "NotIn", values), text)
    if found := _COMPARISON.fullmatch(part):
        return _checked(Requirement(found[1], _COMPARED[found[2]], (found[3],)), text)
    if found := _PRESENCE.fullmatch(part):
        return _checked(Requirement(found[2], "DoesNotExist" if found[1] else "Exists"), text)
    raise _invalid(f"unable to parse requirement {part!r}", text)


def _checked(requirement: Requirement, text: str) -> Requirement:
    key, operator, values = requirement.key, requirement.operator, requirement.values
    if not _KEY.fullmatch(key):
        raise _invalid(f"{key!r} is not a label key", text)
    if operator in {"Gt", "Lt"} and not (len(values) == 1 and _WHOLE.fullmatch(values[0])):
        raise _invalid("for 'Gt', 'Lt' operators, exactly one value is required, and it must be an integer", text)
    wrong = next((value for value in values if not _WORD.fullmatch(value)), None)
    if wrong is not None:
        raise _invalid(f"{wrong!r} is not a label value", text)
    return requirement


def _invalid(problem: str, text: str) -> errors.Invalid:
    hint = "such as a=b,c!=d,e in (x,y),!f"
    return errors.Invalid(f"selector {text!r}: {problem}", reason="SelectorInvalid", hint=hint)


def matches(requirements: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    """Return whether the labels meet every requirement; none at all are met by everything."""
    return all(requirement.matches(labels) for requirement in requirements)


def tolerates_taint(toleration: core.Toleration, taint: core.Taint) -> bool:
    """Return whether one toleration bears the taint: an empty effect or key in it stands for all."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in {"", "Equal"} and bool(toleration.key) and toleration.value == taint.value


def tolerates(tolerations: Iterable[core.Toleration], taint: core.Taint) -> bool:
    """Return whether any of the tolerations bears the taint."""
    return any(tolerates_taint(toleration, taint) for toleration in tolerations)


def find_untolerated(
    taints: Iterable[core.Taint],
    tolerations: Sequence[core.Toleration],
    *,
    effects: Sequence[str] = ("NoSchedule", "NoExecute"),
) -> core.Taint | None:
    """Return the first taint with one of the effects that no toleration bears, None where all are borne."""
    return next((taint for taint in taints if taint.effect in effects and not tolerates(tolerations, taint)), None)
