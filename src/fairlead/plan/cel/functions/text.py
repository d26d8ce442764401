"""Answers the functions over texts: searching, cutting, joining and regular expressions.

Regular expressions are RE2's, whose time is linear in the text whatever the pattern.
Source: cel-go ext/strings.go (version 2); apiserver pkg/cel/library/regex.go.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from fairlead import errors
from fairlead.plan.cel.problem import shown
from fairlead.plan.cel.value import INT_MAX, LONGEST, Failed, Spent, Value

_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_BLANKS: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_QUOTED: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)
_REGEX_MEMORY: Final = 8 << 20
_SMALL_PROGRAM: Final = 1000
"""Instructions of a compiled pattern."""
_LONGEST_KNOWN, _MOST_KNOWN = 64, 256
"""Characters of a text and texts that a pattern remembers: an attribute's value has 64 characters at most."""


@functools.lru_cache(maxsize=1024)
def regex(pattern: str) -> Any:
    """Return a compiled regular expression. Raises: Failed where RE2 does not read it."""
    # Loaded where the first selector has one: a wheel of 0.6 MB that a client does without.
    try:
        import re2  # type: ignore[import-not-found,import-untyped,unused-ignore]  # ships no types
    except ImportError:
        message = "regular expressions need the package google-re2: pip install google-re2"
        raise errors.Unavailable(message, reason="RE2NotInstalled") from None

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise Failed(f"error parsing regexp {shown(pattern)}: {error}") from error


def matches(text: str, pattern: str) -> bool:
    """Return whether a regular expression is found in a text."""
    return regex(pattern).search(text) is not None


def _search(pattern: str) -> Callable[[str], bool]:
    """Return what looks for a pattern: a set of one, which makes no match object, five times as quick.

    A set has automata alone and says no where their memory ends; small programs are far from that.
    """
    compiled = regex(pattern)
    if compiled.programsize > _SMALL_PROGRAM:
        return lambda text: compiled.search(text) is not None
    import re2  # type: ignore[import-not-found,import-untyped,unused-ignore]  # loaded by `regex` already

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_MEMORY
    only = re2.Set.SearchSet(options)
    only.Add(pattern)
    only.Compile()
    return lambda text: bool(only.Match(text))


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return whether a text has one constant pattern; remembers short texts, which devices share by the thousand."""
    search = _search(pattern)
    known: dict[str, bool] = {}

    def matches_pattern(text: str) -> bool:
        found = known.get(text)
        if found is None:
            found = search(text)
            if len(text) <= _LONGEST_KNOWN and len(known) < _MOST_KNOWN:
                known[text] = found
        return found

    return matches_pattern


def _find(text: str, pattern: str) -> str:
    found = regex(pattern).search(text)
    return "" if found is None else str(found[0])


def _find_all(text: str, pattern: str, limit: int = -1) -> tuple[str, ...]:
    found: list[str] = []
    end = -1
    for one in regex(pattern).finditer(text):
        # Go's: an empty match that touches the one before it is none.
        if 0 <= limit <= len(found) or (one.start() == one.end() == end):
            if 0 <= limit <= len(found):
                break
            continue
        found.append(one[0])
        end = one.end()
    return tuple(found)


def _at(text: str, place: int) -> str:
    if not 0 <= place <= len(text):
        raise Failed(f"index out of range: {place}")
    return text[place : place + 1]


def _index(text: str, wanted: str, start: int = 0) -> int:
    if start < 0:
        raise Failed(f"index out of range: {start}")
    if not wanted:
        return min(start, len(text))
    return text.find(wanted, start) if start < len(text) else -1


def _last_index(text: str, wanted: str) -> int:
    return text.rfind(wanted)


def _last_index_from(text: str, wanted: str, start: int) -> int:
    if start < 0:
        raise Failed(f"index out of range: {start}")
    if not wanted:
        return min(start, len(text))
    return text.rfind(wanted, 0, start + len(wanted)) if start < len(text) else -1


def _index_of_1_36(text: str, wanted: str, start: int) -> int:
    return _index(text, wanted, start) if wanted else start


def _last_index_of_1_36(text: str, wanted: str, start: int) -> int:
    return _last_index_from(text, wanted, start) if wanted else start


def _replace(text: str, wanted: str, other: str, count: int = -1) -> str:
    found = text.count(wanted) if count < 0 else min(count, len(text) + 1)
    if len(text) + found * len(other) > LONGEST:
        raise Spent
    return text.replace(wanted, other, min(count, INT_MAX) if count >= 0 else -1)


def _split(text: str, separator: str, limit: int = -1) -> tuple[str, ...]:
    if limit == 0:
        return ()
    if separator:
        return tuple(text.split(separator, limit - 1 if limit > 0 else -1))
    if not 0 < limit < len(text):
        return tuple(text)
    return (*text[: limit - 1], text[limit - 1 :])


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if not 0 <= start <= len(text) or not 0 <= stop <= len(text):
        raise Failed(f"index out of range: {start if not 0 <= start <= len(text) else stop}")
    if start > stop:
        raise Failed(f"invalid substring range. start: {start}, end: {stop}")
    return text[start:stop]


def _joined(items: tuple[Value, ...], separator: str = "") -> str:
    if not all(isinstance(item, str) for item in items):
        raise Failed("no such overload")
    if sum(map(len, items)) + len(items) * len(separator) > LONGEST:
        raise Spent
    return separator.join(items)


TABLE: Final[dict[str, Callable[..., Value]]] = {
    "contains_string": lambda text, wanted: wanted in text,
    "ends_with_string": lambda text, wanted: text.endswith(wanted),
    "starts_with_string": lambda text, wanted: text.startswith(wanted),
    "matches": matches,
    "matches_string": matches,
    "string_find_string": _find,
    "string_find_all_string": _find_all,
    "string_find_all_string_int": _find_all,
    "string_char_at_int": _at,
    "string_index_of_string": _index,
    "string_index_of_string_int": _index,
    "string_last_index_of_string": _last_index,
    "string_last_index_of_string_int": _last_index_from,
    "string_lower_ascii": lambda text: text.lower() if text.isascii() else text.translate(_LOWER),
    "string_upper_ascii": lambda text: text.upper() if text.isascii() else text.translate(_UPPER),
    "string_replace_string_string": _replace,
    "string_replace_string_string_int": _replace,
    "string_split_string": _split,
    "string_split_string_int": _split,
    "string_substring_int": _substring,
    "string_substring_int_int": _substring,
    "string_trim": lambda text: text.strip(_BLANKS),
    "strings_quote": lambda text: f'"{text.translate(_QUOTED)}"',
    "list_join": _joined,
    "list_join_string": _joined,
}
OLD: Final[dict[str, Callable[..., Value]]] = {
    "string_index_of_string_int": _index_of_1_36,
    "string_last_index_of_string_int": _last_index_of_1_36,
}
"""What Kubernetes 1.36 does otherwise."""
