"""Sessions of browsers: a cookie stands for a key, and a page of another site can do nothing with it."""

from __future__ import annotations

import asyncio
import dataclasses
import http.cookies
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead import errors
from fairlead.serve import authentication
from fairlead.serve.accounts import audit, keys, port, sessions, stores
from fairlead.serve.accounts.recording import Refusals
from fairlead.serve.accounts.roles import Scope
from fairlead.serve.accounts.sessions import Lifetime
from fairlead.serve.database import engine
from fairlead.serve.limits.gate import Gate, Policy
from tests.unit.serve.v1.accounts.test_api_accounts import UNLIMITED, Lab, opened
from tests.unit.serve.world import World, application, in_process


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


def _browser(lab: Lab, cookie: str = "", **headers: str) -> httpx.AsyncClient:
    more = {"cookie": f"theme=dark; {sessions.COOKIE}={cookie}"} if cookie else {}
    transport = in_process(lab.app)
    return httpx.AsyncClient(transport=transport, base_url="https://test", headers={**more, **headers})


async def _login(lab: Lab, who: str = "developer", key: str = "") -> tuple[str, str]:
    async with _browser(lab) as browser:
        answer = await browser.post("/v1/session", json={"key": key or lab.keys[who]})
    assert answer.status_code == 201, answer.text
    jar = http.cookies.SimpleCookie(answer.headers["set-cookie"])
    return jar[sessions.COOKIE].value, answer.json()["csrf_token"]


async def test_a_cookie_stands_for_a_key_and_only_the_browser_holds_it(lab: Lab) -> None:
    async with _browser(lab) as browser:
        answer = await browser.post("/v1/session", json={"key": lab.keys["developer"]})
    said = answer.headers["set-cookie"]
    assert said.startswith("__Host-fairlead=fls_")
    assert {part.strip() for part in said.split(";")[1:]} == {"Path=/", "Secure", "HttpOnly", "SameSite=Lax"}
    assert answer.headers["cache-control"] == "no-store"
    cookie, csrf = await _login(lab)
    assert keys.parse(lab.keys["developer"]) is not None
    assert cookie.split("_")[2] not in answer.text
    async with _browser(lab, cookie) as browser:
        me = (await browser.get("/v1/self")).json()
        shown = (await browser.get("/v1/session")).json()
    assert (me["account"], me["memberships"][0]["role"]) == ("developer", "developer")
    assert len(csrf) == 64
    assert (shown["account"], shown["csrf_token"]) == ("developer", "")  # what is asked with the cookie alone


async def test_a_key_in_the_header_begins_a_session_too(lab: Lab) -> None:
    answer = await lab.ask("viewer", "POST", "/v1/session", json={})
    assert (answer.status_code, answer.json()["account"]) == (201, "viewer")


@pytest.mark.parametrize("shown", [None, "", "0" * 64, "ü"])
async def test_a_change_without_the_sessions_token_is_refused(lab: Lab, shown: str | None) -> None:
    cookie, csrf = await _login(lab)
    body = {"image": "demo", "name": "train", "tenancy": "red"}
    headers = {} if shown is None else {b"x-csrf-token": shown.encode()}
    async with _browser(lab, cookie) as browser:
        answer = await browser.post("/v1/containers", json=body, headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (403, "CSRFTokenMissing")
        made = await browser.post("/v1/containers", json=body, headers={"x-csrf-token": csrf})
        assert made.status_code == 201, made.text


async def test_another_sessions_token_is_not_accepted(lab: Lab) -> None:
    cookie, _ = await _login(lab)
    _, other = await _login(lab)
    async with _browser(lab, cookie, **{"x-csrf-token": other}) as browser:
        assert (await browser.delete("/v1/session")).json()["reason"] == "CSRFTokenMissing"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://test", "null", "https://test.evil.example", "https://["]
)
async def test_a_page_of_another_site_is_refused_even_with_the_token(lab: Lab, origin: str) -> None:
    cookie, csrf = await _login(lab)
    async with _browser(lab, cookie, origin=origin, **{"x-csrf-token": csrf}) as browser:
        answer = await browser.get("/v1/containers")
        assert (answer.status_code, answer.json()["reason"]) == (403, "OriginForeign")
    async with _browser(lab, origin=origin) as browser:
        logged = await browser.post("/v1/session", json={"key": lab.keys["stranger"]})
        assert (logged.status_code, logged.json()["reason"]) == (403, "OriginForeign")
    async with _browser(lab, cookie, origin="https://TEST", **{"x-csrf-token": csrf}) as browser:
        assert (await browser.delete("/v1/session")).status_code == 204


async def test_a_websocket_by_cookie_must_come_from_a_page_of_ours(lab: Lab) -> None:
    cookie, _ = await _login(lab)
    for origin, reason in ((None, b"OriginForeign"), ("https://evil.example", b"OriginForeign"), ("https://test", b"")):
        sent: list[dict[str, Any]] = []

        async def send(message: Any, into: list[dict[str, Any]] = sent) -> None:
            into.append(dict(message))

        async def receive() -> Any:
            await asyncio.sleep(0)
            return {"type": "websocket.connect"}

        headers = [(b"host", b"test"), (b"cookie", f"{sessions.COOKIE}={cookie}".encode())]
        headers += [(b"origin", origin.encode())] if origin else []
        scope = {
            "type": "websocket",
            "path": "/v1/containers/none/exec",
            "raw_path": b"/v1/containers/none/exec",
            "root_path": "",
            "scheme": "wss",
            "headers": headers,
            "query_string": b"command=sh",
            "state": {},
            "subprotocols": [],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "extensions": {"websocket.http.response": {}},
        }
        await lab.app(scope, receive, send)
        said = b"".join(one.get("body", b"") for one in sent)
        assert reason in said
        assert (b"OriginForeign" in said) is bool(reason)


async def test_a_session_ends_when_it_is_closed_and_with_its_key_and_its_account(lab: Lab) -> None:
    async def state(cookie: str) -> tuple[int, str]:
        async with _browser(lab, cookie) as browser:
            answer = await browser.get("/v1/self")
        return answer.status_code, answer.json().get("reason", "")

    closed, csrf = await _login(lab)
    async with _browser(lab, closed, **{"x-csrf-token": csrf}) as browser:
        answer = await browser.delete("/v1/session")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    revoked, _ = await _login(lab, "viewer")
    await lab.accounts.keys.revoke(lab.keys["viewer"].split("_")[1], None)
    gone, _ = await _login(lab, "admin")
    await lab.accounts.people.delete("admin")
    for cookie in (closed, revoked, gone, closed[:-1] + ("0" if closed[-1] != "0" else "1")):
        assert await state(cookie) == (401, "SessionEnded")
    assert await state("fls_") == (401, "KeyRequired")


async def test_a_session_ends_after_its_time_and_when_nothing_is_asked(world: World, tmp_path: Path) -> None:
    now = 1000.0
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        lifetime = Lifetime(whole_s=7200.0, idle_s=600.0)
        made = stores.open_accounts(database, now=lambda: now, lifetime=lifetime)
        await made.people.create("ann", kind=port.PERSON, is_administrator=False)
        found = await made.sessions.open("ann", key=None, address="192.0.2.1")
        idle = await made.sessions.open("ann", key=None, address="192.0.2.1")
        token, other = sessions.parse(found.text), sessions.parse(idle.text)
        assert token is not None
        assert other is not None
        while now < 1000.0 + 7190.0:
            assert (await made.sessions.authenticate(token)).account == "ann"
            now += 590.0
        now = 1000.0 + 7201.0
        for one in (token, other):
            with pytest.raises(errors.Unauthenticated):
                await made.sessions.authenticate(one)
        assert await made.sessions.prune() == 2


async def test_who_logs_in_and_who_fails_to_is_in_the_audit_log_without_a_secret(lab: Lab) -> None:
    cookie, _ = await _login(lab)
    wrong = lab.keys["viewer"][:-1] + ("0" if lab.keys["viewer"][-1] != "0" else "1")
    async with _browser(lab) as browser:
        assert (await browser.post("/v1/session", json={"key": wrong})).status_code == 401
        assert (await browser.post("/v1/session", json={"key": "x"})).json()["reason"] == "KeyMalformed"
        assert (await browser.post("/v1/session", json={})).status_code == 401
    found = (await lab.ask("root", "GET", "/v1/audit")).json()["items"]
    assert [(one["account"], one["status"], one["action"]) for one in found] == [
        ("", 401, "session.open"),
        ("", 401, "session.open"),
        ("", 401, "session.open"),
        ("developer", 201, "session.open"),
    ]
    assert found[2]["key"] == lab.keys["viewer"].split("_")[1]
    assert cookie.split("_")[2] not in str(found)


async def test_who_has_not_logged_in_may_open_a_session_and_nothing_else(lab: Lab) -> None:
    async with _browser(lab) as browser:
        for method, path in (("GET", "/v1/session"), ("DELETE", "/v1/session"), ("POST", "/v1/session/")):
            answer = await browser.request(method, path)
            assert (answer.status_code, answer.json()["reason"]) == (401, "KeyRequired"), path


async def test_a_session_may_no_more_than_its_key(lab: Lab) -> None:
    cookie, csrf = await _login(lab, key=await lab.key("owner", Scope.READ))
    async with _browser(lab, cookie, **{"x-csrf-token": csrf}) as browser:
        assert (await browser.get("/v1/containers")).status_code == 200
        answer = await browser.post("/v1/containers", json={"image": "demo", "tenancy": "red"})
        assert (answer.status_code, answer.json()["reason"]) == (403, "ScopeMissing")


class FullDisk:
    """An audit log that nothing can be written into."""

    async def begin(self, entry: audit.Entry) -> int:
        raise errors.Unavailable(f"the disk is full: {entry.method}", reason="DatabaseUnreachable")

    async def end(self, id_: int, outcome: audit.Outcome) -> None:
        raise AssertionError((id_, outcome))

    async def refuse(self, entry: audit.Entry, outcome: audit.Outcome) -> None:
        raise AssertionError((entry, outcome))

    async def list(self, query: audit.Query) -> tuple[tuple[audit.AuditView, ...], int | None]:
        raise AssertionError(query)

    async def prune(self, before: float) -> int:
        raise AssertionError(before)


async def test_a_login_that_cannot_be_written_down_does_not_happen(lab: Lab) -> None:
    full = dataclasses.replace(lab.accounts, audit=FullDisk())
    gate, refusals = Gate(Policy(key=UNLIMITED, address=UNLIMITED)), Refusals(full.audit)
    lab.app = authentication.create_app(application(lab.services), full, gate=gate, refusals=refusals)
    async with _browser(lab) as browser:
        answer = await browser.post("/v1/session", json={"key": lab.keys["viewer"]})
    assert (answer.status_code, answer.json()["reason"]) == (503, "AuditUnavailable")
    assert "set-cookie" not in answer.headers
