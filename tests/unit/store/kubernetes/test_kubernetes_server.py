"""What an API server answers beside objects, over a real connection: its version, permissions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from fairlead import errors
from fairlead.store.kubernetes import client, credentials
from fairlead.store.kubernetes import server as servers
from fairlead.wire.kubernetes import kubeconfig

_LIMITS = client.Limits(patience_s=0.01)


class Answers:
    """An API server of two paths."""

    def __init__(self) -> None:
        self.version: dict[str, object] | str = {"gitVersion": "v1.36.2"}
        self.asked: dict[str, object] = {}

    async def show_version(self, _: web.Request) -> web.Response:
        return web.json_response(self.version)

    async def review(self, request: web.Request) -> web.Response:
        self.asked = json.loads(await request.text())["spec"]["resourceAttributes"]
        return web.json_response({"status": {"allowed": self.asked["resource"] == "pods"}})


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def server(answers: Answers) -> AsyncIterator[servers.Server]:
    application = web.Application()
    application.router.add_get("/version", answers.show_version)
    application.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", answers.review)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    address = f"http://{host}:{port}"
    access = credentials.Access(
        cluster=kubeconfig.Cluster(server=address), user=kubeconfig.User(), namespace="default", env={}
    )
    async with client.Client(access, limits=_LIMITS) as connections:
        yield servers.Server(connections, address=address)
    await runner.cleanup()


async def test_the_version_is_the_servers(server: servers.Server, answers: Answers) -> None:
    assert await server.version() == "v1.36.2"
    answers.version = "what"
    with pytest.raises(errors.ProtocolError, match="says no version"):
        await server.version()


async def test_a_right_is_asked_for_as_it_is_named(server: servers.Server, answers: Answers) -> None:
    assert await server.may("get", "pods", part="log")
    assert answers.asked == {"verb": "get", "resource": "pods", "subresource": "log"}
    assert not await server.may("list", "gpudevices", group="fairlead.dev", namespace="team")
    assert answers.asked["group"] == "fairlead.dev"
