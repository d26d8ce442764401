"""Priorities on one machine: classes by manifest, named by `run`, shown while they count."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.unit.cli.liveservice import Service, serving

CLASS = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
description: before everybody
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("priority")) as service:
        made = service.fairlead("run", "-f", "-", stdin=CLASS)
        assert (made.exit_code, made.stdout) == (0, ""), made.stderr
        service.fairlead("run", "-d", "--name", "all", "-g", "4", "demo", "sleep", "600")
        for name, number in (("late", "-5"), ("usual", "0"), ("first", "urgent")):
            asked = service.fairlead("run", "-d", "--name", name, "--priority", number, "-g", "1", "demo", "true")
            assert asked.exit_code == 0, asked.stderr
        yield service


def test_higher_goes_first_in_the_queue(live: Service) -> None:
    places = {one: json.loads(live.fairlead("explain", one, "-o", "json").stdout) for one in ("first", "usual", "late")}
    assert [shown["waiting"]["place"] for shown in places.values()] == [1, 2, 3]
    assert [(shown["priority"], shown["priority_class"]) for shown in places.values()] == [
        (1000, "urgent"),
        (0, ""),
        (-5, ""),
    ]


def test_a_person_sees_the_priority_where_it_counts(live: Service) -> None:
    assert "its priority is 1000 (urgent): higher goes first" in live.fairlead("explain", "first").stdout
    assert "priority" not in live.fairlead("explain", "usual").stdout
    wide = live.fairlead("ps", "-o", "wide").stdout
    assert "PRIORITY" in wide
    assert "1000 (urgent)" in wide


def test_an_unknown_class_is_refused_with_those_there_are(live: Service) -> None:
    refused = live.fairlead("run", "-d", "--priority", "nosuch", "demo", "true")
    assert refused.exit_code == 2
    assert "urgent (1000)" in refused.stderr


def test_applying_a_class_again_changes_it(live: Service) -> None:
    assert live.fairlead("run", "-f", "-", stdin=CLASS.replace("1000", "900")).exit_code == 0
    assert (
        live.fairlead("run", "-d", "--name", "second", "--priority", "urgent", "-g", "1", "demo", "true").exit_code == 0
    )
    assert json.loads(live.fairlead("ps", "second", "-o", "json").stdout)[0]["priority"] == 900
    assert live.fairlead("run", "-f", "-", stdin=CLASS).exit_code == 0
    assert live.fairlead("restart", "-t", "0", "second").exit_code == 0
    assert json.loads(live.fairlead("ps", "second", "-o", "json").stdout)[0]["priority"] == 1000


def test_a_time_limit_is_shown_to_who_asks(live: Service) -> None:
    run = ("run", "-d", "--timeout", "5400")
    assert live.fairlead(*run, "--name", "timed", "demo", "sleep", "600").exit_code == 0
    assert live.fairlead("wait", "timed", "--state", "started").exit_code == 0
    words = live.fairlead("explain", "timed").stdout
    assert re.search(r"its time limit is 1h30m; 1h[0-9]+m of it left\n", words), words
    assert live.fairlead(*run, "--name", "waits", "-g", "4", "demo", "true").exit_code == 0
    assert "its time limit is 1h30m, from its start on" in live.fairlead("explain", "waits").stdout
    assert "1h30m" in live.fairlead("ps", "-o", "wide").stdout
    assert "time limit" not in live.fairlead("explain", "all").stdout
