"""`fairlead doctor` and the key of a machine's Secrets: lost, damaged, open to others, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.cli.core.client import Client
from fairlead.cli.doctor import machine_facts, secret
from fairlead.store.sealing import KEY_FILE, Seal


@pytest.fixture
def key(tmp_path: Path) -> Path:
    Seal(tmp_path / KEY_FILE).sealed({"value": b"x"}, "token", "default")
    return tmp_path / KEY_FILE


def _level(key: Path, monkeypatch: pytest.MonkeyPatch, *, user: int = 0) -> tuple[str, str]:
    monkeypatch.setattr("os.geteuid", lambda: user)
    (found,) = secret.check(secret.collect(key.parent, 2))
    return found.level, f"{found.what} {found.why} {found.fix}"


def test_a_key_in_order_is_said_with_how_many_it_opens(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, words = _level(key, monkeypatch)
    assert (level, str(key) in words, "2 kept" in words) == ("ok", True, True)


@pytest.mark.parametrize("text", [None, "", "short", "\0" * 44])
def test_a_key_that_is_lost_or_damaged_fails(key: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    key.unlink() if text is None else key.write_text(text)
    level, words = _level(key, monkeypatch)
    assert (level, "backup" in words, "do not start" in words) == ("fail", True, True)


def test_a_key_that_others_may_read_is_a_warning_with_the_command(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key.chmod(0o644)
    level, words = _level(key, monkeypatch)
    assert (level, f"chmod 600 {key}" in words) == ("warn", True)


def test_who_may_not_read_it_is_told_so(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _level(key, monkeypatch, user=1000)[0] == "skip"


def test_without_secrets_nothing_is_said(tmp_path: Path) -> None:
    assert list(secret.check(secret.collect(tmp_path, 0))) == []


def test_a_service_that_is_older_than_the_question_is_not_checked_and_ends_nothing(tmp_path: Path) -> None:
    class Older(Client):
        def call(self, method: str, path: str, *_: object, **__: object) -> Any:
            raise errors.NotFound(f"there is no {method} {path}", reason="NotFound")

    kept = machine_facts._count_secrets(Older.__new__(Older))
    (found,) = secret.check(secret.collect(tmp_path, kept))
    assert (found.level, "older" in found.why, "not checked" in found.what) == ("skip", True, True)
