"""Lays out the GPUs of every node: boards, what they are divided into, and who holds which part. Pure."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.model import replica
from fairlead.model.gpu import GPU
from fairlead.model.neighbour import Use
from fairlead.plan.lease.neighbour import OUTSIDE
from fairlead.serve.backend.hardware import GPUListing, GPUView, Holder
from fairlead.serve.console.draw import tone, words

_MOST_CELLS: Final = 24
"""Replicas that are drawn one by one; more are counted."""
_GIB: Final = 1 << 30
_SLICES: Final = 8
"""Memory slices of a GPU in MIG mode."""


@frozen
class Occupant:
    """Who holds a part of a GPU."""

    name: str
    """Empty: a container of a tenancy that the caller does not see."""
    namespace: str
    address: str
    hue: int
    since: str | None


@frozen
class Cell:
    """One part of a board that is given out on its own."""

    label: str
    size: int
    """In eighths of the board, as wide as it is drawn."""
    occupants: tuple[Occupant, ...]
    is_offered: bool = True


@frozen
class Reading:
    """One gauge."""

    label: str
    text: str
    percent: float | None


@frozen
class Outsider:
    """A program on a GPU that Fairlead did not start."""

    name: str
    facts: str
    """Pid, account, unit or container, memory; empty: not for the caller."""
    since: str | None
    use: str
    keeps: bool


@frozen
class Board:
    """One GPU."""

    id: str
    title: str
    model: str
    uuid: str
    address: str
    health: str
    health_tone: str
    lease: str
    lease_tone: str
    message: str
    division: str
    cells: tuple[Cell, ...]
    more: int
    """Parts that are not drawn."""
    readings: tuple[Reading, ...]
    outsiders: tuple[Outsider, ...] = ()
    """Programs on it that Fairlead did not start, without the driver's own."""

    @property
    def is_free(self) -> bool:
        """Whether no container holds a part of it, and no program outside keeps it."""
        return not any(cell.occupants for cell in self.cells) and not any(one.keeps for one in self.outsiders)


@frozen
class NodeMap:
    """The boards of one node."""

    name: str
    boards: tuple[Board, ...]

    @property
    def free(self) -> int:
        """How many boards are free and not broken."""
        return sum(board.is_free and board.health_tone != tone.BAD for board in self.boards)


def nodes(listing: GPUListing) -> tuple[NodeMap, ...]:
    """Return the map, node by node."""
    by_node: dict[str, list[GPUView]] = {}
    for one in listing.gpus:
        by_node.setdefault(one.node, []).append(one)
    return tuple(NodeMap(name=name, boards=tuple(map(_board, found))) for name, found in by_node.items())


def container_address(namespace: str, name: str) -> str:
    """Return the address of a container's page."""
    return f"/console/containers/{urllib.parse.quote(namespace, safe='')}/{urllib.parse.quote(name, safe='')}"


def _board(view: GPUView) -> Board:
    gpu = view.gpu
    cells = tuple(_cells(view))
    shown = cells[:_MOST_CELLS]
    return Board(
        id=gpu.uuid,
        title=f"GPU {gpu.index}",
        model=gpu.name,
        uuid=gpu.uuid,
        address=gpu.pci_bus_id,
        health=view.health or "not judged yet",
        health_tone=tone.of(view.health),
        lease=view.lease,
        lease_tone=tone.of(view.lease),
        message=": ".join(part for part in (view.reason, view.message) if part),
        division=_division(view),
        cells=shown,
        more=len(cells) - len(shown),
        readings=tuple(_readings(gpu)),
        outsiders=tuple(_outsiders(view)),
    )


def _outsiders(view: GPUView) -> Iterable[Outsider]:
    for one in view.neighbours:
        if one.use == Use.SERVICE:
            continue
        memory = f"{one.memory_bytes / _GIB:.1f} GiB" if one.memory_bytes else ""
        known = (f"pid {one.pid}" if one.pid else "", one.user, one.container or one.unit, memory, one.doubt)
        yield Outsider(
            name=one.name or OUTSIDE,
            facts=", ".join(filter(None, known)),
            since=one.since,
            use=one.use,
            keeps=one.keeps,
        )


def _division(view: GPUView) -> str:
    if view.gpu.mig_enabled:
        return f"MIG, {len(view.gpu.mig_devices)} instances" if view.gpu.mig_devices else "MIG, no instances"
    return f"{view.replicas} replicas by {view.sharing or 'sharing'}" if view.replicas else ""


def _cells(view: GPUView) -> Iterable[Cell]:
    if view.gpu.mig_enabled:
        return _mig_cells(view)
    if view.replicas:
        return _replica_cells(view)
    offered = bool(view.resource) or bool(view.holders)
    label = "whole GPU" if offered else "not offered"
    return [Cell(label=label, size=_SLICES, occupants=_occupants(view.holders), is_offered=offered)]


def _mig_cells(view: GPUView) -> Iterable[Cell]:
    """Yield instances where they lie on the board, and the memory that none has."""
    reached = 0
    for one in sorted(view.gpu.mig_devices, key=lambda device: (device.placement_start or 0, device.index)):
        if one.placement_start is not None and one.placement_start > reached:
            yield Cell(label="unused", size=one.placement_start - reached, occupants=(), is_offered=False)
        holders = [item for item in view.holders if replica.origin(item.device) == one.uuid]
        yield Cell(label=one.profile, size=one.placement_size or 1, occupants=_occupants(holders))
        reached = max(reached, (one.placement_start or 0) + (one.placement_size or 1))
    if reached < _SLICES:
        yield Cell(label="unused", size=_SLICES - reached, occupants=(), is_offered=False)


def _replica_cells(view: GPUView) -> Iterable[Cell]:
    taken = _occupants(view.holders)
    for number in range(view.replicas):
        yield Cell(label=f"replica {number}", size=1, occupants=taken[number : number + 1])


def _occupants(holders: Sequence[Holder]) -> tuple[Occupant, ...]:
    return tuple(
        Occupant(
            name=one.container,
            namespace=one.namespace,
            address=container_address(one.namespace, one.container) if one.container and one.namespace else "",
            hue=tone.hue(f"{one.namespace}/{one.container}"),
            since=one.since,
        )
        for one in holders
    )


def _readings(gpu: GPU) -> Iterable[Reading]:
    health = gpu.health
    if health.utilization_percent is not None:
        yield Reading(label="Load", text=words.percent(health.utilization_percent), percent=health.utilization_percent)
    if health.memory_used_bytes is not None and gpu.memory_bytes:
        share = 100 * health.memory_used_bytes / gpu.memory_bytes
        text = f"{health.memory_used_bytes / _GIB:.0f} / {gpu.memory_bytes / _GIB:.0f} GiB"
        yield Reading(label="Memory", text=text, percent=share)
    if health.temperature_c is not None:
        limit = health.limit_c or 100
        percent = 100 * health.temperature_c / limit
        yield Reading(label="Temperature", text=f"{health.temperature_c} °C", percent=percent)
    if health.power_mw is not None:
        yield Reading(label="Power", text=f"{health.power_mw / 1000:.0f} W", percent=None)
