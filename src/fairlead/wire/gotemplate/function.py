"""The functions of our templates: Go's own and those that helm adds, as far as the chart uses them.

Each row of `FUNCTIONS` takes plain values (text, whole numbers, booleans, None, lists, maps) and returns one. Values
that Go would print in another form than Python, or would compare by its types, are refused with `Unprintable`.
Source: documentation of Go's text/template, of helm and of sprig.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from fairlead_cdi import yamlfile

_LARGEST: Final = 1_000_000
"""Go prints larger numbers of a values file as 1e+06."""


class Refused(Exception):
    """A value that helm would treat in a way of its own; the text says which."""


def printed(value: object) -> str:
    """Return a value as an action prints it. Raises: Refused: nothing, a map, a list, a large or broken number."""
    if value is None:
        raise Refused("there is nothing to print, and helm would write <no value>: use default")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        if value != int(value) or abs(value) >= _LARGEST:
            raise Refused(f"number {value} would be printed in another form by helm: give it as text")
        return str(int(value))
    if isinstance(value, str):
        return value
    raise Refused(f"{type(value).__name__} cannot be printed: use toYaml")


def _quote(*values: object) -> str:
    return " ".join(json.dumps(printed(value), ensure_ascii=False) for value in values if value is not None)


def _to_yaml(value: object) -> str:
    return yamlfile.dump(value).removesuffix("\n")


def _indent(width: int, text: str) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))


def _printf(form: str, *values: object) -> str:
    if form.replace("%s", "").count("%"):
        raise Refused(f"printf knows %s alone: {form!r}")
    if not all(isinstance(value, str) for value in values) or form.count("%s") != len(values):
        raise Refused(f"printf {form!r} takes as many texts as it has %s")
    return form % values


def _equal(first: object, *others: object) -> bool:
    if any(type(other) is not type(first) or not isinstance(other, str | bool) for other in others):
        raise Refused("eq and ne compare texts, or booleans, alone")
    return first in others


def _contains(part: str, text: str) -> bool:
    return part in text


def _dict(*pairs: Any) -> dict[str, Any]:
    if len(pairs) % 2:
        raise Refused("dict takes pairs of key and value")
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _has_key(value: Mapping[str, Any], key: str) -> bool:
    return key in value


def _default(fallback: object, value: object = None) -> object:
    return value or fallback


def _concat(*lists: list[Any]) -> list[Any]:
    return [item for one in lists for item in one]


FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = {
    "concat": _concat,
    "contains": _contains,
    "default": _default,
    "dict": _dict,
    "eq": _equal,
    "hasKey": _has_key,
    "indent": _indent,
    "join": lambda separator, items: separator.join(map(printed, items)),
    "list": lambda *items: list(items),
    "ne": lambda first, second: not _equal(first, second),
    "nindent": lambda width, text: "\n" + _indent(width, text),
    "not": lambda value: not value,
    "printf": _printf,
    "quote": _quote,
    "replace": lambda old, new, text: text.replace(old, new),
    "ternary": lambda yes, no, condition: yes if condition else no,
    "toJson": lambda value: json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
    "toYaml": _to_yaml,
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trunc": lambda length, text: text[:length],
}
"""By name; `and`, `or` and `include` belong to the renderer."""
