"""A server that is stopped ends what is under way so that clients can go on, and logs no failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.serve import server
from fairlead.serve.api import patience

_STARTS = {"lines": b"application/x-ndjson", "events": b"text/event-stream; charset=utf-8", "bytes": b"text/plain"}


async def _app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Wait for ever, or stream for ever, as the path says."""
    name = scope["path"].strip("/")
    if scope["method"] == "POST":
        await _change(receive, send)
        return
    if name in _STARTS:
        headers = [(b"content-type", _STARTS[name]), (b"transfer-encoding", b"chunked")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
    await asyncio.Event().wait()


async def _change(receive: Any, send: Any) -> None:
    """Change something, then wait for a state."""
    while (await receive()).get("more_body"):
        pass

    async def waits(_scope: Any, _receive: Any, send: Any) -> None:
        with contextlib.suppress(TimeoutError):
            async with patience.wait(60):
                await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    scope: Any = {"type": "http"}
    await patience.attending(waits)(scope, receive, send)


@contextlib.asynccontextmanager
async def _stopped(path: Path, asked: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """Serve, ask, and stop the service while the answer is awaited."""
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve_unix(_app, path, ready=ready))
        await ready.wait()
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30) as client:
            going = asyncio.Event()
            asking = group.create_task(asked(client, going))
            await going.wait()
            serving.cancel()
            yield asking


async def _wait(client: httpx.AsyncClient, going: asyncio.Event, method: str = "GET") -> httpx.Response:
    asyncio.get_running_loop().call_later(0.3, going.set)
    return await client.request(method, "/wait", content=b"{}" if method == "POST" else None)


async def test_a_request_that_waits_is_answered_with_503_and_when_to_come_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with _stopped(tmp_path / "api.sock", _wait) as asking:
        answer = await asking
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["reason"] == "ServiceStopping"
    assert caplog.records == []


async def test_a_change_is_carried_out_and_its_wait_ends_early(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with _stopped(tmp_path / "api.sock", lambda client, going: _wait(client, going, "POST")) as asking:
        answer = await asking
    assert (answer.status_code, answer.text) == (202, "done")
    assert caplog.records == []


async def _followed(client: httpx.AsyncClient, going: asyncio.Event, name: str) -> tuple[bytes, str]:
    """Return all that came, and how it broke off; empty: it did not."""
    data = b""
    async with client.stream("GET", f"/{name}") as answer:
        try:
            async for piece in answer.aiter_raw():
                data += piece
                going.set()
        except httpx.HTTPError as error:
            return data, type(error).__name__
    return data, ""


@pytest.mark.parametrize("name", ["lines", "events", "bytes"])
async def test_a_stream_ends_as_its_form_allows(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with _stopped(tmp_path / "api.sock", lambda client, going: _followed(client, going, name)) as asking:
        data, broken = await asking
    assert data.startswith(b"first\n")
    assert bool(broken) == (name == "bytes")  # no byte of ours among a process's output: the answer is not whole
    if name == "lines":
        assert json.loads(data.splitlines()[-1])["problem"]["reason"] == "ServiceStopping"
    if name == "events":
        retry, event, said = data.decode().splitlines()[1:4]
        assert (retry, event) == ("retry: 2000", "event: problem")
        assert json.loads(said.removeprefix("data: "))["status"] == 503
    assert caplog.records == []
