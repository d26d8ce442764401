"""Reads the tree of PCI functions from the links in /sys/bus/pci/devices, none of which is followed.

`0000:17:00.0 -> ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0` says which bridges are above a
function. So what else is below a bridge is known from names alone, and a link that loops leads nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.silicon.vfio import attribute

_LONGEST: Final = 64


@frozen
class Place:
    """Where a function is in the tree."""

    bridges: tuple[str, ...] = ()
    """Addresses of the bridges above it, the root port first."""
    path: str = ""
    """See `Identity.path`."""


def read_places(folder: str, names: Sequence[str]) -> dict[str, Place]:
    """Return the place of each function. Args: folder: /sys/bus/pci/devices.   names: addresses in it."""
    return {name: _place(folder, name) for name in names}


def _place(folder: str, name: str) -> Place:
    try:
        steps = os.readlink(f"{folder}/{name}").split("/")  # noqa: PTH115  (names, not a path)
    except OSError:  # a folder, as in a tree that was made up
        return Place()
    above = steps[:-1]
    roots = [step for step in above if step.startswith("pci")]
    bridges = tuple(step for step in above if attribute.is_address(step))
    if len(steps) > _LONGEST or steps[-1] != name or not roots:
        return Place()
    shown = [step for step in steps if step.startswith("pci") or attribute.is_address(step)]
    path = "/".join(step if step.startswith("pci") else step.rpartition(":")[2] for step in shown)
    return Place(bridges=bridges, path=path)


def below(places: Mapping[str, Place]) -> dict[str, list[str]]:
    """Return the functions below each bridge, at any depth, in the order of the mapping."""
    found: dict[str, list[str]] = {}
    for name, place in places.items():
        for bridge in place.bridges:
            found.setdefault(bridge, []).append(name)
    return found


def read_slots(folder: str) -> dict[str, str]:
    """Return the names of physical slots by what their `address` says, `0000:17:00`. Args: folder: …/pci/slots."""
    named = ((attribute.find_text(f"{folder}/{name}/address"), name) for name in attribute.names(folder))
    return {address: name for address, name in named if address}
