"""Serves SSH to accounts: a connection is its key's account, a user name a container. There is no shell of the host.

asyncssh speaks the protocol; whatever a client opens is a request of the API in this process (`carrying`). A client
without a key of an account learns nothing: every user name is as good as another until a key has been shown, and what
a container is called, or whether it is there, is the API's to say. Passwords, agents, X11, remote forwarding and
compression are off, as is every way to a socket of the host: a forwarded connection ends at the container's loopback.

Source: RFC 4252 (authentication), RFC 4254 (channels, section 7.2: direct-tcpip).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncssh

from fairlead import errors, telemetry
from fairlead.frozen import frozen
from fairlead.serve.accounts import sshkeys
from fairlead.serve.limits import address as addresses
from fairlead.serve.limits.gate import Gate
from fairlead.serve.ssh import carrying, inprocess
from fairlead.serve.ssh.hostkey import HostKey

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_LOGIN_S: Final = 20.0
_KEEPALIVE_S: Final = 30.0
_MOST_KEYS: Final = 20
"""That one connection may show before it is cut."""
_SFTP: Final = 3
"""Version of the protocol."""
_WINDOW: Final = 1 << 20
_PORT_MOST: Final = 65535


@frozen
class Limits:
    """How many connections are held."""

    connections: int = 128
    per_address: int = 16
    """Of one address, or a /64 of IPv6."""
    logging_in: int = 32
    """That have shown no key yet."""
    channels: int = 32
    """Sessions and forwarded connections of one connection."""


class Crowd:
    """Counts connections."""

    def __init__(self, limits: Limits) -> None:
        """Args: limits: how many there may be."""
        self.limits = limits
        self.logging_in = 0
        self._here: Counter[str] = Counter()

    def enter(self, network: str) -> bool:
        """Count a connection; False: there is no room for it."""
        limits = self.limits
        if self._here.total() >= limits.connections or self._here[network] >= limits.per_address:
            return False
        if self.logging_in >= limits.logging_in:
            return False
        self._here[network] += 1
        self.logging_in += 1
        return True

    def leave(self, network: str) -> None:
        """Count it no more."""
        self._here[network] -= 1
        if self._here[network] <= 0:
            del self._here[network]


class _Session(asyncssh.SSHServerProcess[bytes]):
    """A session that takes SFTP as the container's, where asyncssh would serve files of the machine."""

    def subsystem_requested(self, subsystem: str) -> bool:
        """See `asyncssh.SSHServerSession`."""
        return subsystem == "sftp"

    def session_started(self) -> None:
        """Carry every session, SFTP too: asyncssh's own start of SFTP would serve the machine's files."""
        channel, connection, factory = self._chan, self._conn, self._session_factory
        if channel is None or connection is None or factory is None:
            return
        reader = asyncssh.SSHReader[bytes](self, channel)
        writers = (
            asyncssh.SSHWriter[bytes](self, channel),
            asyncssh.SSHWriter[bytes](self, channel, asyncssh.EXTENDED_DATA_STDERR),
        )
        if (handler := factory(reader, *writers)) is not None:
            connection.create_task(handler, reader.logger)


class Door(asyncssh.SSHServer):
    """One connection."""

    def __init__(self, app: Any, keys: sshkeys.SSHKeys, gate: Gate, crowd: Crowd) -> None:
        """Args: app: the API, as `authentication.create_ssh_app` gives it."""
        self._app, self._keys, self._gate, self._crowd = app, keys, gate, crowd
        self._connection: asyncssh.SSHServerConnection | None = None
        self._address, self._port, self._network = "", 0, ""
        self._is_counted = self._is_logging_in = False
        self._user = self._shown = ""
        self._tried = self._channels = 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """See `asyncssh.SSHServer`: cut what there is no room for."""
        self._connection = conn
        name = conn.get_extra_info("peername") or ("", 0)
        self._address, self._port = str(name[0]), int(name[1])
        self._network = addresses.network(self._address)
        try:
            self._gate.check_address(self._address)
        except errors.Throttled:
            conn.abort()
            return
        self._is_counted = self._is_logging_in = self._crowd.enter(self._network)
        if not self._is_counted:
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 whichever way it was lost
        """See `asyncssh.SSHServer`."""
        self._has_logged_in()
        if self._is_counted:
            self._is_counted = False
            self._crowd.leave(self._network)

    def _has_logged_in(self) -> None:
        self._crowd.logging_in -= self._is_logging_in
        self._is_logging_in = False

    def begin_auth(self, username: str) -> bool:
        """See `asyncssh.SSHServer`: every user name needs a key, whether it means a container or not."""
        self._user = username
        return True

    def auth_completed(self) -> None:
        """See `asyncssh.SSHServer`."""
        self._has_logged_in()

    def public_key_auth_supported(self) -> bool:
        """See `asyncssh.SSHServer`."""
        return True

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """See `asyncssh.SSHServer`: an account's key; who holds the private one is proved to asyncssh."""
        self._tried += 1
        if self._tried > _MOST_KEYS and self._connection is not None:
            self._connection.abort()
            return False
        fingerprint = sshkeys.fingerprint(key.public_data)
        try:
            is_known = await self._keys.is_known(fingerprint)
        except errors.FairleadError as error:
            telemetry.log.error("SSH key not looked up", error=errors.sentence(error))
            return False
        if not is_known:
            self._gate.refused(self._address)
            return False
        # The last one that is shown is the one whose signature ends the login.
        self._user, self._shown = username, fingerprint
        return True

    @property
    def visitor(self) -> inprocess.Visitor:
        """Who is connected."""
        return inprocess.Visitor(fingerprint=self._shown, address=self._address, port=self._port)

    async def carry(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Carry one session."""
        if not self._takes_channel():
            process.stderr.write(b"fairlead: this connection has too many sessions\n")
            process.exit(1)
            return
        with self._counted():
            await carrying.run(self._app, self.visitor, self._user, process)

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        """See `asyncssh.SSHServer`."""
        return _Session(_carry, None, _SFTP, False)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Callable[[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]], Awaitable[None]]:
        """See `asyncssh.SSHServer`: a connection to the container itself, and to nothing beyond it."""
        del orig_host, orig_port
        if dest_host not in LOOPBACK or not 0 < dest_port <= _PORT_MOST:
            code, text = asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "forward to localhost: it is the container's own"
            raise asyncssh.ChannelOpenError(code, text)
        if not self._takes_channel():
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, "too many channels")
        return functools.partial(self._forward, dest_port)

    async def _forward(self, port: int, reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]) -> None:
        with self._counted():
            await carrying.connect(self._app, self.visitor, self._user, port, (reader, writer))

    def _takes_channel(self) -> bool:
        return self._channels < self._crowd.limits.channels

    @contextlib.contextmanager
    def _counted(self) -> Any:
        self._channels += 1
        try:
            yield
        finally:
            self._channels -= 1


async def _carry(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Carry a session of the connection that it is of."""
    door = process.get_extra_info("connection").get_owner()
    try:
        await door.carry(process)
    except (OSError, asyncssh.Error):
        pass  # the client left
    except Exception as error:  # noqa: BLE001 one session's fault ends that session alone
        telemetry.log.error("SSH session failed", error=f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError, asyncssh.Error):
            process.exit(1)


async def serve(
    app: Any, listener: socket.socket, key: HostKey, keys: sshkeys.SSHKeys, *, gate: Gate, limits: Limits
) -> None:
    """Serve SSH on a listening socket until cancelled."""
    logging.getLogger("asyncssh").setLevel(logging.CRITICAL)  # it logs what clients send
    crowd = Crowd(limits)
    acceptor = await asyncssh.listen(
        sock=listener,
        server_factory=lambda: Door(app, keys, gate, crowd),
        server_host_keys=[asyncssh.import_private_key(key.private)],
        encoding=None,
        line_editor=False,
        allow_scp=False,
        agent_forwarding=False,
        x11_forwarding=False,
        compression_algs=None,
        gss_host=None,
        host_based_auth=False,
        kbdint_auth=False,
        password_auth=False,
        server_version="Fairlead",
        login_timeout=_LOGIN_S,
        keepalive_interval=_KEEPALIVE_S,
        window=_WINDOW,
    )
    try:
        await acceptor.wait_closed()
    finally:
        acceptor.close()
        with contextlib.suppress(asyncio.CancelledError):
            await acceptor.wait_closed()
