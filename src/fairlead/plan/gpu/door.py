"""Decides by which door each GPU of a node is given away: the device plugin, or ResourceClaims. Pure.

One GPU has one door. The configuration says which; a GPU that is in somebody's hands keeps the door it was given away
by until it comes back, so that a node can be moved while pods run on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead.model.driver import PassthroughGPU
from fairlead.model.gpu import GPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.wire.nvidia.pluginconfig import DeviceChoice

PLUGIN: Final = "plugin"
CLAIMS: Final = "claims"
DOORS: Final = (PLUGIN, CLAIMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Who has GPUs now."""

    held: Mapping[GPUUUID, str] = field(default_factory=dict)
    """The door by which each GPU was given away that is not back."""
    allocated: Collection[GPUUUID] | None = None
    """GPUs that the API server has allocated to claims, prepared or not; None: it has not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """The doors of a node's GPUs."""

    claimed: frozenset[GPUUUID] = frozenset()
    """GPUs that are given away by claims; the others are by the device plugin."""
    leaving: frozenset[GPUUUID] = frozenset()
    """Those among them that the device plugin is to get: no further claim gets them."""
    awaited: frozenset[GPUUUID] = frozenset()
    """GPUs that claims are to get, once a container gives them back."""


def plan_doors(
    gpus: Iterable[GPU],
    wanted: DeviceChoice | str,
    facts: Facts,
    before: Collection[GPUUUID],
    passed: Iterable[PassthroughGPU] = (),
) -> Doors:
    """Return by which door each GPU is given away.

    Args: wanted: a door for all of them, or those that claims get.   before: those that claims had until now.
          passed: GPUs that are passed through; a count goes on with them behind the others.
    """
    ours = [
        *((gpu.uuid, {str(gpu.index), str(gpu.uuid)}) for gpu in gpus if gpu.vendor is Vendor.NVIDIA),
        *((gpu.key, {gpu.address, str(gpu.key)}) for gpu in passed if gpu.vendor is Vendor.NVIDIA),
    ]
    chosen = frozenset(key for position, (key, names) in enumerate(ours) if _is_wanted(names, position, wanted))
    claimed = frozenset(
        key for key, _ in ours if _is_claimed(key, is_wanted=key in chosen, facts=facts, was=key in before)
    )
    return Doors(claimed=claimed, leaving=claimed - chosen, awaited=chosen - claimed)


def _is_claimed(gpu: GPUUUID, *, is_wanted: bool, facts: Facts, was: bool) -> bool:
    held = facts.held.get(gpu)
    if held is not None:
        return held == CLAIMS
    if was and not is_wanted:  # a claim may be allocated, and its pod on the way
        return facts.allocated is None or gpu in facts.allocated
    return is_wanted


def _is_wanted(names: Collection[str], position: int, wanted: DeviceChoice | str) -> bool:
    if isinstance(wanted, str):
        return wanted == CLAIMS
    if wanted.is_all:
        return True
    if wanted.count is not None:
        return position < wanted.count
    return bool(set(names) & set(wanted.names))
