"""`fairlead webhook` on a live service: the secret once, and lists that fit a terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import Result

from fairlead.serve import server
from tests.unit.cli.liveservice import fairlead
from tests.unit.serve.v1.accounts.test_api_accounts import opened
from tests.unit.serve.world import World, application

Call = Callable[..., Awaitable[Result]]


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Call]:
    world = World(tmp_path)
    async with opened(world, tmp_path) as lab, asyncio.TaskGroup() as tasks:
        socket, listening = world.services.info.socket, asyncio.Event()
        serving = tasks.create_task(server.serve_unix(application(lab.services), socket, ready=listening))
        await listening.wait()

        async def asked(*words: str) -> Result:
            env = {"FAIRLEAD_URL": f"http+unix://{socket}", "COLUMNS": "80"}
            return await asyncio.to_thread(fairlead, "webhook", *words, env=env)

        yield asked
        serving.cancel()


async def test_a_webhook_is_made_tried_shown_and_deleted(call: Call) -> None:
    made = await call("create", "https://hooks.example/fairlead", "-T", "red", "--event", "container.*")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.startswith("whsec_")
    id_ = (await call("list", "-o", "name")).stdout.strip()
    sent = (await call("test", id_)).stdout.strip()
    listed = (await call("list")).stdout.splitlines()
    assert listed[0].split() == ["ID", "TENANCY", "EVENTS", "PENDING", "URL"]
    assert listed[1].split()[:-1] == [id_, "red", "container.pending", "+11", "1"]
    assert listed[1].split()[-1].startswith("https://hooks")
    shown = await call("show", id_)
    assert shown.stdout.splitlines()[1].split()[1:] == ["webhook.test", "pending", "0", "-"]
    assert max(map(len, [*listed, *shown.stdout.splitlines()])) <= 80
    found = json.loads((await call("show", id_, "-o", "json")).stdout)
    assert [one["id"] for one in found["deliveries"]] == [sent]
    assert made.stdout.strip() not in shown.stdout + str(found)
    assert (await call("delete", id_)).stdout == f"{id_}: deleted\n"
    gone = await call("show", id_)
    assert (gone.exit_code, "there is no webhook" in gone.stderr) == (2, True)


async def test_an_address_inside_is_refused_with_the_setting_to_change(call: Call) -> None:
    refused = await call("create", "https://169.254.169.254/latest")
    assert refused.exit_code == 3
    assert "webhooks.allow" in refused.stderr
