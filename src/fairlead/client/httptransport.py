"""Carries requests over HTTP/1.1: a unix socket, `http://` or `https://`.

The standard library's client, because it loads in 25 ms where httpx takes 300 (its command line draws rich and pygments
in) and every verb that asks the service pays that. Each request has a connection of its own, so a stream may stay open
beside other requests; on a unix socket that costs 0.1 ms. `websockets`, another 120 ms, is loaded by the first session.

TCP addresses go through the proxy that the environment names (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), as for other
programs.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import socket
import threading
import urllib.parse
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fairlead import errors
from fairlead.client import contexts, transport

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection


UNIX: Final = "http+unix://"
_CONNECT_S: Final = 5.0
_UPGRADE_S: Final = 30.0
"""For the answer to a WebSocket's upgrade: the service finds the container and writes the audit log before it."""
_PIECE: Final = 1 << 16
_LARGEST: Final = 256 << 20
"""Most bytes of an answer that is read whole, so that a service cannot fill this process's memory."""
_SESSION: Final[Mapping[str, Any]] = {
    "open_timeout": _UPGRADE_S,
    "close_timeout": 1.0,  # the answer to our close stands behind frames that nobody reads any more
    "max_size": 16 << 20,
    "ping_timeout": None,  # the pong queues behind the frames that we send
}
"""How each WebSocket is opened and closed."""
_START_HINT: Final = "start one with `fairlead up`; --url chooses another one, --kubeconfig a Kubernetes cluster"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        """Connect to `path` with the first request."""
        super().__init__("fairlead", timeout=_CONNECT_S)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class HTTPTransport:
    """One service, by its address."""

    def __init__(self, url: str, login: contexts.Context | None = None) -> None:
        """Take an address: `http+unix:///run/fairlead/api.sock` or the socket's path alone, `http://…`, `https://…`.

        Args:   login: the key that goes with each request, and the fingerprint without which none is sent.
        Raises: Invalid (`URLInvalid`).
        """
        self._login = login
        self._opened: dict[socket.socket, threading.Thread] = {}
        """Connections in use, with the thread that opened each."""
        self._abandoned: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._is_closed = False
        self._guard = threading.Lock()
        url = f"{UNIX}{url}" if url.startswith("/") else url
        self._socket = Path(url.removeprefix(UNIX)) if url.startswith(UNIX) else None
        self._url = urllib.parse.urlsplit("http://fairlead" if self._socket else url)
        if self._url.scheme not in {"http", "https"} or not self._url.hostname or not _has_port(self._url):
            message = f'address "{url}" is neither {UNIX}/PATH nor http(s)://HOST[:PORT]'
            raise errors.Invalid(message, reason="URLInvalid", hint="set --url or FAIRLEAD_URL")
        self._host = self._url.netloc.rpartition("@")[2]
        self._address = url if self._socket else f"{self._url.scheme}://{self._host}{self._url.path}"

    @property
    def address(self) -> str:
        """See `transport.Transport.address`."""
        return self._address

    def close(self) -> None:
        """See `transport.Transport.close`; connections end with their requests."""
        with self._guard:
            self._is_closed = True
            _break(self._opened)

    def abandon(self, thread: threading.Thread) -> None:
        """Break off what a thread waits for, and refuse what it asks for from now on."""
        with self._guard:
            self._abandoned.add(thread)
            _break(one for one, opener in self._opened.items() if opener is thread)

    @contextlib.contextmanager
    def _breakable(self, opened: socket.socket) -> Iterator[None]:
        """Let `abandon` break a connection off for a block."""
        thread = threading.current_thread()
        with self._guard:
            if self._is_closed or thread in self._abandoned:
                message = f"nothing more is asked of {self._address}: the client was closed, or the call given up"
                raise errors.Unavailable(message, reason="ClientClosed")
            self._opened[opened] = thread
        try:
            yield
        finally:
            with self._guard:
                del self._opened[opened]

    @contextlib.contextmanager
    def send(self, request: transport.Request, *, timeout_s: float | None) -> Iterator[_Answer]:
        """See `transport.Transport.send`."""
        connection, prefix = self._connection()
        with contextlib.closing(connection):
            self._open(connection)
            connection.sock.settimeout(timeout_s)
            answer = _Answer(self._address, timeout_s)
            with self._breakable(connection.sock):
                with answer.translated():
                    target = f"{prefix}{self._url.path.rstrip('/')}{request.target}"
                    headers = {**request.headers, **self._authorization()}
                    connection.request(request.method, target, request.body, headers)
                    answer.response = connection.getresponse()
                with contextlib.closing(answer.response):
                    answer.check()
                    yield answer

    def _open(self, connection: http.client.HTTPConnection) -> None:
        """Connect, and see that it is the service that was pinned, before anything is sent. Raises: Denied."""
        try:
            connection.connect()
        except OSError as error:
            raise self._unreachable(error) from error
        if self._login is not None and self._login.fingerprint and self._url.scheme == "https":
            import ssl

            shown = (
                connection.sock.getpeercert(binary_form=True) if isinstance(connection.sock, ssl.SSLSocket) else None
            )
            contexts.check_pin(shown, self._login.fingerprint, self._address)

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection that is not open yet, and what stands before each target (a proxy wants all of it)."""
        if self._socket is not None:
            return _UnixConnection(str(self._socket)), ""
        kind = self._secure if self._url.scheme == "https" else http.client.HTTPConnection
        proxy = _proxy(self._url)
        if proxy is None:
            return kind(str(self._url.hostname), self._url.port, timeout=_CONNECT_S), ""
        connection = kind(str(proxy.hostname), proxy.port or 80, timeout=_CONNECT_S)
        if self._url.scheme == "https":
            connection.set_tunnel(str(self._url.hostname), self._url.port or 443)
            return connection, ""
        return connection, f"http://{self._host}"

    def _secure(self, host: str, port: int | None, *, timeout: float) -> http.client.HTTPSConnection:
        if self._login is None or not self._login.fingerprint:
            return http.client.HTTPSConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=contexts.unverified())

    def _authorization(self) -> dict[str, str]:
        """Return the header for a key, or for a user name and password that stand in the address."""
        if self._login is not None and not self._login.key:
            return {}
        if self._login is not None and self._url.scheme == "https":
            return {"authorization": f"Bearer {self._login.key}"}
        if self._url.username is None:
            return {}
        pair = ":".join(urllib.parse.unquote(text or "") for text in (self._url.username, self._url.password))
        return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    @contextlib.contextmanager
    def connect(self, target: str) -> Iterator[_Session]:
        """See `transport.Transport.connect`."""
        from websockets import exceptions

        try:
            try:
                connection = self._upgraded(target)
            except exceptions.InvalidStatus as error:
                # The service timed out before the request reached it: try once more.  Source: RFC 9110, 15.5.9.
                if error.response.status_code != HTTPStatus.REQUEST_TIMEOUT:
                    raise
                connection = self._upgraded(target)
        except exceptions.InvalidStatus as error:
            raise transport.UpgradeRefused(error.response.status_code, bytes(error.response.body or b"")) from error
        except (OSError, TimeoutError, exceptions.WebSocketException) as error:
            raise self._unreachable(error) from error
        with connection, self._breakable(connection.socket):
            session = _Session(connection)
            try:
                yield session
            finally:
                if session.is_sending:  # a close frame would queue behind data that the service does not read
                    _break((connection.socket,))

    def _upgraded(self, target: str) -> ClientConnection:
        """Open a WebSocket."""
        from websockets.sync import client as websocket

        path = f"{self._url.path.rstrip('/')}{target}"
        found: ClientConnection
        if self._socket is not None:
            found = websocket.unix_connect(str(self._socket), f"ws://fairlead{path}", **_SESSION)
            return found
        if self._url.scheme == "http":
            found = websocket.connect(f"ws://{self._url.netloc}{path}", **_SESSION)
            return found
        # Opened and checked here, since the upgrade carries the key; the library gets the connected socket.
        opened, _ = self._connection()
        try:
            self._open(opened)
            opened.sock.settimeout(None)  # the library leaves it as it is: a session may be silent for hours
            head = self._authorization()
            found = websocket.connect(
                f"ws://{self._host}{path}", sock=opened.sock, proxy=None, additional_headers=head, **_SESSION
            )
        except BaseException:
            opened.close()
            raise
        return found

    def _unreachable(self, error: Exception) -> errors.Unavailable:
        message, hint = f"the service at {self._address} does not answer: {error}", "`fairlead doctor` says more"
        if self._socket is not None and isinstance(error, FileNotFoundError):
            message, hint = f"no service runs here: {self._socket} does not exist", _START_HINT
        elif self._socket is not None and isinstance(error, PermissionError):
            message, hint = _closed(self._socket)
        return errors.Unavailable(message, reason="ServiceUnreachable", hint=hint)


def _break(connections: Iterable[socket.socket]) -> None:
    """End connections, those that a thread reads from too."""
    for one in connections:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(one, socket.SHUT_RDWR)  # not SSLSocket's own, which sends close_notify first


class _Answer:
    """See `transport.Answer`."""

    response: http.client.HTTPResponse

    def __init__(self, address: str, timeout_s: float | None) -> None:
        """Take what error messages name."""
        self._address, self._timeout_s = address, timeout_s

    @property
    def status(self) -> int:
        """See `transport.Answer.status`."""
        return self.response.status

    def header(self, name: str) -> str:
        """See `transport.Answer.header`."""
        return self.response.headers.get(name, "")

    def check(self) -> None:
        """Raise Unavailable where the head does not say how long the body is, as our service always does.

        The end of the connection would be the end of the body then, and an answer that broke off in its head would
        read as a whole one that is empty.
        """
        with self.translated():
            if self.response.length is None and not self.response.chunked:
                raise http.client.IncompleteRead(b"")

    def read(self) -> bytes:
        """See `transport.Answer.read`."""
        with self.translated():
            body = self.response.read(_LARGEST + 1)
            if self.response.length and len(body) <= _LARGEST:  # a bounded read does not report a body that broke off
                raise http.client.IncompleteRead(b"", self.response.length)
        if len(body) > _LARGEST:
            message = f"the service at {self._address} answers with more than {_LARGEST} bytes"
            raise errors.Unavailable(message, reason="ServiceTooLoud", hint="ask for less at once, or for another one")
        return body

    def pieces(self) -> Iterator[bytes]:
        """See `transport.Answer.pieces`."""
        with self.translated():
            while piece := self.response.read1(_PIECE):
                yield piece
            if self.response.length:  # read1 reports the end of the connection as the end of the body
                raise http.client.IncompleteRead(b"", self.response.length)

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Translate errors of an open connection into FairleadErrors."""
        try:
            yield
        except TimeoutError as error:
            message = f"the service at {self._address} took longer than {self._timeout_s or 0:.0f} s to answer"
            raise errors.Unavailable(message, reason="ServiceSlow", hint="its log says what it waits for") from error
        except (OSError, http.client.HTTPException) as error:
            message = f"the service at {self._address} broke off: {error or type(error).__name__}"
            raise errors.Unavailable(message, reason="ServiceBrokeOff", hint="its log says why") from error


@dataclass(slots=True)
class _Session:
    """See `transport.Session`."""

    connection: ClientConnection
    is_sending: bool = False

    def frames(self) -> Iterator[bytes | str]:
        """See `transport.Session.frames`."""
        from websockets import exceptions

        with contextlib.suppress(exceptions.ConnectionClosed, OSError):
            yield from self.connection

    def send(self, frame: bytes | str) -> None:
        """See `transport.Session.send`."""
        from websockets import exceptions

        self.is_sending = True
        with contextlib.suppress(exceptions.ConnectionClosed, OSError):
            self.connection.send(frame)
        self.is_sending = False


def _closed(path: Path) -> tuple[str, str]:
    """Return who may open a socket that this user may not, and the command that lets this user."""
    import grp

    try:
        found = path.stat()
    except OSError as error:
        return f"{path} cannot be reached: {error.strerror}", "ask root which socket is yours, and set --url to it"
    if not found.st_mode & 0o020:
        hint = "have root choose a group for you (setting `api.group`), or use sudo"
        return f"{path} may be opened by root only", hint
    try:
        name = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        name = str(found.st_gid)
    me = _login_name()
    message = f'{path} may be opened by members of group "{name}", and {me} is not one'
    if me in _members(name):
        return message.replace("is not one", "was not one yet at login"), f"log in again, or `newgrp {name}`"
    return message, f"have root add you, `usermod -aG {name} {me}`, and log in again"


def _members(group: str) -> list[str]:
    import grp

    try:
        return grp.getgrnam(group).gr_mem
    except KeyError:
        return []


def _login_name() -> str:
    """Return who we are, by number where the machine has no name for it."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _has_port(url: urllib.parse.SplitResult) -> bool:
    """Return whether the port is a number of a port, or left out."""
    try:
        return url.port is None or url.port > 0
    except ValueError:
        return False


def _proxy(url: urllib.parse.SplitResult) -> urllib.parse.SplitResult | None:
    """Return the proxy that the environment names for an address. Raises: Invalid (`ProxyInvalid`)."""
    import urllib.request

    named = urllib.request.getproxies().get(url.scheme)
    if not named or urllib.request.proxy_bypass(url.netloc.rpartition("@")[2]):
        return None
    proxy = urllib.parse.urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.hostname or proxy.username is not None or not _has_port(proxy):
        message = f"the proxy for {url.scheme} in the environment is not of the form http://HOST:PORT"
        hint = f"change {url.scheme.upper()}_PROXY, or add {url.hostname} to NO_PROXY"
        raise errors.Invalid(message, reason="ProxyInvalid", hint=hint)
    return proxy
