"""The console's pages of keys, webhooks and volumes, and the login by an identity provider."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.serve.accounts.roles import Scope
from fairlead.serve.console import app as console
from fairlead.wire.kubernetes import core, meta
from tests.unit.serve.console.test_console_pages import HOSTILE, Browser
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, in_process


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def _logged_in(lab: Lab, name: str, key: str = "") -> Browser:
    browser = Browser(lab)
    answer = await browser.log_in(key or lab.keys[name])
    assert answer.status_code == 303, answer.text
    return browser


async def _post(browser: Browser, path: str, page: str = "/console/keys", **fields: str) -> httpx.Response:
    return await browser.client.post(path, data={"csrf": await browser.csrf(page), **fields})


def _secret(text: str) -> str:
    found = re.search(r'<pre id="secret"[^>]*>([^<]+)</pre>', text)
    assert found is not None, text
    return found[1]


# keys


async def test_a_person_makes_a_key_sees_it_once_and_it_works(lab: Lab) -> None:
    browser = await _logged_in(lab, "developer")
    fields = {"note": "laptop", "days": "7", "scope-read": "on"}
    refused = await _post(browser, "/console/keys", **fields)
    assert (refused.status_code, "session alone makes no keys" in refused.text) == (403, True)
    made = await _post(browser, "/console/keys", confirm=lab.keys["developer"], **fields)
    assert (made.status_code, made.headers["cache-control"]) == (200, "no-store")
    key = _secret(made.text)
    async with lab.client("developer", key) as client:
        found = (await client.get("/v1/self")).json()
    assert (found["account"], found["scopes"]) == ("developer", ["read"])
    again = (await browser.get("/console/keys")).text
    assert "laptop" in again
    assert key not in again
    assert key.split("_")[1] in again


async def test_a_key_is_replaced_and_ended_from_its_row(lab: Lab) -> None:
    id_ = (await lab.key("developer")).split("_")[1]
    browser = await _logged_in(lab, "developer")
    made = await _post(browser, f"/console/keys/{id_}/rotate", overlap="3600", confirm=lab.keys["developer"])
    following = _secret(made.text)
    assert following.split("_")[1] != id_
    assert (await _post(browser, f"/console/keys/{id_}/revoke")).status_code == 303
    states = {one["id"]: one["state"] for one in (await lab.ask("developer", "GET", "/v1/keys")).json()["items"]}
    assert (states[id_], states[following.split("_")[1]]) == ("revoked", "active")


async def test_a_person_sees_and_ends_their_own_keys_alone(lab: Lab) -> None:
    id_ = lab.keys["owner"].split("_")[1]
    browser = await _logged_in(lab, "developer")
    for path in ("/console/keys", "/console/keys?account=owner"):
        text = (await browser.get(path)).text
        assert id_ not in text
        assert 'name="account"' not in text
    assert (await _post(browser, f"/console/keys/{id_}/revoke")).status_code == 404
    refused = await _post(browser, "/console/keys", account="owner", **{"scope-read": "on"})
    assert (refused.status_code, 'id="secret"' in refused.text) == (403, False)
    root = await _logged_in(lab, "root")
    assert id_ in (await root.get("/console/keys?account=owner")).text


async def test_no_key_is_offered_or_given_a_scope_that_the_session_has_not(lab: Lab) -> None:
    browser = await _logged_in(lab, "developer", await lab.key("developer", Scope.READ, Scope.MANAGE))
    text = (await browser.get("/console/keys")).text
    assert ('name="scope-read"' in text, 'name="scope-run"' in text) == (True, False)
    refused = await _post(browser, "/console/keys", **{"scope-run": "on"})
    assert (refused.status_code, 'id="secret"' in refused.text) == (403, False)


async def test_notes_and_accounts_are_shown_as_text(lab: Lab) -> None:
    browser = await _logged_in(lab, "root")
    await _post(browser, "/console/keys", note=HOSTILE[:60], **{"scope-read": "on"})
    answer = await _post(browser, "/console/keys", account=HOSTILE, note=HOSTILE)
    for text in (answer.text, (await browser.get("/console/keys")).text):
        assert "<script>alert" not in text
        assert "\u202e" not in re.sub(r'value="[^"]*"', "", text)


@pytest.mark.parametrize(
    "path", ["/console/keys", "/console/keys/x/rotate", "/console/webhooks", "/console/volumes", "/console/secrets"]
)
async def test_a_form_without_the_sessions_token_makes_nothing(lab: Lab, path: str) -> None:
    browser = await _logged_in(lab, "root")
    before = (await lab.ask("root", "GET", "/v1/keys")).json()["items"]
    for fields in ({}, {"csrf": "0" * 64}):
        answer = await browser.client.post(path, data={"name": "x", "url": "https://example.com/", **fields})
        assert (answer.status_code, 'id="secret"' in answer.text) == (403, False)
    assert len((await lab.ask("root", "GET", "/v1/keys")).json()["items"]) == len(before)
    assert (await lab.ask("root", "GET", "/v1/webhooks")).json()["items"] == []
    assert (await lab.ask("root", "GET", "/v1/volumes")).json()["items"] == []
    assert (await lab.ask("root", "GET", "/v1/secrets")).json()["items"] == []


# accounts, tenancies, members


async def test_an_administrator_makes_an_account_a_tenancy_and_a_member_in_the_browser(lab: Lab) -> None:
    root = await _logged_in(lab, "root")
    page, fields = "/console/accounts", {"name": "newcomer", "kind": "person"}
    refused = await _post(root, page, page=page, **fields)
    assert (refused.status_code, "session alone" in refused.text) == (403, True), refused.text
    made = await _post(root, page, page=page, confirm=lab.keys["root"], **fields)
    assert made.status_code == 303, made.text
    assert "has an account and no key yet" in (await root.get(made.headers["location"])).text

    page = "/console/tenancies"
    wrong = await _post(root, page, page=page, name="My Team", gpus="2")
    assert (wrong.status_code, 'value="My Team"' in wrong.text) == (422, True), wrong.text
    asked = {"name": "vision", "display_name": "Vision", "gpus": "2", "cpus": "8", "network": "closed"}
    tenancy = await _post(root, page, page=page, **asked)
    assert (tenancy.status_code, tenancy.headers["location"]) == (303, "/console/tenancies/vision")
    kept = (await lab.ask("root", "GET", "/v1/tenancies/vision")).json()
    assert (kept["quota"], kept["mode"], kept["internet"]) == ({"nvidia.com/gpu": "2", "cpu": "8"}, "bridge", "deny")

    here = "/console/tenancies/vision"
    unknown = await _post(root, f"{here}/members", page=here, account="unheard", role="developer")
    assert unknown.status_code in {404, 422}
    assert "unheard" in unknown.text
    assert (await _post(root, f"{here}/members", page=here, account="newcomer", role="viewer")).status_code == 303
    assert (await _post(root, f"{here}/members", page=here, account="newcomer", role="developer")).status_code == 303
    members = (await lab.ask("root", "GET", "/v1/tenancies/vision/members")).json()["items"]
    assert [(one["account"], one["role"]) for one in members] == [("newcomer", "developer")]
    assert (await _post(root, f"{here}/members/remove", page=here, account="newcomer")).status_code == 303
    assert (await lab.ask("root", "GET", "/v1/tenancies/vision/members")).json()["items"] == []
    assert (await _post(root, f"{here}/delete", page=here)).status_code == 303
    gone = await _post(root, "/console/accounts/newcomer/delete", page="/console/accounts")
    assert gone.status_code == 303
    assert "newcomer" not in (await root.get("/console/accounts")).text


async def test_an_owner_changes_members_and_a_developer_sees_no_form(lab: Lab) -> None:
    owner, developer = await _logged_in(lab, "owner"), await _logged_in(lab, "developer")
    here = "/console/tenancies/red"
    assert "Give the role" in (await owner.get(here)).text
    text = (await developer.get(here)).text
    assert ("Give the role" in text, "/delete" in text) == (False, False)
    assert (await _post(owner, f"{here}/members", page=here, account="stranger", role="viewer")).status_code == 303
    refused = await _post(developer, f"{here}/members", account="developer", role="owner")
    assert refused.status_code == 403
    for path in (here + "/delete", "/console/accounts", "/console/accounts/owner/delete", "/console/tenancies"):
        answer = await _post(developer, path, name="x", account="x")
        assert answer.status_code in {403, 404}, path
    assert (await developer.get("/console/accounts")).status_code == 403
    assert "Make a tenancy" not in (await owner.get("/console/tenancies")).text


async def test_names_of_accounts_and_tenancies_are_shown_as_text(lab: Lab) -> None:
    root = await _logged_in(lab, "root")
    for path, page in (
        ("/console/accounts", "/console/accounts"),
        ("/console/tenancies", "/console/tenancies"),
        ("/console/tenancies/red/members", "/console/tenancies/red"),
    ):
        fields = {"name": HOSTILE, "account": HOSTILE, "display_name": HOSTILE, "role": HOSTILE, "gpus": HOSTILE}
        answer = await _post(root, path, page=page, confirm=lab.keys["root"], **fields)
        assert answer.status_code >= 400, path
        assert "<script>alert" not in answer.text
    for path in ("..", "%2e%2e%2fbudget"):
        answer = await _post(root, "/console/tenancies/red/members", page="/console/tenancies/red", account=path)
        assert answer.status_code >= 400
    shown = (await root.get(f"/console/accounts?done={urllib.parse.quote(HOSTILE)}")).text
    assert HOSTILE[:20] not in shown


# budgets


async def test_an_administrator_sets_a_budget_and_members_see_it(lab: Lab) -> None:
    root, owner = await _logged_in(lab, "root"), await _logged_in(lab, "owner")
    page = "/console/budgets"
    fields = {"tenancy": "red", "amount": "500", "action": "stop", "grace_hours": "2"}
    for change, says in (({"amount": HOSTILE}, "BudgetInvalid"), ({"grace_hours": "long"}, "is not a number of hours")):
        refused = await _post(root, page, page=page, **fields | change)
        assert refused.status_code == 422, refused.text
        assert says in refused.text or "amount" in refused.text
        assert HOSTILE not in refused.text
    assert (await _post(root, page, page=page, **fields)).status_code == 303
    kept = (await lab.ask("root", "GET", "/v1/tenancies/red/budget")).json()
    assert (kept["amount"], kept["action"], kept["grace_s"]) == ("500", "stop", 7200)
    for browser in (root, owner):
        assert "0 of 500" in (await browser.get(page)).text
    assert "Set a budget" not in (await owner.get(page)).text
    stranger = await _logged_in(lab, "stranger")
    assert "of 500" not in (await stranger.get(page)).text
    assert (await _post(owner, f"{page}/red/remove", page="/console/keys")).status_code == 403
    assert (await _post(root, f"{page}/red/remove", page=page)).status_code == 303
    assert "No budgets" in (await owner.get(page)).text


async def test_events_are_those_of_ones_tenancies_newest_first(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red")
    browser, stranger = await _logged_in(lab, "developer"), await _logged_in(lab, "stranger")
    text = (await browser.get("/console/events?q=train")).text
    assert "pod/train" in text
    assert "pod/train" not in (await stranger.get("/console/events")).text
    assert "None like these yet" in (await browser.get("/console/events?q=nothing-of-it")).text
    assert (await browser.get(f"/console/events?type={urllib.parse.quote(HOSTILE)}")).status_code == 200


async def test_events_are_in_a_persons_words_and_as_written_where_asked(lab: Lab) -> None:
    space = lab.namespaces["red"]
    about = core.ObjectReference(kind="Pod", name="train", namespace=space)
    raw = f"0/1 nodes are available: 1 Insufficient nvidia.com/gpu. {HOSTILE}"
    item = meta.ObjectMeta(name="one", namespace=space)
    await lab.world.store.create(core.Event(metadata=item, involved_object=about, reason="Waits", message=raw))
    browser = await _logged_in(lab, "developer")
    for query, has_words in (("", True), ("?raw=on", False), ("?q=gpus+free", True), ("?q=insufficient", True)):
        text = (await browser.get(f"/console/events{query}")).text
        told = ("it does not fit: too few GPUs free" in text, "Insufficient nvidia.com/gpu" in text)
        assert told == (has_words, not has_words), query
        assert "<script>alert" not in text


# webhooks


async def test_an_owner_makes_tries_and_removes_a_webhook(lab: Lab) -> None:
    browser = await _logged_in(lab, "owner")
    fields = {"url": "https://example.com/hook", "tenancy": "red", "on-container.failed": "on"}
    made = await _post(browser, "/console/webhooks", page="/console/webhooks", **fields)
    assert (made.status_code, _secret(made.text).startswith("whsec_")) == (200, True), made.text
    (one,) = (await lab.ask("owner", "GET", "/v1/webhooks")).json()["items"]
    assert (one["events"], one["tenancy"]) == (["container.failed"], "red")
    place = f"/console/webhooks/{one['id']}"
    assert "Nothing was sent yet" in (await browser.get(place)).text
    assert (await _post(browser, f"{place}/test", page=place)).status_code == 303
    text = (await browser.get(place)).text
    assert ("webhook.test" in text, ">pending<" in text) == (True, True)
    stranger = await _logged_in(lab, "stranger")
    assert (await stranger.get(place)).status_code == 404
    assert (await _post(stranger, f"{place}/remove", page="/console/webhooks")).status_code == 404
    assert (await _post(browser, f"{place}/remove", page=place)).status_code == 303
    assert (await lab.ask("owner", "GET", "/v1/webhooks")).json()["items"] == []


async def test_an_address_that_cannot_be_is_refused_beside_the_filled_form(lab: Lab) -> None:
    browser = await _logged_in(lab, "owner")
    page = "/console/webhooks"
    refused = await _post(browser, page, page=page, url="http://example.com/x", tenancy="red")
    assert (refused.status_code, 'role="alert"' in refused.text) == (403, True)
    assert 'value="http://example.com/x"' in refused.text


# volumes


async def test_a_volume_is_made_and_removed_where_one_may(lab: Lab) -> None:
    browser = await _logged_in(lab, "developer")
    page, space = "/console/volumes", lab.namespaces["red"]
    assert (await _post(browser, page, page=page, name="data", namespace=space)).status_code == 303
    text = (await browser.get(page)).text
    assert f'name="namespace" value="{space}"' in text
    stranger = await _logged_in(lab, "stranger")
    assert ">data<" not in (await stranger.get(page)).text
    asked = {"name": "data", "namespace": space}
    assert (await _post(stranger, f"{page}/remove", page=page, **asked)).status_code == 404
    viewer = await _logged_in(lab, "viewer")
    assert "Make a volume" not in (await viewer.get(page)).text
    assert (await _post(browser, f"{page}/remove", page=page, **asked)).status_code == 303
    assert (await lab.ask("developer", "GET", "/v1/volumes")).json()["items"] == []
    refused = await _post(browser, page, page=page, name="Not A Name", namespace=space)
    assert (refused.status_code, 'role="alert"' in refused.text) == (422, True)


# secrets


async def test_a_secret_is_made_replaced_and_deleted_and_no_page_shows_its_value(lab: Lab) -> None:
    browser = await _logged_in(lab, "developer")
    page, asked = "/console/secrets", {"name": "token", "namespace": lab.namespaces["red"]}
    more = {"key": "pem", "value": "hunter2\r\nline", "pairs": "user=ann\r\nword=a=b"}
    assert (await _post(browser, page, page=page, **asked, **more)).status_code == 303
    (made,) = (await lab.ask("developer", "GET", "/v1/secrets")).json()["items"]
    assert made["sizes"] == {"pem": 12, "user": 3, "word": 3}
    text = (await browser.get(page)).text
    assert made["digests"]["pem"] in text
    assert "12 B" in text
    assert "hunter2" not in text
    viewer = await _logged_in(lab, "viewer")
    shown = (await viewer.get(page)).text
    assert (made["digests"]["pem"] in shown, "<textarea" in shown) == (True, False)
    assert made["digests"]["pem"] not in (await (await _logged_in(lab, "stranger")).get(page)).text
    changed = {f"value-{key}": "other2" for key in made["digests"]}
    assert (await _post(browser, f"{page}/replace", page=page, **asked, **changed)).status_code == 303
    (after,) = (await lab.ask("developer", "GET", "/v1/secrets")).json()["items"]
    assert (after["sizes"]["pem"], after["digests"]["pem"] == made["digests"]["pem"]) == (6, False)
    assert (await _post(viewer, f"{page}/delete", page="/console/keys", **asked)).status_code == 403
    assert (await _post(browser, f"{page}/delete", page=page, **asked)).status_code == 303
    assert (await lab.ask("developer", "GET", "/v1/secrets")).json()["items"] == []


@pytest.mark.parametrize("change", [{"name": "Not A Name"}, {"key": "a b"}, {"pairs": "hunter3"}, {"value": ""}])
async def test_a_refused_secret_comes_back_without_its_values(lab: Lab, change: dict[str, str]) -> None:
    browser = await _logged_in(lab, "developer")
    page, space = "/console/secrets", lab.namespaces["red"]
    fields = {"name": "token", "namespace": space, "key": "pem", "value": "hunter2", **change}
    refused = await _post(browser, page, page=page, **fields)
    assert (refused.status_code, 'role="alert"' in refused.text) == (422, True)
    assert f'name="name" required value="{fields["name"]}"' in refused.text
    assert "hunter" not in refused.text


async def test_a_secrets_key_is_shown_as_text(lab: Lab) -> None:
    browser = await _logged_in(lab, "developer")
    page, space = "/console/secrets", lab.namespaces["red"]
    for fields in ({"name": HOSTILE, "value": "x"}, {"name": "ok", "key": HOSTILE, "value": "x"}):
        answer = await _post(browser, page, page=page, namespace=space, **fields)
        assert answer.status_code == 422
        assert "<script>alert" not in answer.text


# the identity provider


async def test_the_provider_is_offered_where_there_is_one_and_what_it_refuses_is_a_page(lab: Lab) -> None:
    assert "/v1/oidc/login" not in (await Browser(lab).get("/console/login")).text
    door: Any = console.create_app(lab.app, has_login=True, provider="idp.example")
    headers = {"origin": "https://test", "accept": "text/html"}
    async with httpx.AsyncClient(transport=in_process(door), base_url="https://test", headers=headers) as client:
        text = (await client.get("/console/login?next=/console/queue")).text
        assert 'href="/v1/oidc/login?back=%2Fconsole%2Fqueue"' in text
        assert "Log in with idp.example" in text
        for path in ("/v1/oidc/login", "/v1/oidc/callback?code=x&state=y"):
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8"), path
            assert "no identity provider is set here" in answer.text
            assert answer.headers["content-security-policy"]
            plain = await client.get(path, headers={"accept": "application/json"})
            assert plain.headers["content-type"] == "application/problem+json"


# reservations


async def test_a_person_reserves_gpus_sees_them_and_gives_them_back(lab: Lab) -> None:
    browser = await _logged_in(lab, "developer")
    page, space = "/console/reservations", lab.namespaces["red"]
    fields = {"gpus": "2", "from": "tomorrow 9:00", "hours": "1.5", "name": "night", "namespace": space}
    made = await _post(browser, page, page, **fields)
    assert made.status_code == 303, made.text
    shown = await browser.get(page)
    assert "night" in shown.text
    assert "upcoming" in shown.text
    refused = await _post(browser, page, page, **{**fields, "name": "more", "gpus": "3"})
    assert "2 of 4 are reserved from" in refused.text
    for hours in ("-1", "1e9", "x", ""):
        odd = await _post(browser, page, page, **{**fields, "hours": hours})
        assert odd.status_code == 422 or 'role="alert"' in odd.text
    gone = await _post(browser, f"{page}/delete", page, name="night", namespace=space)
    assert gone.status_code == 303
    assert "night" not in (await browser.get(page)).text.split("Reserve GPUs")[0]
