"""Declares every error of the program, by who must act.

    FairleadError
    ├── RequestError    the asker: the request itself is wrong
    │   ├── NotFound        … it names something that does not exist
    │   └── Invalid         … it breaks a rule of the object's schema
    ├── Unauthenticated the asker: no credential came, or one that is not accepted
    ├── Denied          the tenant's administrator: a limit or a boundary says no
    ├── Conflict        the loser of a race: read again, then retry at once
    │   ├── Gone            … the history asked for is no longer kept: list again
    │   └── Stale           … the object is another one than the asker named
    ├── Insufficient    wait for capacity
    │   └── Throttled       … requests came too often: wait as long as the answer says
    ├── NeverFits       the asker: nothing that is there will ever do, so ask for less
    ├── Unavailable     the operator of a dependency: it does not answer
    ├── DeviceFault     the hardware's owner: this device, no other
    └── ProtocolError   the writer of the bytes

How each class answers over gRPC, HTTP and as an exit code is data: `TABLE`, one row a class, looked up by the nearest
ancestor. Servers and the command line read the row; none branches on a class. Foreign exceptions are translated
where the foreign library is called, and chained (`raise … from`). Anything that is not a `FairleadError` is a bug and
may crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fairlead.frozen import frozen

_LONGEST: Final = 2000
_HEAD, _TAIL = 1500, 300


def readable(text: str) -> str:
    """Return words that every sink takes: what is not UTF-8 as escapes, the middle of a long text left out.

    A message names the value that failed, and that value may be ten megabytes of anything.
    """
    shown = text
    if len(text) > _LONGEST:
        left_out = len(text) - _HEAD - _TAIL
        shown = f"{text[:_HEAD]}… ({left_out} characters left out) …{text[-_TAIL:]}"
    return shown.encode("utf-8", "backslashreplace").decode()


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that a wrong one is probably meant for; empty: none is near."""
    # Most processes never meet a wrong name, and do without the 0.2 MB.
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return near[0] if near else ""


class FairleadError(Exception):
    """Root of the tree; never raised itself.

    Args:
        message: lower case, no full stop, with the value that failed; kept as `readable` gives it.
        reason: stable CamelCase token, reused as condition reason, event reason, log key and metric label.
        hint: the next step, for the one who must act; None where the message already says it.
        context: further facts for logs and problem documents, by key.
    """

    def __init__(self, message: str, *, reason: str, hint: str | None = None, **context: object) -> None:
        self.message = readable(message)
        super().__init__(self.message)
        self.reason = reason
        self.hint = None if hint is None else readable(hint)
        self.context = context


class RequestError(FairleadError):
    """The asker must change the request; a retry never helps."""


class NotFound(RequestError):
    """The request names something that does not exist."""


class Invalid(RequestError):
    """The request breaks a rule of the object's schema."""


class Unauthenticated(FairleadError):
    """The asker must send a credential that is in force."""


class Denied(FairleadError):
    """A tenant's administrator must lift a limit or a boundary."""


class Conflict(FairleadError):
    """Another writer was first: read fresh state, then retry at once."""


class Gone(Conflict):
    """The history asked for is no longer kept: list, then watch from there."""


class Stale(Conflict):
    """The object is another one than the asker named: read it again."""


class Insufficient(FairleadError):
    """Nothing fits now: wait for capacity to change."""


class NeverFits(FairleadError):
    """Nothing of what is there will ever fit: ask for less."""


class Throttled(Insufficient):
    """Requests came faster than their limit; nothing was done, and the same request is taken later."""


class Unavailable(FairleadError):
    """A dependency does not answer; its operator acts, we retry with back-off."""


class DeviceFault(FairleadError):
    """One device is broken; its owner acts and we never retry on it."""


class ProtocolError(FairleadError):
    """The bytes are malformed; their writer acts."""


@frozen
class Row:
    """One line of the table: who acts and how the class travels."""

    who: str
    retry: str
    grpc: str
    """Name of the gRPC status code (`grpc.StatusCode[row.grpc]`)."""
    http: int
    exit: int


TABLE: dict[type[FairleadError], Row] = {
    RequestError: Row(who="the asker", retry="never", grpc="INVALID_ARGUMENT", http=400, exit=2),
    NotFound: Row(who="the asker", retry="never", grpc="NOT_FOUND", http=404, exit=2),
    Invalid: Row(who="the asker", retry="never", grpc="INVALID_ARGUMENT", http=422, exit=2),
    Unauthenticated: Row(who="the asker", retry="with a key", grpc="UNAUTHENTICATED", http=401, exit=2),
    Denied: Row(who="tenant admin", retry="after change", grpc="PERMISSION_DENIED", http=403, exit=3),
    Conflict: Row(who="the loser of a race", retry="at once, from fresh state", grpc="ABORTED", http=409, exit=4),
    Gone: Row(who="the loser of a race", retry="list again", grpc="OUT_OF_RANGE", http=410, exit=4),
    Stale: Row(who="the loser of a race", retry="from fresh state", grpc="ABORTED", http=412, exit=4),
    Insufficient: Row(who="wait for capacity", retry="on change", grpc="RESOURCE_EXHAUSTED", http=409, exit=5),
    NeverFits: Row(who="the asker", retry="never", grpc="RESOURCE_EXHAUSTED", http=409, exit=1),
    Throttled: Row(who="wait for capacity", retry="after `Retry-After`", grpc="RESOURCE_EXHAUSTED", http=429, exit=5),
    Unavailable: Row(who="operator of a dependency", retry="back-off", grpc="UNAVAILABLE", http=503, exit=6),
    DeviceFault: Row(who="hardware owner", retry="never here; taint", grpc="FAILED_PRECONDITION", http=409, exit=7),
    ProtocolError: Row(who="the writer of the bytes", retry="never", grpc="INTERNAL", http=502, exit=8),
}


def row_of(error: FairleadError) -> Row:
    """Return the row of the error's class or of its nearest ancestor in the table."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def sentence(error: FairleadError) -> str:
    """Return message and next step as one line for a person."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


def parted(text: str) -> tuple[str, str]:
    """Return message and next step of a `sentence`; an empty step where it names none."""
    depth = 0
    for at in reversed(range(len(text))):
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if depth <= 0:
            is_step = text.endswith(")") and text[max(0, at - 1) : at] == " "
            return (text[: at - 1], text[at + 1 : -1]) if is_step else (text, "")
    return text, ""
