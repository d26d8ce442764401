"""The application called in this process: answers in pieces, sessions from two threads, no socket that listens."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from fairlead import errors
from fairlead.cli.core import inprocess
from fairlead.client import transport

App = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]
Open = Callable[[App], inprocess.InProcessTransport]
_START = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    def listen(*_: object) -> None:
        raise AssertionError("a socket listens")

    monkeypatch.setattr(socket.socket, "listen", listen)
    with asyncio.Runner() as runner:
        yield lambda app: inprocess.InProcessTransport(app, runner, address="https://cluster:6443")


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def get(target: str = "/") -> transport.Request:
    return transport.Request(method="GET", target=target)


def test_a_request_arrives_whole_and_its_answer_as_well(opened: Open) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        await send(_START | {"status": 201})
        await send(body(repr((scope["method"], scope["path"], scope["query_string"])).encode() + message["body"]))

    request = transport.Request(method="POST", target="/a%20b?c=%2F", body=b"sent")
    with opened(app).send(request, timeout_s=5) as answer:
        assert (answer.status, answer.read()) == (201, b"('POST', '/a b', b'c=%2F')sent")


def test_pieces_come_as_they_are_made_and_never_far_ahead(opened: Open) -> None:
    made = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(_START)
        for number in range(1000):
            made.append(number)
            await send(body(b"%d " % number, more=True))
        await send(body(b""))

    with opened(app).send(get(), timeout_s=None) as answer:
        pieces = answer.pieces()
        assert [next(pieces), next(pieces)] == [b"0 ", b"1 "]
        assert len(made) < 40
        assert b"".join(pieces).split()[-1] == b"999"


def test_leaving_an_answer_ends_what_feeds_it_and_another_may_follow(opened: Open) -> None:
    over = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        try:
            await send(_START)
            await send(body(b"one", more=True))
            await asyncio.Event().wait()
        finally:
            over.append(True)

    carrier = opened(app)
    for count in (1, 2):
        with carrier.send(get(), timeout_s=None) as answer:
            assert next(answer.pieces()) == b"one"
        assert len(over) == count


def test_an_answer_beside_an_open_stream(opened: Open) -> None:
    async def app(scope: Any, _receive: Any, send: Any) -> None:
        await send(_START)
        await send(body(b"first", more=scope["path"] == "/stream"))
        if scope["path"] == "/stream":
            await send(body(b"last"))

    carrier = opened(app)
    with carrier.send(get("/stream"), timeout_s=None) as stream:
        pieces = stream.pieces()
        assert next(pieces) == b"first"
        with carrier.send(get("/other"), timeout_s=5) as other:
            assert other.read() == b"first"
        assert list(pieces) == [b"last"]


def test_silence_and_a_broken_answer_are_told_apart(opened: Open) -> None:
    async def silent(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.Event().wait()

    async def broken(_scope: Any, _receive: Any, send: Any) -> None:
        await send(_START)
        await send(body(b"half", more=True))

    with pytest.raises(errors.Unavailable) as slow, opened(silent).send(get(), timeout_s=0.01):
        pass
    assert slow.value.reason == "ServiceSlow"
    with opened(broken).send(get(), timeout_s=5) as answer, pytest.raises(errors.Unavailable) as cut:
        answer.read()
    assert cut.value.reason == "ServiceBrokeOff"


async def echo(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "end":
            break
        await send({"type": "websocket.send", **{name: message[name] for name in message if name != "type"}})
    await send({"type": "websocket.close"})


def test_one_thread_reads_a_session_while_another_one_sends(opened: Open) -> None:
    with opened(echo).connect("/exec?command=x") as session:
        got: list[bytes | str] = []
        reader = threading.Thread(target=lambda: got.extend(session.frames()))
        reader.start()
        sent = [b"%d" % number for number in range(200)]
        for frame in sent:
            session.send(frame)
        session.send("text")
        session.send("end")
        reader.join(10)
        assert not reader.is_alive()
        session.send(b"after the end nothing is sent and nothing raised")
    assert got == [*sent, "text"]


def test_a_sender_waits_for_a_process_that_takes_nothing_until_the_session_ends(opened: Open) -> None:
    sent: list[int] = []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": b"go"})
        await asyncio.sleep(0.2)
        await send({"type": "websocket.close"})

    with opened(app).connect("/exec") as session:
        reader = threading.Thread(target=lambda: list(session.frames()))
        reader.start()
        for number in range(100):
            session.send(b"x")
            sent.append(number)
            if not reader.is_alive():
                break
        reader.join(10)
        assert not reader.is_alive()
    assert len(sent) < 40


def test_leaving_a_session_frees_the_thread_that_reads_it(opened: Open) -> None:
    with opened(echo).connect("/exec") as session:
        reader = threading.Thread(target=lambda: list(session.frames()))
        reader.start()
        session.send(b"x")
    reader.join(10)
    assert not reader.is_alive()


def test_a_session_that_is_refused_is_an_error(opened: Open) -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 4000})

    with pytest.raises(errors.Unavailable) as told, opened(app).connect("/exec"):
        pass
    assert told.value.reason == "ServiceUnreachable"


def test_a_silent_session_holds_up_no_other_and_no_request(opened: Open) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send(_START)
            await send(body(b"answered"))
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            if scope["path"] == "/echo":
                await send({"type": "websocket.send", "bytes": message["bytes"]})
        await send({"type": "websocket.close", "code": 1000})

    carrier = opened(app)
    with carrier.connect("/silent") as silent:
        waiting = threading.Thread(target=lambda: list(silent.frames()))
        waiting.start()
        with carrier.connect("/echo") as echo:
            frames = echo.frames()
            for number in range(20):
                echo.send(b"%d" % number)
                assert next(frames) == b"%d" % number
            with carrier.send(get(), timeout_s=5) as answer:
                assert answer.read() == b"answered"
    waiting.join(10)
    assert not waiting.is_alive()
