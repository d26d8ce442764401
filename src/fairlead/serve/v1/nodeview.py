"""Describes nodes and what is taken of them; without the web framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated

import msgspec

from fairlead.plan.pod import admission, podstate
from fairlead.plan.schedule import capacity, reference
from fairlead.wire.fairlead import listing
from fairlead.wire.kubernetes import core, meta, quantity


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


def capacity_list(nodes: Iterable[core.Node], pods: Iterable[core.Pod]) -> CapacityList:
    """Say what is free on nodes with these pods, and what of it fits. Raises: Invalid: a quantity cannot be read."""
    there: dict[str, list[core.Pod]] = {}
    for pod in pods:
        if not podstate.is_final(pod):
            there.setdefault(pod.spec.node_name, []).append(pod)
    known = (reference.node_info(node, there.get(node.metadata.name, ())) for node in nodes)
    waiting = Counter(reference.pod_info(pod).kind for pod in there.get("", ()))
    return CapacityList(
        items=tuple(
            CapacityView(
                resource=one.resource,
                model=one.model,
                offered=one.offered,
                free=one.free,
                largest=one.largest,
                fits={str(size): pods for size, pods in one.fits.items()},
                fragmented=one.fragmented,
            )
            for one in capacity.capacities(known, waiting)
        )
    )


def node_view(node: core.Node, pods: Iterable[core.Pod]) -> NodeView:
    """Describe a node and what the living pods bound to it have taken."""
    ready = meta.find_condition(node.status.conditions, "Ready")
    states = {"True": "ready", "False": "notready"}
    used: dict[str, Fraction] = {}
    for pod in pods:
        if pod.spec.node_name == node.metadata.name and not podstate.is_final(pod):
            for name, value in admission.effective_requests(pod.spec).items():
                used[name] = used.get(name, Fraction(0)) + value
    info = node.status.node_info
    return NodeView(
        name=node.metadata.name,
        state=states.get(ready.status, "unknown") if ready else "unknown",
        reason=ready.reason if ready else "",
        capacity=node.status.capacity,
        allocatable=node.status.allocatable,
        used={name: _amount(name, value) for name, value in used.items()},
        taints=tuple(f"{taint.key}={taint.value}:{taint.effect}" for taint in node.spec.taints),
        kernel=info.kernel_version if info else "",
        engine=info.container_runtime_version if info else "",
    )


def _amount(resource: str, value: Fraction) -> str:
    is_bytes = resource in {"memory", "ephemeral-storage"}
    return quantity.emit_quantity(value, quantity.Form.BINARY if is_bytes else quantity.Form.DECIMAL)
