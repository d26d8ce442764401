"""Tables, lengths of time, sizes, progress, and flags made from the settings table."""

from __future__ import annotations

import datetime as dt
import io
import subprocess
import sys
from pathlib import Path

import click
import click.testing
import pytest

from fairlead import settings
from fairlead.cli.core import invocation, options, output, progress


def test_columns_are_aligned_and_empty_values_marked() -> None:
    assert list(output.lines_of([["A", "LONG"], ["long one", ""]])) == ["A          LONG", "long one   -"]
    assert list(output.lines_of([])) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m"), (190, "3m10s"), (7260, "2h1m"), (90000, "1d1h"), (86400 * 400, "400d")],
)
def test_lengths_of_time_keep_two_units(seconds: float, text: str) -> None:
    assert output.span(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0008, "0.8 ms"), (0.0123, "12 ms"), (1.254, "1.25 s"), (125, "2m5s")])
def test_measured_times_keep_digits_that_mean_something(seconds: float, text: str) -> None:
    assert output.moment(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (2048, "2 KiB"), (80 << 30, "80 GiB"), (int(1.5 * (1 << 30)), "1.5 GiB")]
)
def test_sizes_are_binary(count: int, text: str) -> None:
    assert output.size(count) == text


def test_age_is_counted_from_now() -> None:
    now = dt.datetime(2026, 1, 1, 0, 1, tzinfo=dt.UTC)
    assert output.age("2026-01-01T00:00:00Z", now=now) == "1m"
    assert output.age(None) == ""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_rewrites_one_line_on_a_terminal_and_takes_it_away() -> None:
    stream = _Terminal()
    with progress.Progress(stream) as waiting:
        waiting.show("first")
        waiting.show("second, longer")
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().rsplit("\r", 1)[1] == ""


def test_progress_is_silent_in_a_pipe_while_it_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    waiting = progress.Progress(stream)
    waiting.show("soon")
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    waiting.show("late")
    waiting.show("late")
    assert stream.getvalue() == "late (0 s)\n"


@click.command()
@options.settings_options("log", "engine", "kubelet")
def _shown(config: settings.Settings) -> None:
    click.echo(f"{config.log.level} {config.engine.pull} {config.kubelet.resync_s} {config.engine.podman}")


def _settings(*argv: str, **env: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(_shown, argv, obj=invocation.Invocation(env=env))


def test_every_setting_of_a_group_is_a_flag_over_the_environment() -> None:
    assert _settings().output == "info True 5.0 podman\n"
    flags = ("--log-level", "debug", "--no-engine-pull", "--kubelet-resync-s", "2")
    assert _settings(*flags, FAIRLEAD_LOG_LEVEL="error", FAIRLEAD_ENGINE_PODMAN="pm").output == "debug False 2.0 pm\n"


def test_the_flags_tell_meaning_unit_and_default_and_refuse_what_is_not_offered() -> None:
    text = _settings("--help").output
    assert "--kubelet-resync-s SECONDS" in text
    assert "[default: 5.0]" in text
    assert "--silicon-root" not in text
    assert _settings("--log-level", "loud").exit_code == 2


@click.command()
@options.settings_options("api", "control")
def _wide(config: settings.Settings) -> None:
    click.echo(config.control.policy)


def test_a_flag_takes_seconds_where_its_unit_says_so_and_many_choices_stand_in_its_text() -> None:
    text = click.testing.CliRunner().invoke(_wide, ["--help"], obj=invocation.Invocation(env={})).output
    assert "--api-session-hours NUMBER" in text
    assert "--control-head-wait-s SECONDS" in text
    assert "--control-policy NAME" in text
    assert all(name in " ".join(text.split()) for name in ("one of packed, spread,", "bestfit [default: packed]"))
    assert max(map(len, text.splitlines())) <= 80


def test_a_full_disk_is_the_places_fault_and_not_a_bug() -> None:
    with Path("/dev/full").open("w") as full:
        command = (sys.executable, "-m", "fairlead.cli.main", "simulate", "profiles")
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 6
    assert done.stderr.splitlines() == [
        "error: the output cannot be written: No space left on device",
        "  hint: free some space, or write elsewhere",
    ]
