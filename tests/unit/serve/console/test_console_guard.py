"""What a page of another site has a browser send does nothing, on the socket's tunnel and on TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fairlead import errors
from fairlead.serve.console import app as console
from fairlead.serve.console import guard
from tests.unit.serve.world import World, application, in_process


@pytest.fixture
async def tunnel(world: World) -> AsyncIterator[httpx.AsyncClient]:
    made: Any = console.create_app(application(world.services), has_login=False)
    async with httpx.AsyncClient(transport=in_process(made), base_url="http://localhost:8080") as client:
        yield client


@pytest.mark.parametrize("path", ["/console/run", "/v1/containers"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"origin": "http://localhost:8080", "host": "evil.example:8080"},
        {"origin": "http://evil.example:8080", "host": "evil.example:8080"},
    ],
)
async def test_another_origin_changes_nothing_through_the_tunnel(
    tunnel: httpx.AsyncClient, path: str, headers: dict[str, str]
) -> None:
    answer = await tunnel.post(path, headers=headers, json={"image": "demo"})
    assert (answer.status_code, answer.json()["reason"]) == (403, "OriginForeign")
    assert (await tunnel.get("/v1/containers?all=true")).json()["items"] == []


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.1:8080", "[::2]", "[", "a.localhost.x"])
async def test_a_name_of_the_net_reads_nothing_through_the_tunnel(tunnel: httpx.AsyncClient, host: str) -> None:
    for path in ("/console/", "/v1/containers"):
        assert (await tunnel.get(path, headers={"host": host})).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "localhost", "x", "docker"])
async def test_the_machine_itself_reads_through_the_tunnel(tunnel: httpx.AsyncClient, host: str) -> None:
    assert (await tunnel.get("/console/", headers={"host": host})).status_code == 200
    assert (await tunnel.get("/v1/containers", headers={"host": host})).status_code == 200


async def test_a_websocket_of_another_origin_is_refused_before_it_opens(world: World) -> None:
    made: Any = console.create_app(application(world.services), has_login=False)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    headers = [(b"host", b"localhost"), (b"origin", b"https://evil.example")]
    path = "/v1/containers/x/exec"
    scope = {"type": "websocket", "path": path, "headers": headers, "query_string": b"", "state": {}}
    await made(scope, receive, send)
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 403)


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({"sec-fetch-site": "same-origin", "origin": "https://h"}, True),
        ({"sec-fetch-site": "none", "origin": "https://h"}, True),
        ({"origin": "https://h"}, True),
        ({"sec-fetch-site": "same-site", "origin": "https://h"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "https://h"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://other"}, False),
        ({"origin": "null"}, False),
        ({}, False),
    ],
)
def test_a_form_must_be_of_a_page_of_ours(headers: dict[str, str], is_ours: bool) -> None:
    given = [(b"host", b"h"), *((name.encode(), value.encode()) for name, value in headers.items())]
    guard.check_form("GET", given)
    if is_ours:
        guard.check_form("POST", given)
        return
    with pytest.raises(errors.Denied, match="comes from a page"):
        guard.check_form("POST", given)
