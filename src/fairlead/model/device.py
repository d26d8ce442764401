"""Devices as things to hand out: what a node advertises and a scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.model.ids import DeviceID


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One allocatable device of one resource: a GPU, a MIG device, or a replica of either."""

    id: DeviceID
    is_healthy: bool = True
    reason: str = ""
    """Why not healthy, a stable token; empty while healthy."""
    numa_node: int | None = None
    parent: str = ""
    """UUID of the physical GPU it lives on; empty: itself."""
    index: str = ""
    """Its place in the driver's enumeration, `0`, for a MIG device `0:1`; empty: not known."""
    nodes: tuple[str, ...] = ()
    """Its own device nodes as a container sees them, not those that all share."""
