from __future__ import annotations

from typing import Any

from fairlead.plan.claim import default
from fairlead.wire.kubernetes.resource import dialect
from tests.unit.plan.claim.validate import judged

NOW = "2026-11-28T06:00:00Z"


def read(document: dict[str, Any]) -> Any:
    return dialect.read(document).item


def requests(*exactly: dict[str, Any]) -> Any:
    found = [{"name": f"r{at}", "exactly": one} for at, one in enumerate(exactly)]
    return read(judged.changed(judged.CLAIM, {"spec.devices": {"requests": found}}))


def test_a_request_is_for_one_device() -> None:
    claim: Any = default.claim(requests({}, {"count": 3}, {"allocationMode": "All"}, {"allocationMode": "Odd"}))
    found = [(one.exactly.allocation_mode, one.exactly.count) for one in claim.spec.devices.requests]
    assert found == [("ExactCount", 1), ("ExactCount", 3), ("All", 0), ("Odd", 0)]


def test_alternatives_have_the_same_defaults() -> None:
    claim: Any = default.claim(read(judged.CLAIM))
    found = [(one.allocation_mode, one.count) for one in claim.spec.devices.requests[1].first_available]
    assert found == [("ExactCount", 1), ("All", 0)]


def test_a_toleration_compares_values() -> None:
    claim: Any = default.claim(requests({"tolerations": [{"key": "a"}, {"operator": "Exists"}]}))
    assert [one.operator for one in claim.spec.devices.requests[0].exactly.tolerations] == ["Equal", "Exists"]
    changes = {"status.allocation.devices.results.0.tolerations": [{"key": "a"}]}
    allocated: Any = default.claim(read(judged.changed(judged.ALLOCATED, changes)))
    assert allocated.status.allocation.devices.results[0].tolerations[0].operator == "Equal"


def test_a_template_has_the_defaults_of_its_claim() -> None:
    template = default.claim_template(read(judged.TEMPLATE))
    assert template.spec.spec == default.claim_spec(read(judged.CLAIM).spec)


def test_taints_say_since_when_they_are() -> None:
    taints = [{"key": "a", "effect": "None"}, {"key": "b", "effect": "None", "timeAdded": "2020-01-01T00:00:00Z"}]
    item = default.resource_slice(read(judged.changed(judged.SLICE, {"spec.devices.1.taints": taints})), NOW)
    assert [one.time_added for one in item.spec.devices[1].taints] == [NOW, "2020-01-01T00:00:00Z"]
    assert default.taint_rule(read(judged.RULE), NOW).spec.taint.time_added == NOW


def test_a_question_is_for_a_hundred_pools() -> None:
    bare = read(judged.changed(judged.QUESTION, {"spec.limit": judged.GONE}))
    assert default.pool_status_request(bare).spec.limit == 100
    assert default.pool_status_request(read(judged.QUESTION)).spec.limit == 5
