"""Composes the SSH door: listener, host key, limits. Loaded only where `ssh.listen` is set: asyncssh takes 6 MB."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairlead import errors, settings
from fairlead.serve import sockets
from fairlead.serve.accounts.sshkeys import SSHKeys
from fairlead.serve.limits.gate import Gate
from fairlead.serve.ssh import hostkey, server


@dataclass(frozen=True, slots=True, kw_only=True)
class SSHListener:
    """The SSH door, listening and not served yet."""

    listener: socket.socket
    key: hostkey.HostKey
    limits: server.Limits
    name: str
    """Of the setting; empty: none."""

    def describe(self, name: str) -> tuple[str, int, str]:
        """Return name, port and public key. Args: name: of the API on TLS."""
        host, port = self.listener.getsockname()[:2]
        is_loopback = host in server.LOOPBACK
        return self.name or (host if is_loopback else name), port, self.key.public

    async def serve(self, app: Any, keys: SSHKeys, gate: Gate) -> None:
        """Serve until cancelled. Args: app: as `authentication.create_ssh_app` gives it."""
        await server.serve(app, self.listener, self.key, keys, gate=gate, limits=self.limits)


def address(text: str) -> str:
    """Return where to listen; a port alone is the loopback's."""
    return f"127.0.0.1:{text}" if text.isdecimal() else text


@contextlib.contextmanager
def opened(config: settings.Settings) -> Iterator[SSHListener]:
    """Listen, and ready the host key.

    Raises: Invalid: an address or a limit is none; Unavailable: the port is taken; as `hostkey.ensure`.
    """
    asked = config.ssh
    if asked.connections < 1 or asked.address_connections < 1:
        message = f"ssh.connections {asked.connections}, ssh.address_connections {asked.address_connections}: none fits"
        raise errors.Invalid(message, reason="ConnectionsInvalid", hint="each is 1 or more")
    name = asked.name
    if name and (not name.isascii() or not name.isprintable() or set(name) & set(" \t\"'*?!,[]#%") or name[0] == "-"):
        raise errors.Invalid(
            f'ssh.name "{name}" is no name of a machine', reason="NameInvalid", hint="gpu1.example.org"
        )
    key = hostkey.ensure(config.state.folder)
    limits = server.Limits(connections=asked.connections, per_address=asked.address_connections)
    with contextlib.closing(sockets.listen_at(address(asked.listen))) as listener:
        yield SSHListener(listener=listener, key=key, limits=limits, name=name)
