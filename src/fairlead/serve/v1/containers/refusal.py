"""Puts an API server's refusals of a container into a person's words, with the value and the next step. Pure.

A container that is asked for by `run`, or in JSON, has no manifest, so a message about fields of one leads nowhere. The
original stays in the problem's context as `kubernetes`. Manifests are refused in Kubernetes' own words.
Source: kubernetes plugin/pkg/admission/resourcequota/controller.go; apimachinery pkg/util/validation, pkg/api/resource.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from fairlead import errors

_EXCEEDED: Final = re.compile(
    r'\S+ "(?P<name>[^"]*)" is forbidden: exceeded quota: (?P<quota>[^,]+), '
    r"requested: (?P<asked>\S+), used: (?P<used>\S+), limited: (?P<limit>\S+)"
)
_UNSTATED: Final = re.compile(r'\S+ "(?P<name>[^"]*)" is forbidden: failed quota: (?P<quota>[^:]+): must specify (.*)')
_INVALID: Final = re.compile(r'(?P<field>\S+): Invalid value: "(?P<value>[^"]*)": (?P<rule>.*)', re.DOTALL)
_STATED: Final = re.compile(r"(?:requests\.|limits\.)?([a-z-]+) for: ")
_LAST: Final = re.compile(r".*\[(?P<key>[^\]]*[^\]0-9][^\]]*)\]|(?:.*\.)?(?P<last>[a-zA-Z]+)")
_UNITS: Final = {"cpu": "CPUs", "memory": "of memory", "pods": "containers", "persistentvolumeclaims": "volumes"}
_LONGEST: Final = 8192
"""Characters of a message that is read: a server may send more."""
_LESS: Final = "ask for less, wait for others to end (`fairlead ps`), or have the quota raised (`fairlead quota list`)"
_STATE: Final = "fairlead run --cpus 1 --memory 4Gi; in JSON: cpu and memory"
_AMOUNT: Final = 'for example "cpu": "1.5", "memory": "4Gi"'


@contextlib.contextmanager
def spoken() -> Iterator[None]:
    """Raise what a block raises in a person's words, where they are known."""
    try:
        yield
    except (errors.Denied, errors.Invalid) as error:
        raise for_person(error) from error


def for_person(error: errors.FairleadError) -> errors.FairleadError:
    """Return an error of the same class and reason in a person's words; the error itself where they are not known."""
    said = error.message
    message, hint = _words(said, error) if len(said) <= _LONGEST else ("", "")
    if not message:
        return error
    context = {**error.context, "kubernetes": said}
    return type(error)(message, reason=error.reason, hint=hint or error.hint, **context)


def _words(said: str, error: errors.FairleadError) -> tuple[str, str]:
    """Return what is wrong and the next step; empty: the message is not one that is known."""
    if found := _EXCEEDED.fullmatch(said):
        return _exceeded(found), _LESS
    if found := _UNSTATED.fullmatch(said):
        counted = " and ".join(dict.fromkeys(_STATED.findall(said)))
        return f'the quota "{found["quota"]}" counts {counted}, and the container says no amount of it', _STATE
    problems = error.context.get("problems")
    parts = problems if isinstance(problems, list | tuple) else [said.partition(" is invalid: ")[2]]
    told = [_field(str(one)) for one in parts]
    if not any(words for words, _ in told):
        return "", ""
    text = "; ".join(words or str(one) for (words, _), one in zip(told, parts, strict=True))
    return text, next(hint for words, hint in told if words)


def _exceeded(found: re.Match[str]) -> str:
    used, limit = _amounts(found["used"]), _amounts(found["limit"])
    each = [
        f"{value} {_unit(name, value)} asked, {used.get(name, '0')} of {limit.get(name, '?')} in use"
        for name, value in _amounts(found["asked"]).items()
    ]
    name = found["name"].rstrip("-") or "the container"
    return f'"{name}" is more than the quota "{found["quota"]}" allows: {"; ".join(each)}'


def _amounts(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (one.partition("=") for one in text.split(","))}


def _unit(name: str, count: str) -> str:
    bare = name.removeprefix("requests.").removeprefix("limits.").removeprefix("count/")
    unit = "GPUs" if bare.endswith("/gpu") else _UNITS.get(bare, bare)
    return unit.removesuffix("s") if count == "1" else unit


def _field(problem: str) -> tuple[str, str]:
    """Return what is wrong with one field, and the next step; empty: its rule is not known."""
    found = _INVALID.fullmatch(problem)
    last = _LAST.fullmatch(found["field"]) if found else None
    if found is None or last is None:
        return "", ""
    what, value, rule = last["key"] or last["last"], found["value"], found["rule"]
    if "quantities must match" in rule:
        return f'{what} "{value}" is not an amount', _AMOUNT
    if "RFC 1123" in rule:
        fit = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")[:63].strip("-")
        kind = (
            'lower case letters, digits, "-" and "."' if "subdomain" in rule else 'lower case letters, digits and "-"'
        )
        return f'{what} "{value}" is not of {kind}', f'for example "{fit}"' if fit else "for example train-1"
    return "", ""
