"""Cuts an expression into tokens.

Source: the CEL language definition, "Syntax" (lexis), and cel-go parser/unescape.go.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fairlead.plan.cel.problem import Wrong, shown
from fairlead.plan.cel.value import INT_MAX, INT_MIN, UINT_MAX, UInt, Value


class Token(NamedTuple):
    """A piece of the text: a `name`, a `literal` with its value, an operator whose kind is itself, or the `end`."""

    kind: str
    text: str
    at: int
    value: Value = None


_TOKEN: Final = re.compile(
    r"""(?P<blank>[\t \r\n\f]+|//[^\n]*)
    |(?P<string>[rR]?[bB]?[rR]?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}
        |\"(?:[^\\\"\r\n]|\\.)*\"|'(?:[^\\'\r\n]|\\.)*'))
    |(?P<float>(?:[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?))
    |(?P<whole>(?:0x[0-9a-fA-F]+|[0-9]+)[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<op>==|!=|<=|>=|&&|\|\||[-+*/%!<>?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_RAW: Final = re.compile(r"([rR][bB]?|[bB][rR])(\"{3}(?s:.)*?\"{3}|'{3}(?s:.)*?'{3}|\"[^\"\r\n]*\"|'[^'\r\n]*')")
_WORDS: Final = {"true": True, "false": False, "null": None}
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\?\"'`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.?))",
    re.DOTALL | re.ASCII,
)
_SINGLE: Final = dict(zip("abfnrtv\\?\"'`", "\a\b\f\n\r\t\v\\?\"'`", strict=True))
_MOST_DIGITS: Final = 400


def tokens(text: str) -> list[Token]:
    """Return the tokens of an expression, the `end` last. Raises: Wrong."""
    found, at = [], 0
    while at < len(text):
        token, at = _next(text, at)
        if token is not None:
            found.append(token)
    return [*found, Token("end", "", len(text))]


def _next(text: str, at: int) -> tuple[Token | None, int]:
    raw = _RAW.match(text, at)
    if raw is not None:
        return Token("literal", raw[0], at, _raw(raw[1], raw[2])), raw.end()
    piece = _TOKEN.match(text, at)
    if piece is None:
        raise Wrong(f"Syntax error: token recognition error at {shown(text[at : at + 20])}", at)
    kind, said, end = str(piece.lastgroup), piece[0], piece.end()
    if kind == "blank":
        return None, end
    if kind == "string":
        return Token("literal", said, at, _string(said, at)), end
    if kind in {"float", "whole"}:
        # The parser reads it, together with a sign before it.
        return Token("number", said, at), end
    if kind == "name" and said in _WORDS:
        return Token("literal", said, at, _WORDS[said]), end
    return Token("name" if kind == "name" and said != "in" else said, said, at), end


def number(text: str, at: int, *, is_negative: bool = False) -> Value:
    """Return the number that a token is. Raises: Wrong."""
    sign = -1 if is_negative else 1
    is_hexadecimal = text.startswith("0x")
    if not is_hexadecimal and set(text) & set(".eE"):
        value = sign * float(text)
        if value in {float("inf"), float("-inf")}:
            raise Wrong("invalid double literal", at)
        return value
    digits = text.rstrip("uU")
    if len(digits) > _MOST_DIGITS:
        raise Wrong("invalid int literal", at)
    whole = sign * int(digits, 16 if is_hexadecimal else 10)
    if digits != text:
        if not 0 <= whole <= UINT_MAX or is_negative:
            raise Wrong("invalid uint literal", at)
        return UInt(whole)
    if not INT_MIN <= whole <= INT_MAX:
        raise Wrong("invalid int literal", at)
    return whole


def _raw(prefix: str, quoted: str) -> Value:
    edge = 3 if quoted[:3] in {'"' * 3, "'" * 3} else 1
    inner = _newlines(quoted[edge:-edge])
    return inner.encode("utf-8", "surrogatepass") if "b" in prefix.lower() else inner


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _string(said: str, at: int) -> Value:
    is_bytes = said[0] in "bB"
    quoted = said.lstrip("rRbB")
    edge = 3 if quoted[:3] in {'"' * 3, "'" * 3} and len(quoted) > 5 else 1
    inner = _newlines(quoted[edge:-edge])
    if not is_bytes:
        return _ESCAPE.sub(lambda one: _character(one, at), inner)
    parts, last = [], 0
    for one in _ESCAPE.finditer(inner):
        parts += [inner[last : one.start()].encode("utf-8", "surrogatepass"), _byte(one, at)]
        last = one.end()
    return b"".join([*parts, inner[last:].encode("utf-8", "surrogatepass")])


def _character(one: re.Match[str], at: int) -> str:
    single, two, four, eight, octal, unknown = one.groups()
    if unknown is not None:
        raise Wrong(f"Syntax error: unable to unescape {shown(one[0])}", at)
    if single:
        return _SINGLE[single]
    code = int(octal, 8) if octal else int(two or four or eight, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise Wrong("invalid unicode code point", at)
    return chr(code)


def _byte(one: re.Match[str], at: int) -> bytes:
    single, two, _, _, octal, _ = one.groups()
    if single:
        return _SINGLE[single].encode()
    if not two and not octal:
        raise Wrong(f"Syntax error: unable to unescape {shown(one[0])}", at)
    return bytes([int(two, 16) if two else int(octal, 8)])
