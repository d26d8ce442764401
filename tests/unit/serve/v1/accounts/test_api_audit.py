"""The audit log: what changes something and what is refused by TLS is written, and nothing happens that is not."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead import errors
from fairlead.serve import authentication
from fairlead.serve.accounts import audit, recording
from fairlead.serve.accounts.audit import AuditView, Entry, Outcome, Query
from fairlead.serve.accounts.recording import Refusals
from fairlead.serve.limits.gate import Gate, Policy
from tests.unit.serve.v1.accounts.test_api_accounts import UNLIMITED, Lab, opened
from tests.unit.serve.world import World, application, in_process


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def _log(lab: Lab, who: str = "root", **asked: Any) -> list[dict[str, Any]]:
    answer = await lab.ask(who, "GET", "/v1/audit", params=asked)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def test_a_change_is_written_with_who_what_where_and_how_it_ended(lab: Lab) -> None:
    answer = await lab.run("developer", "train", tenancy="red")
    (found,) = await _log(lab)
    assert re.fullmatch(r"[0-9T:.-]+Z", found.pop("at"))
    assert found == {
        "request": answer.headers["x-request-id"],
        "account": "developer",
        "key": lab.keys["developer"].split("_")[1],
        "peer": "127.0.0.1",
        "method": "POST",
        "action": "container.run",
        "object": "/v1/containers",
        "namespace": lab.namespaces["red"],
        "tenancy": "red",
        "status": 201,
        "reason": "",
        "count": 1,
    }


async def test_reads_that_are_allowed_are_not_written_and_every_refusal_is(lab: Lab) -> None:
    async with lab.client("root", "flk_0123456789ab_" + "0" * 64) as client:
        assert (await client.get("/v1/containers")).status_code == 401
    await lab.ask("viewer", "GET", "/v1/containers")
    await lab.ask("viewer", "GET", "/v1/nodes")
    await lab.ask("stranger", "GET", f"/v1/containers/x?namespace={lab.namespaces['red']}")
    await lab.ask("viewer", "POST", "/v1/containers", json={"image": "demo"})
    await lab.ask("developer", "POST", "/v1/containers", json={"image": 3})
    found = [
        (one["account"], one["key"], one["action"], one["status"], one["reason"], one["tenancy"])
        for one in await _log(lab)
    ][::-1]
    ids = {name: key.split("_")[1] for name, key in lab.keys.items()}
    assert found == [
        ("", "0123456789ab", "", 401, "KeyRefused", ""),
        ("viewer", ids["viewer"], "machine.read", 403, "RoleForbids", "red"),
        ("stranger", ids["stranger"], "container.read", 404, "ContainerNotFound", "blue"),
        ("viewer", ids["viewer"], "container.run", 403, "RoleForbids", "red"),
        ("developer", ids["developer"], "container.run", 400, "RequestInvalid", "red"),
    ]


async def test_neither_body_nor_query_nor_key_is_in_it_and_no_control_character(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red", env={"PASSWORD": "hunter2"})
    key = lab.keys["viewer"]
    await lab.ask("root", "POST", f"/v1/keys/{key}:revoke")
    await lab.ask("root", "DELETE", "/v1/users/a%1b%5b31m%00%E2%80%AE?note=hunter2")
    await lab.ask("root", "DELETE", "/v1/users/" + "x" * 2000)
    found = await _log(lab)
    text = json.dumps(found)
    assert key.split("_")[2] not in text
    assert "hunter2" not in text
    assert [len(one["object"]) for one in found if not one["object"].isprintable() or len(one["object"]) > 256] == []
    assert f"/v1/keys/{key.rpartition('_')[0]}_…:revoke" in {one["object"] for one in found}


async def test_administrators_see_all_and_a_tenancys_owners_and_admins_their_part(lab: Lab) -> None:
    await lab.run("developer", "one", tenancy="red")
    await lab.run("stranger", "two", tenancy="blue")
    await lab.run("root", "three", tenancy="red")
    await lab.ask("root", "PUT", "/v1/tenancies/red/members/nobody", json={"role": "viewer"})
    await lab.ask("root", "POST", f"/v1/containers/three:stop?namespace={lab.namespaces['red']}")
    await lab.ask("root", "POST", "/v1/images:prune")
    for who, accounts in (
        ("owner", ["developer", "root", "root", "root"]),
        ("admin", ["developer", "root", "root", "root"]),
        ("stranger", ["stranger"]),
        ("root", ["developer", "stranger", "root", "root", "root", "root"]),
    ):
        assert [one["account"] for one in await _log(lab, who)][::-1] == accounts, who
    for who in ("viewer", "developer", "nobody"):
        assert (await lab.ask(who, "GET", "/v1/audit")).status_code == 403
    async with httpx.AsyncClient(
        transport=in_process(application(lab.services)), base_url="http://test"
    ) as by_the_socket:
        # Those three refusals are in it as well.
        assert len((await by_the_socket.get("/v1/audit")).json()["items"]) == 9


async def test_pages_have_each_entry_once_while_more_are_added(lab: Lab) -> None:
    for at in range(5):
        await lab.ask("root", "DELETE", f"/v1/users/x{at}")
    seen, cursor = [], ""
    while True:
        page = (await lab.ask("root", "GET", "/v1/audit", params={"limit": 2, "cursor": cursor})).json()
        seen += [one["object"][-1] for one in page["items"]]
        await lab.ask("root", "DELETE", "/v1/users/later")
        if not (cursor := page["next"]):
            break
    assert seen == ["4", "3", "2", "1", "0"]
    for wrong in ({"cursor": "x"}, {"since": "yesterday"}, {"limit": 0}, {"cursor": "9" * 40}):
        answer = await lab.ask("root", "GET", "/v1/audit", params=wrong)
        assert answer.status_code == 400, answer.text


class Broken:
    """An audit log whose database is away for some of what it does."""

    def __init__(self, whole: audit.Audit, *, fails: tuple[str, ...]) -> None:
        self.whole, self.fails = whole, fails

    def _try(self, name: str) -> None:
        if name in self.fails:
            raise errors.Unavailable("the database of accounts does not answer", reason="DatabaseUnreachable")

    async def begin(self, entry: Entry) -> int:
        self._try("begin")
        return await self.whole.begin(entry)

    async def end(self, id_: int, outcome: Outcome) -> None:
        self._try("end")
        await self.whole.end(id_, outcome)

    async def refuse(self, entry: Entry, outcome: Outcome) -> None:
        self._try("refuse")
        await self.whole.refuse(entry, outcome)

    async def list(self, query: Query) -> tuple[tuple[AuditView, ...], int | None]:
        return await self.whole.list(query)

    async def prune(self, before: float) -> int:
        self._try("prune")
        return await self.whole.prune(before)


def _broken(lab: Lab, *fails: str) -> None:
    accounts = dataclasses.replace(lab.accounts, audit=Broken(lab.accounts.audit, fails=fails))
    app = application(dataclasses.replace(lab.services, accounts=accounts))
    gate, refusals = Gate(Policy(key=UNLIMITED, address=UNLIMITED)), Refusals(accounts.audit)
    lab.app = authentication.create_app(app, accounts, gate=gate, refusals=refusals)


async def test_nothing_is_changed_that_cannot_be_written_and_reads_go_on(lab: Lab) -> None:
    _broken(lab, "begin", "refuse", "end")
    answer = await lab.run("developer", "train", tenancy="red")
    assert (answer.status_code, answer.json()["reason"]) == (503, "AuditUnavailable")
    found = await lab.ask("developer", "GET", "/v1/containers?all=true")
    assert (found.status_code, found.json()["items"]) == (200, [])
    assert await _log(lab) == []


async def test_an_end_that_cannot_be_written_is_logged_and_shown_as_unknown(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    _broken(lab, "end", "refuse")
    assert (await lab.run("developer", "train", tenancy="red")).status_code == 201
    assert (await lab.ask("viewer", "GET", "/v1/nodes")).status_code == 403
    (found,) = await _log(lab)
    assert (found["account"], found["status"], found["reason"]) == ("developer", None, "")
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("audit entry not written") == 2


async def test_a_websocket_is_written_before_it_opens_and_refused_where_it_cannot_be(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red")
    assert (await _enter(lab, "viewer"))[0]["status"] == 403
    await _enter(lab, "developer")
    entered, refused, _ = await _log(lab)
    assert (refused["account"], refused["status"], refused["reason"]) == ("viewer", 403, "RoleForbids")
    assert (entered["account"], entered["action"]) == ("developer", "container.enter")
    assert (entered["object"], "sh" in entered["object"]) == ("/v1/containers/train/exec", False)
    _broken(lab, "begin")
    sent = await _enter(lab, "developer")
    assert (sent[0]["status"], b"AuditUnavailable" in sent[1]["body"]) == (503, True)


async def _enter(lab: Lab, who: str) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    messages = iter(({"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}))

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        await asyncio.sleep(0)
        return next(messages, {"type": "websocket.disconnect", "code": 1000})

    path = "/v1/containers/train/exec"
    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "wss",
        "headers": [(b"authorization", f"Bearer {lab.keys[who]}".encode())],
        "query_string": b"command=sh",
        "state": {},
        "subprotocols": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {"websocket.http.response": {}},
    }
    await lab.app(scope, receive, send)
    return sent


async def test_what_is_too_old_is_deleted_at_the_start_and_a_failure_of_that_is_logged(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    await lab.ask("root", "DELETE", "/v1/users/x")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(recording.keep(Broken(lab.accounts.audit, fails=("prune",)), 1, lambda: 1e10), 0.05)
    await recording.keep(lab.accounts.audit, 0, lambda: 1e10)
    assert len(await _log(lab)) == 1
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(recording.keep(lab.accounts.audit, 1, lambda: 1e10), 0.3)
    assert await _log(lab) == []
    shown = capsys.readouterr()
    assert "old audit entries not deleted" in shown.out + shown.err
