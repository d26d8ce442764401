"""A mail server on loopback that speaks SMTP (RFC 5321), STARTTLS and AUTH PLAIN, and keeps what it is handed."""

from __future__ import annotations

import base64
import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_LONGEST: Final = 65536


@dataclass
class Sink:
    """What it does, and what it was handed."""

    port: int = 0
    tls: ssl.SSLContext | None = None
    is_tls_first: bool = False
    users: dict[str, str] = field(default_factory=dict)
    """Empty: nobody logs in."""
    replies: dict[str, list[str]] = field(default_factory=dict)
    """By verb, what is answered first in place of what is usual; an empty one closes the connection."""
    mails: list[tuple[str, list[str], bytes]] = field(default_factory=list)
    logins: list[tuple[str, bool]] = field(default_factory=list)
    """Who logged in, and whether the connection was encrypted."""


class _Session(socketserver.BaseRequestHandler):
    sink: Sink
    sender: str
    to: list[str]

    def handle(self) -> None:
        self.sink, self.sender, self.to = self.server.sink, "", []  # type: ignore[attr-defined]  # as `opened` sets it
        self.request.settimeout(10)
        with contextlib.suppress(OSError):
            if self.sink.is_tls_first and self.sink.tls is not None:
                self.request = self.sink.tls.wrap_socket(self.request, server_side=True)
            self._talk()
        with contextlib.suppress(OSError):
            self.request.close()

    def _say(self, text: str) -> None:
        self.request.sendall(f"{text}\r\n".encode())

    def _talk(self) -> None:
        self.reader = self.request.makefile("rb")
        self._say("220 sink")
        while line := self.reader.readline(_LONGEST):
            words = line.decode("latin-1").strip()
            verb = words.split(" ")[0].split(":")[0].upper()
            if waiting := self.sink.replies.get(verb):
                if not (said := waiting.pop(0)):
                    return
                self._say(said)
                continue
            getattr(self, f"on_{verb.lower()}", self._on_any)(words)
            if verb == "QUIT":
                return

    def _on_any(self, _words: str) -> None:
        self._say("250 ok")

    def on_quit(self, _words: str) -> None:
        self._say("221 bye")

    def on_ehlo(self, _words: str) -> None:
        is_open = isinstance(self.request, ssl.SSLSocket)
        starttls = ["250-STARTTLS"] if self.sink.tls and not is_open else []
        for one in ("250-sink", *starttls, "250-AUTH PLAIN", "250 8BITMIME"):
            self._say(one)

    def on_starttls(self, _words: str) -> None:
        assert self.sink.tls is not None
        self._say("220 go")
        self.reader.close()
        self.request = self.sink.tls.wrap_socket(self.request, server_side=True)
        self.reader = self.request.makefile("rb")

    def on_auth(self, words: str) -> None:
        user, secret = base64.b64decode(words.split(" ")[2]).decode().split("\0")[1:]
        self.sink.logins.append((user, isinstance(self.request, ssl.SSLSocket)))
        self._say("235 welcome" if self.sink.users.get(user) == secret else "535 5.7.8 no")

    def on_mail(self, words: str) -> None:
        self.sender, self.to = words.partition("<")[2].partition(">")[0], []
        self._say("250 ok")

    def on_rcpt(self, words: str) -> None:
        self.to.append(words.partition("<")[2].partition(">")[0])
        self._say("250 ok")

    def on_data(self, _words: str) -> None:
        self._say("354 go on")
        body = b""
        while (part := self.reader.readline(_LONGEST)) not in {b".\r\n", b""}:
            body += part
        self.sink.mails.append((self.sender, self.to, body))
        self._say("250 taken")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextlib.contextmanager
def opened(sink: Sink) -> Iterator[Sink]:
    """Serve on a free port of loopback."""
    with _Server(("127.0.0.1", 0), _Session) as server:
        server.sink = sink  # type: ignore[attr-defined]
        sink.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield sink
        finally:
            server.shutdown()
            thread.join()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextlib.contextmanager
def dripping() -> Iterator[int]:
    """Serve on loopback what never ends: each answer is a byte, and nothing more; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one, _ = listener.accept()
                    taken.append(one)
                    one.sendall(b"2")

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in taken:
                one.close()
