"""Writes what a search found into the claims' status, as the scheduler of Kubernetes does.

Source: k8s.io/dynamic-resource-allocation v0.37.2 structured/internal/incubating/allocator_incubating.go (behaviour).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.search.ledger import Placed
from fairlead.plan.claim.search.request import Fatal, Table, Wanted
from fairlead.wire.kubernetes.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from fairlead.wire.kubernetes.resource.resourceclaim import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
)

FROM_CLASS, FROM_CLAIM = "FromClass", "FromClaim"
_NAME: Final = "metadata.name"


def results(
    table: Table,
    placed: Sequence[Placed],
    chosen: Mapping[tuple[int, int], int],
    node: str,
    gates: Gates,
    share_ids: Callable[[], str],
) -> tuple[AllocationResult, ...]:
    """Return the status of each claim. Raises: Fatal: a slice selects nodes in a way that is not known."""
    found = []
    for claim, requests in enumerate(table.requests):
        rows = [rows[chosen.get((claim, at), 0)] for at, rows in enumerate(requests)]
        own = [one for one in placed if one.wanted.claim == claim]
        devices = DeviceAllocationResult(
            results=tuple(_result(one, gates, share_ids) for one in own), config=tuple(_config(table, claim, rows))
        )
        found.append(AllocationResult(devices=devices, node_selector=_node_selector(own, node, table, claim)))
    return tuple(found)


def _result(one: Placed, gates: Gates, share_ids: Callable[[], str]) -> DeviceRequestAllocationResult:
    wanted, candidate, device = one.wanted, one.candidate, one.candidate.device
    binds = gates.device_binding_conditions
    return DeviceRequestAllocationResult(
        request=wanted.label,
        driver=candidate.id.driver,
        pool=candidate.id.pool,
        device=candidate.id.device,
        admin_access=wanted.admin or None,
        tolerations=wanted.tolerations,
        binding_conditions=device.binding_conditions if binds else (),
        binding_failure_conditions=device.binding_failure_conditions if binds else (),
        share_id=share_ids() if candidate.is_shared else None,
        consumed_capacity=one.consumption.texts if one.consumption is not None else {},
        skip_node_operations=candidate.slice.spec.skip_node_operations,
    )


def _config(table: Table, claim: int, rows: Sequence[Wanted]) -> Iterator[DeviceAllocationConfiguration]:
    """Yield configuration of classes, once a class, and then of the claim; what covers every request names none."""
    of_class: dict[str, list[Wanted]] = {}
    for row in rows:
        of_class.setdefault(row.device_class.metadata.name, []).append(row)
    for using in of_class.values():
        for config in using[0].device_class.spec.config:
            names = tuple(row.label for row in using)
            yield DeviceAllocationConfiguration(
                source=FROM_CLASS, requests=_unless_all(names, rows), opaque=config.opaque
            )
    for own in table.claims[claim].spec.devices.config:
        if not own.requests or any(_names(row) & set(own.requests) for row in rows):
            yield DeviceAllocationConfiguration(
                source=FROM_CLAIM, requests=_unless_all(own.requests, rows), opaque=own.opaque
            )


def _names(row: Wanted) -> set[str]:
    return {row.label, row.label.partition("/")[0]}


def _unless_all(names: Sequence[str], rows: Sequence[Wanted]) -> tuple[str, ...]:
    return () if all(_names(row) & set(names) for row in rows) else tuple(names)


def _node_selector(placed: Sequence[Placed], node: str, table: Table, claim: int) -> NodeSelector | None:
    """Return the nodes that can use the devices: one, where any device is of one; None: all."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for one in placed:
        spec, device = one.candidate.slice.spec, one.candidate.device
        where = device if spec.per_device_node_selection else spec
        if where.node_name is not None or device.binds_to_node:
            term = NodeSelectorTerm(match_fields=(NodeSelectorRequirement(key=_NAME, operator="In", values=(node,)),))
            return NodeSelector(node_selector_terms=(term,))
        terms = where.node_selector.node_selector_terms if where.node_selector is not None else ()
        if len(terms) > 1:
            name = table.claims[claim].metadata.name
            message = (
                f"create NodeSelector for claim {name}: unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
            )
            raise Fatal(message, "SliceUnknown")
        for term in terms:
            _add_new(term.match_fields, fields)
            _add_new(term.match_expressions, expressions)
    if not fields and not expressions:
        return None
    term = NodeSelectorTerm(match_fields=tuple(fields), match_expressions=tuple(expressions))
    return NodeSelector(node_selector_terms=(term,))


def _add_new(items: Sequence[NodeSelectorRequirement], to: list[NodeSelectorRequirement]) -> None:
    for item in items:
        if not any(_is_same(item, one) for one in to):
            to.append(item)


def _is_same(one: NodeSelectorRequirement, other: NodeSelectorRequirement) -> bool:
    return (one.key, one.operator, set(one.values)) == (other.key, other.operator, set(other.values))
