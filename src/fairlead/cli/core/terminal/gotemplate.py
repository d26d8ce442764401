"""Fills the small part of Go's templates that people type after `--format`: `{{.Name}}`, `{{json .}}`, `table …`.

A template is text with fields in double braces. Fields are `.A.B`, `json .A`, `index .A "key"`, and `join .A ","`, or
the first of these behind a `|`, as in `{{.A | json}}`. What is asked for and not there is an error that lists what is.
Source: docker CLI reference, "Format command and log output".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairlead import errors
from fairlead.cli.core import output, plaintext

_FIELD: Final = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}")
_WORDS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\S+')
_TABLE: Final = "table "
_ESCAPES: Final = {"\\t": "\t", "\\n": "\n"}
_DEEPEST: Final = 32


def show(items: Sequence[Mapping[str, Any]], template: str) -> None:
    """Print each item as the template says; `table` puts titles above. Raises: Invalid (`TemplateInvalid`)."""
    if template == "json":
        template = "{{json .}}"
    is_table = template.startswith(_TABLE)
    text = template.removeprefix(_TABLE) if is_table else template
    for escape, meant in _ESCAPES.items():
        text = text.replace(escape, meant)
    filled = [fill(text, item) for item in items]
    if not is_table:
        for line in filled:
            plaintext.echo(line)
        return
    titles = _FIELD.sub(lambda found: found[1].split(".")[-1].upper() or "VALUE", text)
    rows = [line.split("\t") for line in (titles, *filled)]
    for line in output.lines_of([[*row, *[""] * (len(rows[0]) - len(row))][: len(rows[0])] for row in rows]):
        plaintext.echo(line)


def fill(template: str, item: Mapping[str, Any]) -> str:
    """Return the template with an item's values. Raises: Invalid (`TemplateInvalid`)."""
    return _FIELD.sub(lambda found: _text(_value(found[1], item)), template)


def _value(expression: str, item: Mapping[str, Any]) -> Any:
    head, *pipes = [part.strip() for part in expression.split("|")]
    words = _WORDS.findall(head)
    value = _called(words, item, expression)
    for pipe in pipes:
        value = _applied(pipe, value, (), expression)
    return value


def _called(words: Sequence[str], item: Mapping[str, Any], expression: str) -> Any:
    match words:
        case [path] if path.startswith("."):
            return _reached(path, item)
        case [name, path, *rest] if path.startswith("."):
            return _applied(name, _reached(path, item), [word.strip('"') for word in rest], expression)
        case _:
            raise _invalid(expression, 'fields are written {{.Name}}, {{json .Name}} or {{index .Labels "key"}}')


def _applied(name: str, value: Any, rest: Sequence[str], expression: str) -> Any:
    match name, rest:
        case "json", []:
            return plaintext.as_json(value)
        case (("upper" | "lower"), []):
            return getattr(_text(value), name)()
        case "len", []:
            return len(value) if isinstance(value, Mapping | list | tuple | str) else 0
        case "index", [key]:
            return value.get(key, "") if isinstance(value, Mapping) else ""
        case "join", [mark] if isinstance(value, list | tuple):
            return mark.join(map(_text, value))
        case _:
            raise _invalid(expression, "offered are json, upper, lower, len, index and join")


def _reached(path: str, item: Mapping[str, Any]) -> Any:
    value: Any = item
    for part in path.strip(".").split(".")[:_DEEPEST] if path != "." else ():
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(f".{name}" for name in value) if isinstance(value, Mapping) else "nothing below it"
            raise _invalid(path, f"there is {known}")
        value = value[part]
    return value


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str():
            return value
        case Mapping():
            return ",".join(f"{key}={_text(one)}" for key, one in value.items())
        case list() | tuple():
            return ",".join(map(_text, value))
    return str(value)


def _invalid(what: str, hint: str) -> errors.Invalid:
    return errors.Invalid(f'"{what}" cannot be shown', reason="TemplateInvalid", hint=hint)
