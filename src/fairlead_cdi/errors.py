"""Declares the errors of the CDI library, one class for each person who can act.

    CDIError
    ├── RequestError        the caller: the call itself is wrong
    │   ├── InvalidRequest      a device name or an annotation breaks a rule
    │   ├── WrongType           an argument has another type than its signature says (a TypeError too)
    │   └── DeviceNotFound      no spec file defines the device
    ├── HostError           the host's operator: a device node is missing or cannot be read
    └── DocumentError       the author of a file: a CDI spec or a runtime spec is malformed, or contradicts the host

Each error has a `message` with the value at fault, a `hint` with the next step where the message does not say it, and a
`reason`, a CamelCase token that does not change between releases. `context` has the values by key (`path`, `device`).
"""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 2000
_HEAD, _TAIL = 1500, 300


def _readable(text: str) -> str:
    """Return words without the middle of a long text; what is not UTF-8 as escapes."""
    shown = text
    if len(text) > _LONGEST:
        shown = f"{text[:_HEAD]}… ({len(text) - _HEAD - _TAIL} characters left out) …{text[-_TAIL:]}"
    return shown.encode("utf-8", "backslashreplace").decode()


class CDIError(Exception):
    """Root of the errors of this library; it is not raised itself.

    Args:    message: lower case, no full stop, with the value that failed.   reason: stable CamelCase token.
             hint: the next step; None: the message says it already.   context: further values by key.
    """

    def __init__(self, message: str, *, reason: str, hint: str | None = None, **context: object) -> None:
        self.message = _readable(message)
        super().__init__(self.message)
        self.reason = reason
        self.hint = None if hint is None else _readable(hint)
        self.context = context

    def __str__(self) -> str:
        """Return the message, with the next step in parentheses."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class RequestError(CDIError):
    """The caller must change the call; a retry does not help."""


class InvalidRequest(RequestError):
    """A device name or an annotation breaks a rule."""


class WrongType(RequestError, TypeError):
    """An argument has another type than its signature says."""


class DeviceNotFound(RequestError):
    """No spec file defines the device, or two files of one folder do."""


class HostError(CDIError):
    """A device node is missing on this host or cannot be read."""


class DocumentError(CDIError):
    """A CDI spec or a runtime spec is malformed, or it contradicts the host."""


def refuse_text(value: object, what: str) -> None:
    """Refuse a single text where a list is meant: Python would take it apart letter by letter.

    Args:    value: the argument.   what: its name, for the message.
    Raises:  WrongType: the value is text or bytes.
    """
    if isinstance(value, str | bytes):
        message = f"{what} must be a list, not the single value {value!r:.200}"
        raise WrongType(message, reason="ListExpected", hint=f"write [{value!r:.200}]")


def refuse_other(value: object, kind: type, what: str, hint: str) -> None:
    """Refuse a value of another type. Args: what: its name, for the message. Raises: WrongType."""
    if not isinstance(value, kind):
        message = f"{what} must be of type {kind.__name__}, not {value!r:.200}"
        raise WrongType(message, reason="WrongType", hint=hint)
