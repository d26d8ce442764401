"""Reads files of variables as Compose does (`.env`, `env_file`): quotes, remarks, `export`, several lines. Pure.

Source: Compose specification, "Env_file format"; compose-go dotenv (behaviour).
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping
from typing import Final

from fairlead import errors
from fairlead.plan.compose.interpolate import Variables

_LINE: Final = re.compile(r"[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.\-]*)[ \t]*(?P<sign>[=:]?)[ \t]*")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$$"}
_BLANK: Final = re.compile(r"[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)")
_MOST: Final = 10_000


def parse(text: str, name: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a file, in their order.

    Args:   name: of the file, for messages.   known: what the values may refer to beside those before them; a name
            without a value takes its value from there, or is left out.
    Raises: Invalid (`EnvFileUnreadable`, `InterpolationInvalid`).
    """
    found = dict[str, str]()
    variables = Variables(ChainMap(found, dict(known)))
    at, text = 0, text.replace("\r\n", "\n").removeprefix("\ufeff")
    while at < len(text):
        blank = _BLANK.match(text, at)
        if blank is not None and blank.end() > at:
            at = blank.end()
            continue
        head = _LINE.match(text, at)
        if head is None:
            raise _wrong(name, text, at, "it does not begin with the name of a variable")
        where = f"{name}: {head['name']}"
        at = head.end()
        if not head["sign"]:
            if not (rest := _BLANK.match(text, at)):
                raise _wrong(name, text, at, f'"=" is missing behind {head["name"]}')
            at = rest.end()
            if head["name"] in known:
                found[head["name"]] = known[head["name"]]
            continue
        value, at = _value(text, at, name)
        found[head["name"]] = variables.put_in(value, where)
        if len(found) > _MOST:
            raise _wrong(name, text, at, f"it has more than {_MOST} variables")
    return found


def raw(text: str) -> dict[str, str]:
    """Return the variables of a file whose values are taken as they are written (`format: raw`)."""
    lines = (line.partition("=") for line in text.replace("\r\n", "\n").split("\n") if not line.startswith("#"))
    return {name.strip(): value for name, sign, value in lines if sign and name.strip()}


def _value(text: str, at: int, name: str) -> tuple[str, int]:
    """Return a value as a text with variables, and where the next line begins."""
    quote = text[at : at + 1]
    if quote not in {"'", '"'}:
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        plain = re.split(r"(?:^|[ \t])#", text[at:end], maxsplit=1)[0]
        return plain.strip(), end + 1
    pieces, place = list[str](), at + 1
    while True:
        end = text.find(quote, place)
        if end < 0:
            raise _wrong(name, text, at, f"a {quote} is not closed")
        slashes = len(text[place:end]) - len(text[place:end].rstrip("\\"))
        if quote == '"' and slashes % 2:
            pieces.append(text[place : end + 1])
            place = end + 1
            continue
        pieces.append(text[place:end])
        break
    rest = _BLANK.match(text, end + 1)
    if rest is None:
        raise _wrong(name, text, end + 1, "more stands behind the closing quote")
    inner = "".join(pieces)
    if quote == "'":
        return inner.replace("$", "$$"), rest.end()
    return re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[0]), inner, flags=re.DOTALL), rest.end()


def _wrong(name: str, text: str, at: int, problem: str) -> errors.Invalid:
    line = text.count("\n", 0, at) + 1
    message = f"{errors.readable(name)}, line {line}: {problem}"
    return errors.Invalid(message, reason="EnvFileUnreadable", hint="a line is NAME=VALUE, or # a remark")
