"""`fairlead reserve` against a service: made, listed, shown, exported, deleted; refused in words."""

from __future__ import annotations

import json

from tests.unit.cli.conftest import Service


def test_one_is_made_listed_shown_exported_and_deleted(service: Service) -> None:
    when = ("--from", "tomorrow 9:00", "--for", "3h", "--zone", "Europe/Berlin")
    made = service.fairlead("reserve", "-g", "3", *when, "--name", "night", "-n", "vision")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.startswith("night: 3 GPUs from ")
    assert made.stdout.endswith(" 09:00 CET for 3h\n") or made.stdout.endswith(" 09:00 CEST for 3h\n")
    listed = service.fairlead("reserve", "list")
    assert "upcoming" in listed.stdout
    assert json.loads(service.fairlead("reserve", "show", "night", "-n", "vision").stdout)["duration_seconds"] == 10800
    assert "SUMMARY:3 GPUs: night" in service.fairlead("reserve", "list", "--ics").stdout
    refused = service.fairlead("reserve", "-g", "2", *when)
    assert refused.exit_code == 5
    assert "3 of 4 are reserved from" in refused.stderr
    assert "vision/night" in refused.stderr
    assert service.fairlead("reserve", "delete", "night", "-n", "vision").stdout == "night\n"
    assert service.fairlead("reserve", "list", "-o", "name").stdout == ""


def test_what_is_lacking_or_misplaced_is_said_with_the_next_step(service: Service) -> None:
    nothing = service.fairlead("reserve")
    assert (nothing.exit_code, "--gpus, --from, --for: not given" in nothing.stderr) == (2, True)
    misplaced = service.fairlead("reserve", "-g", "1", "list")
    assert (misplaced.exit_code, "stand before list" in misplaced.stderr) == (2, True)
    hidden = service.fairlead("reserve", "-g", "1", "--from", "\x1b[2Jsoon", "--for", "3h")
    assert hidden.exit_code == 2
    assert "\x1b" not in hidden.stderr
    never = service.fairlead("reserve", "delete", "none")
    assert (never.exit_code, 'there is no reservation "none"' in never.stderr) == (2, True)
