"""Reads the form of a queue, and fills one in. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.console.draw import limits
from fairlead.wire.kubernetes.scheduling.queue import QueueSpec

PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "guarantee": ("Kept for it", "reserved also while it is not used: never lent"),
    "deserved": ("Its own share", "lent while it is not used, taken back from borrowers when its containers wait"),
    "limit": ("The most it may have", "borrowed or not; empty: no limit"),
}
"""Parts of what a queue may have: what people call each, and what it means."""
_MINUTE: Final = 60
_LONGEST: Final = 12
_MOST_MINUTES: Final = 366 * 24 * 60
_HEAVIEST: Final = 65535


@frozen
class Read:
    """What a form asks for."""

    body: Mapping[str, Any]
    """Of `PUT /v1/queues/NAME`; every field is given, so that what was emptied goes."""
    problems: Mapping[str, str]


def filled(spec: QueueSpec, resource: str, spaces: Collection[str]) -> dict[str, str]:
    """Return a queue as its form has it. Args: spaces: namespaces that the form has a box of their own for."""
    made = {"parent": spec.parent, "weight": str(spec.weight), "policy": spec.policy}
    if spec.min_runtime_seconds:
        made["minutes"] = f"{spec.min_runtime_seconds / _MINUTE:.4f}".rstrip("0").rstrip(".")
    for part in PARTS:
        left = dict(getattr(spec, part))
        made[f"{part}-gpus"] = left.pop(resource, "")
        made[f"{part}-more"] = "\n".join(f"{name}={amount}" for name, amount in sorted(left.items()))
    made |= {f"in-{one}": "on" for one in spec.namespaces if one in spaces}
    made["namespaces"] = "\n".join(one for one in spec.namespaces if one not in spaces)
    return made


def read(form: Mapping[str, str], resource: str, spaces: Collection[str]) -> Read:
    """Return what a form asks for, and at each field what is wrong with it."""
    problems = dict[str, str]()
    body: dict[str, Any] = {"parent": form.get("parent", "").strip(), "policy": form.get("policy", "").strip()}
    for part in PARTS:
        body[part] = _amounts(form, part, resource, problems)
    body["weight"] = _weight(form.get("weight", "").strip(), problems)
    body["min_runtime_seconds"] = _seconds(form.get("minutes", "").strip(), problems)
    typed = form.get("namespaces", "").split()
    body["namespaces"] = list(dict.fromkeys([one for one in spaces if form.get(f"in-{one}")] + typed))
    return Read(body=body, problems=problems)


def _amounts(form: Mapping[str, str], part: str, resource: str, problems: dict[str, str]) -> dict[str, str]:
    found, problem = limits.lines(form.get(f"{part}-more", ""))
    gpus = form.get(f"{part}-gpus", "").strip()
    if problem:
        problems[f"{part}-more"] = problem
    if gpus and (problem := limits.amount_problem(gpus, is_count=True)):
        problems[f"{part}-gpus"] = problem
    elif gpus:
        found[resource] = gpus
    return found


def _weight(text: str, problems: dict[str, str]) -> int:
    if text.isascii() and text.isdecimal() and len(text) < _LONGEST and int(text) <= _HEAVIEST:
        return int(text)
    if text:
        problems["weight"] = f'"{errors.readable(text[:40])}" is not a whole number from 0 to {_HEAVIEST}'
    return 1


def _seconds(text: str, problems: dict[str, str]) -> int:
    if not text:
        return 0
    whole, dot, part = text.partition(".")
    is_number = text.isascii() and whole.isdecimal() and (part.isdecimal() or not dot) and len(text) < _LONGEST
    if is_number and float(text) <= _MOST_MINUTES:
        return round(float(text) * _MINUTE)
    problems["minutes"] = f'"{errors.readable(text[:40])}" is not a number of minutes, as 30 or 1.5'
    return 0
