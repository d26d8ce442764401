"""Notices in the browser: a person adds, confirms, tries and removes their own, and sees nobody else's."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.serve.webhooks import mail
from tests.unit.serve.console.test_console_accounts import _logged_in as logged_in
from tests.unit.serve.console.test_console_accounts import _post as post
from tests.unit.serve.console.test_console_pages import HOSTILE
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.v1.webhooks.test_api_notices import _bodies as bodies
from tests.unit.serve.world import World

PAGE = "/console/notices"
_CHAT = "https://hooks.example/T/B/secretpath"
_SERVER = mail.Server(host="mail.example.org", sender="fl@example.org", domains=("example.com",))


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path, _SERVER) as made:
        yield made


async def test_a_chat_is_added_tried_seen_and_removed_by_its_owner_alone(lab: Lab) -> None:
    browser, other = await logged_in(lab, "viewer"), await logged_in(lab, "owner")
    assert "No notices yet" in (await browser.get(PAGE)).text
    made = await post(browser, PAGE, PAGE, format="slack", url=_CHAT, **{"on-container.failed": "on"})
    assert made.status_code == 303, made.text
    (kept,) = (await lab.ask("viewer", "GET", "/v1/notices")).json()["items"]
    assert (kept["person"], kept["reach"], kept["events"]) == ("viewer", "own", ["container.failed"])
    shown = (await browser.get(made.headers["location"])).text
    assert "is told from now on" in shown
    assert "secretpath" not in shown
    assert kept["id"] not in (await other.get(PAGE)).text
    at = f"{PAGE}/{kept['id']}"
    for path in (f"{at}/remove", f"{at}/test"):
        assert (await post(other, path, PAGE)).status_code == 404
        assert (await browser.client.post(path, data={})).status_code == 403, "without a token"
    tried = await post(browser, f"{at}/test", PAGE)
    assert (tried.status_code, tried.headers["location"]) == (303, at)
    detail = (await browser.get(at)).text
    assert "webhook.test" in detail
    assert 'href="/console/notices">Notices' in detail
    assert "containers you started" in detail
    assert (await other.get(at)).status_code == 404
    assert (await post(browser, f"{at}/remove", PAGE)).status_code == 303
    assert (await lab.ask("viewer", "GET", "/v1/notices")).json()["items"] == []


async def test_an_address_is_confirmed_by_its_code(lab: Lab) -> None:
    browser = await logged_in(lab, "developer")
    made = await post(browser, PAGE, PAGE, format="email", url=" ann@example.com ")
    assert made.status_code == 303, made.text
    assert "A code was sent to" in (await browser.get(made.headers["location"])).text
    (kept,) = (await lab.ask("developer", "GET", "/v1/notices")).json()["items"]
    (sent,) = await bodies(lab)
    code = sent["data"]["code"]
    assert code not in (await browser.get(PAGE)).text
    wrong = await post(browser, f"{PAGE}/{kept['id']}/confirm", PAGE, code="1")
    assert wrong.status_code == 403
    assert 'role="alert"' in wrong.text
    right = await post(browser, f"{PAGE}/{kept['id']}/confirm", PAGE, code=f" {code} ")
    assert right.status_code == 303
    assert (await lab.ask("developer", "GET", "/v1/notices")).json()["items"][0]["is_confirmed"] is True


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"format": "slack", "url": HOSTILE}, "url"),
        ({"format": "slack", "url": ""}, "url"),
        ({"format": "email", "url": "ann@elsewhere.org"}, "url"),
        ({"format": "email", "url": "ann@example.com\r\nBcc: x@example.com"}, "url"),
        ({"format": HOSTILE, "url": _CHAT}, "format"),
        ({"format": "matrix", "url": "https://matrix.example", "room": "!a:b"}, "token"),
    ],
)
async def test_what_is_wrong_is_said_at_its_field(lab: Lab, fields: dict[str, str], field: str) -> None:
    browser = await logged_in(lab, "developer")
    refused = await post(browser, PAGE, PAGE, **fields)
    assert refused.status_code in {400, 403, 409, 422}, refused.text
    assert re.search(rf'id="f-{field}"[^>]*aria-invalid="true"', refused.text), refused.text
    assert "<script>alert" not in refused.text


async def test_the_machine_is_for_administrators_and_a_token_is_not_shown_again(lab: Lab) -> None:
    browser, root = await logged_in(lab, "owner"), await logged_in(lab, "root")
    assert "everything on the machine" not in (await browser.get(PAGE)).text
    assert (await post(browser, PAGE, PAGE, format="slack", url=_CHAT, tenancy="*")).status_code == 403
    assert (await post(root, PAGE, PAGE, format="slack", url=_CHAT, tenancy="*")).status_code == 303
    room = {"url": "https://matrix.example/", "room": "!a:example.org", "token": "syt_secret"}
    made = await post(browser, PAGE, PAGE, format="matrix", tenancy="red", **room)
    assert made.status_code == 303, made.text
    page = html.unescape((await browser.get(PAGE)).text)
    assert "all containers of red" in page
    assert "syt_secret" not in page
    bad = await post(browser, PAGE, PAGE, format="slack", url="x", token="syt_secret")
    assert "syt_secret" not in bad.text


async def test_a_programs_secret_is_shown_once(lab: Lab) -> None:
    browser = await logged_in(lab, "developer")
    made = await post(browser, PAGE, PAGE, format="fairlead", url="https://hooks.example/x")
    assert made.status_code == 200
    assert "whsec_" in made.text
    assert "whsec_" not in (await browser.get(PAGE)).text
