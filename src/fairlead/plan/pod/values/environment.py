"""Expands `$(NAME)` in a container's command, arguments and variables as Kubernetes' kubelet does. Pure.

Only the container's own variables count, never its image's: a reference to one that is not there stays as it is
written, and `$$` is one dollar sign, so that `$$(NAME)` is the text `$(NAME)`. A variable's value may refer to those
that stand before it.
Source: kubernetes third_party/forked/golang/expansion (Expand) and pkg/kubelet/kubelet_pods.go
(makeEnvironmentVariables).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from fairlead.wire.kubernetes import core

_SYNTAX: Final = re.compile(r"\$(?:\$|\(([^)]*)\))")
_READ_AS_SYNTAX: Final = re.compile(r"\$(?=[$(])")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its references replaced by values."""

    def replaced(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else values.get(name, found[0])

    return _SYNTAX.sub(replaced, text)


def expand_all(texts: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return words of a command with their references replaced."""
    return tuple(expand(text, values) for text in texts)


def references(text: str, names: Collection[str]) -> bool:
    """Return whether a text takes a part of its value from one of these variables."""
    return any(found[1] in names for found in _SYNTAX.finditer(text) if found[1] is not None)


def missing(text: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the references in a text that no variable stands for."""
    return tuple(found[1] for found in _SYNTAX.finditer(text) if found[1] is not None and found[1] not in values)


def literal(text: str) -> str:
    """Return how a pod writes a text that no reference is to be read in: `run IMAGE -- sh -c 'echo $$'` has none."""
    return _READ_AS_SYNTAX.sub("$$", text) if "$" in text else text


def given(item: core.Container) -> dict[str, str]:
    """Return the variables that a container's pod gives by value, in their order, each expanded by those before it."""
    found: dict[str, str] = {}
    for one in item.env:
        if one.value_from is None:
            found[one.name] = expand(one.value, found)
    return found
