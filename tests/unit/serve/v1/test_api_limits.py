"""Rate limits of the TLS door: 429 with the time to wait, nobody else shut out, a flood in few rows of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.serve.accounts.audit import AuditView, Entry, Outcome, Place, Query
from fairlead.serve.accounts.recording import Refusals
from fairlead.serve.limits.bucket import Rate
from fairlead.serve.limits.gate import Policy
from tests.unit.serve.v1.accounts.test_api_accounts import UNLIMITED, Lab, opened
from tests.unit.serve.world import World

WRONG = "flk_0123456789ab_" + "0" * 64


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


def _clock(lab: Lab, *, key: Rate = UNLIMITED, address: Rate = UNLIMITED) -> list[float]:
    """Give the lab's door limits, and a clock that stands still."""
    now = [1000.0]
    lab.app = lab.guarded(Policy(key=key, address=address), lambda: now[0])
    return now


async def _rows(lab: Lab) -> list[Any]:
    return list((await lab.accounts.audit.list(Query(limit=1000)))[0])


async def test_a_key_beyond_its_rate_hears_when_to_come_again_and_is_taken_then(lab: Lab) -> None:
    now = _clock(lab, key=Rate(per_s=0.5, burst=3))
    found = [await lab.ask("viewer", "GET", "/v1/self") for _ in range(4)]
    assert [one.status_code for one in found] == [200, 200, 200, 429]
    assert [one.headers["ratelimit"] for one in found] == [
        '"key";r=2;t=2',
        '"key";r=1;t=4',
        '"key";r=0;t=6',
        '"key";r=0;t=6',
    ]
    assert {one.headers["ratelimit-policy"] for one in found} == {'"key";q=3;w=6'}
    refused = found[-1]
    assert (refused.headers["retry-after"], refused.headers["content-type"]) == ("2", "application/problem+json")
    body = refused.json()
    assert (body["type"], body["reason"], body["status"]) == ("urn:fairlead:error:Throttled", "KeyThrottled", 429)
    assert body["context"] == {"retry_after_s": 2}
    assert (await lab.ask("developer", "GET", "/v1/self")).status_code == 200
    now[0] += 2
    assert (await lab.ask("viewer", "GET", "/v1/self")).status_code == 200


async def test_requests_of_one_account_that_wait_leave_room_for_others_and_end_with_their_client(lab: Lab) -> None:
    """A wait keeps a connection for an hour; its client may hang up, and the server goes on with a request."""
    lab.app = lab.guarded(Policy(key=UNLIMITED, address=UNLIMITED, at_once=2))
    wait = "/v1/tenancies/red/wait?state=gone&timeout=3600"
    async with asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(hang_up(lab, "viewer", wait)) for _ in range(2)]
        while (refused := await lab.ask("viewer", "GET", "/v1/self")).status_code != 429:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)
        assert refused.json()["reason"] == "AccountBusy"
        assert (await lab.ask("developer", "GET", "/v1/self")).status_code == 200
        async with asyncio.timeout(5):
            await asyncio.gather(*held)
    assert (await lab.ask("viewer", "GET", "/v1/self")).status_code == 200


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_wait_ends_when_its_client_hangs_up(lab: Lab, method: str) -> None:
    assert (await lab.run("developer", "train", tenancy="red", command=["sleep", "60"])).status_code == 201
    pod = await lab.world.pod("train", lab.namespaces["red"])
    kept = msgspec.structs.replace(pod.metadata, finalizers=("example.com/never",), resource_version="")
    await lab.world.store.update(msgspec.structs.replace(pod, metadata=kept))
    where = {"GET": "/wait?state=gone&timeout=3600", "DELETE": "?wait=3600"}[method]
    status = await asyncio.wait_for(hang_up(lab, "developer", f"/v1/containers/train{where}", method), 5)
    assert status in {200, 202}
    marked = (await lab.world.pod("train", lab.namespaces["red"])).metadata.deletion_timestamp
    assert (marked is not None) is (method == "DELETE")


async def hang_up(lab: Lab, who: str, url: str, method: str = "GET") -> int:
    """Send a request, hang up soon, and return the status that nobody hears once the request is over."""
    path, _, query = url.partition("?")
    found, sent = [0], [False]

    async def receive() -> Any:
        if not sent[0]:
            sent[0] = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.sleep(0.5)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        found[0] = message.get("status", found[0])

    headers = [(b"authorization", f"Bearer {lab.keys[who]}".encode()), (b"host", b"test")]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers}
    await lab.app({**scope, "client": ("192.0.2.1", 9), "state": {}, "scheme": "https"}, receive, send)
    return found[0]


async def test_what_is_throttled_changes_nothing(lab: Lab) -> None:
    _clock(lab, key=Rate(per_s=1.0, burst=1))
    assert (await lab.run("developer", "one", tenancy="red")).status_code == 201
    assert (await lab.run("developer", "two", tenancy="red")).status_code == 429
    lab.app = lab.guarded(Policy(key=UNLIMITED, address=UNLIMITED))
    shown = (await lab.ask("developer", "GET", "/v1/containers?all=true")).json()["items"]
    assert [one["name"] for one in shown] == ["one"]


async def test_each_object_of_a_manifest_counts_as_a_request(lab: Lab) -> None:
    now = _clock(lab, key=Rate(per_s=1.0, burst=3))
    spec = "spec: {containers: [{name: c, image: b}]}"
    pods = [
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, namespace: {lab.namespaces['red']}}}\n{spec}"
        for number in range(5)
    ]
    whole = "\n---\n".join(pods)
    sent = {"content": whole.encode(), "headers": {"content-type": "application/yaml"}}
    made = await lab.ask("developer", "POST", "/v1/pods", **sent)
    assert (made.status_code, len(made.json()["items"])) == (201, 5), made.text
    refused = await lab.ask("developer", "GET", "/v1/self")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    now[0] += 3
    assert (await lab.ask("developer", "GET", "/v1/self")).status_code == 200


async def test_the_articles_payload_is_taken_as_printed_with_a_key(lab: Lab) -> None:
    body = b'{"container-url": "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0-ubi8", "tenancy": "red"}'
    sent = {"content": body, "headers": {"content-type": "application/json"}}
    made = await lab.ask("developer", "POST", "/v1/containers", **sent)
    assert made.status_code == 201, made.text
    assert (made.json()["image"], made.json()["namespace"]) == (
        "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0-ubi8",
        lab.namespaces["red"],
    )
    assert (await lab.ask("viewer", "POST", "/v1/containers", **sent)).status_code == 403
    assert (await lab.ask("stranger", "POST", "/v1/containers", **sent)).status_code == 404


async def test_without_limits_no_answer_speaks_of_them(lab: Lab) -> None:
    answer = await lab.ask("viewer", "GET", "/v1/self")
    assert not {"ratelimit", "ratelimit-policy", "retry-after"} & set(answer.headers)


@pytest.mark.parametrize("header", [None, "Bearer nonsense", f"Bearer {WRONG}"])
async def test_a_flood_without_a_key_is_refused_unlooked_at_and_leaves_few_rows(lab: Lab, header: str | None) -> None:
    """OWASP API4: unrestricted resource consumption."""
    _clock(lab, address=Rate(per_s=1.0, burst=40))
    good = await lab.ask("viewer", "GET", "/v1/self")
    async with lab.client("viewer") as client:
        client.headers.pop("authorization")
        if header is not None:
            client.headers["authorization"] = header
        statuses = [(await client.get("/v1/containers")).status_code for _ in range(120)]
    assert (statuses.count(401), statuses.count(429)) == (40, 80)
    # Somebody at the same address whose key is known to be good goes on.
    assert (good.status_code, (await lab.ask("viewer", "GET", "/v1/self")).status_code) == (200, 200)
    assert len(await _rows(lab)) == 60
    await lab.refusals.flush()
    rows = await _rows(lab)
    assert [(one.status, one.count, one.peer) for one in rows if one.count > 1] == [
        (429, 50, "127.0.0.1"),
        (401, 10, "127.0.0.1"),
    ]
    assert sum(one.count for one in rows) == 120
    await lab.refusals.flush()
    assert len(await _rows(lab)) == 62


class Kept:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[Entry, Outcome]] = []

    async def begin(self, entry: Entry) -> int:
        raise AssertionError(entry)

    async def end(self, id_: int, outcome: Outcome) -> None:
        raise AssertionError(id_, outcome)

    async def refuse(self, entry: Entry, outcome: Outcome) -> None:
        self.rows.append((entry, outcome))

    async def list(self, query: Query) -> tuple[tuple[AuditView, ...], int | None]:
        raise AssertionError(query)

    async def prune(self, before: float) -> int:
        raise AssertionError(before)


async def test_a_flood_from_many_addresses_leaves_few_rows() -> None:
    kept = Kept()
    refusals = Refusals(kept)
    for at in range(5000):
        entry = Entry(request="x", peer=f"2001:db8:{at:x}::1", method="GET", object="/")
        await refusals.write(entry, Outcome(status=401, reason="KeyRequired", place=Place()))
    assert len(kept.rows) == 100
    await refusals.flush()
    assert len(kept.rows) <= 100 + 1001
    assert sum(outcome.count for _, outcome in kept.rows) == 5000


async def test_refusals_of_an_account_are_summarised_apart_from_those_of_others(lab: Lab) -> None:
    for who, times in (("viewer", 40), ("nobody", 2)):
        for _ in range(times):
            await lab.ask(who, "GET", "/v1/nodes")
    await lab.refusals.flush()
    rows = await _rows(lab)
    assert [(one.account, one.count) for one in rows if one.count > 1] == [("viewer", 10)]
    assert [one.account for one in rows].count("nobody") == 2
