"""Events in words: what a tenant names a container never is markup, a mention, a header or a screen full."""

from __future__ import annotations

import email
import email.policy
import json
from typing import Any

import pytest

from fairlead import errors
from fairlead.serve.webhooks import mail, port, words

_NASTY = (
    "=?utf-8?q?=0aBcc:=20all=40example.com?= ![a](https://evil.example) "
    "<!channel> & <https://evil.example|click> @channel @here\r\nBcc: all@example.com\n\x1b[2J\u202e\x00" + "x" * 5000
)


def _body(kind: str, **data: Any) -> bytes:
    return json.dumps({"type": kind, "timestamp": "2026-11-01T12:00:00Z", "data": data}).encode()


@pytest.mark.parametrize("kind", [*port.EVENTS, port.TEST, port.CONFIRM])
def test_every_kind_has_words(kind: str) -> None:
    found = words.of_body(_body(kind, name="train", tenancy="red", gpu="GPU-1", node="n", cause="idle GPUs"))
    assert found.title
    assert "\n" not in found.title
    assert found.lines[-1] == "at 2026-11-01T12:00:00Z"


def test_an_end_has_its_reason_and_exit_code() -> None:
    found = words.of_body(
        _body("container.failed", name="train", tenancy="red", reason="Error", message="bad", exit_code=137)
    )
    assert found.text == "container train of red has failed\nError: bad\nexit code 137\nat 2026-11-01T12:00:00Z"
    ahead = _body(port.ENDS_SOON, name="a", namespace="n", cause="time limit", acts_at="T", is_ended=True)
    assert words.of_body(ahead).title == "container a of n will be ended at T (time limit)"
    warned = _body(port.ENDS_SOON, name="a", namespace="n", cause="idle GPUs", is_ended=False, message="use them")
    assert words.of_body(warned).text.startswith("container a of n: idle GPUs\nuse them")


@pytest.mark.parametrize("kind", [*port.EVENTS, port.TEST, port.CONFIRM])
def test_slack_gets_no_markup_and_mentions_nobody(kind: str) -> None:
    given = dict.fromkeys(("name", "tenancy", "message", "reason", "cause", "acts_at", "gpu", "node", "code"), _NASTY)
    sent = words.slack(_body(kind, **given))
    text = json.loads(sent)["text"]
    assert json.loads(sent) == {"text": text, "mrkdwn": False}
    assert "](" not in text
    assert "<" not in text
    assert ">" not in text
    assert "@channel" not in text
    assert "@here" not in text
    assert all(one.isprintable() or one in "\n\u2060" for one in text)
    assert len(text) < 6000
    assert len(text.splitlines()) <= 12


def test_ampersands_are_escaped_once() -> None:
    assert "a &amp; b" in json.loads(words.slack(_body("container.failed", name="a & b")))["text"]


def test_matrix_gets_a_notice_that_mentions_nobody() -> None:
    found = json.loads(words.matrix(_body("container.running", name="train", tenancy="red")))
    assert found == {
        "msgtype": "m.notice",
        "body": "container train of red has started\nat 2026-11-01T12:00:00Z",
        "m.mentions": {},
    }


@pytest.mark.parametrize("kind", [*port.EVENTS, port.TEST, port.CONFIRM])
def test_no_header_comes_from_a_tenant(kind: str) -> None:
    given = dict.fromkeys(("name", "tenancy", "message", "reason", "cause", "acts_at", "gpu", "node", "code"), _NASTY)
    made = mail.compose(_body(kind, **given), to="ann@example.com", sender="fl@example.org", id_="evt_1", at=0.0)
    read = email.message_from_bytes(made.as_bytes(), policy=email.policy.default)
    assert sorted(name.lower() for name in read) == sorted(
        {
            *("from", "to", "subject", "date", "message-id", "auto-submitted"),
            *("content-type", "content-transfer-encoding", "mime-version"),
        }
    )
    assert read["To"] == "ann@example.com"
    assert read["Message-ID"] == "<evt_1@example.org>"
    assert max(map(len, made.as_bytes().split(b"\r\n"))) <= 998


@pytest.mark.parametrize(
    "text",
    [
        "=?utf-8?q?a=2C_b=40evil.example?=@example.com",
        "ann",
        "ann@",
        "@example.com",
        "ann@example.com,bob@example.com",
        "ann@example.com\r\nBcc: bob@example.com",
        "ann@example.com bob@example.com",
        "<ann@example.com>",
        '"a b"@example.com',
        "ann@exa_mple.com",
        "ann@-example.com",
        "ann@example..com",
        ".ann@example.com",
        "änn@example.com",
        "ann@exämple.com",
        "ann@[127.0.0.1]",
        "a" * 65 + "@example.com",
        "ann@" + "a" * 64 + ".com",
        "ann@" + ".".join(["a" * 60] * 5),
        "ann@example.com\x00",
        "ann%bob@evil@example.com",
    ],
    ids=lambda one: ascii(one)[:30],
)
def test_what_is_no_plain_address_is_not_written_to(text: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        mail.parse_address(text)
    assert caught.value.reason == "MailAddressInvalid"


def test_domains_bind_accounts_and_not_administrators() -> None:
    server = mail.Server(host="h", sender="a@b.c", domains=("example.com",))
    assert mail.check_recipient("Ann.B+x@Example.com", server, is_trusted=False) == "Ann.B+x@Example.com"
    with pytest.raises(errors.Denied):
        mail.check_recipient("ann@sub.example.com", server, is_trusted=False)
    assert mail.check_recipient("ann@other.org", server, is_trusted=True)
    with pytest.raises(errors.Invalid):
        mail.check_recipient("ann@example.com", mail.Server(), is_trusted=True)
