"""What slices, rules and hard claims do to the judgement of nodes."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.claim.gate import DEFAULTS
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.claim import ask
from fairlead.plan.schedule.claim.claims import Claims
from fairlead.plan.schedule.claim.published import Published
from fairlead.wire.kubernetes import core, meta
from tests.unit.control.scheduler.claimplane import DRIVER, devices, read


class NoUsers:
    def __call__(self, namespace: str) -> tuple[core.Pod, ...]:
        del namespace
        return ()

    def wait(self, uid: str) -> bool:
        del uid
        return False


def published(name: str, found: list[dict[str, Any]], **spec: Any) -> Any:
    pool = {"name": spec.pop("pool", name), "generation": 1, "resourceSliceCount": spec.pop("count", 1)}
    where = {} if "allNodes" in spec else {"nodeName": name}
    full = {"driver": DRIVER, "pool": pool, "devices": found, **where, **spec}
    return read("ResourceSlice", {"metadata": {"name": spec.pop("named", f"{name}-a")}, "spec": full})


def a_class(expression: str = "true") -> Any:
    return read(
        "DeviceClass", {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    )


def a_claim(name: str = "c", count: int = 1) -> Any:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    about = {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1"}
    return read(
        "ResourceClaim",
        {"metadata": about, "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
    )


def a_pod(claim: str = "c") -> core.Pod:
    spec = core.PodSpec(resource_claims=(core.PodResourceClaim(name="gpus", resource_claim_name=claim),))
    return core.Pod(metadata=meta.ObjectMeta(name="p", namespace="d", uid="p"), spec=spec)


def node(known: Claims, name: str) -> reference.NodeInfo:
    return reference.NodeInfo(name=name, limits={ask.NAME: known.limits(name, {})})


def check(known: Claims, name: str) -> tuple[str, ...]:
    asked = known.ask(a_pod())
    assert asked is not None
    return asked.filters[0].check(asked, node(known, name))


def test_a_change_concerns_the_nodes_of_its_pool_and_no_others() -> None:
    known = Claims(NoUsers())
    assert known.note(published("a", devices(1))).nodes == {"a"}
    assert known.note(published("b", devices(1))).nodes == {"b"}
    before = known.limits("a", {}), known.limits("b", {})
    known.note(published("b", devices(2)))
    assert known.limits("a", {}) is before[0]
    assert known.limits("b", {}) is not before[1]
    assert known.limits("a", {"zone": "z"}) is not before[0]
    assert known.note(published("net", devices(1), allNodes=True, named="net")).nodes is None


def test_a_change_that_is_no_change_of_the_spec_concerns_no_node() -> None:
    known = Claims(NoUsers())
    for one in (published("a", devices(1)), a_class()):
        known.note(one)
    before = known.limits("a", {})
    for one in (published("a", devices(1)), a_class()):
        assert known.note(one).nodes == ()
    assert known.limits("a", {}) is before


def test_a_taint_rule_keeps_its_device_back_until_it_is_gone() -> None:
    known = Claims(NoUsers())
    for one in (published("a", devices(1)), a_class(), a_claim()):
        known.note(one)
    assert check(known, "a") == ()
    taint = {"key": "sick", "effect": "NoSchedule"}
    rule = read(
        "DeviceTaintRule", {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"pool": "a"}, "taint": taint}}
    )
    assert known.note(rule).nodes is None
    assert check(known, "a") == (
        "cannot allocate all claims: request gpus of claim gpus wants 1 of 1 devices, and 0 fit: 1 tainted",
    )
    known.note(rule, is_gone=True)
    assert check(known, "a") == ()


def test_devices_seen_by_selectors_are_forgotten_with_their_slice() -> None:
    found = Published(DEFAULTS)
    for number in range(50):
        found.note(published("a", devices(8)), is_gone=False)
        for candidate in found.pools("a", {}).candidates:
            candidate.views.append(object())  # type: ignore[arg-type]
        assert len(found._views) <= 8, number
    found.note(published("a", devices(8)), is_gone=True)
    assert found._views == {}
    assert found.is_empty


@pytest.fixture
def hard() -> Claims:
    """Claims over nodes whose partitions are a knapsack of six counters."""
    dice, known = random.Random(5), Claims(NoUsers())
    for number in range(20):
        name = f"n{number}"
        parts = [
            {
                "name": f"d{at:02}",
                "attributes": {"x": {"int": at}},
                "consumesCounters": [
                    {"counterSet": "set", "counters": {key: {"value": str(dice.randint(20, 40))} for key in "abcdef"}}
                ],
            }
            for at in range(40)
        ]
        counters = [{"name": "set", "counters": {key: {"value": "300"} for key in "abcdef"}}]
        known.note(published(name, parts, count=2))
        known.note(published(name, [], count=2, sharedCounters=counters, named=f"{name}-counters"))
    known.note(a_class())
    known.note(a_claim(count=12))
    return known


def test_a_claim_that_is_too_hard_is_given_up_after_a_few_nodes(hard: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "BUDGET", 300)
    monkeypatch.setattr(ask, "PATIENCE", 600)
    asked = hard.ask(a_pod())
    assert asked is not None
    tried = list[str]()
    allocate = ask.Supply.allocate

    def counted(self: ask.Supply, *args: Any) -> Any:
        tried.append("")
        return allocate(self, *args)

    monkeypatch.setattr(ask.Supply, "allocate", counted)
    said = {asked.filters[0].check(asked, node(hard, f"n{number}")) for number in range(20)}
    assert said == {(f"cannot allocate all claims: {ask._GIVEN_UP}",)}
    assert len(tried) <= 3
    hard.ask(a_pod())  # the next look at the pod begins anew
    asked.filters[0].check(asked, node(hard, "n0"))
    assert len(tried) <= 4


def _allocated(name: str, node: str, **device: Any) -> Any:
    found = a_claim(name)
    result: dict[str, Any] = {"request": "gpus", "driver": DRIVER, "pool": node, "device": "gpu-0", **device}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}}
    status = read("ResourceClaim", {"metadata": {"name": name}, "status": {"allocation": allocation}}).status
    return msgspec.structs.replace(found, status=status)


@pytest.mark.parametrize("change", ["gone", "allocated elsewhere", "another"])
def test_a_claim_that_changed_since_nodes_were_judged_is_not_reserved(change: str) -> None:
    known = Claims(NoUsers())
    for one in (published("a", devices(1)), published("b", devices(1)), a_class(), a_claim()):
        known.note(one)
    asked = known.ask(a_pod())
    assert asked is not None
    assert known.reserve(a_pod(), asked, node(known, "a")) is not None
    if change == "gone":
        known.note(a_claim(), is_gone=True)
    elif change == "allocated elsewhere":
        known.note(_allocated("c", "b"))
    else:
        known.note(a_claim(), is_gone=True)
        known.note(a_claim(count=2))
    with pytest.raises(errors.Conflict):
        known.reserve(a_pod(), asked, node(known, "a"))


def test_a_pod_is_not_bound_to_devices_that_failed_and_that_another_pod_uses() -> None:
    known = Claims(NoUsers())
    found = _allocated("c", "a", bindingConditions=["ready"], bindingFailureConditions=["broken"])
    other: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": "o", "uid": "o"}]}
    broken = [{"type": "broken", "status": "True", "reason": "r", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    other["devices"] = [{"driver": DRIVER, "pool": "a", "device": "gpu-0", "conditions": broken}]
    status = read("ResourceClaim", {"metadata": {"name": "c"}, "status": other}).status
    status = msgspec.structs.replace(found.status, reserved_for=status.reserved_for, devices=status.devices)
    for one in (published("a", devices(1)), a_class(), msgspec.structs.replace(found, status=status)):
        known.note(one)
    asked = known.ask(a_pod())
    assert asked is not None
    with pytest.raises(errors.Conflict, match="do not meet their binding conditions"):
        known.reserve(a_pod(), asked, node(known, "a"))


def test_a_claim_that_another_scheduler_made_for_extended_resources_is_free_once_its_pod_is_thought_away() -> None:
    known = Claims(NoUsers())
    for one in (published("a", devices(1)), a_class(), _allocated("theirs", "a"), a_claim()):
        known.note(one)
    made = core.PodExtendedResourceClaimStatus(resource_claim_name="theirs")
    about = meta.ObjectMeta(name="o", namespace="d", uid="o")
    other = core.Pod(metadata=about, status=core.PodStatus(extended_resource_claim_status=made))
    assert known.concerns(other)
    assert known.amounts(other) == {}, "its resources count by its requests"
    held, asked = known.has(other), known.ask(a_pod())
    assert held is not None
    assert asked is not None
    there = dataclasses.replace(node(known, "a"), is_imagined=True, taken_for={ask.NAME: held.takes})
    why = asked.filters[0].check(asked, there)
    assert why[0].endswith("wants 1 of 1 devices, and 0 fit: 1 held by other claims")
    gone = dataclasses.replace(there, taken_for={})
    assert asked.filters[0].check(asked, gone) == ()


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_template_claim_is_a_pods_where_the_pod_is_its_controller_and_no_mere_owner(*, is_controller: bool) -> None:
    known = Claims(NoUsers())
    owner = meta.OwnerReference(api_version="v1", kind="Pod", name="p", uid="p", controller=is_controller)
    found = a_claim()
    about = msgspec.structs.replace(found.metadata, owner_references=(owner,))
    for one in (published("a", devices(1)), a_class(), msgspec.structs.replace(found, metadata=about)):
        known.note(one)
    entry = core.PodResourceClaim(name="gpus", resource_claim_template_name="t")
    made = core.PodResourceClaimStatus(name="gpus", resource_claim_name="c")
    status = core.PodStatus(resource_claim_statuses=(made,))
    pod = core.Pod(metadata=a_pod().metadata, spec=core.PodSpec(resource_claims=(entry,)), status=status)
    refused = known.refusal(pod)
    assert (refused is None) is is_controller
    assert is_controller or (refused is not None and 'was not created for pod "p"' in refused.why)
