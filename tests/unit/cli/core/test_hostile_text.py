"""Every verb that shows what a service says, before a service whose every text is hostile: shown, never obeyed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from fairlead.wire.kubernetes import core, meta
from fairlead.wire.text import typedjson
from tests.unit.cli.conftest import Service

_HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x85\x7f\r\u202egnp\u2066\u061c\u2028"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT")
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where texts stand that may be anything: all but times."""
    match value:
        case str() if not _TIME.match(value):
            yield at
        case list():
            for index, item in enumerate(value):
                yield from _places(item, (*at, index))
        case dict():
            for key, item in value.items():
                yield from _places(item, (*at, key))


def _spoiled(value: Any, kind: Any) -> Any:
    """Return the value with every text made hostile that its type leaves free."""
    for *way, last in _places(value):
        owner = value
        for step in way:
            owner = owner[step]
        before = owner[last]
        owner[last] = before + _HOSTILE
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            owner[last] = before
    return msgspec.convert(value, kind)


@pytest.fixture
def lying(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service with a container that ran, one that waits, and lies in every answer."""
    assert service.fairlead("run", "--name", "ran", "-g", "1", "demo").exit_code == 0
    assert service.fairlead("run", "-d", "--wait", "--name", "waits", "-g", "9", "demo").exit_code == 0
    about = meta.ObjectMeta(name="four", namespace="default")
    spec = core.ResourceQuotaSpec(hard={"pods": "40"})
    made = service.world.store.create(core.ResourceQuota(metadata=about, spec=spec))
    asyncio.run_coroutine_threadsafe(made, service.loop).result(5)

    def decode(data: bytes | str, *, type: Any) -> Any:  # noqa: A002 as the one it stands for
        plain = json.loads(data)
        return _spoiled(plain, type) if isinstance(plain, dict | list) else msgspec.convert(plain, type)

    monkeypatch.setattr(typedjson, "decode", decode)
    return service


_VERBS = (
    ("ps", "-a"),
    ("ps", "-a", "-o", "wide"),
    ("ps", "-a", "-o", "name"),
    ("events",),
    ("explain", "waits"),
    ("explain", "ran"),
    ("trace", "ran"),
    ("gpus",),
    ("gpus", "-o", "wide"),
    ("topology",),
    ("nodes",),
    ("nodes", "-o", "wide"),
    ("status",),
    ("image", "ls"),
    ("quota", "list"),
    ("stop", "waits"),
    ("run", "-d", "--name", "new", "demo"),
    ("ps", "--namespace", "nowhere\x1b[2J"),
    ("rm", "nobody\x1b[2J\u202e"),
    ("logs", "nobody\x1b[2J\u202e"),
)


def test_no_verb_hands_a_terminal_what_it_would_obey(lying: Service) -> None:
    for argv in _VERBS:
        done = lying.fairlead(*argv)
        assert not isinstance(done.exception, Exception), (argv, done.exception)
        said = re.sub(r"\x1b\[[0-9;]*m", "", done.output)
        assert (argv, [hex(ord(char)) for char in set(_OBEYED.findall(said))]) == (argv, [])
        assert "\\x1b" in said or argv[0] in {"ps", "stop", "topology"}, argv


_DOCUMENTS = (
    ("ps", "-a"),
    ("events",),
    ("gpus",),
    ("nodes",),
    ("status",),
    ("explain", "waits"),
    ("trace", "ran"),
    ("image", "ls"),
)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_documents_escape_what_a_terminal_would_obey_and_lose_nothing(lying: Service, form: str) -> None:
    for argv in _DOCUMENTS:
        done = lying.fairlead(*argv, "-o", form)
        assert done.exit_code == 0, done.output
        assert (argv, _OBEYED.findall(done.stdout)) == (argv, [])
        found = json.loads(done.stdout) if form == "json" else yaml.safe_load(done.stdout)
        assert _HOSTILE in "".join(_texts(found)), argv


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for item in value.values():
                yield from _texts(item)
