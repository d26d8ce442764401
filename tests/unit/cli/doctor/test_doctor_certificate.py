"""The certificate that the API shows: its end is said before it comes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.cli.doctor import certificate as checked
from fairlead.serve import certificate

NOW = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificate.ensure_own(certificate.own(tmp_path), ("gpu.example",), NOW)
    return tmp_path


def collect(folder: Path, **flags: Path) -> checked.Facts:
    config = settings.load(flags={f"api.{name}": value for name, value in flags.items()}, env={}, file=None)
    return checked.collect(config, folder)


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (0, "ok", "good until 2027-11-29"),
        (343, "ok", "good until"),
        (345, "warn", "in 20 days"),
        (366, "fail", "ended on 2027-11-29"),
    ],
)
def test_the_end_is_said_three_weeks_before(folder: Path, days: int, level: str, words: str) -> None:
    (found,) = checked.check(collect(folder), NOW + dt.timedelta(days=days))
    assert (found.level, words in found.what) == (level, True), found


def test_an_operators_is_replaced_by_its_files(folder: Path) -> None:
    where = certificate.own(folder)
    seen = collect(folder / "other", certificate=where.certificate, key=where.key)
    (found,) = checked.check(seen, NOW + dt.timedelta(days=350))
    assert f"put the next one into {where.certificate}" in found.fix


def test_what_is_no_certificate_is_a_failure_with_its_path(folder: Path) -> None:
    where = certificate.own(folder)
    where.certificate.write_text("none")
    (found,) = checked.check(collect(folder), NOW)
    assert (found.level, str(where.certificate) in found.what) == ("fail", True)


def test_without_tls_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert list(checked.check(collect(tmp_path), NOW)) == []


def test_the_names_of_opened_ports_are_looked_for(folder: Path) -> None:
    where = certificate.own(folder)
    config = settings.load(flags={"api.open_domain": "apps.gpu.invalid"}, env={}, file=None)
    found = {one.check: one for one in checked.check(checked.collect(config, folder), NOW) if one.level == "fail"}
    assert (set(found), "start the service again" in found["open"].fix) == ({"open"}, True)
    certificate.ensure_own(where, ("gpu.example", "*.apps.gpu.invalid"), NOW)
    (good, unknown) = checked.check(checked.collect(config, folder), NOW)
    assert (good.level, unknown.level, unknown.check) == ("ok", "warn", "open")
    assert "add *.apps.gpu.invalid to DNS" in unknown.fix
