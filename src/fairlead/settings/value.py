"""Turns the text or the TOML value of one setting into the type of its row."""

from __future__ import annotations

import math
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fairlead import errors
from fairlead.settings.row import Row

_CENTURY_S: Final = 100 * 365 * 86400
_SECONDS: Final[Mapping[str, int]] = {"s": 1, "min": 60, "h": 3600, "days": 86400}
"""Of each unit of time. A time beyond a century is a slip of the hand, and no clock can be set so far ahead."""
_SHOWN: Final = 200
_PATH_MAX, _NAME_MAX = 4096, 255
"""Bytes.  Source: include/uapi/linux/limits.h."""
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


def coerce(item: Row, value: Any) -> Any:
    """Turn a text or TOML value into the row's type; raises Invalid naming flag, variable and value."""
    kinds = typing.get_args(item.type) if isinstance(item.type, types.UnionType) else (item.type,)
    shown = errors.readable(str(value)[:_SHOWN])
    try:
        result = _convert(kinds, value)
    except (TypeError, ValueError, OverflowError) as error:
        wanted = " or ".join(kind.__name__ for kind in kinds if kind is not types.NoneType)
        message = f'setting {item.key} = "{shown}" is not a {wanted}'
        raise errors.Invalid(message, reason="SettingInvalid", hint=f"set {item.env} or {item.flag}") from error
    if item.choices and result not in item.choices:
        offered = ", ".join(choice or "nothing" for choice in item.choices)
        message = f'setting {item.key} = "{shown}" is not offered (offered: {offered})'
        raise errors.Invalid(message, reason="SettingInvalid", hint=f"set {item.env} or {item.flag}")
    unit_s = _SECONDS.get(item.unit or "")
    if unit_s is not None and result is not None and result * unit_s > _CENTURY_S:
        message = f'setting {item.key} = "{shown}" is longer than a century ({_CENTURY_S // unit_s} {item.unit})'
        raise errors.Invalid(message, reason="SettingInvalid", hint=f"set {item.env} or {item.flag}")
    return result


def _convert(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    if kind is bool:
        return value if isinstance(value, bool) else _boolean(str(value))
    if isinstance(value, bool) or not isinstance(value, str | _WRITTEN[kind]):
        raise TypeError
    if kind is Path and not _is_path(str(value)):
        raise ValueError
    result = kind(value)
    # Every number here is a time or a count; float() also reads "nan" and "inf".
    if kind in {int, float} and not 0 <= result < math.inf:
        raise ValueError
    return result


# Types besides text in which a flag or a TOML file may carry a value of the row's type.
_WRITTEN: Final[Mapping[type, Any]] = {str: str, int: int, float: int | float, Path: Path}


def _is_path(text: str) -> bool:
    """Return whether the kernel takes a text as a path; an empty variable would mean the working folder."""
    name = max((len(os.fsencode(part)) for part in text.split("/")), default=0)
    return 0 < len(os.fsencode(text)) < _PATH_MAX and name <= _NAME_MAX and "\0" not in text


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)
