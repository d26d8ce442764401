"""Reaches a Fabric Manager through `fairlead fabric serve`, which runs beside it in the Service VM.

The host then needs no library of NVIDIA's, and nothing that such a library does can end a process of the host's.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from fairlead import errors, files
from fairlead.model.fabric import FailedDevice, ManagerIdentity, Partition, UnsupportedPartition
from fairlead.silicon.fabric import frame, message
from fairlead.silicon.fabric.address import Address, Kind

LOST: Final = "FabricAgentUnreachable"
_MENDING: Final = "see whether `fairlead fabric serve` runs there"
_LONGEST_SECRET: Final = 4096


def read_secret(path: Path) -> bytes:
    """Return the secret of a file that only its owner may read. Raises: Unavailable (`FabricSecretUnusable`)."""
    try:
        status, held = files.read_judged(path)
        secret = held.strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        made = f"(umask 077; head -c 32 /dev/urandom | base64 > {path})"
        raise errors.Unavailable(
            f"the secret {path} cannot be read: {why.lower()}", reason="FabricSecretUnusable", hint=made
        ) from error
    if status.st_uid not in {0, os.geteuid()}:
        text = f"the secret {path} belongs to user {status.st_uid}, who may read it"
        raise errors.Unavailable(text, reason="FabricSecretUnusable", hint=f"rm {path}, and make a new one as root")
    if status.st_mode & 0o077:
        text = f"the secret {path} can be read by others than its owner"
        raise errors.Unavailable(text, reason="FabricSecretUnusable", hint=f"chmod 600 {path}; better make a new one")
    if not frame.SHORTEST_SECRET <= len(secret) <= _LONGEST_SECRET:
        text = f"the secret {path} has {len(secret)} bytes; {frame.SHORTEST_SECRET} to {_LONGEST_SECRET} are a secret"
        raise errors.Unavailable(text, reason="FabricSecretUnusable", hint="head -c 32 /dev/urandom | base64")
    return secret


class AgentClient:
    """One connection to an agent; calls come from one thread at a time."""

    def __init__(self, address: Address, secret: bytes, *, timeout_s: float) -> None:
        """Connect. Args: timeout_s: longest silence. Raises: Unavailable, Denied, ProtocolError."""
        if address.kind is Kind.INET:
            text = f"{address} is TCP: an agent is reached by a unix socket or by vsock"
            raise errors.Invalid(text, reason="FabricAddressInvalid", hint="PATH or CID:PORT")
        self._name = str(address)
        self._socket: socket.socket | None = None
        with self._translated():
            self._socket = _dial(address, timeout_s)
            try:
                self._channel = frame.greet(self._socket, secret)
            except BaseException:
                self.close()
                raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError) as error:
            why = getattr(error, "strerror", None) or str(error) or "it ended the connection"
            text = f"the fabric's agent at {self._name} cannot be reached: {why.lower()}"
            raise errors.Unavailable(text, reason=LOST, hint=_MENDING, code=-9) from error

    def _call(self, request: message.Request) -> message.Answer:
        """Ask, and return an answer that is no error. After a frame that cannot be trusted the connection is lost."""
        with self._translated():
            if self._socket is None:
                raise EOFError
            try:
                self._channel.send(message.encode(request))
                body = self._channel.receive()
            except (OSError, EOFError, errors.ProtocolError):
                self.close()
                raise
        return message.parse_answer(body)

    def identify(self) -> ManagerIdentity:
        """Return which start of the Manager the agent is connected to, and what it knows of version and machine."""
        return message.identity_of(self._call(message.Request("identify")))

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return the fabric's partitions."""
        return message.partitions_of(self._call(message.Request("list")))

    def activate(self, partition: int) -> None:
        """Activate a partition."""
        self._call(message.Request("activate", (partition,)))

    def deactivate(self, partition: int) -> None:
        """Deactivate a partition."""
        self._call(message.Request("deactivate", (partition,)))

    def set_active(self, partitions: Collection[int]) -> None:
        """Say which partitions were active before the Manager started again."""
        self._call(message.Request("set", tuple(sorted(set(partitions)))))

    def list_failed(self) -> tuple[FailedDevice, ...]:
        """Return devices whose links failed."""
        return message.failed_of(self._call(message.Request("failed")))

    def list_unsupported(self) -> tuple[UnsupportedPartition, ...]:
        """Return partitions that cannot be offered."""
        return message.unsupported_of(self._call(message.Request("unsupported")))

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _dial(address: Address, timeout_s: float) -> socket.socket:
    family = socket.AF_UNIX if address.kind is Kind.UNIX else socket.AF_VSOCK
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        if address.kind is Kind.UNIX:
            made.connect(address.text)
        else:
            cid, port = address.host_port
            made.connect((int(cid), port))
    except BaseException:
        made.close()
        raise
    return made
