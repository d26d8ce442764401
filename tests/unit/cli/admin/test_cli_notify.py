"""`fairlead notify` on a live service: in a line each, without secrets in arguments or lists."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import Result

from fairlead import Client, errors
from fairlead.serve import server
from fairlead.serve.webhooks import mail
from tests.unit.cli.liveservice import fairlead
from tests.unit.serve.v1.accounts.test_api_accounts import opened
from tests.unit.serve.world import World, application

Call = Callable[..., Awaitable[Result]]
_SERVER = mail.Server(host="mail.example.org", sender="fl@example.org")


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Call]:
    world = World(tmp_path)
    async with opened(world, tmp_path, _SERVER) as lab, asyncio.TaskGroup() as tasks:
        socket, listening = world.services.info.socket, asyncio.Event()
        serving = tasks.create_task(server.serve_unix(application(lab.services), socket, ready=listening))
        await listening.wait()

        async def asked(*words: str) -> Result:
            env = {"FAIRLEAD_URL": f"http+unix://{socket}", "COLUMNS": "80"}
            return await asyncio.to_thread(fairlead, *words, env=env)

        yield asked
        serving.cancel()


async def test_what_root_adds_is_the_machines(call: Call, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("syt_secret\n")
    added = [
        await call("notify", "add", "ann@example.com", "--event", "gpu.*"),
        await call("notify", "add", "https://hooks.example/T/secretpath", "--format", "slack", "-T", "red"),
        await call("notify", "add", "https://m.example/", "--room", "!r/x:m.example", "--token-file", str(token)),
    ]
    assert [one.exit_code for one in added] == [0, 0, 0], [one.stderr for one in added]
    assert all(one.stdout.startswith("whk_") for one in added)
    assert json.loads((await call("notify", "list", "-o", "json")).stdout) == []
    shown = (await call("webhook", "list", "-o", "json")).stdout
    assert [(one["format"], one["tenancy"], one["url"]) for one in json.loads(shown)] == [
        ("email", "", "mailto:ann@example.com"),
        ("slack", "red", "https://hooks.example/…"),
        ("matrix", "", "https://m.example/_matrix/client/v3/rooms/%21r%2Fx%3Am.example/send/m.room.message"),
    ]
    assert "syt_secret" not in shown


async def test_what_is_wrong_is_said(call: Call, tmp_path: Path) -> None:
    refused = await call("notify", "add", "https://hooks.example/x", "--room", "!r:m.example")
    assert "access token" in refused.stderr
    missing = await call("notify", "add", "https://m.example", "--room", "!r:x", "--token-file", str(tmp_path / "none"))
    assert missing.exit_code != 0
    assert "cannot be read" in missing.stderr
    for words in (("remove", "whk_0"), ("show", "whk_0"), ("test", "whk_0"), ("confirm", "whk_0", "1")):
        found = await call("notify", *words)
        assert found.exit_code != 0
        assert "there is no notice" in found.stderr


async def test_python_has_the_same(call: Call, tmp_path: Path) -> None:
    url = f"http+unix://{next(tmp_path.rglob('*.sock'))}"

    def ask() -> None:
        with Client(url) as client:
            made = client.add_notice("https://hooks.example/T/x", form="slack", tenancy="red")
            assert (made.tenancy, made.url) == ("red", "https://hooks.example/…")
            assert list(client.notices()) == []  # root's is the tenancy's webhook
            for act in (client.remove_notice, lambda name: client.confirm_notice(name, "1")):
                with pytest.raises(errors.NotFound):
                    act("whk_0")

    await asyncio.to_thread(ask)
    assert "slack" in (await call("webhook", "list", "-o", "wide")).stdout
