"""References in a container's words: what Kubernetes' kubelet makes of them, whatever stands around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.pod.values import environment
from fairlead.wire.kubernetes import core

_VALUES = {"A": "1", "AB": "2", "EMPTY": "", "ODD.name-1": "x", "REF": "$(A)"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("--size=$(A)-$(AB)", "--size=1-2"),
        ("$(EMPTY)", ""),
        ("$(ODD.name-1)", "x"),
        ("$(REF)", "$(A)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(NONE)", "$(NONE)"),
        ("$()", "$()"),
        ("$(A", "$(A"),
        ("$A ${A} $", "$A ${A} $"),
        ("$$", "$"),
        ("$($(A))", "$($(A))"),
        ("$(A)(A)", "1(A)"),
        ("$(A))", "1)"),
    ],
)
def test_a_reference_is_expanded_as_kubernetes_does(text: str, expanded: str) -> None:
    assert environment.expand(text, _VALUES) == expanded


@given(st.text(alphabet="$()AB x", max_size=20))
def test_a_literal_text_reaches_the_program_as_it_is(text: str) -> None:
    assert environment.expand(environment.literal(text), _VALUES) == text


def test_a_variable_sees_those_before_it_and_not_those_after() -> None:
    made = [("LATER", "$(BASE)"), ("BASE", "/models"), ("MODEL", "$(BASE)/llama"), ("BASE", "$(BASE)/2")]
    item = core.Container(name="c", image="i", env=tuple(core.EnvVar(name=name, value=value) for name, value in made))
    assert environment.given(item) == {"LATER": "$(BASE)", "MODEL": "/models/llama", "BASE": "/models/2"}
