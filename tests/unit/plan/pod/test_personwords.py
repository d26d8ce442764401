"""A person reads why nothing has room; Kubernetes' words stay where programs read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.pod import personwords
from fairlead.plan.schedule import reference
from fairlead.wire.kubernetes import core


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "it does not fit: too few GPUs free"),
        (
            "0/4 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {reserved: red}, "
            "2 Insufficient nvidia.com/mig-1g.10gb.",
            "none of 4 nodes fits: too little cpu free on 1, tainted reserved=red, which it does not tolerate on 1, "
            "too few nvidia.com/mig-1g.10gb free on 2",
        ),
        (
            "group g: 0/1 nodes are available: 1 Too many pods. preemption: 0/1 nodes are available: 1 No victims.",
            "group g: it does not fit: as many containers as may run there; preemption: it does not fit: No victims",
        ),
        ("0/0 nodes are available: no nodes are known.", "there are no nodes"),
        ("Successfully assigned default/a to one", "Successfully assigned default/a to one"),
    ],
)
def test_a_schedulers_message_becomes_a_persons(said: str, words: str) -> None:
    assert personwords.message(said) == words


def test_every_reason_of_a_filter_about_one_node_has_words() -> None:
    node = reference.NodeInfo(name="n", is_ready=False, is_unschedulable=True, taints=(core.Taint(key="a", value="b"),))
    need = reference.PodInfo(
        requests={"cpu": 1, "nvidia.com/gpu": 1, "pods": 1},
        node_selector={"zone": "a"},
    )
    said = [why for judge in reference.FILTERS.values() for why in judge(need, node)]
    assert len(said) == 7
    assert not any("node(s)" in personwords.reason(why) or "Insufficient" in personwords.reason(why) for why in said)


@given(st.text(max_size=300))
def test_no_text_breaks_it(text: str) -> None:
    assert isinstance(personwords.message(text), str)
    assert isinstance(personwords.message(f"0/3 nodes are available: {text}."), str)


@pytest.mark.parametrize(
    "text", ["0/" + "9" * 5000 + " nodes are available: x.", "0/1 nodes are available: " * 100_000]
)
def test_a_message_made_to_take_long_stays_as_it_is(text: str) -> None:
    assert personwords.message(text) == text
