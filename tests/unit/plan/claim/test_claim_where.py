"""Conditions on devices become CEL that selects what was meant, and nothing that a person writes becomes code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.cel import compile as cel
from fairlead.plan.cel.device import DeviceView, Version
from fairlead.plan.claim import default, expression, where
from fairlead.plan.claim.validate import door
from fairlead.plan.claim.validate.request import Rules
from fairlead.plan.claim.where import Kind, Where
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

_OWN = "gpu.nvidia.com"
_H100: Mapping[str, Any] = {
    f"{_OWN}/type": "gpu",
    f"{_OWN}/productName": "NVIDIA H100 80GB HBM3",
    f"{_OWN}/brand": "Nvidia",
    f"{_OWN}/architecture": "Hopper",
    f"{_OWN}/cudaComputeCapability": Version("9.0.0"),
    f"{_OWN}/driverVersion": Version("580.126.20"),
    "resource.kubernetes.io/numaNode": 1,
    "resource.kubernetes.io/pcieRoot": "pci0000:00",
}


def _device(attributes: Mapping[str, Any] = _H100, memory: str = "81559Mi", **changed: Any) -> DeviceView:
    product = {f"{_OWN}/{name}": value for name, value in changed.items()}
    capacity = {f"{_OWN}/memory": memory} if memory else {}
    return DeviceView(
        driver=_OWN, attributes={**attributes, **product}, capacity=capacity, allow_multiple_allocations=None
    )


def _meets(text: str, device: DeviceView) -> bool:
    return all(cel.compile_selector(one).matches(device) for one in where.parse(text).selectors)


@pytest.mark.parametrize(
    ("text", "meets"),
    [
        ("", True),
        ("model=H100", True),
        ("model = h100 , memory >= 40Gi", True),
        ("model=H100 80GB", True),
        ("model=H10", False),
        ("model=A100", False),
        ("model!=A100", True),
        ("model!=H100", False),
        ("model=H.00", False),
        ("product=NVIDIA H100 80GB HBM3", True),
        ("product=H100", False),
        ("memory>=80Gi", False),
        ("memory<=80Gi", True),
        ("memory=81559Mi", True),
        ("memory!=81559Mi", False),
        ("numa=1", True),
        ("numa>=2", False),
        ("numa!=0", True),
        ("compute>=9.0", True),
        ("compute>=9", True),
        ("compute<=8.9", False),
        ("compute=9.0", True),
        ("driver>=580.65", True),
        ("architecture=Hopper,brand=Nvidia,type!=mig", True),
        ("profile=1g.10gb", False),
        ("profile!=1g.10gb", False),
        ("decoders>=1", False),
        ("numa=same", True),
    ],
)
def test_conditions_select_what_they_say(text: str, *, meets: bool) -> None:
    assert _meets(text, _device()) is meets


@pytest.mark.parametrize("product", ["NVIDIA A100-SXM4-80GB", "A100", "NVIDIA a100"])
def test_a_model_is_found_by_its_word(product: str) -> None:
    assert _meets("model=A100", _device(productName=product))
    assert not _meets("model=A10", _device(productName=product))


def test_a_device_that_says_nothing_meets_no_condition_and_fails_none() -> None:
    for word, name in where.NAMES.items():
        for operator in ("=", "!="):
            example = "GPU-1" if "…" in name.example else name.example
            assert not _meets(f"{word}{operator}{example}", _device({}, memory=""))


def test_same_becomes_a_constraint_and_the_rest_selectors() -> None:
    found = where.parse("numa=same,model=H100,model=same")
    assert found.same == ("resource.kubernetes.io/numaNode", f"{_OWN}/productName")
    assert len(found.selectors) == 1


def test_every_name_makes_a_claim_that_an_api_server_takes() -> None:
    rules = Rules(check_selector=expression.checker())
    for _, _, example in where.described():
        spec = where.claim_spec(2, "", where.parse(f"{example.replace('…', '1')},numa=same"))
        claim = ResourceClaim(metadata=meta.ObjectMeta(name="c", namespace="default"), spec=spec)
        admitted = door.admit_claim(claim, rules, namespace_labels={}).item
        assert admitted == default.claim(claim)
        (request,) = admitted.spec.devices.requests or ()
        assert request.exactly is not None
        assert (request.exactly.device_class_name, request.exactly.count) == (_OWN, 2)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("modle=H100", 'there is no name "modle"', "did you mean model?"),
        ("x=1", 'there is no name "x"', "one of model, product"),
        ("=1", 'there is no name ""', "one of model"),
        ("model", "it has no operator", "NAME=VALUE"),
        ("model=", "it has no value", "for example model=H100"),
        ("model=H100,", "it has no operator", "NAME=VALUE"),
        ("memory>40Gi", '">" is not an operator', "write >="),
        ("model==H100", '"==" is not an operator', "write ="),
        ("model>=H100", "words are there or not", "write = or !="),
        ("brand<=x", "texts are equal or not", "write = or !="),
        ("numa=two", "not a whole number", "numa=0"),
        ("numa=1e3", "not a whole number", "numa=0"),
        ("compute>=nine", "not a version", "compute>=9.0"),
        ("compute>=9.0-rc1", "not a version", "compute>=9.0"),
        ("memory>=big", "not an amount", "memory>=40Gi"),
        ("memory=same", "cannot be asked to be the same", "model=same"),
        ("numa!=same", "goes with = alone", "NAME=same"),
        ("brand=a\0b", "holds the character", "no attribute"),
        ("brand=a\nb", "holds the character", "no attribute"),
        ("brand=" + "x" * 65, "longer than an attribute", "shorten it"),
        ("model=" + "x" * 10240, "10246 characters", "ask for less"),
        ("model=é", "ASCII", "product=NAME"),
        ("numa=" + "9" * 40, "not a whole number", "numa=0"),
        (",".join(f"numa!={number}" for number in range(33)), "33 conditions", "ask for less"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_next_step(text: str, words: str, hint: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        where.parse(text)
    assert refused.value.reason == "WhereInvalid"
    assert words in refused.value.message
    assert hint in (refused.value.hint or "")
    assert "\0" not in refused.value.message


@given(st.text(max_size=200).filter(lambda text: all(not 0xD800 <= ord(one) < 0xE000 for one in text)))
def test_a_literal_is_its_text_and_nothing_else(text: str) -> None:
    selector = cel.compile_selector(f"device.driver == {where.literal(text)}")
    assert selector.matches(DeviceView(driver=text, attributes={}, capacity={}, allow_multiple_allocations=None))
    assert not selector.matches(
        DeviceView(driver=f"{text}x", attributes={}, capacity={}, allow_multiple_allocations=None)
    )


@pytest.mark.parametrize("text", ['"', "\\", '\\"', "\0", '" || true || "', "\\u0000", "'" * 3, "x" * 10240])
def test_a_hostile_text_stays_a_text(text: str) -> None:
    selector = cel.compile_selector(f"device.driver == {where.literal(text[:10000])}")
    assert not selector.matches(DeviceView(driver="", attributes={}, capacity={}, allow_multiple_allocations=None))


@given(st.sampled_from(sorted(where.NAMES)), st.sampled_from(["=", "!=", ">=", "<="]), st.text(max_size=40))
def test_whatever_is_written_is_refused_or_is_an_expression_that_never_fails(
    name: str, operator: str, value: str
) -> None:
    try:
        found = where.parse(f"{name}{operator}{value}")
    except errors.Invalid:
        return
    for one in found.selectors:
        assert expression.checker()(one) is None
        assert cel.compile_selector(one).matches(_device()) in {True, False}
    assert found != Where()


def test_the_page_lists_every_name_with_what_it_stands_for() -> None:
    page = Path(__file__).parents[4] / "docs/how-to/claims-on-one-machine.md"
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page.read_text(), re.MULTILINE)
    assert rows == [(word, qualified) for word, qualified, _ in where.described()]


def test_no_name_is_said_twice() -> None:
    assert {one.kind for one in where.NAMES.values()} == set(Kind)
    assert len({*where.NAMES}) == len([*where.described()])
