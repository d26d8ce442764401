"""`fairlead open`: which port is meant, what is printed, and what a person is told where nothing can be opened."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.serve.opened.grants import Grants
from fairlead.serve.v1 import dependencies
from tests.unit.cli import liveservice
from tests.unit.cli.liveservice import Service
from tests.unit.serve.world import World

_ADDRESS = r"https://[0-9a-f]{24}\.apps\.localhost:8443/\.fairlead/open\?ticket=[0-9a-f]{64}\n"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Service]:
    """A machine whose API is on TLS as well, as its root asks it by the socket."""

    def prepare(world: World) -> None:
        world.services = dataclasses.replace(world.services, grants=Grants(port=8443), callers=dependencies.Callers())

    with liveservice.serving(tmp_path, prepare) as one:
        yield one


def _run(service: Service, name: str, *words: str) -> None:
    made = service.fairlead("run", "-d", "--name", name, *words, "demo", "--", "sleep", "60")
    assert made.exit_code == 0, made.output


def test_the_port_is_the_named_one_the_session_s_or_the_only_one(opened: Service) -> None:
    _run(opened, "plain")
    _run(opened, "work", "-l", "session=notebook")
    _run(opened, "web", "-p", "18080:80")
    for words in (("plain", "6006"), ("work",), ("web",), ("web", "9000", "--path", "/lab?x=%20")):
        found = opened.fairlead("open", *words)
        assert found.exit_code == 0, found.output
        assert re.fullmatch(_ADDRESS, found.stdout), words
    asked = opened.fairlead("open", "plain")
    assert (asked.exit_code, "fairlead open plain 8888" in asked.output) == (2, True)
    for words in (("plain", "0"), ("plain", "65536"), ("plain", "x"), ("plain", "80", "--path", "//evil.example")):
        assert opened.fairlead("open", *words).exit_code == 2, words
    assert "not found" in opened.fairlead("open", "none", "80").output


def test_without_the_api_on_tls_the_way_that_there_is_is_named(service: Service) -> None:
    _run(service, "plain")
    refused = service.fairlead("open", "plain", "80")
    assert refused.exit_code != 0
    assert "`fairlead port-forward NAME PORT` leads there" in refused.output
