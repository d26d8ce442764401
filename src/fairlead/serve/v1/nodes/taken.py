"""Describes nodes, what is taken of them and what is free; without the web framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from fairlead.plan.pod import admission, podstate
from fairlead.plan.schedule import capacity, reference
from fairlead.serve.v1.nodes.view import CapacityList, CapacityView, NodeView
from fairlead.wire.kubernetes import core, meta, quantity


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
