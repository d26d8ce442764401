"""Holds texts to Kubernetes' named formats.

The formats are the reference's; what is said of a text that breaks one is our own wording.
Source: apiserver pkg/cel/library/format.go; apimachinery pkg/util/validation.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Callable
from typing import Final

from fairlead.plan.cel.functions import clock, network
from fairlead.plan.cel.value import NONE, Failed, NamedFormat, Optional, Value

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_PART: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_LABEL_SHAPE: Final = re.compile(_LABEL, re.ASCII)
_SUBDOMAIN_SHAPE: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_LABEL_1035_SHAPE: Final = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?", re.ASCII)
_PART_SHAPE: Final = re.compile(_PART, re.ASCII)
_UUID_SHAPE: Final = re.compile(
    r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}", re.ASCII
)


def _label(text: str) -> bool:
    return len(text) <= 63 and _LABEL_SHAPE.fullmatch(text) is not None


def _subdomain(text: str) -> bool:
    return len(text) <= 253 and _SUBDOMAIN_SHAPE.fullmatch(text) is not None


def _label_1035(text: str) -> bool:
    return len(text) <= 63 and _LABEL_1035_SHAPE.fullmatch(text) is not None


def _part(text: str) -> bool:
    return len(text) <= 63 and _PART_SHAPE.fullmatch(text) is not None


def _qualified(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    return (not slash or _subdomain(prefix)) and _part(name)


def _prefix_of(rule: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda text: rule(f"{text[:-1]}a" if text.endswith("-") else text)


def _bytes(text: str) -> bool:
    if not text:
        return False
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return len(text) == 10


def _moment(text: str) -> bool:
    try:
        clock.parse_moment(text)
    except Failed:
        return False
    return True


_RULES: Final[dict[str, Callable[[str], bool]]] = {
    "dns1123Label": _label,
    "dns1123Subdomain": _subdomain,
    "dns1035Label": _label_1035,
    "qualifiedName": _qualified,
    "dns1123LabelPrefix": _prefix_of(_label),
    "dns1123SubdomainPrefix": _prefix_of(_subdomain),
    "dns1035LabelPrefix": _prefix_of(_label_1035),
    "labelValue": lambda text: not text or _part(text),
    "uri": network.TABLE["is_url_string"],
    "uuid": lambda text: _UUID_SHAPE.fullmatch(text) is not None,
    "byte": _bytes,
    "date": _date,
    "datetime": _moment,
}


def _named(name: str) -> Optional:
    return Optional(NamedFormat(name)) if name in _RULES else NONE


def _validate(form: NamedFormat, text: str) -> Optional:
    return NONE if _RULES[form.name](text) else Optional((f"is no {form.name}",))


def _maker(name: str) -> Callable[[], Value]:
    return lambda: NamedFormat(name)


TABLE: Final[dict[str, Callable[..., Value]]] = {
    **{f"format.{name}": _maker(name) for name in _RULES},
    "format-named": _named,
    "format-validate": _validate,
}
