"""Distinguishes fields that Kubernetes has and nothing here reads from names that no field has.

A manifest may carry fields for a cluster that one machine has no use for: they are listed in `unread.toml`, so that
callers can warn. A name that Kubernetes does not have either is a slip of the pen and is refused, with the field that
was meant. Some fields change what a program sees when they are left out: those are refused rather than said.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors
from fairlead.model.container import isolation

_LONGEST: Final = 64


class _Fields(msgspec.Struct, frozen=True):
    """Fields by the struct of `core` or `meta` that does not read them."""

    known: dict[str, frozenset[str]]
    refused: dict[str, frozenset[str]]
    needed: dict[str, frozenset[str]]


@functools.cache
def _fields() -> _Fields:
    import tomllib  # 2 ms, which most processes are spared: they decode no manifest

    return msgspec.convert(tomllib.loads(Path(__file__).with_suffix(".toml").read_text()), _Fields)


def refused_only(struct: str) -> frozenset[str]:
    """Return the fields that `core` reads for a cluster's scheduler to refuse; one machine leaves them out."""
    return _fields().refused.get(struct, frozenset())


def is_sandbox(struct: str, field: str, value: object) -> bool:
    """Return whether a field names a RuntimeClass that one machine heeds: a sandbox, which it has or refuses."""
    is_class = struct == "PodSpec" and field == "runtimeClassName" and isinstance(value, str)
    return is_class and isolation.of_class(str(value)) in isolation.WORDS


def problem(
    struct: str, field: str, read: Iterable[str], *, is_whole: bool = False, is_empty: bool = False
) -> str | None:
    """Return what is wrong with a field that nothing reads; None: Kubernetes has it, and leaving it out may be said.

    Args:    struct: class of the object that has it.   read: the fields of that class.   is_whole: they are all there
             are.   is_empty: its value asks for nothing.
    """
    known, needed = _fields().known.get(struct), _fields().needed.get(struct, frozenset())
    if is_whole:
        known = known or frozenset()
    if field in needed and is_empty:
        return None
    if field in needed:
        return "is not carried out on one machine, and the program would see something else without it"
    if known is None and not needed:
        return None  # a kind whose fields are not listed here
    if field in (known or frozenset()):
        return None
    names = {*read, *(known or frozenset()), *needed}
    # Likeness costs the product of the lengths: a name this long is not a misspelled field.
    close = errors.closest(field, sorted(names)) if len(field) <= _LONGEST else ""
    return "unknown field" + (f', did you mean "{close}"?' if close else "")
