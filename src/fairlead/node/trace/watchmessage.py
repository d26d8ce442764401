"""Declares the messages between the agent and the process that watches containers: one JSON object a line.

The agent writes `Order`s to the process's standard input, the process writes `Report`s to its standard output. Both are
the same release of the same package, so there is no version in them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.kernel.readback import Isolation
from fairlead.plan.sandbox.machinestart import MachineTimes
from fairlead.wire.text import typedjson

LONGEST: Final = 4 * 2**20
"""Bytes of one line. A container with every device of a large machine needs a fraction of it."""
MOST_WAITING: Final = 10_000
"""Messages that wait for a side that takes none; with more the process ends, and the next is told whom to follow."""


class Follow(msgspec.Struct, frozen=True, tag=True):
    """See a pod's containers from now on."""

    uid: str


class Forget(msgspec.Struct, frozen=True, tag=True):
    """See no more of a pod."""

    uid: str


class FollowMachine(msgspec.Struct, frozen=True, tag=True):
    """See a pod's virtual machine start."""

    uid: str


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Prepare`: what is to be tried in the container; `is_ours` False: nothing, it is none of ours."""

    number: int
    is_ours: bool
    paths: tuple[str, ...] = ()
    numbers: tuple[tuple[int, int], ...] = ()


class Read(msgspec.Struct, frozen=True, tag=True):
    """Read a running container back. Args: pid: None: it is to be found by the container's id."""

    number: int
    container: str
    pid: int | None
    paths: tuple[str, ...]
    numbers: tuple[tuple[int, int], ...]


Order = Follow | FollowMachine | Forget | Prepared | Read


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The process runs: sent at a fixed interval."""


class Looking(msgspec.Struct, frozen=True, tag=True):
    """A container of a followed pod is being looked at (`is_over` False), or no longer."""

    container: str
    is_over: bool


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """A container of a pod begins: what is to be tried in it?"""

    number: int
    uid: str


class Seen(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One container, as `containerwatch.FoundContainer` has it; `number`: the `Prepare` that was answered for it."""

    uid: str
    container: str
    pid: int
    began_at: float
    is_late: bool
    number: int | None
    found: Isolation | None
    read_at: float
    read_s: float
    unread: str


class SeenMachine(msgspec.Struct, frozen=True, tag=True):
    """How far a pod's machine has started; said again each time more is known."""

    uid: str
    times: MachineTimes


class HasRead(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Read`; `pid` None: no process of the container can be seen; `found` None: it had ended."""

    number: int
    pid: int | None
    found: Isolation | None
    duration_s: float = 0.0


Report = Alive | Looking | Prepare | Seen | SeenMachine | HasRead


class Lines:
    """Cuts what is read from a pipe into messages."""

    def __init__(self, kind: Any) -> None:
        """Take the union of messages that may come."""
        self._decoder: typedjson.Decoder[Any] = typedjson.Decoder(kind)
        self._rest = b""

    def feed(self, data: bytes) -> list[object]:
        """Return the messages that are complete now. Raises: ProtocolError: one cannot be read."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            if len(self._rest) > LONGEST:
                raise msgspec.DecodeError(f"more than {LONGEST} bytes without an end")
            return [self._decoder.decode(line) for line in lines]
        except msgspec.MsgspecError as error:
            message = f"message between the agent and its container watch is not readable: {error}"
            raise errors.ProtocolError(message, reason="WatchMessageInvalid") from error


def line(message: Order | Report) -> bytes:
    """Return a message as it is written."""
    return msgspec.json.encode(message) + b"\n"
