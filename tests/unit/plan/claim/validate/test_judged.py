"""The rules say word for word what a real API server says of the same objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.claim import gate
from fairlead.plan.claim.validate import door, request
from fairlead.wire.kubernetes.resource import dialect
from tests.unit.plan.claim.validate import judged

_ANSWERS: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[4] / "data/claim/answers.json").read_text(encoding="utf-8")
)
_CASES = {case["name"]: case for case in judged.cases()}
_GATES = {
    "DRAListTypeAttributes": "list_type_attributes",
    "DRAOptionalNodeOperations": "optional_node_operations",
    "DRAPartitionableDevicesType": "partitionable_devices_type",
    "DRANodeAllocatableResources": "node_allocatable_resources",
    "DRADeviceCompatibilityGroups": "device_compatibility_groups",
    "DRAFractionalCapacityRange": "fractional_capacity_range",
    "DRADerivedAttributes": "derived_attributes",
}
_OURS = {
    # The server shows the whole template in the names of its own structs.
    "update/template-spec": ["spec: Invalid value: null: field is immutable"],
}
"""Where our words differ."""
_NOW = "2026-01-01T00:00:00Z"


def said(case: dict[str, Any]) -> list[str]:
    """Return what the rules say of a case, in order of the alphabet."""
    gates = gate.Gates(**{_GATES[name]: True for name in case["gates"]})
    rules = request.Rules(check_selector=lambda _: None, gates=gates)
    new: Any = dialect.read(case["obj"]).item
    old: Any = dialect.read(case["old"]).item if "old" in case else None
    labels = {"resource.kubernetes.io/admin-access": "true"} if new.metadata.namespace == "admin" else {}
    doors: dict[tuple[str, bool], Any] = {
        ("ResourceClaim", False): lambda: door.admit_claim(new, rules, namespace_labels=labels, old=old),
        ("ResourceClaim", True): lambda: door.admit_claim_status(new, rules, namespace_labels=labels, old=old),
        ("ResourceClaimTemplate", False): lambda: door.admit_template(new, rules, namespace_labels=labels, old=old),
        ("ResourceSlice", False): lambda: door.admit_slice(new, gates, _NOW, old=old),
        ("DeviceClass", False): lambda: door.admit_class(new, rules, old=old),
        ("DeviceTaintRule", False): lambda: door.admit_taint_rule(new, _NOW, old=old),
        ("DeviceTaintRule", True): lambda: door.admit_taint_rule_status(new, old=old),
        ("ResourcePoolStatusRequest", False): lambda: door.admit_pool_status_request(new, gates, old=old),
    }
    try:
        doors[new.KIND, case["op"] == "status"]()
    except errors.Invalid as error:
        return sorted(error.context["problems"])  # type: ignore[call-overload, no-any-return]
    return []


@pytest.mark.parametrize("name", _CASES)
def test_a_server_says_the_same(name: str) -> None:
    assert said(_CASES[name]) == sorted(_OURS.get(name, _ANSWERS[name]))


def test_every_answer_has_its_case() -> None:
    assert set(_ANSWERS) == set(_CASES)
    assert all(_ANSWERS[name] for name in _OURS)
