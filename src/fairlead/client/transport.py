"""Declares the port between the client and what carries its requests: a socket, or an application in process.

A transport carries one request and gives its answer in pieces as they come, or opens one WebSocket. It knows nothing of
the API: bodies are bytes, and an answer of any status is an answer. `httptransport` fulfils it over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request."""

    method: str
    target: str
    """Path and query, percent-encoded: `/v1/containers?all=true`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


class Answer(Protocol):
    """One answer: its head is here, its body may still be coming."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    def header(self, name: str) -> str:
        """Return a header, by its name in lower case; empty: it is not there."""
        ...

    def read(self) -> bytes:
        """Return the rest of the body. Raises: Unavailable (`ServiceBrokeOff`, `ServiceSlow`)."""
        ...

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes. Raises: as `read`."""
        ...


class UpgradeRefused(Exception):
    """The service answered a WebSocket's opening with another status than 101; what it said is the body."""

    def __init__(self, status: int, body: bytes) -> None:
        """Take the answer."""
        super().__init__(f"status {status}")
        self.status = status
        self._body = body

    def read(self) -> bytes:
        """Return the body."""
        return self._body


class Session(Protocol):
    """One WebSocket. One thread may read while another one sends."""

    def frames(self) -> Iterator[bytes | str]:
        """Yield what the service sends until either side closes or the connection breaks."""
        ...

    def send(self, frame: bytes | str) -> None:
        """Send one frame; after the end nothing is sent and nothing raised, since `frames` has ended."""
        ...


class Transport(Protocol):
    """What carries requests to one service. Several requests may be open at once, from several threads."""

    @property
    def address(self) -> str:
        """The service's address as error messages name it, without passwords."""
        ...

    def send(self, request: Request, *, timeout_s: float | None) -> AbstractContextManager[Answer]:
        """Send one request and give its answer; leaving the block drops what was not read.

        Args:    timeout_s: how long the service may be silent; None: for ever.
        Raises:  Unavailable: `ServiceUnreachable`, `ServiceSlow`, `ServiceBrokeOff`.
        """
        ...

    def connect(self, target: str) -> AbstractContextManager[Session]:
        """Open a WebSocket at a path and query. Raises: Unavailable (`ServiceUnreachable`); UpgradeRefused."""
        ...

    def close(self) -> None:
        """Break off what is open, which others may be waiting for; idempotent."""
        ...
