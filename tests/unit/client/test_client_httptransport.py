"""The HTTP transport against servers that answer byte by byte as each test says: broken off, silent, behind a proxy."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync import server as websocket

from fairlead import errors
from fairlead.cli.core import client
from fairlead.client import httptransport, transport

GET = transport.Request(method="GET", target="/v1/status?a=1")
_HEAD = b"HTTP/1.1 200 OK\r\n"
_BODY = _HEAD + b"content-length: 4\r\n\r\nbody"


@dataclass
class Server:
    """Answers every connection with the same bytes."""

    listener: socket.socket
    answer: bytes
    is_silent: bool
    """Keeps connections open after its answer."""
    url: str
    heads: list[str] = field(default_factory=list)

    def serve(self) -> None:
        held = []
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                break
            self.heads.append(connection.recv(65536).decode())
            with contextlib.suppress(OSError):
                connection.sendall(self.answer)
            if self.is_silent:
                held.append(connection)
            else:
                connection.close()
        for connection in held:
            connection.close()


@contextlib.contextmanager
def answering(answer: bytes, *, is_silent: bool = False, path: Path | None = None) -> Iterator[Server]:
    listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    listener.bind(str(path) if path else ("127.0.0.1", 0))
    listener.listen()
    url = f"http+unix://{path}" if path else f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = Server(listener, answer, is_silent, url)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        # close() alone would leave accept() waiting.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def whole(url: str, *, timeout_s: float | None = 5) -> bytes:
    with httptransport.HTTPTransport(url).send(GET, timeout_s=timeout_s) as answer:
        return answer.read()


def pieces(url: str) -> bytes:
    with httptransport.HTTPTransport(url).send(GET, timeout_s=5) as answer:
        return b"".join(answer.pieces())


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("read", [whole, pieces])
@pytest.mark.parametrize(
    "body",
    [
        b"content-length: 4\r\n\r\nbody",
        b"transfer-encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
    ],
)
def test_a_body_is_read_however_it_is_framed(read: Callable[[str], bytes], body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with answering(_HEAD + body, path=path):
        assert read(f"http+unix://{path}") == b"body"


@pytest.mark.parametrize("read", [whole, pieces])
@pytest.mark.parametrize(
    "answer",
    [
        _HEAD + b"content-length: 9\r\n\r\nbody",
        _HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nbo\r\n9\r\ndy",
        b"HTTP/1.1 200",
        _HEAD,
        _HEAD + b"\r\nbody",
        b"nothing like HTTP\r\n\r\n",
        b"",
    ],
)
def test_an_answer_that_breaks_off_is_never_taken_for_a_whole_one(read: Callable[[str], bytes], answer: bytes) -> None:
    with answering(answer) as server, pytest.raises(errors.Unavailable, match="broke off") as raised:
        read(server.url)
    assert raised.value.reason == "ServiceBrokeOff"


@pytest.mark.parametrize("head", [b"content-length: 99999999999\r\n\r\n", b"transfer-encoding: chunked\r\n\r\nfff\r\n"])
def test_a_service_that_does_not_stop_is_left(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httptransport, "_LARGEST", 1000)
    with answering(_HEAD + head + bytes(0xFFF), is_silent=True) as server, pytest.raises(errors.Unavailable) as raised:
        whole(server.url)
    assert raised.value.reason == "ServiceTooLoud"


@pytest.mark.parametrize("answer", [b"", _HEAD + b"content-length: 4\r\n\r\nbo"])
def test_a_silent_service_is_given_up(answer: bytes) -> None:
    with answering(answer, is_silent=True) as server, pytest.raises(errors.Unavailable) as raised:
        whole(server.url, timeout_s=0.05)
    assert raised.value.reason == "ServiceSlow"


def test_pieces_come_while_the_answer_is_still_open() -> None:
    body = b"transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"
    with (
        answering(_HEAD + body, is_silent=True) as server,
        httptransport.HTTPTransport(server.url).send(GET, timeout_s=None) as answer,
    ):
        assert next(answer.pieces()) == b"first"


def test_a_socket_that_is_not_there_names_the_verb_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="no service runs here") as raised:
        whole(str(tmp_path / "api.sock"))
    assert "fairlead up" in str(raised.value.hint)


@pytest.mark.parametrize("session", [False, True])
def test_a_socket_nobody_listens_at_is_unreachable(session: bool, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(path))
    carrier = httptransport.HTTPTransport(str(path))
    asked = carrier.connect("/v1/x") if session else carrier.send(GET, timeout_s=1)
    with pytest.raises(errors.Unavailable, match="does not answer") as raised, asked:
        pass
    assert raised.value.reason == "ServiceUnreachable"


def test_a_path_and_a_password_in_the_address_are_used_and_the_password_is_never_shown() -> None:
    with answering(_HEAD + b"content-length: 7\r\n\r\nno json") as server:
        url = server.url.replace("//", "//me:s%20cret@") + "/behind/"
        with pytest.raises(errors.ProtocolError) as raised:
            client.at(url).get("/v1/gpus")
    assert server.heads[0].startswith("GET /behind/v1/gpus HTTP/1.1\r\n")
    assert "authorization: Basic bWU6cyBjcmV0" in server.heads[0]
    assert f"{server.url}/behind" in raised.value.message
    assert "cret" not in raised.value.message


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "http://x:70000", "socket", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(errors.Invalid) as raised:
        httptransport.HTTPTransport(url)
    assert raised.value.reason == "URLInvalid"


def test_the_environments_proxy_is_asked_for_the_whole_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(_BODY) as server:
        monkeypatch.setenv("http_proxy", server.url)
        assert whole("http://fairlead.example") == b"body"
    assert server.heads[0].startswith("GET http://fairlead.example/v1/status?a=1 HTTP/1.1\r\n")
    assert "Host: fairlead.example\r\n" in server.heads[0]


def test_https_tunnels_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b"HTTP/1.1 403 Forbidden\r\n\r\n") as server:
        monkeypatch.setenv("https_proxy", server.url)
        with pytest.raises(errors.Unavailable, match="403"):
            whole("https://fairlead.example")
    assert server.heads[0].startswith("CONNECT fairlead.example:443 HTTP/1.")


def test_no_proxy_and_unix_sockets_go_straight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    path = tmp_path / "api.sock"
    with answering(_BODY) as server, answering(_BODY, path=path):
        assert (whole(server.url), whole(str(path))) == (b"body", b"body")


@pytest.mark.parametrize("proxy", ["socks5://x:1", "http://me:secret@x", "http://x:port"])
def test_a_proxy_that_cannot_be_used_is_refused_without_its_password(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(errors.Invalid) as raised:
        whole("http://fairlead.example")
    assert raised.value.reason == "ProxyInvalid"
    assert "secret" not in f"{raised.value.message}{raised.value.hint}"


def test_an_upgrade_that_came_too_late_is_sent_once_more() -> None:
    asked: list[str] = []

    def judge(connection: websocket.ServerConnection, request: Request) -> Response | None:
        asked.append(request.path)
        return connection.respond(HTTPStatus.REQUEST_TIMEOUT, "") if len(asked) < 2 else None

    with websocket.serve(lambda one: one.send(b"hello"), "127.0.0.1", 0, process_request=judge) as there:
        serving = threading.Thread(target=there.serve_forever)
        serving.start()
        try:
            carrier = httptransport.HTTPTransport(f"http://127.0.0.1:{there.socket.getsockname()[1]}")
            with carrier.connect("/v1/x") as session:
                assert next(session.frames()) == b"hello"
        finally:
            there.shutdown()
            serving.join(10)
    assert asked == ["/v1/x", "/v1/x"]


def test_a_session_is_left_at_once_where_frames_are_unread() -> None:
    """The answer to our close stands behind the frames: who detaches from a container that prints waits for none."""

    def print_without_end(one: websocket.ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                one.send(b"x" * 65536)

    with websocket.serve(print_without_end, "127.0.0.1", 0) as there:
        threading.Thread(target=there.serve_forever, daemon=True).start()
        port = there.socket.getsockname()[1]
        begun_at = time.monotonic()
        with httptransport.HTTPTransport(f"http://127.0.0.1:{port}").connect("/x") as session:
            next(session.frames())
        assert time.monotonic() - begun_at < 5
        there.shutdown()
