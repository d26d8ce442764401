"""Values against a schema: each keyword, the words of a refusal, and no keyword that is silently not checked."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import errors
from fairlead.wire.chart import valueschema

SCHEMA: dict[str, Any] = {
    "title": "t",
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "$defs": {"port": {"type": "integer", "minimum": 1, "maximum": 9}},
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "port": {"$ref": "#/$defs/port"},
        "mode": {"enum": ["a", True, 1]},
        "many": {"type": "array", "items": {"type": ["string", "null"]}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "open": {"type": "object"},
        "deep": {"type": "object", "additionalProperties": False, "properties": {"yes": {"type": "boolean"}}},
    },
}


@pytest.mark.parametrize(
    "values",
    [
        {"name": "x"},
        {"name": "x", "port": 9, "mode": "a", "many": ["a", None], "labels": {"a": "b"}, "open": {"any": [1]}},
        {"name": "x", "deep": {"yes": False}, "mode": True},
    ],
)
def test_what_the_schema_allows_passes(values: dict[str, Any]) -> None:
    valueschema.check(SCHEMA, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "value name is missing"),
        ({"name": 3}, "value name = 3 is not of type string"),
        ({"name": "X"}, 'value name = "X" does not match ^[a-z]+$'),
        ({"name": "x", "port": 0}, "value port = 0 is less than 1"),
        ({"name": "x", "port": 10}, "value port = 10 is more than 9"),
        ({"name": "x", "port": True}, "value port = true is not of type integer"),
        ({"name": "x", "mode": False}, 'value mode = false is not offered (offered: "a", true, 1)'),
        ({"name": "x", "many": ["a", 1]}, "value many[1] = 1 is not of type string or null"),
        ({"name": "x", "labels": {"a": True}}, "value labels.a = true is not of type string"),
        ({"name": "x", "deep": {"yess": True}}, 'value deep.yess is not known: did you mean "yes"?'),
        ({"name": "x", "zzz": 1}, "value zzz is not known"),
        ([], "value (all) = [] is not of type object"),
    ],
)
def test_a_violation_names_the_value_and_what_was_expected(values: object, message: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        valueschema.check(SCHEMA, values)
    assert caught.value.message == message
    assert caught.value.hint


@pytest.mark.parametrize(
    "schema",
    [
        {"minLength": 3},
        {"properties": {"a": {"oneOf": []}}},
        {"$defs": {"a": {"format": "uri"}}},
        {"items": {"const": 1}},
        {"additionalProperties": {"not": {}}},
    ],
)
def test_a_keyword_that_is_not_checked_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(errors.ProtocolError, match="is not known"):
        valueschema.check(schema, {})
