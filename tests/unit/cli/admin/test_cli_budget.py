"""`fairlead budget` on a live service: set, shown, listed, removed; and what it refuses by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import Result

from fairlead.serve import server
from tests.unit.cli.conftest import Service
from tests.unit.cli.liveservice import fairlead
from tests.unit.serve.v1.accounts.test_api_accounts import opened
from tests.unit.serve.v1.budgets.test_api_budgets import Held
from tests.unit.serve.world import World, application

Call = Callable[..., Awaitable[Result]]


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Call]:
    world = World(tmp_path)
    async with opened(world, tmp_path) as lab, asyncio.TaskGroup() as tasks:
        Held(lab)  # what is spent has prices
        socket, listening = world.services.info.socket, asyncio.Event()
        serving = tasks.create_task(server.serve_unix(application(lab.services), socket, ready=listening))
        await listening.wait()

        async def asked(*words: str) -> Result:
            env = {"FAIRLEAD_URL": f"http+unix://{socket}", "COLUMNS": "80"}
            return await asyncio.to_thread(fairlead, "budget", *words, env=env)

        yield asked
        serving.cancel()


async def test_a_budget_is_set_shown_listed_and_removed(call: Call) -> None:
    made = await call("set", "red", "100", "--action", "refuse")
    assert made.exit_code == 0, made.stderr
    assert made.stdout == "red: 100.00 EUR a month, then refuse\n"
    shown = await call("show", "red", "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)["tenancy"] == "red"
    listed = await call("list", "-o", "name")
    assert listed.stdout == "red\n"
    removed = await call("remove", "red")
    assert removed.stdout == "red: no budget\n"
    gone = await call("show", "red")
    assert gone.exit_code == 2
    assert "red" in gone.stderr


@pytest.mark.parametrize("text", ["half", "50,-1", "٣", "9" * 5000])
def test_what_is_no_percentage_is_named(service: Service, text: str) -> None:
    answer = service.fairlead("budget", "set", "red", "100", f"--notify-percent={text}")
    assert "is not percentages" in answer.stderr
    assert answer.exit_code == 2


@pytest.mark.parametrize("name", ["", ".", ".."])
@pytest.mark.parametrize("words", [("budget", "show"), ("tenancy", "show"), ("inspect",), ("queue", "rm"), ("stop",)])
def test_a_name_that_is_another_path_is_refused(service: Service, words: tuple[str, ...], name: str) -> None:
    answer = service.fairlead(*words, name)
    assert (answer.exit_code, f'"{name}" is no name' in answer.stderr) == (2, True), answer.output
