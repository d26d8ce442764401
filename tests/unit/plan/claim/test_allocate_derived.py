"""Constraints see the attributes that requests compute, whatever the devices publish under those names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fairlead.plan.cel import compile as cel
from fairlead.plan.claim import expression
from fairlead.plan.claim.gate import DEFAULTS
from fairlead.plan.claim.pool import pool
from fairlead.plan.claim.refusal import Allocation, Refusal
from tests.unit.plan.claim import claimworld as world

ON = dataclasses.replace(DEFAULTS, derived_attributes=True)
LISTS = dataclasses.replace(ON, list_type_attributes=True)
SIDE = "derived/side"
X = f"{world.DRIVER}/x"


def run(text: str, *values: object, count: int = 2, kind: str = "matchAttribute", **rest: Any) -> Allocation | Refusal:
    """Allocate devices with values of `x`, whose derived attribute is the expression's."""
    name, gates = rest.pop("name", SIDE), rest.pop("gates", ON)
    devices = [world.device(f"d{at}", attributes={"x": value}) for at, value in enumerate(values)]
    asked = world.request(count=count, derivedAttributes=[{"name": name, "expression": text}])
    claim = world.claim(asked, constraints=[{kind: name}])
    return world.run(claim, [world.published(devices)], gates=gates, **rest)


def of(name: str) -> str:
    return f'device.attributes["{world.DRIVER}"].{name}'


def test_devices_match_by_what_is_computed() -> None:
    assert world.names(run(f"{of('x')} % 3", 1, 2, 3, 5)) == ["d1", "d3"]
    assert world.names(run(f"{of('x')} % 3", 1, 4, 2, 5, kind="distinctAttribute")) == ["d0", "d2"]
    assert world.refused(run(f"{of('x')} % 5", 1, 2, 3, 4)).reason == "TooFew"


def test_a_derived_attribute_hides_a_published_one_of_its_name() -> None:
    assert world.names(run(f"{of('x')} > 1", 1, 2, 3, name=X)) == ["d1", "d2"]


def test_an_attribute_is_computed_for_its_own_request_alone() -> None:
    devices = [world.device(f"d{at}", attributes={"x": value}) for at, value in enumerate((1, 7, 1, 8))]
    computed = world.request("one", derivedAttributes=[{"name": X, "expression": "8"}])
    claim = world.claim(computed, world.request("two"), constraints=[{"matchAttribute": X}])
    assert world.names(world.run(claim, [world.published(devices)], gates=ON)) == ["d0", "d3"]


def test_an_alternative_computes_its_own() -> None:
    devices = [world.device(f"d{at}", attributes={"x": at}) for at in range(4)]
    listed = [
        {"name": name, "deviceClassName": "any", "count": 2, "derivedAttributes": [{"name": SIDE, "expression": text}]}
        for name, text in (("apart", of("x")), ("pairs", f"{of('x')} / 2"))
    ]
    claim = world.claim({"name": "gpu", "firstAvailable": listed}, constraints=[{"matchAttribute": SIDE}])
    found = world.run(claim, [world.published(devices)], gates=ON)
    assert world.names(found) == ["d0", "d1"]
    assert isinstance(found, Allocation)
    assert found.results[0].devices.results[0].request == "gpu/pairs"


def test_an_expression_that_fails_ends_the_pod() -> None:
    found = world.refused(run(of("y"), 1, 2))
    assert (found.reason, found.is_fatal) == ("SelectorFailed", True)
    assert f"derived attribute {SIDE} on device {world.DRIVER}/pool/d0: no such key: y" in found.message
    assert world.refused(run("device.", 1, 2)).is_fatal
    assert world.refused(run("1.5", 1, 2)).is_fatal


def test_an_expression_is_asked_about_devices_that_are_selected_alone() -> None:
    devices = [world.device("d0"), *(world.device(f"d{at}", attributes={"x": 1}) for at in (1, 2))]
    asked = world.request(
        count=2,
        selectors=[{"cel": {"expression": f'"x" in device.attributes["{world.DRIVER}"]'}}],
        derivedAttributes=[{"name": SIDE, "expression": of("x")}],
    )
    claim = world.claim(asked, constraints=[{"matchAttribute": SIDE}])
    assert world.names(world.run(claim, [world.published(devices)], gates=ON)) == ["d1", "d2"]


def test_lists_count_with_their_gate() -> None:
    text = f"[dyn({of('x')}), dyn({of('x')} + 1)]"
    assert world.names(run(text, 1, 3, 4, gates=LISTS)) == ["d1", "d2"]
    assert world.names(run(text, 1, 2, 3, gates=LISTS, kind="distinctAttribute")) == ["d0", "d2"]
    assert world.refused(run(text, 1, 2, 3)).reason == "TooFew"
    assert world.refused(run("[1].filter(one, one > 1)", 1, 2, gates=LISTS)).reason == "TooFew"


def test_an_unmet_constraint_over_many_devices_is_refused_at_once() -> None:
    found = world.refused(run(f"{of('x')} % 3", *range(32), count=16))
    assert found.reason == "TooFew"
    assert found.steps < 400


def test_the_gate_is_off_by_default() -> None:
    found = world.refused(run("1", 1, 2, gates=DEFAULTS))
    assert (found.reason, found.is_fatal) == ("FeatureOff", True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", ("bool", True)),
        ("7", ("int", 7)),
        ("'a'", ("string", "a")),
        ("semver('1.2.3')", ("version", "1.2.3")),
        ("semver('v1.2', true)", ("version", "1.2.0")),
        ("['a', 'a']", ("string", "a")),
    ],
)
def test_the_kinds_of_values(text: str, value: tuple[str, object]) -> None:
    [candidate] = pool.Pools([world.published([world.device("d0")])], ON).on(world.SITE).candidates
    found = expression.deriver()(text, candidate)
    assert found.value == {value}
    assert found.is_list is (text[0] == "[")


@pytest.mark.parametrize("text", ["1u", "b'a'", "{}", "device", "quantity('1')", "[[1]]", "[1, 'a']"])
def test_no_other_kind_is_an_attribute(text: str) -> None:
    assert expression.checker(result=cel.DERIVED)(text)


def test_a_list_is_refused_where_lists_are_off() -> None:
    assert expression.checker(result=cel.DERIVED)("['a']") is None
    assert expression.checker(result=cel.DERIVED_SCALAR)("['a']") == (
        "must evaluate to a primitive scalar (string, integer, boolean, semver), not list(string) at line 1, column 1"
    )
    assert expression.derived_cost("['a']") == 10
    assert expression.derived_cost("device.") == 0
    assert expression.derived_cost("type(device.attributes['a'].b) == string ? 1 : 2") > 10**6
