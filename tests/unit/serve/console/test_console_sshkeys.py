"""SSH keys in the browser: an account adds, sees and removes its own; and the week of reservations as a page."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fairlead.serve.accounts.roles import Scope
from tests.unit.serve.console.test_console_accounts import _logged_in as logged_in
from tests.unit.serve.console.test_console_accounts import _post as post
from tests.unit.serve.console.test_console_pages import HOSTILE
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World

PAGE = "/console/sshkeys"


def _key(seed: int = 1, comment: str = "ann@laptop") -> str:
    private = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return f"{private.public_key().public_bytes(*form).decode()} {comment}"


def _confirmed(lab: Lab) -> dict[str, str]:
    return {"confirm": lab.keys["developer"]}


def _spring() -> dt.date:
    """Return the next day on which clocks are set forward in Berlin, within a year."""
    today = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=2)
    days = (today + dt.timedelta(days=number) for number in range(367))
    return next(day for day in days if day.month == 3 and day.weekday() == 6 and day.day > 24)


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


def _said(answer: httpx.Response, field: str) -> str:
    found = re.search(rf'<p class="help bad" id="h-f-{field}">(.*?)</p>', answer.text, re.DOTALL)
    assert re.search(rf'id="f-{field}"[^>]*aria-invalid="true"', answer.text), answer.text
    return html.unescape(found[1]) if found else ""


async def test_an_account_adds_sees_and_removes_its_own_key(lab: Lab) -> None:
    browser, other = await logged_in(lab, "developer"), await logged_in(lab, "owner")
    assert "No SSH keys yet" in (await browser.get(PAGE)).text
    made = await post(browser, PAGE, PAGE, public_key=f"{_key()}\r\n", days="7", **_confirmed(lab))
    assert made.status_code == 303, made.text
    (kept,) = (await lab.ask("developer", "GET", "/v1/sshkeys")).json()["items"]
    assert (kept["account"], kept["note"], bool(kept["expires_at"])) == ("developer", "ann@laptop", True)
    text = (await browser.get(made.headers["location"])).text
    assert f"{kept['fingerprint']}</code> is in force" in text
    assert "data-confirm=" in text
    assert kept["fingerprint"] not in (await other.get(PAGE)).text
    assert (await post(other, f"{PAGE}/{kept['id']}/remove", PAGE)).status_code == 404
    assert (await browser.client.post(f"{PAGE}/{kept['id']}/remove", data={})).status_code == 403, "without a token"
    assert (await post(browser, f"{PAGE}/{kept['id']}/remove", PAGE)).status_code == 303
    assert (await lab.ask("developer", "GET", "/v1/sshkeys")).json()["items"] == []


async def test_what_is_wrong_with_a_key_is_said_at_its_field(lab: Lab) -> None:
    browser = await logged_in(lab, "developer")
    assert (await post(browser, PAGE, PAGE, public_key=_key(), **_confirmed(lab))).status_code == 303
    alone = await post(browser, PAGE, PAGE, public_key=_key(2))
    assert (alone.status_code, "session alone makes no keys" in alone.text) == (403, True)
    for text, says in (
        ("", "not a public key"),
        (HOSTILE, "not a public key"),
        ("ssh-dss AAAA", "not a kind of key"),
        ("ssh-ed25519 !!", "not base64"),
        (_key(), "there"),
    ):
        refused = await post(browser, PAGE, PAGE, public_key=text, **_confirmed(lab))
        assert lab.keys["developer"] not in refused.text
        assert refused.status_code in {409, 422}, text
        assert says in _said(refused, "public_key"), text
        assert "<script>alert" not in refused.text
    long = await post(browser, PAGE, PAGE, public_key=_key(2), note="x" * 201, **_confirmed(lab))
    assert "a note is one line" in _said(long, "note")
    foreign = await post(browser, PAGE, PAGE, public_key=_key(2), account="owner", **_confirmed(lab))
    assert foreign.status_code in {403, 404}
    assert len((await lab.ask("root", "GET", "/v1/sshkeys")).json()["items"]) == 1


async def test_a_private_key_that_was_pasted_is_not_shown_again_and_not_sent_on(lab: Lab) -> None:
    browser = await logged_in(lab, "developer")
    text = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0LXN0dWZm\n-----END OPENSSH PRIVATE KEY-----"
    refused = await post(browser, PAGE, PAGE, public_key=text)
    assert "this is a private key" in _said(refused, "public_key")
    assert "c2VjcmV0" not in refused.text
    assert "ssh_key.add" not in (await lab.ask("root", "GET", "/v1/audit")).text


async def test_a_login_without_the_scope_is_offered_no_form(lab: Lab) -> None:
    browser = await logged_in(lab, "developer", await lab.key("developer", Scope.READ, Scope.MANAGE))
    text = (await browser.get(PAGE)).text
    assert ("Add a key" in text, "has not the scope run" in text) == (False, True)


async def test_the_week_shows_own_reservations_by_name_and_others_as_taken(lab: Lab) -> None:
    page, space = "/console/reservations", lab.namespaces["red"]
    browser, stranger = await logged_in(lab, "developer"), await logged_in(lab, "stranger")
    root, day = await logged_in(lab, "root"), _spring()
    monday = (day - dt.timedelta(days=6)).isoformat()
    sent = f"{page}?week={monday}&zone=Europe/Berlin"
    fields = {"gpus": "2", "hours": "3", "name": "rubin", "namespace": space, "zone": "Europe/Berlin"}
    made = await post(root, sent, page, **fields, **{"from": f"{day} 01:00"})
    assert made.status_code == 303, made.text
    assert made.headers["location"] == f"{page}?week={monday}&zone=Europe%2FBerlin"
    text = (await browser.get(made.headers["location"])).text
    said = rf'rubin 2<span class="hidden"> {day.strftime("%a %d %b")} 01:00: 2 of 4 reserved, by rubin'
    assert re.search(rf'<td class="own h\d[^"]*"><a [^>]*>{said}', text), text
    assert "no such hour: clocks are set forward" in text
    assert "01:00 to 05:00: rubin, 2 GPUs" in text
    assert f"&amp;from={day}%2001%3A00#new" in text
    assert 'value="2027-03-29 9:00"' in (await browser.get(f"{sent}&from=2027-03-29+9:00")).text
    seen = (await stranger.get(sent)).text
    assert ("rubin" in seen, "01:00 to 05:00: another team, 2 GPUs" in seen) == (False, True)
    for odd in (HOSTILE, "Europe/Nowhere", "../../etc/passwd", "", "\x00"):
        answer = await browser.client.get(page, params={"zone": odd, "week": odd, "from": odd})
        assert (answer.status_code, "<script>alert" in answer.text) == (200, False)
    late = await post(browser, sent, page, **fields, **{"from": "whenever"})
    assert re.search(r'<p class="help bad" id="h-from">[^<]*is not a time', late.text), late.text
