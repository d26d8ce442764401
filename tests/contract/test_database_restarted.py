"""PostgreSQL restarted, as by a crash, while people submit: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import collections
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sqla

from fairlead.serve.accounts import stores
from fairlead.serve.accounts.roles import Role
from fairlead.serve.database import engine, schema
from fairlead.serve.webhooks.watcher import Watcher
from fairlead.wire.kubernetes import core
from tests.contract import postgres
from tests.unit.serve.conftest import world
from tests.unit.serve.v1.accounts.test_api_accounts import Lab
from tests.unit.serve.world import World

__all__ = ["world"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_PEOPLE, _EACH = 6, 10
_REFUSED = 503


async def _submit(lab: Lab, who: int, answers: dict[str, list[int]], restarts: asyncio.Event) -> None:
    """Submit containers one after another, each until it is answered, as the command line does."""
    async with lab.client("developer") as client:
        for number in range(_EACH):
            name = f"p{who}-{number}"
            body = {"image": "demo", "name": name, "command": ["sleep", "600"], "tenancy": "red"}
            while True:
                answer = await client.post("/v1/containers", json=body, headers={"idempotency-key": name})
                answers[name].append(answer.status_code)
                if answer.status_code != _REFUSED:
                    break
                assert answer.json()["reason"] in {"DatabaseUnreachable", "AuditUnavailable"}, answer.text
                await asyncio.sleep(0.05)
            if who == 0 and number == _EACH // 3:
                restarts.set()


async def _restart(server: postgres.Server, restarts: asyncio.Event) -> None:
    await restarts.wait()
    await asyncio.to_thread(server.restart)


async def test_a_database_that_crashes_under_load_loses_and_doubles_nothing(world: World, tmp_path: Path) -> None:
    answers: dict[str, list[int]] = collections.defaultdict(list)
    with postgres.running() as server:
        async with engine.opened(engine.url_of(server.address, tmp_path)) as database:
            lab = Lab(world, stores.open_accounts(database))
            await lab.tenancy("red")
            await lab.account("developer", role=Role.DEVELOPER)
            await lab.account("root", is_root=True)
            assert (await lab.ask("root", "POST", "/v1/webhooks", json={"url": "https://hooks.example/"})).is_success
            kept: Any = lab.accounts.webhooks
            restarts = asyncio.Event()
            async with asyncio.TaskGroup() as watching:
                watcher = watching.create_task(Watcher(world.store, kept).run())
                async with asyncio.TaskGroup() as group:
                    group.create_task(_restart(server, restarts))
                    for who in range(_PEOPLE):
                        group.create_task(_submit(lab, who, answers, restarts))
                told = await _told(database)
                watcher.cancel()
            rows = await _audit(lab)

    names = sorted(answers)
    assert len(names) == _PEOPLE * _EACH
    assert {codes[-1] for codes in answers.values()} == {201}
    assert any(_REFUSED in codes for codes in answers.values()), "the restart met no request: the test proved nothing"
    pods = [one.metadata.name for one in (await world.store.list(core.Pod)).items]
    assert sorted(pods) == names
    # Each container is told once at its creation, and each answer that was given has its row.
    assert told == dict.fromkeys(names, 1)
    answered = [row for row in rows if row["action"] == "container.run" and row["status"] == 201]
    assert len(answered) >= len(names) - _PEOPLE, "more than what was under way at the crash is missing"
    begun = sum(len(codes) for codes in answers.values())
    assert len(answered) <= begun


async def _told(database: sqla.AsyncEngine) -> dict[str, int]:
    """Return how often each container's first event is on its way, once all are."""
    counts = collections.Counter[str]()
    async with asyncio.timeout(60):
        while len(counts) < _PEOPLE * _EACH:
            async with engine.transaction(database) as connection:
                found = (await connection.execute(sa.select(schema.WEBHOOK_EVENT.c.body))).scalars().all()
            bodies = [json.loads(one) for one in found]
            counts = collections.Counter(one["data"]["name"] for one in bodies if one["type"] == "container.pending")
            await asyncio.sleep(0.2)
    return dict(counts)


async def _audit(lab: Lab) -> list[dict[str, Any]]:
    found, after = list[dict[str, Any]](), ""
    async with lab.client("root") as client:
        while True:
            answer: httpx.Response = await client.get("/v1/audit", params={"limit": 500, "cursor": after})
            page = answer.json()
            found += page["items"]
            if not (after := page.get("next", "")):
                return found
