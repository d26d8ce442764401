"""Reads from a slot's resource how many GPUs it has, and refuses a size that no NVLink partition here has. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fairlead import errors
from fairlead.plan.fabric import lattice

_SLOT: Final = re.compile(r"(?P<model>[a-z0-9.-]+/[a-z0-9-]+)-x(?P<size>[0-9]{1,2})")
_VENDOR: Final = "nvidia.com/"
_MOST: Final = 16
"""GPUs of a partition, at most."""


def gpus_of(resource: str) -> int:
    """Return how many GPUs one slot of a resource has, by our own names; 0: it is not one of these."""
    found = _SLOT.fullmatch(resource)
    gpus = int(found["size"]) if found is not None and resource.startswith(_VENDOR) else 0
    return gpus if gpus <= _MOST else 0


def find_refusal(asked: Iterable[str], offered: Iterable[str]) -> errors.Invalid | None:
    """Return why a request cannot be met by any slot of these nodes; None: it can, or is for no slot of theirs.

    Args: asked: names of resources.   offered: those of the nodes.
    """
    sizes: dict[str, set[int]] = {}
    for name in offered:
        if found := _SLOT.fullmatch(name):
            sizes.setdefault(found["model"], set()).add(int(found["size"]))
    for name in asked:
        found = _SLOT.fullmatch(name)
        # A model with single GPUs alone has no NVLink, or its fabric was not asked yet: then it is not known.
        if found and len(there := sizes.get(found["model"], set())) > 1 and int(found["size"]) not in there:
            return lattice.refuse_size(sorted(there), int(found["size"]))
    return None
