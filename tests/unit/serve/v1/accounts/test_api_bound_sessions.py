"""A session is worth little elsewhere, and nothing outlives what made it: cookies that were taken, keys with an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from fairlead.serve import authentication
from fairlead.serve.accounts import sessions
from fairlead.serve.database import engine, schema
from fairlead.wire.text import timestamp
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World

_HERE, _ELSEWHERE = "192.0.2.1", "10.89.0.7"


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


class Stolen:
    """The cookie of a session, as a tenant's server on another port of the console's host gets it."""

    def __init__(self, lab: Lab, cookie: str, token: str) -> None:
        self.lab, self.cookie, self.token = lab, cookie, token

    async def ask(self, method: str, path: str, *, at: str = _HERE, body: Any = None, **headers: str) -> httpx.Response:
        app: Any = self.lab.app
        sent = {"cookie": f"{sessions.COOKIE}={self.cookie}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        transport = httpx.ASGITransport(app, client=(at, 1))
        async with httpx.AsyncClient(transport=transport, base_url="https://test", headers=sent) as client:
            return await client.request(method, path, json=body)


async def _stolen(lab: Lab, name: str, key: str = "") -> Stolen:
    app: Any = lab.app
    transport = httpx.ASGITransport(app, client=(_HERE, 1))
    async with httpx.AsyncClient(transport=transport, base_url="https://test") as client:
        answer = await client.post("/v1/session", json={"key": key or lab.keys[name]})
    cookie = answer.headers["set-cookie"].partition(";")[0].partition("=")[2]
    return Stolen(lab, cookie, answer.json()["csrf_token"])


async def test_a_cookie_from_another_address_is_nobodys(lab: Lab) -> None:
    admin = await _stolen(lab, "root")
    assert (await admin.ask("GET", "/v1/self")).json()["is_administrator"] is True
    for method, path in (("GET", "/v1/self"), ("GET", "/v1/users"), ("POST", "/v1/users"), ("DELETE", "/v1/session")):
        answer = await admin.ask(method, path, at=_ELSEWHERE, x_csrf_token=admin.token)
        assert (answer.status_code, answer.json()["reason"]) == (401, "SessionElsewhere"), path
    assert (await admin.ask("GET", "/v1/self")).status_code == 200


async def test_a_cookie_alone_changes_nothing_and_no_answer_completes_it(lab: Lab) -> None:
    admin = await _stolen(lab, "root")
    shown = await admin.ask("GET", "/v1/session")
    assert admin.token not in shown.text
    wish = {"name": "mallory", "is_administrator": True}
    for token in ({}, {"x_csrf_token": "0" * 64}, {"x_csrf_token": admin.cookie.rpartition("_")[2]}):
        answer = await admin.ask("POST", "/v1/users", body=wish, **token)
        assert (answer.status_code, answer.json()["reason"]) == (403, "CSRFTokenMissing")
    assert (await lab.ask("root", "GET", "/v1/users/mallory")).status_code == 404


async def _upgraded(lab: Lab, cookie: str, offered: list[str]) -> list[dict[str, Any]]:
    """Open an exec session by cookie; return what the API sent."""
    sent: list[dict[str, Any]] = []
    given = [{"type": "websocket.connect"}]

    async def receive() -> Any:
        await asyncio.sleep(0)
        return given.pop() if given else {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {
        "type": "websocket",
        "path": "/v1/containers/train/exec",
        "raw_path": b"/v1/containers/train/exec",
        "root_path": "",
        "scheme": "wss",
        "headers": [
            (b"host", b"test"),
            (b"origin", b"https://test"),
            (b"cookie", f"{sessions.COOKIE}={cookie}".encode()),
            (b"sec-websocket-protocol", ", ".join(offered).encode()),
        ],
        "query_string": f"command=true&namespace={lab.namespaces['red']}".encode(),
        "state": {},
        "subprotocols": offered,
        "client": (_HERE, 1),
        "server": ("127.0.0.1", 2),
        "extensions": {"websocket.http.response": {}},
    }
    await lab.app(scope, receive, send)
    return sent


async def test_a_terminal_by_cookie_shows_the_token_of_the_pages(lab: Lab) -> None:
    await lab.run("developer", "train", args=["sleep", "600"])
    await lab.ask("developer", "GET", "/v1/containers/train/wait?state=started&timeout=5")
    one = await _stolen(lab, "developer")
    for offered in ([], ["fairlead"], ["fairlead", "fairlead-token.0000"]):
        refused = b"".join(message.get("body", b"") for message in await _upgraded(lab, one.cookie, offered))
        assert b"CSRFTokenMissing" in refused, offered
    [accepted, *_] = await _upgraded(lab, one.cookie, ["fairlead", f"fairlead-token.{one.token}"])
    assert (accepted["type"], accepted["subprotocol"]) == ("websocket.accept", "fairlead")
    assert one.token not in str(accepted)


async def test_a_session_makes_no_key_and_no_account_without_a_key_of_its_account(lab: Lab) -> None:
    admin = await _stolen(lab, "root")
    own = lab.keys["root"].split("_")[1]
    wishes = (
        ("/v1/keys", {"lifetime_s": None}),
        (f"/v1/keys/{own}:rotate", {"overlap_s": 60}),
        ("/v1/users", {"name": "mallory"}),
    )
    for path, body in wishes:
        answer = await admin.ask("POST", path, body=body, x_csrf_token=admin.token)
        assert (answer.status_code, answer.json()["reason"]) == (403, "ConfirmationRequired"), path
        foreign = {"x_csrf_token": admin.token, "x_confirm_key": lab.keys["developer"]}
        answer = await admin.ask("POST", path, body=body, **foreign)
        assert (answer.status_code, answer.json()["reason"]) == (403, "ConfirmationForeign"), path
        wrong = {"x_csrf_token": admin.token, "x_confirm_key": lab.keys["root"][:-1] + "g"}
        assert (await admin.ask("POST", path, body=body, **wrong)).status_code == 401
    shown = {"x_csrf_token": admin.token, "x_confirm_key": lab.keys["root"]}
    for path, body in (wishes[0], wishes[2], wishes[1]):
        assert (await admin.ask("POST", path, body=body, **shown)).status_code == 201, path


async def test_a_fresh_login_by_the_provider_confirms_and_an_old_one_does_not(lab: Lab) -> None:
    """A session without a key is one that an identity provider vouched for."""
    for age_s, status in ((10.0, 201), (1000.0, 403)):
        opened_ = await lab.accounts.sessions.open("developer", key=None, address=_HERE)
        one = Stolen(lab, opened_.text, opened_.view.csrf_token)
        await _age(lab, age_s)
        answer = await one.ask("POST", "/v1/keys", body={"lifetime_s": 60.0}, x_csrf_token=one.token)
        assert answer.status_code == status, answer.text
        endless = await one.ask("POST", "/v1/keys", body={"lifetime_s": None}, x_csrf_token=one.token)
        assert endless.json()["reason"] in {"KeyOutlives", "ConfirmationRequired"}


async def _age(lab: Lab, age_s: float) -> None:
    """Make the sessions that there are older."""
    kept: Any = lab.accounts.sessions
    async with engine.transaction(kept.database) as connection:
        row = sa.update(schema.SESSION).values(created_at=time.time() - age_s)
        await connection.execute(row)


@pytest.mark.parametrize("lifetime_s", [None, 3600.0, 60 * 86400.0])
async def test_no_key_outlives_the_one_that_makes_it(lab: Lab, lifetime_s: float | None) -> None:
    key = await lab.key("root", lifetime_s=600.0)
    async with lab.client("root", key) as client:
        for account in ("", "developer"):
            refused = await client.post("/v1/keys", json={"lifetime_s": lifetime_s, "account": account})
            assert (refused.status_code, refused.json()["reason"]) == (403, "KeyOutlives"), refused.text
            assert "--expires 59" in refused.json()["hint"]
        made = await client.post("/v1/keys", json={"lifetime_s": 300.0})
        assert made.status_code == 201
        ends = (await client.get(f"/v1/keys/{key.split('_')[1]}")).json()["expires_at"]
        rotated = await client.post(f"/v1/keys/{key.split('_')[1]}:rotate", json={"overlap_s": 0})
    assert rotated.status_code == 201
    assert timestamp.unix_seconds(rotated.json()["view"]["expires_at"]) <= timestamp.unix_seconds(ends) + 0.001
    endless = await lab.ask("root", "POST", "/v1/keys", json={"lifetime_s": lifetime_s})
    assert endless.status_code == 201


def test_the_token_never_reaches_a_handler() -> None:
    scope: dict[str, Any] = {
        "type": "websocket",
        "headers": [(b"sec-websocket-protocol", b"fairlead, fairlead-token.ab")],
        "subprotocols": ["fairlead", "fairlead-token.ab"],
    }
    assert authentication._shown(scope) == "ab"
    assert (scope["headers"], scope["subprotocols"]) == ([], ["fairlead"])
