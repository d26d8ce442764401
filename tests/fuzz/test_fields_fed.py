"""Every field of every body that the API takes is in a specimen: what none has is fed nothing hostile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.fuzz.doors import api

_DEEP = 6
_BODIES = [
    pytest.param(method, path, operation, id=f"{method} {path}")
    for method, path, operation in api._routes()
    if "application/json" in operation.get("requestBody", {}).get("content", {})
]


def _fields(schema: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield the fields of a schema and of what is below it, `health.command`."""
    while "$ref" in schema:
        schema = api.document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for one in (*schema.get("oneOf", ()), *schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _fields(one, depth)
    if "items" in schema:
        yield from _fields(schema["items"], depth)
    for name, below in schema.get("properties", {}).items():
        yield name
        if depth < _DEEP:
            yield from (f"{name}.{one}" for one in _fields(below, depth + 1))


def _given(value: object) -> Iterator[str]:
    """Yield the fields of a specimen."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from _given(one)
    elif isinstance(value, dict):
        for name, below in value.items():
            yield name
            yield from (f"{name}.{one}" for one in _given(below))


@pytest.mark.parametrize(("method", "path", "operation"), _BODIES)
def test_a_specimen_has_every_field_of_a_body(method: str, path: str, operation: Mapping[str, Any]) -> None:
    route = re.compile(re.sub(r"\\{[^}]+\\}", "[^/:]+", re.escape(path.replace("/:", ":"))))
    fed = [
        document
        for verb, target, specimens in (*api.BODIES, *api.UNMET)
        if verb == method and route.fullmatch(target)
        for _, document in specimens
    ]
    fields = set(_fields(operation["requestBody"]["content"]["application/json"]["schema"]))
    assert sorted(fields - {name for one in fed for name in _given(one)}) == []
