"""Takes names of CDI (`vendor/class=device`) apart and checks them, for readers and for writers.

Readers use the Go library's rules, because those decide what an engine does. Writers use the specification's, which are
narrower, and refuse one-character vendors and classes too: released engines panic on them (containerd up to 2.1,
podman up to 5.8).
Source: CDI SPEC.md "CDI JSON Specification", pkg/parser/parser.go.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fairlead_cdi import errors

_NAME: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_VENDOR_LIMIT: Final = 253
_NAME_LIMIT: Final = 63


class QualifiedName(NamedTuple):
    """The three parts of `vendor/class=name`."""

    vendor: str
    cls: str
    name: str

    def __str__(self) -> str:
        """Return the qualified name."""
        return f"{self.vendor}/{self.cls}={self.name}"


def quoted(text: str) -> str:
    """Return text from outside for a message, in quotes, with what a terminal would obey as escapes."""
    shown = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return f'"{"".join(shown)}"'


def split_kind(kind: str) -> tuple[str, str]:
    """Return vendor and class of `vendor/class`; two empty strings where it is not of that form."""
    vendor, slash, cls = kind.partition("/")
    return (vendor, cls) if slash and vendor and cls else ("", "")


def split_device(text: str) -> tuple[str, str, str]:
    """Return vendor, class and name; an unqualified name gives ("", "", text). No rule is applied.

    Source: CDI pkg/parser, ParseDevice.
    """
    kind, equals, name = text.partition("=")
    vendor, cls = split_kind(kind)
    return (vendor, cls, name) if equals and name and vendor else ("", "", text)


def parse_qualified_name(text: str) -> QualifiedName:
    """Take a fully qualified device name apart.

    Raises: InvalidRequest: not of the form `vendor/class=name`, or a part breaks the Go library's rules.
    """
    vendor, cls, name = split_device(text)
    if not vendor:
        message = f"device {quoted(text)} is not a fully qualified CDI name"
        raise errors.InvalidRequest(
            message, reason="DeviceNameUnqualified", hint="write vendor/class=name", device=text
        )
    problem = vendor_problem(vendor) or class_problem(cls) or device_problem(name)
    if problem:
        raise errors.InvalidRequest(f"device {quoted(text)}: {problem}", reason="DeviceNameInvalid", device=text)
    return QualifiedName(vendor, cls, name)


def is_qualified(text: str) -> bool:
    """Whether `text` is a fully qualified device name by the Go library's rules."""
    vendor, cls, name = split_device(text)
    return bool(vendor) and not (vendor_problem(vendor) or class_problem(cls) or device_problem(name))


def vendor_problem(vendor: str) -> str | None:
    """Say which of the Go library's rules a vendor breaks; None: none."""
    return _problem("vendor", vendor, _NAME, "letters, digits and _.-, first a letter, last alphanumeric")


def class_problem(cls: str) -> str | None:
    """Say which of the Go library's rules a class breaks; None: none."""
    return _problem("class", cls, _NAME, "letters, digits and _.-, first a letter, last alphanumeric")


def device_problem(name: str) -> str | None:
    """Say which of the Go library's rules a device's own name breaks; None: none."""
    return _problem("device name", name, _DEVICE, "letters, digits and _.:-, first and last alphanumeric")


def _problem(what: str, text: str, rule: re.Pattern[str], words: str) -> str | None:
    return None if rule.fullmatch(text) else f"{what} {quoted(text)} is not allowed ({words})"


def strict_kind_problem(kind: str) -> str | None:
    """Say why a kind must not be written: the specification's rules, and names that crash released engines."""
    vendor, cls = split_kind(kind)
    problem = vendor_problem(vendor) or class_problem(cls)
    if problem:
        return problem
    if len(vendor) > _VENDOR_LIMIT or not all(_LABEL.fullmatch(label) for label in vendor.split(".")):
        return f"vendor {quoted(vendor)} is not a DNS subdomain of at most {_VENDOR_LIMIT} characters"
    if len(cls) > _NAME_LIMIT:
        return f"class {quoted(cls)} is longer than {_NAME_LIMIT} characters"
    return crash_problem(kind)


def strict_device_problem(name: str) -> str | None:
    """Say why a device name must not be written by the specification's rules; None: it may."""
    too_long = (
        f"device name {quoted(name)} is longer than {_NAME_LIMIT} characters" if len(name) > _NAME_LIMIT else None
    )
    return device_problem(name) or too_long


def crash_problem(kind: str) -> str | None:
    """Say whether this kind makes released container engines panic; None: it does not."""
    for what, text in zip(("vendor", "class"), split_kind(kind), strict=True):
        if len(text) == 1:
            return f"{what} {quoted(text)} has one character: containerd up to 2.1 and podman up to 5.8 panic on it"
    return None
