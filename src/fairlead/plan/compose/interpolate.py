"""Puts variables into the texts of a Compose file: `$NAME`, `${NAME}` and its forms with `-`, `?` and `+`. Pure.

A value that is put in is never read for variables itself; the words behind an operator are, to a bounded depth. What
comes out of one project is bounded in characters, so that a few lines cannot fill the memory.
Source: Compose specification, "Interpolation"; compose-go template/template.go (behaviour).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from fairlead import errors
from fairlead.wire.compose.document import Tagged

_NAME: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_OPERATOR: Final = re.compile(r":?[-?+]")
_DEEPEST: Final = 20
_MOST_CHARACTERS: Final = 8 << 20


class Variables:
    """The variables of one project, what they were asked for in vain, and how much they may become."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Take values by name."""
        self._values = values
        self._left = _MOST_CHARACTERS
        self.unset = dict[str, None]()
        """Names that had no value and no default, in the order of their use."""

    def get(self, name: str) -> str | None:
        """Return a value; None: it is not set."""
        return self._values.get(name)

    def put_in(self, text: str, path: str) -> str:
        """Return a text with its variables replaced.

        Args:   path: of the text in the file, for messages.
        Raises: Invalid (`InterpolationInvalid`): it is not of the language, or comes out too long; a variable that
                must be set is not.
        """
        if "$" not in text:
            return text
        found = _Text(text, path, self).read()
        self._left -= len(found)
        if self._left < 0:
            raise _invalid(path, f"the variables come to more than {_MOST_CHARACTERS} characters", None)
        return found

    def put_in_all(self, value: Any, path: str) -> Any:
        """Return a value with the variables of all its texts replaced; keys stay as they are."""
        match value:
            case str():
                return self.put_in(value, path)
            case dict():
                return {key: self.put_in_all(one, f"{path}.{key}" if path else key) for key, one in value.items()}
            case list():
                return [self.put_in_all(one, f"{path}[{index}]") for index, one in enumerate(value)]
            case Tagged():
                return Tagged(value.tag, self.put_in_all(value.value, path))
            case _:
                return value


class _Text:
    """Reads one text from left to right."""

    def __init__(self, text: str, path: str, variables: Variables) -> None:
        self._text, self._path, self._variables = text, path, variables
        self._at = 0

    def read(self) -> str:
        return self._words(end="", depth=0, is_used=True)

    def _words(self, *, end: str, depth: int, is_used: bool) -> str:
        """Return the text up to `end`, which is passed. Args: is_used: whether what it says counts."""
        if depth > _DEEPEST:
            raise _invalid(self._path, f"its variables are nested deeper than {_DEEPEST} levels", None)
        text, pieces, size = self._text, list[str](), 0
        while self._at < len(text):
            letter = text[self._at]
            if end and letter == end:
                self._at += 1
                return "".join(pieces)
            if letter != "$":
                stop = self._next(end)
                pieces.append(text[self._at : stop])
                self._at = stop
            else:
                pieces.append(self._variable(depth, is_used=is_used))
            size += len(pieces[-1])
            if size > _MOST_CHARACTERS:
                raise _invalid(self._path, f"it comes to more than {_MOST_CHARACTERS} characters", None)
        if end:
            raise self._wrong("a { is not closed")
        return "".join(pieces)

    def _next(self, end: str) -> int:
        """Return where the next dollar sign or end is."""
        places = [place for mark in ("$", end) if mark and (place := self._text.find(mark, self._at)) >= 0]
        return min(places, default=len(self._text))

    def _variable(self, depth: int, *, is_used: bool) -> str:
        text = self._text
        self._at += 1
        if text.startswith("$", self._at):
            self._at += 1
            return "$"
        if text.startswith("{", self._at):
            self._at += 1
            return self._braced(depth, is_used=is_used)
        found = _NAME.match(text, self._at)
        if found is None:
            raise self._wrong('a "$" that stands for itself is written "$$"')
        self._at = found.end()
        return self._plain(found[0], is_used=is_used)

    def _plain(self, name: str, *, is_used: bool) -> str:
        value = self._variables.get(name)
        if value is None and is_used:
            self._variables.unset[name] = None
        return value or ""

    def _braced(self, depth: int, *, is_used: bool) -> str:
        text = self._text
        found = _NAME.match(text, self._at)
        if found is None:
            raise self._wrong("no name of a variable stands behind ${")
        name = found[0]
        self._at = found.end()
        if text.startswith("}", self._at):
            self._at += 1
            return self._plain(name, is_used=is_used)
        operator = _OPERATOR.match(text, self._at)
        if operator is None:
            raise self._wrong(f'behind "{name}" stands none of }}, :-, -, :?, ?, :+ and +')
        self._at = operator.end()
        value = self._variables.get(name)
        is_there = bool(value) if operator[0].startswith(":") else value is not None
        kind = operator[0][-1]
        is_other = is_there if kind == "+" else not is_there
        words = self._words(end="}", depth=depth + 1, is_used=is_used and is_other)
        if kind == "+":
            return words if is_there else ""
        if is_there:
            return value or ""
        if kind == "?" and is_used:
            why = words or "it is needed"
            message = f'{self._path}: the variable "{name}" is not set: {why}'
            raise errors.Invalid(
                errors.readable(message), reason="VariableRequired", hint=f"{name}=… before the command, or in .env"
            )
        return words

    def _wrong(self, problem: str) -> errors.Invalid:
        shown = errors.readable(self._text[:120])
        return _invalid(self._path, f'"{shown}" is not a text with variables: {problem}', 'write "$$" for a "$"')


def _invalid(path: str, problem: str, hint: str | None) -> errors.Invalid:
    return errors.Invalid(f"{path}: {problem}", reason="InterpolationInvalid", hint=hint)
