"""Reads single values of a Compose file, which may all be texts once variables are put in. Pure.

Each function takes the value's path in the file (`services.web.shm_size`), which its refusal names.
Source: Compose specification, "Specifying byte values", "Specifying durations"; compose-spec.json.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fairlead import errors
from fairlead.wire.text import goduration

_SIZE: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[bkmgt]?)(?:i?b)?", re.IGNORECASE)
_SCALE: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h|d)")
_SECONDS: Final = {**goduration.SECONDS, "d": 86400.0}
_LONGEST_NUMBER: Final = 18
_LONGEST_SPAN_S: Final = 366 * 86400.0
_TRUE: Final = frozenset({"true", "yes", "on", "y", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "n", "0", ""})


def invalid(path: str, problem: str, hint: str | None = None) -> errors.Invalid:
    """Return the error for what stands at a path."""
    return errors.Invalid(f"{errors.readable(path[:300])}: {problem}", reason="ComposeInvalid", hint=hint)


def shown(value: object) -> str:
    """Return a value for a message."""
    text = str(value)
    return errors.readable(text if len(text) <= 80 else f"{text[:80]}…")


def text(value: Any, path: str) -> str:
    """Return a scalar as text, a boolean as YAML has it. Raises: Invalid."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise invalid(path, f"expected a text, got {kind(value)}")


def kind(value: object) -> str:
    """Return what a value is, in a user's words."""
    names = {dict: "a map", list: "a list", str: "a text", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")


def mapping(value: Any, path: str) -> dict[str, Any]:
    """Return a map; nothing is an empty one. Raises: Invalid."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise invalid(path, f"expected a map, got {kind(value)}")


def sequence(value: Any, path: str) -> list[Any]:
    """Return a list; nothing is an empty one. Raises: Invalid."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise invalid(path, f"expected a list, got {kind(value)}")


def texts(value: Any, path: str) -> list[str]:
    """Return a list of texts; one alone is a list of it. Raises: Invalid."""
    given = value if isinstance(value, list) else [] if value is None else [value]
    return [text(one, f"{path}[{index}]") for index, one in enumerate(given)]


def pairs(value: Any, path: str, *, sign: str = "=") -> dict[str, str | None]:
    """Return `KEY=VALUE` words, or a map, as a map; None: no value is given. Raises: Invalid."""
    if isinstance(value, dict):
        return {key: None if one is None else text(one, f"{path}.{key}") for key, one in value.items()}
    found = dict[str, str | None]()
    for index, word in enumerate(sequence(value, path)):
        key, is_given, rest = text(word, f"{path}[{index}]").partition(sign)
        if not key:
            raise invalid(f"{path}[{index}]", f'"{shown(word)}" is not KEY{sign}VALUE')
        found[key] = rest if is_given else None
    return found


def boolean(value: Any, path: str) -> bool:
    """Return a boolean. Raises: Invalid."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if value is None or word in _FALSE:
        return False
    if word in _TRUE:
        return True
    raise invalid(path, f'"{shown(value)}" is neither true nor false')


def whole(value: Any, path: str, *, least: int = 0, most: int = 2**31 - 1) -> int:
    """Return a whole number. Raises: Invalid."""
    given = str(value).strip()
    is_number = re.fullmatch(r"-?[0-9]+", given) is not None and len(given) <= _LONGEST_NUMBER
    if isinstance(value, bool | dict | list) or not is_number or not least <= int(given) <= most:
        raise invalid(path, f'"{shown(value)}" is not a whole number from {least} to {most}')
    return int(given)


def size(value: Any, path: str) -> int:
    """Return bytes: `64m`, `1gb`, a number. Raises: Invalid."""
    found = None if isinstance(value, bool | dict | list) else _SIZE.fullmatch(str(value).strip())
    if found is None or len(found["number"]) > _LONGEST_NUMBER:
        raise invalid(path, f'"{shown(value)}" is not a size', "64m, 1.5g, or bytes")
    return int(float(found["number"]) * _SCALE[found["unit"].lower()])


def span(value: Any, path: str) -> float:
    """Return seconds: `1m30s`, `500ms`. Raises: Invalid."""
    given = str(value).strip()
    parts = _SPAN.findall(given) if len(given) <= 80 else []
    if isinstance(value, dict | list) or not parts or "".join(number + unit for number, unit in parts) != given:
        if given == "0":
            return 0.0
        raise invalid(path, f'"{shown(value)}" is not a length of time', "1m30s, 500ms, 2h")
    found = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if found > _LONGEST_SPAN_S:
        raise invalid(path, f'"{shown(value)}" is longer than a year')
    return found


def words(value: Any, path: str) -> list[str] | None:
    """Return a command: a list as it is, a text as a shell would part it; None: none is given. Raises: Invalid."""
    if value is None:
        return None
    if isinstance(value, list):
        return texts(value, path)
    try:
        return shlex.split(text(value, path))
    except ValueError as error:
        raise invalid(path, f'"{shown(value)}" is not a command: {str(error).lower()}') from error


def only(value: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    """Refuse keys that the specification does not have. Raises: Invalid."""
    allowed = set(known)
    for key in value:
        if key in allowed or key.startswith("x-"):
            continue
        close = errors.closest(key, sorted(allowed)) if len(key) < 64 else ""
        hint = f'did you mean "{close}"?' if close else f"known: {', '.join(sorted(allowed))}"
        raise invalid(f"{path}.{shown(key)}" if path else shown(key), "the Compose specification has no such key", hint)
