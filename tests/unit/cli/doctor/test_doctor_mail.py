"""What doctor says of the mail server, each fault planted at a real one on loopback."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.doctor import mailserver
from fairlead.settings import Settings
from tests.unit.serve.webhooks import smtpsink
from tests.unit.serve.webhooks.smtpsink import Sink


def _findings(port: int, **more: Any) -> list[tuple[str, str, str]]:
    base = Settings()
    given = {"server": "127.0.0.1", "port": port, "security": "none", "sender": "fl@example.org", **more}
    mail, api = dataclasses.replace(base.mail, **given), dataclasses.replace(base.api, listen=":8443")
    settings = dataclasses.replace(base, mail=mail, api=api)
    return [(one.level, one.what, one.fix) for one in mailserver.check(mailserver.collect(settings))]


def test_one_that_takes_mail_is_good_and_nothing_is_sent() -> None:
    with smtpsink.opened(Sink()) as sink:
        assert [level for level, _, _ in _findings(sink.port)] == ["ok"]
    assert sink.mails == []
    assert list(mailserver.check(mailserver.collect(Settings()))) == []


def test_a_service_that_listens_by_an_option_has_accounts() -> None:
    base = Settings()
    with smtpsink.opened(Sink()) as sink:
        post = dataclasses.replace(
            base.mail, server="127.0.0.1", port=sink.port, security="none", sender="f@example.org"
        )
        settings = dataclasses.replace(base, mail=post)
        found = {at: mailserver.collect(settings, address=at).has_accounts for at in ("", "https://localhost:8443")}
    assert found == {"": False, "https://localhost:8443": True}


def test_one_that_is_away_is_named_with_the_settings() -> None:
    ((level, what, fix),) = _findings(smtpsink.free_port())
    assert (level, "cannot be reached" in what, "mail.port" in fix) == ("fail", True, True)


def test_one_without_starttls_is_named() -> None:
    with smtpsink.opened(Sink()) as sink:
        ((level, what, _),) = _findings(sink.port, security="starttls")
    assert (level, "has no STARTTLS" in what) == ("fail", True)


def test_one_that_never_gets_to_an_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailserver, "_LONGEST_S", 0.3)
    with smtpsink.dripping() as drips:
        ((level, what, fix),) = _findings(drips)
    assert (level, "within 0.3 s" in what, "mail.security" in fix) == ("fail", True, True)


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_wrong_password_and_one_that_others_read_are_named_and_not_shown(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2")
    file.chmod(mode)
    with smtpsink.opened(Sink(users={"fl": "other"})) as sink:
        found = _findings(sink.port, user="fl", password_file=file)
    assert [level for level, _, _ in found] == ["fail", "warn"][: 1 if mode == 0o600 else 2]
    assert "does not let fl in (535)" in found[0][1]
    assert "hunter2" not in str(found)


def test_settings_that_would_send_a_password_in_the_clear_are_refused() -> None:
    ((level, what, _),) = _findings(25, server="mail.example.org", user="fl")
    assert (level, "in the clear" in what) == ("fail", True)
