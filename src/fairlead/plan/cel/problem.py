"""Says what is wrong with an expression, and where."""

from __future__ import annotations

from typing import Final

from fairlead import errors

_LONGEST: Final = 400
_SHOWN: Final = 60


class CELError(errors.RequestError):
    """An expression could not be evaluated for a device: Kubernetes then gives the pod no device at all."""


class Wrong(Exception):
    """An expression does not parse as CEL, at an offset of its text."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


def place(text: str, at: int) -> tuple[int, int]:
    """Return line and column of an offset, both from 1."""
    before = text[: max(at, 0)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def bounded(text: str, longest: int = _LONGEST) -> str:
    """Return a text without its end where it is long."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def shown(value: str) -> str:
    """Return a value for a message: quoted and bounded."""
    return repr(bounded(value, _SHOWN))


def invalid(text: str, wrong: Wrong) -> errors.Invalid:
    """Return the error that the caller gets."""
    line, column = place(text, wrong.at)
    message = f"{bounded(wrong.message)} at line {line}, column {column}"
    return errors.Invalid(message, reason="CELInvalid", line=line, column=column, expression=bounded(text))


def failed(text: str, message: str, at: int) -> CELError:
    """Return the error of one evaluation."""
    where = ""
    line, column = place(text, at)
    if at >= 0:
        where = f" at line {line}, column {column}"
    error = CELError(f"{bounded(message)}{where}", reason="CELFailed", expression=bounded(text))
    if at >= 0:
        error.context.update(line=line, column=column)
    return error
