"""Lays out what the API says of a claim, fields that this page has no place of their own for included. Pure.

The API's answer grows: what a driver has prepared, for example. Such a field is shown by its name as soon as it comes,
in place of being left out until a page knows it.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from fairlead.frozen import frozen
from fairlead.serve.v1.claims.allocation import AllocatedDevice
from fairlead.serve.v1.claims.view import ClaimView

_MOST: Final = 24
"""Lines of fields that are shown so."""
_DEEPEST: Final = 3
_ENFORCED: Final = {
    "MPS": "MPS holds each program to this claim's share of the memory",
    "nothing": "nothing holds a program to this claim's share of the memory: it can use more",
}
_SHOWN: Final = frozenset(ClaimView.__struct_fields__)
_SHOWN_OF_DEVICE: Final = frozenset(AllocatedDevice.__struct_fields__)


@frozen
class Fact:
    """One line: a field's name as words, and its value."""

    name: str
    value: str


def address(namespace: str, name: str) -> str:
    """Return the address of a claim's page."""
    return f"/console/claims/{urllib.parse.quote(namespace, safe='')}/{urllib.parse.quote(name, safe='')}"


def enforced(one: AllocatedDevice) -> str:
    """Return a sentence on what enforces a device's share; empty: the claim does not share it."""
    word = one.enforced_by
    return _ENFORCED.get(word, f"{word} enforces this claim's share") if word else ""


def more(document: Mapping[str, Any]) -> tuple[Fact, ...]:
    """Return the fields of a claim, and of its devices, that have no place on its page."""
    found = list(_facts(document, _SHOWN, ()))
    devices = document.get("allocated", ())
    for one in devices if isinstance(devices, list) else ():
        if isinstance(one, Mapping):
            found += _facts(one, _SHOWN_OF_DEVICE, (str(one.get("id", "device")),))
    return tuple(found[:_MOST])


def _facts(document: Mapping[str, Any], shown: Collection[str], path: tuple[str, ...]) -> Iterator[Fact]:
    for name, value in document.items():
        if name not in shown and value not in (None, "", [], {}):
            yield from _said((*path, name.replace("_", " ")), value)


def _said(path: tuple[str, ...], value: Any) -> Iterator[Fact]:
    if isinstance(value, Mapping) and len(path) <= _DEEPEST:
        for name, each in value.items():
            yield from _said((*path, str(name).replace("_", " ")), each)
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value) and len(path) <= _DEEPEST:
        for number, each in enumerate(value, 1):
            yield from _said((*path, str(number)), each)
    elif value not in (None, "", [], {}):
        yield Fact(name=", ".join(path), value=_text(value))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return f"{len(value)} fields"
    if isinstance(value, list):
        return ", ".join(_text(each) for each in value) if all(map(_is_plain, value)) else f"{len(value)} items"
    return str(value)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Mapping | list)
