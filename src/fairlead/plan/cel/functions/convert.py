"""Converts values from type to type.

Source: cel-go common/types (`ConvertToType`), v0.29.2; Go strconv.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from fairlead.plan.cel.functions import clock, network, operator
from fairlead.plan.cel.problem import shown
from fairlead.plan.cel.value import INT_MAX, INT_MIN, UINT_MAX, Failed, TypeValue, UInt, Value, name_of

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,400}", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,400}", re.ASCII)
_FLOAT: Final = re.compile(
    r"[+-]?(?:(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:e[+-]?[0-9]{1,9})?|inf|infinity|nan)",
    re.ASCII | re.IGNORECASE,
)
_BETWEEN: Final = re.compile(r"(?<=[0-9])_(?=[0-9])", re.ASCII)
_MOST_DIGITS: Final = 1000
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _unreadable(text: str, kind: str) -> Failed:
    return Failed(f"type conversion error from 'string' to '{kind}': {shown(text)}")


def _truth(text: str) -> bool:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _unreadable(text, "bool")


def _integer(text: str) -> int:
    if not _WHOLE.fullmatch(text) or not INT_MIN <= int(text) <= INT_MAX:
        raise _unreadable(text, "int")
    return int(text)


def _unsigned(text: str) -> UInt:
    if not _DIGITS.fullmatch(text) or int(text) > UINT_MAX:
        raise _unreadable(text, "uint")
    return UInt(text)


def _double(text: str) -> float:
    if len(text) > _MOST_DIGITS:
        raise _unreadable(text, "double")
    text = _BETWEEN.sub("", text)
    if not _FLOAT.fullmatch(text):
        raise _unreadable(text, "double")
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise _unreadable(text, "double")
    return value


def _double_to_int(value: float) -> int:
    if math.isnan(value) or not -(2.0**63) < value < 2.0**63:
        raise Failed("integer overflow")
    return int(value)


def _double_to_uint(value: float) -> UInt:
    if math.isnan(value) or not 0 <= value < 2.0**64:
        raise Failed("unsigned integer overflow")
    return UInt(int(value))


def double_text(value: float) -> str:
    """Return a double's text: the shortest that reads back, with an exponent where it is under -4 or above 5."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) + int(exponent) - 1 if value else 0
    lead = "-" if sign else ""
    if -5 < power < 6:
        plain = f"{Decimal(repr(value)):f}"
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    rest = f".{text[1:]}" if len(text) > 1 else ""
    return f"{lead}{text[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02}"


def _no_duration(_value: int) -> Value:
    raise Failed("type conversion error from 'int' to 'google.protobuf.Duration'")


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Failed("invalid UTF-8 in bytes, cannot convert to string") from error


def _same(value: Value) -> Value:
    return value


TABLE: Final[dict[str, Callable[..., Value]]] = {
    **{
        name: _same
        for name in (
            "bool_to_bool",
            "bytes_to_bytes",
            "double_to_double",
            "duration_to_duration",
            "to_dyn",
            "int64_to_int64",
            "string_to_string",
            "timestamp_to_timestamp",
            "uint64_to_uint64",
        )
    },
    "type": lambda value: TypeValue(name_of(value)),
    "string_to_bool": _truth,
    "string_to_bytes": lambda text: text.encode("utf-8", "surrogatepass"),
    "int64_to_double": float,
    "string_to_double": _double,
    "uint64_to_double": float,
    "string_to_duration": clock.parse_span,
    "int64_to_duration": _no_duration,
    "double_to_int64": _double_to_int,
    "duration_to_int64": lambda value: value.nanos,
    "string_to_int64": _integer,
    "timestamp_to_int64": lambda value: value.nanos // 10**9,
    "uint64_to_int64": lambda value: operator.whole(int(value)),
    "bool_to_string": lambda value: "true" if value else "false",
    "bytes_to_string": _decoded,
    "double_to_string": double_text,
    "duration_to_string": clock.emit_span,
    "int64_to_string": str,
    "timestamp_to_string": clock.emit_moment,
    "uint64_to_string": lambda value: str(int(value)),
    "ip_to_string": network.address_text,
    "cidr_to_string": network.network_text,
    "int64_to_timestamp": lambda value: operator.moment(value * 10**9),
    "string_to_timestamp": clock.parse_moment,
    "double_to_uint64": _double_to_uint,
    "int64_to_uint64": operator.unsigned,
    "string_to_uint64": _unsigned,
}
