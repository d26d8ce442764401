"""Webhooks by the API, and what containers and GPUs do that is told to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.serve.database import engine, schema
from fairlead.serve.webhooks import watcher as watching
from fairlead.serve.webhooks.port import Outbox
from fairlead.serve.webhooks.watcher import Watcher
from fairlead.store import port as stores
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, gpulease, meta
from tests.unit.plan.metering.leases import lease
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World

URL = "https://hooks.example/fairlead"
_EVENT = schema.WEBHOOK_EVENT.c


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def _make(lab: Lab, who: str, **body: Any) -> Any:
    return await lab.ask(who, "POST", "/v1/webhooks", json={"url": URL, **body})


async def test_admins_of_a_tenancy_keep_its_webhooks_and_see_no_others(lab: Lab) -> None:
    made = await _make(lab, "admin", tenancy="red", events=["container.*"])
    assert made.status_code == 201, made.text
    assert made.json()["secret"].startswith("whsec_")
    id_ = made.json()["webhook"]["id"]
    await _make(lab, "root")
    refused = await _make(lab, "admin")
    assert (refused.status_code, refused.json()["reason"]) == (403, "RoleForbids")
    assert (await _make(lab, "developer", tenancy="red")).status_code == 403
    assert (await _make(lab, "stranger", tenancy="red")).status_code == 404
    for who, seen in (("owner", 1), ("stranger", 0), ("root", 2)):
        answer = await lab.ask(who, "GET", "/v1/webhooks")
        assert len(answer.json()["items"]) == seen, who
        assert made.json()["secret"] not in answer.text
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", ":test")):
        assert (await lab.ask("stranger", method, f"/v1/webhooks/{id_}{path}")).status_code == 404
    tried = await lab.ask("owner", "POST", f"/v1/webhooks/{id_}:test")
    shown = (await lab.ask("owner", "GET", f"/v1/webhooks/{id_}")).json()
    assert [(one["id"], one["type"]) for one in shown["deliveries"]] == [(tried.json()["id"], "webhook.test")]
    assert (await lab.ask("admin", "DELETE", f"/v1/webhooks/{id_}")).status_code == 204
    assert (await lab.ask("admin", "GET", f"/v1/webhooks/{id_}")).json()["reason"] == "WebhookUnknown"


async def test_what_cannot_be_sent_to_is_refused_with_the_reason(lab: Lab) -> None:
    for body, reason in (
        ({"url": "https://127.0.0.1/"}, "WebhookAddressRefused"),
        ({"url": "x"}, "WebhookURLInvalid"),
        ({"events": ["container.exploded"]}, "EventUnknown"),
    ):
        assert (await _make(lab, "admin", tenancy="red", **body)).json()["reason"] == reason


async def _told(lab: Lab) -> list[tuple[str, Any]]:
    kept: Any = lab.accounts.webhooks
    async with engine.transaction(kept.database) as connection:
        found = await connection.execute(sa.select(_EVENT.body).order_by(_EVENT.created_at))
    bodies = [json.loads(body) for (body,) in found]
    return [(one["type"], one["data"].get("name") or one["data"].get("gpu", "")) for one in bodies]


def _pod(lab: Lab, name: str, phase: str, *, of: str = "red") -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace=lab.namespaces[of], uid=f"uid-{name}"),
        spec=core.PodSpec(containers=(core.Container(name="main", image="demo"),)),
        status=core.PodStatus(phase=phase),
    )


async def _again(lab: Lab) -> Watcher:
    """Return the watcher of a service that was started again."""
    outbox: Outbox = lab.accounts.webhooks  # type: ignore[assignment]  # one store is both
    made = Watcher(lab.world.store, outbox)
    made._seen = dict(await outbox.seen())
    return made


async def test_a_containers_phases_are_told_once_each_and_the_present_one_after_a_restart(lab: Lab) -> None:
    await _make(lab, "root")
    outbox: Outbox = lab.accounts.webhooks  # type: ignore[assignment]  # one store is both
    watcher = Watcher(lab.world.store, outbox)
    running, failed = _pod(lab, "train", "Running"), _pod(lab, "train", "Failed")
    for _ in range(2):
        await watcher.handle(("pod:", (running,)))
    assert await _told(lab) == [("container.running", "train")]
    later = await _again(lab)
    await later.handle(("pod:", (failed,)))
    assert await _told(lab) == [("container.running", "train"), ("container.failed", "train")]
    await later.handle(stores.Change(kind=stores.ChangeKind.DELETED, object=failed))
    await later.handle(stores.Change(kind=stores.ChangeKind.DELETED, object=failed))
    assert [type_ for type_, _ in await _told(lab)][2:] == ["container.removed"]
    assert await outbox.seen() == {}


async def test_a_container_with_another_name_is_told_of_under_it_and_never_as_removed(lab: Lab) -> None:
    await _make(lab, "root")
    outbox: Outbox = lab.accounts.webhooks  # type: ignore[assignment]  # as above
    watcher = Watcher(lab.world.store, outbox)
    waiting = _pod(lab, "old", "Pending")
    come = _pod(lab, "new", "Running")
    come = msgspec.structs.replace(come, metadata=msgspec.structs.replace(come.metadata, uid=waiting.metadata.uid))
    await watcher.handle(("pod:", (waiting,)))
    await watcher.handle(stores.Change(kind=stores.ChangeKind.DELETED, object=waiting, renamed_to="new"))
    await watcher.handle(stores.Change(kind=stores.ChangeKind.ADDED, object=come))
    assert (await _told(lab))[-1] == ("container.running", "new")
    assert "container.removed" not in {type_ for type_, _ in await _told(lab)}


async def test_a_container_that_went_while_the_service_was_down_is_told_to_its_tenancy(lab: Lab) -> None:
    await _make(lab, "admin", tenancy="red")
    outbox: Outbox = lab.accounts.webhooks  # type: ignore[assignment]  # as above
    watcher = Watcher(lab.world.store, outbox)
    await watcher.handle(("pod:", (_pod(lab, "train", "Running"), _pod(lab, "other", "Running", of="blue"))))
    await (await _again(lab)).handle(("pod:", ()))
    assert [type_ for type_, _ in await _told(lab)] == ["container.running", "container.removed"]


async def test_a_gpu_that_is_quarantined_is_told_to_the_machines_webhooks_once(lab: Lab) -> None:
    await _make(lab, "root", events=["gpu.quarantined"])
    await _make(lab, "admin", tenancy="red")
    outbox: Outbox = lab.accounts.webhooks  # type: ignore[assignment]  # as above
    watcher = Watcher(lab.world.store, outbox)
    bad = lease("a", 1.0, 2.0, gpu=7, state=gpulease.QUARANTINED)
    for items in ((lease("b", 1.0, None),), (bad,), (bad,)):
        await watcher.handle(("lease:", items))
    assert await _told(lab) == [("gpu.quarantined", "GPU-7")]


class _Counted:
    """A store whose lists of tenancies are counted."""

    def __init__(self, store: stores.Store) -> None:
        self._store, self.lists = store, 0

    async def list(self, kind: Any, *args: Any) -> Any:
        self.lists += kind is Tenancy
        return await self._store.list(kind, *args)


async def test_tenancies_are_asked_for_once_and_kept_from_the_watch(lab: Lab) -> None:
    await _make(lab, "admin", tenancy="red")
    outbox: Outbox = lab.accounts.webhooks  # type: ignore[assignment]  # as above
    counted = _Counted(lab.world.store)
    watcher = Watcher(counted, outbox)  # type: ignore[arg-type]  # it only lists
    red = await lab.world.store.get(Tenancy, "red")
    await watcher.handle(("tenancy:", (red,)))
    for number in range(3):
        await watcher.handle(("pod:", (_pod(lab, f"own-{number}", "Running"),)))
        stray = core.Pod(metadata=meta.ObjectMeta(name=f"s{number}", namespace="default", uid=f"u{number}"))
        await watcher.handle(stores.Change(kind=stores.ChangeKind.ADDED, object=stray))
    assert counted.lists == 1
    assert [name for type_, name in await _told(lab) if type_ == "container.running"] == ["own-0", "own-1", "own-2"]
    await watcher.handle(stores.Change(kind=stores.ChangeKind.MODIFIED, object=red))
    await watcher.handle(stores.Change(kind=stores.ChangeKind.ADDED, object=_pod(lab, "own-3", "Running")))
    assert counted.lists == 1
    await watcher.handle(stores.Change(kind=stores.ChangeKind.DELETED, object=red))
    await watcher.handle(stores.Change(kind=stores.ChangeKind.ADDED, object=_pod(lab, "own-4", "Running")))
    assert counted.lists == 2


async def test_a_running_watcher_hears_of_changes(lab: Lab) -> None:
    await _make(lab, "root")
    outbox: Outbox = lab.accounts.webhooks  # type: ignore[assignment]  # as above
    async with asyncio.TaskGroup() as group, asyncio.timeout(20):
        running = group.create_task(Watcher(lab.world.store, outbox).run())
        await lab.run("developer", "train", tenancy="red")
        await _until(lab, "train")
        running.cancel()


class _Away:
    """An outbox whose database takes nothing until it is back."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self.back, self.refused = outbox, asyncio.Event(), asyncio.Event()

    async def seen(self) -> Mapping[str, str]:
        return await self._outbox.seen()

    async def record(self, *words: Any) -> None:
        if not self.back.is_set():
            self.refused.set()
            raise errors.Unavailable("no database", reason="DatabaseUnreachable")
        await self._outbox.record(*words)


async def test_more_changes_than_may_wait_for_the_database_are_listed_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _make(lab, "root")
    outbox = _Away(lab.accounts.webhooks)  # type: ignore[arg-type]  # as above
    monkeypatch.setattr(watching, "_MOST", 8)
    monkeypatch.setattr(watching, "_AGAIN_S", 0.02)
    async with asyncio.TaskGroup() as group, asyncio.timeout(20):
        running = group.create_task(Watcher(lab.world.store, outbox).run())  # type: ignore[arg-type]  # its two verbs
        await lab.run("developer", "first", tenancy="red")
        await outbox.refused.wait()
        with capture_logs() as logged:
            for number in range(15):
                await lab.run("developer", f"train-{number}", tenancy="red")
                await asyncio.sleep(0)
            while not any("listed again" in one["event"] for one in logged):  # noqa: ASYNC110  a log has no event
                await asyncio.sleep(0.02)
        monkeypatch.setattr(watching, "_MOST", 100)
        outbox.back.set()
        names = ["first", *(f"train-{number}" for number in range(15))]
        for name in names:
            await _until(lab, name)
        running.cancel()
    told = await _told(lab)
    assert {name for _, name in told} == set(names)
    assert len(told) == len(set(told)), "a state was told twice"


async def _until(lab: Lab, name: str) -> None:
    while name not in [one for _, one in await _told(lab)]:  # noqa: ASYNC110  the database has no event to wait for
        await asyncio.sleep(0.02)
