"""Reads other people's TOML strictly, and edits it without touching a character that is not ours.

Reading is the standard library's, which names line and column of what is wrong. Only an edit of another author's file
and the emission of our own go through tomlkit, which keeps comments, order and layout.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import tomlkit
from tomlkit import items

from fairlead import errors
from fairlead.wire.text import jsontext

_LARGEST_BYTES = 1 << 17
_VERSION = re.compile(r"^[ \t]*version[ \t]*=[^\n]*\n?", re.MULTILINE)
_COMMENTS = re.compile(r"(?:^[ \t]*#[^\n]*\n){8,}", re.MULTILINE)
_MARK = "#fairlead-comments-"
_MARKED = re.compile(rf"^{_MARK}([0-9]+)\n", re.MULTILINE)
_PLACE = re.compile(r"^(.*) \(at line (\d+), column (\d+)\)$", re.DOTALL)


def parse(data: bytes, *, path: str) -> dict[str, Any]:
    """Return the document as plain values.

    Raises: ProtocolError (`FileMalformed`): not UTF-8 or not TOML; the message has `path:line:column`.
    """
    said = sum(len(line) for line in data.splitlines() if not line.lstrip().startswith(b"#"))
    if said > _LARGEST_BYTES:
        raise _malformed(f"{path}: larger than {_LARGEST_BYTES} bytes, comments not counted")
    try:
        return _shallow(tomllib.loads(data.decode()), path)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _malformed(f"{path}:{line}: not UTF-8") from error
    except RecursionError as error:
        raise _malformed(f"{path}: nested deeper than {jsontext.DEEPEST} levels") from error
    except tomllib.TOMLDecodeError as error:
        found = _PLACE.match(str(error))
        where, what = (f"{path}:{found[2]}:{found[3]}", found[1]) if found else (path, str(error))
        raise _malformed(f"{where}: not TOML: {what}") from error
    except ValueError as error:  # a number of 5,000 digits
        raise _malformed(f"{path}: not TOML: {error}") from error


def _shallow(found: dict[str, Any], path: str) -> dict[str, Any]:
    if jsontext.is_deep(found):
        raise _malformed(f"{path}: nested deeper than {jsontext.DEEPEST} levels")
    return found


def _malformed(message: str) -> errors.ProtocolError:
    hint = "correct that line; the engine does not read the file as it is either"
    return errors.ProtocolError(message, reason="FileMalformed", hint=hint)


def emit(document: Mapping[str, Any]) -> bytes:
    """Return plain values as a document: scalars of a table before its tables, otherwise in the order given."""
    return tomlkit.dumps(document).encode()


def append_item(data: bytes, key: str, value: str) -> bytes:
    """Add `value` at the end of the list at the top of the document that is called `key`.

    A list that is not there is made, in a line below that of `version`, else in the first one: there it stands before
    every table, and parts no comment from what it speaks of.

    Raises: ProtocolError (`FileUneditable`): the document is written in a way that we cannot add to.
    """
    text = data.decode()
    short, comments = _without_comments(text)
    document = tomlkit.parse(short)
    found = document.get(key)
    if isinstance(found, items.Array):
        found.append(value)
        return _checked(data, _with_comments(tomlkit.dumps(document), comments), key, value)
    end = "\r\n" if "\r\n" in text else "\n"
    line = f"{key} = {tomlkit.item([value]).as_string()}{end}"
    place = _VERSION.search(text) if isinstance(document.get("version"), int) else None
    if place is None:
        return _checked(data, line + text, key, value)
    before = text[: place.end()]
    gap = "" if before.endswith(end) else end
    return _checked(data, before + gap + line + text[place.end() :], key, value)


def _checked(data: bytes, after: str, key: str, value: str) -> bytes:
    """Return the new text if it says what the old one said and one item more."""
    wanted = tomllib.loads(data.decode())
    wanted[key] = [*wanted.get(key, []), value]
    if tomllib.loads(after) != wanted:
        message = f'cannot add "{value}" to {key}'
        raise errors.ProtocolError(message, reason="FileUneditable", hint=f"add it by hand: {key} = [..., {value!r}]")
    return after.encode()


def remove_item(data: bytes, key: str, value: str, *, drops_empty: bool) -> bytes:
    """Take `value` out of the list `key` wherever it is in it; one that is not there changes nothing.

    Args: drops_empty: the key goes too when nothing is left in its list.
    """
    short, comments = _without_comments(data.decode())
    document = tomlkit.parse(short)
    found = document.get(key)
    if not isinstance(found, items.Array) or value not in found:
        return data
    found.remove(value)
    if drops_empty and not found:
        del document[key]
    return _with_comments(tomlkit.dumps(document), comments).encode()


def _without_comments(text: str) -> tuple[str, list[str]]:
    """Replace each long run of comment lines by one, and return the runs: tomlkit takes 0.1 ms for every line.

    A run inside a text of several lines is put back as it was, too: what tomlkit does not change, it gives back whole.
    """
    comments: list[str] = []
    if _MARK in text:
        return text, comments

    def shorten(found: re.Match[str]) -> str:
        comments.append(found[0])
        return f"{_MARK}{len(comments) - 1}\n"

    return _COMMENTS.sub(shorten, text), comments


def _with_comments(text: str, comments: list[str]) -> str:
    return _MARKED.sub(lambda found: comments[int(found[1])], text) if comments else text
