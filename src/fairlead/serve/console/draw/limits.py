"""Reads limits as people write them in a form, and says at each field what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.wire.kubernetes import quantity

_MOST_LINES: Final = 50
_LONGEST: Final = 200


@frozen
class Field:
    """One limit that a form has a field of its own for."""

    name: str
    label: str
    help: str
    is_count: bool
    """Only whole numbers make sense; else amounts, as `500m` or `64Gi`."""
    keys: tuple[str, ...]
    """Names that it has in a quota, the usual one first."""


@frozen
class Read:
    """What a form asks for."""

    hard: Mapping[str, str]
    problems: Mapping[str, str]
    """By field: what is wrong with it, in a person's words."""


def fields(resource: str) -> tuple[Field, ...]:
    """Return the limits that a quota's form has fields for. Args: resource: of whole GPUs."""
    return (
        Field(
            name="gpus",
            label="GPUs",
            help="held at once; 0: none at all",
            is_count=True,
            keys=(f"requests.{resource}", resource),
        ),
        Field(
            name="containers",
            label="Containers",
            help="that have not ended",
            is_count=True,
            keys=("pods", "count/pods"),
        ),
        Field(
            name="cpus",
            label="CPUs",
            help="8 or 500m; each container must then name its own",
            is_count=False,
            keys=("cpu", "requests.cpu"),
        ),
        Field(
            name="memory",
            label="Memory",
            help="64Gi; each container must then name its own",
            is_count=False,
            keys=("memory", "requests.memory"),
        ),
        Field(
            name="volumes",
            label="Volumes",
            help="named ones",
            is_count=True,
            keys=("persistentvolumeclaims", "count/persistentvolumeclaims"),
        ),
    )


def filled(hard: Mapping[str, str], resource: str) -> dict[str, str]:
    """Return a quota as its form has it; what no field is for stands in `more`, a line each."""
    made, left = {}, dict(hard)
    for field in fields(resource):
        key = _key(field, left)
        if key in left:
            made[field.name] = left.pop(key)
    made["more"] = "\n".join(f"{name}={amount}" for name, amount in sorted(left.items()))
    return made


def read(
    form: Mapping[str, str], resource: str, before: Mapping[str, str] | None = None, *, may_be_empty: bool = False
) -> Read:
    """Return the limits of a form.

    Args: before: of the quota that is changed: it keeps the names that it uses.   may_be_empty: no limit is one too.
    """
    hard, problems = dict[str, str](), dict[str, str]()
    for field in fields(resource):
        text = form.get(field.name, "").strip()
        if text and (problem := amount_problem(text, is_count=field.is_count)):
            problems[field.name] = problem
        elif text:
            hard[_key(field, before or {})] = text
    more, problem = lines(form.get("more", ""))
    if twice := sorted(more.keys() & hard.keys()):
        problem = problem or f"{twice[0]} has a field of its own above"
    if problem:
        problems["more"] = problem
    if not problems and not (hard or more or may_be_empty):
        problems["gpus"] = "a quota needs one limit at least"
    return Read(hard={**more, **hard}, problems=problems)


def amount_problem(text: str, *, is_count: bool) -> str:
    """Return what is wrong with an amount; empty: nothing."""
    shown = errors.readable(text[:40])
    try:
        value = quantity.parse_quantity(text) if len(text) <= _LONGEST else None
    except errors.FairleadError:
        value = None
    if value is None or (is_count and value.denominator != 1):
        form = "a whole number, as 8" if is_count else "an amount, as 8, 500m or 64Gi"
        return f'"{shown}" is not {form}'
    return f'"{shown}" is below 0' if value < 0 else ""


def lines(text: str) -> tuple[dict[str, str], str]:
    """Return limits that are written `RESOURCE=AMOUNT`, one a line, and what is wrong; empty: nothing."""
    found = dict[str, str]()
    for number, line in enumerate(_lines(text)):
        name, _, amount = (part.strip() for part in line.rpartition("="))
        shown = errors.readable(line[:40])
        if number >= _MOST_LINES:
            return found, f"{_MOST_LINES} lines at most"
        if not name or not amount or len(name) > _LONGEST or not name.isprintable() or " " in name:
            return found, f'"{shown}" is not of the form RESOURCE=AMOUNT'
        if problem := amount_problem(amount, is_count=False):
            return found, f"{errors.readable(name[:40])}: {problem}"
        found[name] = amount
    return found, ""


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip())


def _key(field: Field, hard: Mapping[str, str]) -> str:
    return next((key for key in field.keys if key in hard), field.keys[0])
