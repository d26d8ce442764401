"""Declares requests to give a running container a device, or to take one.

The API writes it, the pod's kubelet carries it out, says how it went as a step that names the change's id, and removes
it. A kubelet that knows nothing of it leaves it where it is.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from fairlead import errors

Action = Literal["attach", "detach"]
PAST: Final[dict[Action, str]] = {"attach": "Attached", "detach": "Detached"}
"""Reason of the step that says it was carried out."""
REFUSED: Final[dict[Action, str]] = {"attach": "AttachRefused", "detach": "DetachRefused"}
"""Reason of the step that says it was not; facts: `problem` (`Problem`)."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One wish."""

    id: str
    action: Action
    container: str
    resource: str
    device: str
    """Id of the device, as its plugin advertises it."""
    force: bool = False
    """End processes that have it open."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why it was not carried out, so that the same error can be raised again elsewhere."""

    kind: str
    """Class of the error table."""
    message: str
    reason: str
    hint: str | None = None


def parse(text: str) -> Change:
    """Read the annotation. Raises: ProtocolError: nobody of us wrote it."""
    try:
        return msgspec.json.decode(text, type=Change)
    except msgspec.MsgspecError as error:
        message = f"annotation of a device change is not readable: {error}"
        raise errors.ProtocolError(message, reason="DeviceChangeInvalid") from error


def emit(change: Change) -> str:
    """Write the annotation."""
    return msgspec.json.encode(change).decode()


def problem_of(error: errors.FairleadError) -> Problem:
    """Describe an error."""
    kind = next(kind for kind in type(error).__mro__ if kind in errors.TABLE)
    return Problem(kind=kind.__name__, message=error.message, reason=error.reason, hint=error.hint)


def error_of(problem: Problem) -> errors.FairleadError:
    """Return the error it describes."""
    classes = {kind.__name__: kind for kind in errors.TABLE}
    return classes.get(problem.kind, errors.Unavailable)(problem.message, reason=problem.reason, hint=problem.hint)
