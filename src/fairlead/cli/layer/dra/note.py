"""Says what several verbs say: counts in words, lines that fit a terminal, what was not looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fairlead import errors
from fairlead.cli.core import output
from fairlead.cli.layer.dra.read import Objects
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_WIDEST: Final = 400
"""Characters of a cell: driver, pool and device have fewer together."""


def count(number: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], *, most: int) -> str:
    """Return names with commas, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(errors.readable, names[:most]))}{more}"


def wrapped(text: str, *, indent: int = 0, first: int | None = None) -> Iterator[str]:
    """Yield a text in lines that fit the terminal.

    Args:    indent: blanks before each line.   first: blanks before the first, where it differs.
    """
    for at, line in enumerate(output.wrapped(text, indent=indent)):
        yield f"{' ' * (indent if at or first is None else first)}{line}"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as aligned lines; the last column goes on in further lines where the terminal is narrow."""
    width = output.terminal_columns()
    bounded = [[_cell(value) for value in row[:-1]] + [errors.readable(row[-1])] for row in rows]
    yield from output.lines_of(bounded) if width is None else output.folded(bounded, width)


def _cell(text: str) -> str:
    """Return a value of a column; a hostile one must not make every row as wide as itself."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 40]}…{text[-39:]}"


def newest(slices: Iterable[ResourceSlice]) -> list[ResourceSlice]:
    """Return the slices of the newest generation of each pool."""
    every = list(slices)
    latest: dict[tuple[str, str], int] = {}
    for one in every:
        key = (one.spec.driver, one.spec.pool.name)
        latest[key] = max(latest.get(key, one.spec.pool.generation), one.spec.pool.generation)
    return [one for one in every if one.spec.pool.generation == latest[one.spec.driver, one.spec.pool.name]]


def nodes_of(selector: core.NodeSelector | None) -> str:
    """Return where an allocation is, in words: the node's name where it is one."""
    if selector is None:
        return "every node"
    names = [
        name
        for term in selector.node_selector_terms
        for field in term.match_fields
        if field.key == "metadata.name" and field.operator == "In"
        for name in field.values
    ]
    return listed(names, most=3) if names else "the nodes of its node selector"


def node_names(slices: Iterable[ResourceSlice]) -> tuple[str, ...]:
    """Return the nodes that slices or their devices name, in order."""
    every = list(slices)
    names = {one.spec.node_name for one in every}
    names |= {device.node_name for one in every if one.spec.per_device_node_selection for device in one.spec.devices}
    return tuple(sorted(name for name in names if name))


def unread(found: Objects) -> tuple[str, ...]:
    """Return what was not read, or not looked at, in words."""
    passed = ", ".join(f"{number} {kind}" for kind, number in found.others.items())
    return (*(f"not read: {text}" for text in found.unread), *((f"passed over: {passed}",) if passed else ()))
