"""Describes nodes and what is free on them: only the types, which is all that a client imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from fairlead.wire.fairlead import listing


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One machine."""

    name: str
    state: Annotated[str, msgspec.Meta(description="ready, notready or unknown")]
    reason: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    used: Annotated[dict[str, str], msgspec.Meta(description="requests of the pods bound to it")]
    taints: tuple[str, ...]
    kernel: str
    engine: str


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes."""

    items: tuple[NodeView, ...]
    next: listing.Next = ""


class CapacityView(msgspec.Struct, frozen=True, kw_only=True):
    """What is free of one resource, on the nodes of one model."""

    resource: str
    model: Annotated[str, msgspec.Meta(description="label nvidia.com/gpu.product; empty: the nodes have none")]
    offered: int
    free: Annotated[int, msgspec.Meta(description="on nodes that take pods now")]
    largest: Annotated[int, msgspec.Meta(description="devices of the largest pod that fits on a node now")]
    fits: Annotated[
        dict[str, int], msgspec.Meta(description="by size of pod in devices: how many such pods fit now, alone")
    ]
    fragmented: Annotated[
        float | None,
        msgspec.Meta(description="free GPUs of no use to what is asked for, on average; null: no pod asks for GPUs"),
    ]


class CapacityList(msgspec.Struct, frozen=True, kw_only=True):
    """What is free, by resource and model."""

    items: tuple[CapacityView, ...]
