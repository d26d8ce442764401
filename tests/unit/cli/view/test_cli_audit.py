"""`fairlead audit` on a live service with accounts: oldest first, bounded, and fit for a terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from fairlead.serve import server
from tests.unit.cli.liveservice import fairlead
from tests.unit.serve.v1.accounts.test_api_accounts import opened
from tests.unit.serve.world import World, application

Call = Callable[..., Awaitable[str]]


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Call]:
    """Run a line as root on a service where four requests came by TLS."""
    world = World(tmp_path)
    async with opened(world, tmp_path) as lab, asyncio.TaskGroup() as tasks:
        for who, method, path in (
            ("root", "DELETE", "/v1/users/nothing"),
            ("viewer", "GET", "/v1/nodes"),
            ("developer", "POST", "/v1/containers"),
            ("root", "DELETE", "/v1/users/nobody"),
        ):
            await lab.ask(who, method, path)
        socket, listening = world.services.info.socket, asyncio.Event()
        serving = tasks.create_task(server.serve_unix(application(lab.services), socket, ready=listening))
        await listening.wait()

        async def asked(*words: str) -> str:
            env = {"FAIRLEAD_URL": f"http+unix://{socket}", "COLUMNS": "80"}
            result = await asyncio.to_thread(fairlead, "audit", *words, env=env)
            assert result.exit_code == 0, result.stderr
            return str(result.stdout)

        yield asked
        serving.cancel()


async def test_the_last_entries_are_listed_oldest_first_and_fit_the_terminal(call: Call) -> None:
    lines = (await call()).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["AT", "ACCOUNT", "OUTCOME", "REQUEST"]
    shown = [line.split()[1] for line in lines[1:]]
    assert shown == ["root", "viewer", "developer", "root"]
    assert "403 RoleForbids" in lines[2]
    assert len((await call("-n", "2")).splitlines()) == 3


async def test_entries_are_chosen_by_account_and_time_and_given_as_json(call: Call) -> None:
    found = json.loads(await call("--user", "root", "--since", "1h", "-o", "json"))
    assert [(one["object"], one["status"]) for one in found] == [("/v1/users/nothing", 404), ("/v1/users/nobody", 204)]
    assert all(one["at"].endswith("Z") for one in found)
    assert json.loads(await call("--until", "1h", "-o", "json")) == []
    ids = (await call("-o", "name")).split()
    assert len(set(ids)) == 4
