"""The socket: its mode, what is found in its place, its end. And paths that end in a verb."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead import errors
from fairlead.serve import server, sockets
from fairlead.serve.api import app as api_app


async def _hello(scope: dict[str, Any], _receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def _served(path: Path) -> str:
    """Serve, ask once, cancel; return the answer."""
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.serve_unix(_hello, path, ready=ready))
        await ready.wait()
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://test") as it:
            text = (await it.get("/")).text
        task.cancel()
    return text


async def test_it_serves_until_cancelled_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run" / "api.sock"
    assert await _served(path) == "hello"
    assert list(path.parent.iterdir()) == []


def test_the_socket_belongs_to_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    before = os.umask(0)
    try:
        with sockets.listen(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert [item.name for item in tmp_path.iterdir()] == ["api.sock"]
    finally:
        os.umask(before)


async def test_a_dead_services_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
    assert await _served(path) == "hello"


def test_a_living_service_is_not_pushed_aside(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with sockets.listen(path):
        inode = path.stat().st_ino
        with pytest.raises(errors.Conflict) as caught:
            sockets.listen(path)
        assert (caught.value.reason, path.stat().st_ino) == ("ServiceRunning", inode)


def test_a_file_in_its_place_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("precious")
    with pytest.raises(errors.Conflict) as caught:
        sockets.listen(path)
    assert (caught.value.reason, path.read_text()) == ("SocketPathTaken", "precious")


def test_a_path_the_kernel_does_not_take_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid) as caught:
        sockets.listen(tmp_path / ("x" * 120))
    assert caught.value.reason == "SocketPathTooLong"


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.Unavailable) as caught:
        sockets.listen(tmp_path / "file" / "api.sock")
    assert caught.value.reason == "SocketUnusable"


@pytest.mark.parametrize(
    ("path", "routed"),
    [
        ("/v1/containers/a:stop", "/v1/containers/a/:stop"),
        ("/v1/images:import", "/v1/images:import"),
        ("/v1/containers/a", "/v1/containers/a"),
        ("/v1/containers/a/logs", "/v1/containers/a/logs"),
        ("/v1/containers/:stop", "/v1/containers/:stop"),
        ("/", "/"),
    ],
)
def test_verbs_are_split_from_names(path: str, routed: str) -> None:
    assert api_app.split_verb(path) == routed
