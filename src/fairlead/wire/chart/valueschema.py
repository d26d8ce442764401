"""Values held against a JSON schema: the part of the language that a chart's `values.schema.json` needs.

What is wrong is said by the path of the value, with what was expected; a key that is not known comes with its nearest
neighbour. A keyword outside `KEYWORDS` is refused when the schema is read, so that nothing is silently not checked.
Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fairlead import errors

_NOTES: Final = frozenset({"$schema", "$defs", "title", "description"})
_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
}


def check(schema: Mapping[str, Any], values: object) -> None:
    """Hold values against a schema.

    Raises: Invalid (`ValueInvalid`): the first violation; ProtocolError: the schema itself.
    """
    assert_known(schema)
    message = next(_violations(schema, values, schema=schema, path=""), None)
    if message is not None:
        raise errors.Invalid(message, reason="ValueInvalid", hint="docs/reference/chart.md lists every value")


def assert_known(schema: Mapping[str, Any], path: str = "#") -> None:
    """Refuse a schema with a keyword that is not checked here. Raises: ProtocolError (`SchemaUnknown`)."""
    for keyword in schema:
        if keyword not in KEYWORDS and keyword not in _NOTES:
            raise errors.ProtocolError(f"schema keyword {keyword!r} at {path} is not known", reason="SchemaUnknown")
    for group in ("properties", "$defs"):
        for name, one in schema.get(group, {}).items():
            assert_known(one, f"{path}/{group}/{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            assert_known(schema[keyword], f"{path}/{keyword}")


def _violations(part: Mapping[str, Any], value: object, *, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for keyword, rule in part.items():
        if keyword in KEYWORDS:
            yield from KEYWORDS[keyword](rule, value, schema, path)
    if isinstance(value, dict):
        yield from _properties(part, value, schema, path)
    if isinstance(value, list) and "items" in part:
        for place, item in enumerate(value):
            yield from _violations(part["items"], item, schema=schema, path=f"{path}[{place}]")


def _properties(part: Mapping[str, Any], value: dict[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    known, others = part.get("properties", {}), part.get("additionalProperties", True)
    for name, item in value.items():
        place = f"{path}.{name}" if path else name
        if name in known:
            yield from _violations(known[name], item, schema=schema, path=place)
        elif others is False:
            near = difflib.get_close_matches(name, known, n=1)
            yield f"value {place} is not known" + (f': did you mean "{near[0]}"?' if near else "")
        elif isinstance(others, dict):
            yield from _violations(others, item, schema=schema, path=place)


def _shown(path: str, value: object) -> str:
    return f"value {path or '(all)'} = {json.dumps(value, ensure_ascii=False)}"


def _type(rule: str | list[str], value: object, _schema: Mapping[str, Any], path: str) -> Iterator[str]:
    wanted = [rule] if isinstance(rule, str) else rule
    if not any(_TYPES[one](value) for one in wanted):
        yield f"{_shown(path, value)} is not of type {' or '.join(wanted)}"


def _enum(rule: list[object], value: object, _schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if not any(type(one) is type(value) and one == value for one in rule):
        offered = ", ".join(json.dumps(one) for one in rule)
        yield f"{_shown(path, value)} is not offered (offered: {offered})"


def _pattern(rule: str, value: object, _schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, str) and not re.search(rule, value):
        yield f"{_shown(path, value)} does not match {rule}"


def _minimum(rule: int, value: object, _schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, int) and value < rule:
        yield f"{_shown(path, value)} is less than {rule}"


def _maximum(rule: int, value: object, _schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, int) and value > rule:
        yield f"{_shown(path, value)} is more than {rule}"


def _required(rule: list[str], value: object, _schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"value {path + '.' if path else ''}{name} is missing" for name in rule if name not in value)


def _reference(rule: str, value: object, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from _violations(schema["$defs"][rule.removeprefix("#/$defs/")], value, schema=schema, path=path)


def _nothing(_rule: object, _value: object, _schema: Mapping[str, Any], _path: str) -> Iterator[str]:
    yield from ()


KEYWORDS: Final[Mapping[str, Callable[[Any, object, Mapping[str, Any], str], Iterator[str]]]] = {
    "type": _type,
    "enum": _enum,
    "pattern": _pattern,
    "minimum": _minimum,
    "maximum": _maximum,
    "required": _required,
    "$ref": _reference,
    "properties": _nothing,
    "additionalProperties": _nothing,
    "items": _nothing,
}
"""What each keyword checks; the last three are followed by `check` itself."""
