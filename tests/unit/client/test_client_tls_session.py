"""A session over TLS: it opens as late as the service likes, and may be silent for longer than connecting takes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.client import httptransport
from fairlead.client.contexts import Context
from fairlead.serve import certificate, server, sockets

_CONNECT_S = 1.0
_SILENT_S = 1.5
KEY = "flk_0123456789ab_" + "c" * 64


async def _silent(scope: Any, receive: Any, send: Any) -> None:
    """Accept late, say something late."""
    assert scope["type"] == "websocket"
    await receive()
    await asyncio.sleep(_SILENT_S)
    await send({"type": "websocket.accept"})
    await asyncio.sleep(_SILENT_S)
    await send({"type": "websocket.send", "bytes": b"late"})
    await send({"type": "websocket.close", "code": 1000})


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[Context]:
    files = certificate.own(folder)
    certificate.ensure_own(files, ["127.0.0.1"], dt.datetime.now(dt.UTC))
    listener = sockets.listen_at("127.0.0.1:0")
    address = f"https://127.0.0.1:{listener.getsockname()[1]}"
    loop, ending, ended = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(server.serve_tls(_silent, listener, certificate.open_context(files)))
            await ending.wait()
            task.cancel()

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(serve())
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        yield Context(name="lab", url=address, key=KEY, fingerprint=certificate.fingerprint(files))
    finally:
        loop.call_soon_threadsafe(ending.set)
        assert ended.wait(20)


def test_a_session_outlives_the_time_that_a_connection_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httptransport, "_CONNECT_S", _CONNECT_S)
    with _serving(tmp_path) as lab, httptransport.HTTPTransport(lab.url, lab).connect("/x") as session:
        assert list(session.frames()) == [b"late"]
