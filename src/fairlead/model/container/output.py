"""Declares how much of a process's output is asked for, and tells its streams apart."""

from __future__ import annotations

from dataclasses import dataclass


class ErrorOutput(bytes):
    """Bytes of standard error; output of any other stream is plain `bytes`.

    A reader that does not separate the streams takes both as bytes.
    """

    __slots__ = ()


class Notice(bytes):
    """A message of the service between a process's output, such as that the container was started again."""

    __slots__ = ()


class Mark(bytes):
    """The position of the last whole line before it, behind which a reader can go on later."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Selects the part of a container's output to read."""

    follow: bool = False
    tail: int | None = None
    """Last lines only, of what is there at the beginning; None: all."""
    timestamps: bool = False
    """The time before each line, RFC 3339."""
    since: float | None = None
    """Unix seconds; what was written before is left out."""
    until: float | None = None
    """Unix seconds; what was written after is left out."""
    holds_back: bool = False
    """With `follow`: the container's process waits where its output is not read, so that no byte can be lost."""
