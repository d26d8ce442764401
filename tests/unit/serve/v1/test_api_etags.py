"""Tags of answers: 304 where nothing changed, 412 where the object is another one than its asker saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from fairlead.serve.api import etag
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World

RUN = {"image": "demo", "name": "train", "command": ["sleep"], "args": ["60"]}


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def test_an_answer_that_is_known_already_is_not_sent_again(api: httpx.AsyncClient) -> None:
    first = await api.get("/v1/queues")
    again = await api.get("/v1/queues", headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert first.headers["cache-control"] == "private, no-cache"
    await api.put("/v1/queues/q?create=true", json={})
    changed = await api.get("/v1/queues", headers={"if-none-match": first.headers["etag"]})
    assert (changed.status_code, len(changed.json()["items"])) == (200, 1)


async def test_a_change_is_carried_out_only_on_the_object_that_was_seen(api: httpx.AsyncClient) -> None:
    await api.put("/v1/queues/q?create=true", json={"weight": 1})
    seen = (await api.get("/v1/queues/q")).headers["etag"]
    headers = {"if-match": seen}
    assert (await api.put("/v1/queues/q", json={"weight": 2}, headers=headers)).status_code == 200
    refused = await api.put("/v1/queues/q", json={"weight": 3}, headers=headers)
    now = (await api.get("/v1/queues/q")).headers["etag"]
    assert (refused.status_code, refused.json()["reason"]) == (412, "PreconditionFailed")
    assert refused.json()["context"]["etag"] == now
    assert (await api.delete("/v1/queues/q", headers={"if-match": f'"x", {now}'})).status_code == 204
    gone = await api.delete("/v1/queues/q", headers={"if-match": "*"})
    assert (gone.status_code, gone.json()["reason"]) == (404, "QueueUnknown")


@pytest.mark.parametrize("header", ["", ",", '"'])
async def test_a_header_that_names_no_tag_lets_nothing_be_changed(api: httpx.AsyncClient, header: str) -> None:
    """A client whose tag was lost must not change whatever is there."""
    await api.put("/v1/queues/q?create=true", json={"weight": 1})
    refused = await api.delete("/v1/queues/q", headers={"if-match": header})
    assert (refused.status_code, refused.json()["reason"]) == (412, "PreconditionFailed")


async def test_of_two_changes_with_one_tag_one_is_carried_out(api: httpx.AsyncClient) -> None:
    await api.put("/v1/queues/q?create=true", json={"weight": 1})
    headers = {"if-match": (await api.get("/v1/queues/q")).headers["etag"]}
    changes = [api.put("/v1/queues/q", json={"weight": 2 + number}, headers=headers) for number in range(8)]
    assert sorted(one.status_code for one in await asyncio.gather(*changes)) == [200, *[412] * 7]


async def test_a_body_that_comes_slowly_holds_up_no_other_change(lab: Lab) -> None:
    """Lists have one path for all tenancies, and so have containers of one name."""
    sending, rest = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"name": '
        sending.set()
        await rest.wait()
        yield b'"data"}'

    any_tag = {"if-match": "*", "content-type": "application/json"}
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(lab.ask("developer", "POST", "/v1/volumes", content=slowly(), headers=any_tag))
        await sending.wait()
        async with asyncio.timeout(5):
            other = await lab.ask("stranger", "POST", "/v1/volumes", json={"name": "data"}, headers={"if-match": "*"})
        rest.set()
    assert (other.status_code, slow.result().status_code) == (201, 201), other.text


async def test_a_change_that_waits_for_its_end_holds_up_no_other_change(lab: Lab) -> None:
    for who, tenancy in (("developer", "red"), ("stranger", "blue")):
        assert (await lab.run(who, "train", tenancy=tenancy)).status_code == 201
    pod = await lab.world.pod("train", lab.namespaces["red"])
    kept = msgspec.structs.replace(pod.metadata, finalizers=("example.com/never",), resource_version="")
    await lab.world.store.update(msgspec.structs.replace(pod, metadata=kept))
    any_tag = {"if-match": "*"}
    async with asyncio.TaskGroup() as tasks:
        waits = tasks.create_task(lab.ask("developer", "DELETE", "/v1/containers/train?wait=3600", headers=any_tag))
        async with asyncio.timeout(5):
            while (await lab.world.pod("train", lab.namespaces["red"])).metadata.deletion_timestamp is None:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.01)
            other = await lab.ask("stranger", "DELETE", "/v1/containers/train", headers=any_tag)
            own = await lab.ask("developer", "DELETE", "/v1/containers/train", headers=any_tag)
        waits.cancel()
    assert (other.status_code, own.status_code) == (202, 202), (other.text, own.text)


async def test_a_verb_heeds_the_tag_of_its_container_and_not_of_what_a_clock_changes(
    api: httpx.AsyncClient, world: World
) -> None:
    world.may_start.clear()
    waits = (await api.post("/v1/containers", json={**RUN, "gpus": 9})).json()["name"]
    seen = (await api.get(f"/v1/containers/{waits}")).headers["etag"]
    await api.post("/v1/containers", json={**RUN, "name": "other", "gpus": 9})
    for _ in range(9):
        seen = (await api.get(f"/v1/containers/{waits}")).headers["etag"]
        await asyncio.sleep(0.01)
    stopped = await api.post(f"/v1/containers/{waits}:stop", headers={"if-match": seen})
    assert stopped.status_code == 202, stopped.text
    again = await api.delete(f"/v1/containers/{waits}", headers={"if-match": seen})
    assert again.status_code == 412


def test_what_a_clock_changes_is_no_part_of_the_object() -> None:
    one, other = etag.tag(b'{"a":1,"cost":{"amount":"1"}}'), etag.tag(b'{"a":1,"cost":{"amount":"2"}}')
    assert one != other
    assert one.partition(".")[0] == other.partition(".")[0]
    assert etag.tag(b'{"a":2,"cost":null}').partition(".")[0] != one.partition(".")[0]


async def test_what_cannot_be_read_has_no_tag_and_says_so(api: httpx.AsyncClient) -> None:
    refused = await api.post("/v1/faults", json={"fault": "xid"}, headers={"if-match": '"x"'})
    assert (refused.status_code, refused.json()["reason"]) == (400, "IfMatchUnsupported")


async def test_a_tag_opens_no_object_of_another_tenancy(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red")
    there = (await lab.ask("developer", "GET", "/v1/containers/train")).headers["etag"]
    refused = await lab.ask("stranger", "DELETE", "/v1/containers/train?namespace=red", headers={"if-match": there})
    assert refused.status_code == 404
    for path in ("users/owner", "tenancies/red/members/owner", f"keys/{lab.keys['owner'].split('_')[1]}"):
        assert (await lab.ask("root", "GET", f"/v1/{path}")).headers["etag"], path
        assert (await lab.ask("stranger", "GET", f"/v1/{path}")).status_code in {403, 404}, path
    entries = (await lab.ask("root", "GET", "/v1/audit")).json()["items"]
    assert [one["status"] for one in entries if one["method"] == "DELETE" and one["action"] == "container.run"].count(
        404
    ) == 1
