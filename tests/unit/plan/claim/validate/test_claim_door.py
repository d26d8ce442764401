from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.claim import gate
from fairlead.plan.claim.validate import door, field, name, request, resourceclaim
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaimStatus
from tests.unit.plan.claim.validate import judged

NOW = "2026-01-01T00:00:00Z"
RULES = request.Rules(check_selector=lambda _: None)
MOST_S = 5
"""Of the processor; ten times what the slowest of them takes."""


def read(document: dict[str, Any]) -> Any:
    return dialect.read(document).item


def admit(changes: dict[str, Any], rules: request.Rules = RULES) -> door.Admitted[Any]:
    return door.admit_claim(read(judged.changed(judged.CLAIM, changes)), rules, namespace_labels={})


def admit_slice(changes: dict[str, Any]) -> door.Admitted[Any]:
    return door.admit_slice(read(judged.changed(judged.SLICE, changes)), gate.DEFAULTS, NOW)


def problems(caught: pytest.ExceptionInfo[errors.Invalid]) -> list[str]:
    found: Any = caught.value.context["problems"]
    return list(found)


def test_a_claim_is_admitted_with_its_defaults() -> None:
    changes = {"spec.devices.requests": [{"name": "gpu", "exactly": {"deviceClassName": "x"}}]}
    without: dict[str, Any] = {"spec.devices.constraints": [], "spec.devices.config": []}
    (one,) = admit(changes | without).item.spec.devices.requests
    assert (one.exactly.allocation_mode, one.exactly.count) == ("ExactCount", 1)


def test_a_new_claim_has_no_status() -> None:
    admitted = door.admit_claim(read(judged.ALLOCATED), RULES, namespace_labels={})
    assert admitted.item.status == ResourceClaimStatus()


def test_a_changed_claim_keeps_its_status_and_a_changed_status_its_spec() -> None:
    old = read(judged.ALLOCATED)
    bare = read(judged.STORED)
    assert door.admit_claim(bare, RULES, namespace_labels={}, old=old).item.status == old.status
    other = read(judged.changed(judged.ALLOCATED, {"spec.devices": {}}))
    kept = door.admit_claim_status(other, RULES, namespace_labels={}, old=bare).item
    assert kept.spec.devices.requests is not None
    assert [one.name for one in kept.spec.devices.requests] == ["gpu", "any"]


def test_fields_of_disabled_features_are_named() -> None:
    changes = {"spec.devices.requests.0.exactly.derivedAttributes": [{"name": "a.b/c", "expression": "1"}]}
    assert admit(changes).dropped == ("spec.devices.requests[0].exactly.derivedAttributes",)
    assert admit_slice({"spec.skipNodeOperations": ["*"]}).dropped == ("spec.skipNodeOperations",)


def test_all_problems_are_said_at_once() -> None:
    changes = {"metadata.name": "A", "spec.devices.requests.0.exactly.count": -1, "spec.devices.config.0.opaque": None}
    with pytest.raises(errors.Invalid) as caught:
        admit(changes)
    assert [one.split(": ")[0] for one in problems(caught)] == [
        "metadata.name",
        "spec.devices.requests[0].exactly.count",
        "spec.devices.config[0].opaque",
    ]
    assert caught.value.reason == "ResourceClaimInvalid"
    assert caught.value.message.startswith('ResourceClaim "A" is invalid: metadata.name: Invalid value: "A": ')


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("no such field", 'Invalid value: "device.driver == \\"gpu.example.com\\"": no such field'),
        (request.TOO_COMPLEX, "Forbidden: too complex, exceeds cost limit"),
    ],
)
def test_expressions_are_judged_by_the_caller(answer: str, problem: str) -> None:
    asked: list[str] = []

    def check(text: str) -> str:
        asked.append(text)
        return answer

    with pytest.raises(errors.Invalid) as caught:
        admit({}, request.Rules(check_selector=check))
    assert problems(caught) == [f"spec.devices.requests[0].exactly.selectors[0].cel.expression: {problem}"]
    assert asked == ['device.driver == "gpu.example.com"']


def test_an_expression_that_is_too_long_is_not_judged() -> None:
    def check(text: str) -> str | None:
        raise AssertionError(text)

    with pytest.raises(errors.Invalid, match="Too long: may not be more than 10240 bytes"):
        admit(
            {"spec.devices.requests.0.exactly.selectors.0.cel.expression": "x" * 10241},
            request.Rules(check_selector=check),
        )


def test_stored_expressions_of_a_class_are_not_judged_again() -> None:
    rules = request.Rules(check_selector=lambda _: "wrong now")
    stored = read(judged.changed(judged.CLASS, {"metadata.resourceVersion": "1"}))
    assert door.admit_class(stored, rules, old=stored).item == stored
    with pytest.raises(errors.Invalid, match="wrong now"):
        door.admit_class(stored, rules)


def test_derived_expressions_have_a_judge_of_their_own() -> None:
    rules = request.Rules(
        check_selector=lambda _: None,
        check_derived=lambda text: f"not {text}",
        gates=gate.Gates(derived_attributes=True),
    )
    changes = {
        "spec.devices.requests.0.exactly.derivedAttributes": [{"name": "a.b/c", "expression": "1"}],
        "spec.devices.constraints.0.matchAttribute": "a.b/c",
    }
    with pytest.raises(errors.Invalid) as caught:
        admit(changes, rules)
    path = "spec.devices.requests[0].exactly.derivedAttributes[0].expression"
    assert problems(caught) == [f'{path}: Invalid value: "1": not 1']


def test_derived_expressions_have_a_budget_together() -> None:
    changes = {
        "spec.devices.requests.0.exactly.derivedAttributes": [
            {"name": f"a.b/c{at}", "expression": f"device.driver + '{at}'"} for at in range(2)
        ],
        "spec.devices.constraints": [{"matchAttribute": f"a.b/c{at}"} for at in range(2)],
    }
    for cost, said in ((500_000, []), (500_001, ["too complex, total cost of derived attribute CEL expressions"])):
        rules = request.Rules(
            check_selector=lambda _: None,
            derived_cost=lambda _, cost=cost: cost,  # type: ignore[misc]
            gates=gate.Gates(derived_attributes=True),
        )
        with pytest.raises(errors.Invalid) if said else contextlib.nullcontext() as caught:
            admit(changes, rules)
        assert [words for words in said if words in str(caught and caught.value)] == said


def test_reports_on_devices_go_with_their_allocation() -> None:
    old = read(judged.ALLOCATED)
    new = read(judged.changed(judged.ALLOCATED, {"status.allocation": None, "status.reservedFor": []}))
    assert resourceclaim.without_deallocated(new, old).status.devices == ()
    assert resourceclaim.without_deallocated(old, old) == old


def test_an_old_admin_access_is_not_asked_for_again() -> None:
    changes = {"status.allocation.devices.results.0.adminAccess": True}
    old = read(judged.changed(judged.ALLOCATED, changes))
    assert door.admit_claim_status(old, RULES, namespace_labels={}, old=old).item.status == old.status


@pytest.mark.parametrize("count", [2**63 - 1, 1])
def test_any_count_of_64_bits_is_admitted(count: int) -> None:
    assert admit({"spec.devices.requests.0.exactly.count": count}).item.spec.devices.requests[0].exactly.count == count


def test_a_count_of_more_bits_is_not_read() -> None:
    with pytest.raises(errors.Invalid, match="<= 9223372036854775807"):
        admit({"spec.devices.requests.0.exactly.count": 2**63})


def test_a_nul_is_shown_escaped() -> None:
    with pytest.raises(errors.Invalid) as caught:
        admit({"spec.devices.requests.1.name": "a\0b", "spec.devices.config": []})
    assert r'"a\x00b"' in problems(caught)[0]
    assert "\0" not in caught.value.message


def test_ten_thousand_devices_are_refused_by_their_number_alone() -> None:
    devices = [{"name": "A B", "attributes": {f"{at}": {} for at in range(3)}} for _ in range(10_000)]
    item = read(judged.changed(judged.SLICE, {"spec.devices": []}))
    many = read(judged.changed(judged.SLICE, {"spec.devices": devices[:1]}))
    changed = type(item.spec)(**{**_fields(item.spec), "devices": many.spec.devices * 10_000})
    started = time.process_time()
    with pytest.raises(errors.Invalid) as caught:
        door.admit_slice(type(item)(metadata=item.metadata, spec=changed), gate.DEFAULTS, NOW)
    assert problems(caught) == ["spec.devices: Too many: 10000: must have at most 128 items"]
    assert time.process_time() - started < MOST_S


def _fields(item: Any) -> dict[str, Any]:
    return {key: getattr(item, key) for key in item.__struct_fields__}


def test_names_of_a_megabyte_are_shown_short() -> None:
    long = "a" * 2**20 + "!"
    started = time.process_time()
    with pytest.raises(errors.Invalid) as caught:
        admit(
            {
                "metadata.name": long,
                "spec.devices.requests.0.name": long,
                "spec.devices.requests.0.exactly.deviceClassName": long,
                "spec.devices.constraints.0.requests": [long],
                "spec.devices.constraints.0.matchAttribute": f"{long}/{long}",
                "spec.devices.config.0.opaque.driver": long,
            }
        )
    assert time.process_time() - started < MOST_S
    assert len(problems(caught)) > 6
    assert max(map(len, problems(caught))) < 1000


@pytest.mark.parametrize(
    "check",
    [
        name.dns_label,
        name.dns_subdomain,
        name.label_key,
        name.label_value,
        name.driver,
        name.declared_driver,
        name.pool,
        name.declared_pool,
        name.qualified,
        name.fully_qualified,
        name.extended_resource,
        name.uuid,
    ],
)
@pytest.mark.parametrize("part", ["a", "a.", "-", "a-", "0", "a/", "\u00e9", "1."])
def test_no_name_takes_long_to_check(check: Any, part: str) -> None:
    text = part * (2**18 // len(part)) + "!"
    started = time.process_time()
    assert next(iter(check("path", text)), None) or check in {name.qualified, name.fully_qualified}
    assert time.process_time() - started < MOST_S


def test_a_version_of_a_quarter_megabyte_is_refused_soon() -> None:
    started = time.process_time()
    for text in ("1.0.0-" + "1" * 2**18 + "!", "1.0.0-" + "-." * 2**17, "1" * 2**18, "1.0.0+" + "a." * 2**17):
        with pytest.raises(errors.Invalid, match=r"semver.org spec 2.0.0"):
            admit_slice({"spec.devices.0.attributes": {"a": {"version": text}}})
    assert time.process_time() - started < MOST_S


def test_parameters_of_more_than_ten_kibibytes_are_refused() -> None:
    deep: Any = "x" * 10_200
    for _ in range(20):
        deep = {"a": [deep]}
    with pytest.raises(errors.Invalid) as caught:
        admit({"spec.devices.config.0.opaque.parameters": deep})
    where = "spec.devices.config[0].opaque.parameters"
    assert problems(caught) == [f"{where}: Too long: may not be more than 10240 bytes"]


def test_very_many_problems_are_cut() -> None:
    attributes: dict[str, Any] = {f"{at}!": {} for at in range(5000)}
    with pytest.raises(errors.Invalid) as caught:
        admit_slice({"spec.devices.0.attributes": attributes})
    assert len(problems(caught)) == 100
    assert "the total number of attributes and capacities must not exceed 32" in caught.value.message


def test_a_namespace_is_required_or_forbidden() -> None:
    with pytest.raises(errors.Invalid) as caught:
        admit({"metadata.namespace": ""})
    assert problems(caught) == ["metadata.namespace: Required value"]
    with pytest.raises(errors.Invalid) as caught:
        admit_slice({"metadata.namespace": "team"})
    assert problems(caught) == ["metadata.namespace: Forbidden: not allowed on this type"]


def test_a_name_may_be_made_of_a_prefix() -> None:
    assert admit({"metadata.name": "", "metadata.generateName": "gpu-"}).item.metadata.generate_name == "gpu-"


def test_a_generation_is_not_negative() -> None:
    with pytest.raises(errors.Invalid, match=r"metadata\.generation: Invalid value: -1: must be greater than or equal"):
        admit({"metadata.generation": -1})


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("capacity.memory.value", "capacity[memory].value"),
        ("capacity.memory.requestPolicy.default", "capacity[memory].requestPolicy.default"),
        ("capacity.memory.requestPolicy.validRange.step", "capacity[memory].requestPolicy.validRange.step"),
        ("capacity.cores.requestPolicy.validValues.1", "capacity[cores].requestPolicy.validValues[1]"),
        ("consumesCounters.0.counters.memory.value", "consumesCounters[0].counters[memory].value"),
    ],
)
def test_what_is_no_quantity_is_refused(path: str, shown: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        admit_slice({f"spec.devices.0.{path}": "much"})
    (problem,) = problems(caught)
    assert problem.startswith(f'spec.devices[0].{shown}: Invalid value: "much": quantities must match')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", '""'),
        ('a"b\\c', r'"a\"b\\c"'),
        ("\a\b\f\n\r\t\v\x7f\x01", r'"\a\b\f\n\r\t\v\x7f\x01"'),
        ("\u00e9\u4e16", '"\u00e9\u4e16"'),
        ("\u200b\U000e0001", r'"\u200b\U000e0001"'),
        (None, "null"),
        (True, "true"),
        (-5, "-5"),
        (field.Constant('a"<\0'), '"a\\"\\u003c\\u0000"'),
        (["<a>"], '["\\u003ca\\u003e"]'),
        ("x" * 513, '"' + "x" * 256 + "..." + "x" * 256 + '"'),
    ],
)
def test_values_are_shown_as_go_does(value: object, text: str) -> None:
    assert field.shown(value) == text


def test_a_long_key_is_shortened_in_its_middle() -> None:
    assert field.key("a", "k" * 96, 96) == f"a[{'k' * 96}]"
    assert field.key("a", "k" * 97, 96) == f"a[{'k' * 47}...{'k' * 46}]"
