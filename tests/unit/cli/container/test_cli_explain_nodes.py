"""How a decision over many nodes is shown: the best, then reasons with counts, never a line for each node."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.cli.container import explain
from fairlead.plan.schedule import reference
from fairlead.serve.v1.claims import view as claims
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.life import view as lifeview
from fairlead.wire.kubernetes import core


def _node(number: int, taken: int, *taints: core.Taint) -> reference.NodeInfo:
    return reference.NodeInfo(
        name=f"n{number:04}",
        taints=taints,
        allocatable={"example.com/gpu": 8000},
        taken={"example.com/gpu": taken * 1000},
    )


def test_a_thousand_nodes_are_shown_in_a_few_lines() -> None:
    nodes = [_node(number, 8) for number in range(1000)]
    nodes += [_node(1000 + number, number % 8) for number in range(30)]
    nodes.append(_node(2000, 0, core.Taint(key="red")))
    need = reference.PodInfo(requests={"example.com/gpu": 1000})
    rows = explain.decision_rows(reference.place(need, nodes).facts)
    assert rows[0] == ["n1007", "fits", "score 100"]
    assert len(rows) == 12
    assert rows[10:] == [
        ["1000 nodes, such as n0000", "do not fit", "too few GPUs free"],
        ["n2000", "does not fit", "tainted red, which it does not tolerate"],
    ]


@pytest.mark.parametrize(
    ("facts", "rows"),
    [
        ({}, 0),
        ({"best": "nonsense", "refused": [1]}, 0),
        ({"best": [{}], "refused": [{}], "nodes": [{"name": "n"}]}, 2),
    ],
)
def test_what_another_version_or_a_liar_wrote_breaks_nothing(facts: dict[str, object], rows: int) -> None:
    assert len(explain.decision_rows(facts)) == rows


def _claimed(name: str, **fields: Any) -> claims.ClaimedDevice:
    return claims.ClaimedDevice(device=f"gpu.nvidia.com/vm/{name}", **fields)


def _claim(*prepared: claims.ClaimedDevice, message: str = "") -> claims.ClaimView:
    return claims.ClaimView(
        name="mine",
        namespace="default",
        state="allocated",
        requests=(),
        devices=(),
        used_by=(),
        owner="",
        message=message,
        labels={},
        created_at=None,
        prepared=prepared,
    )


def test_explain_tells_how_far_a_claim_is_prepared_and_what_holds_its_share() -> None:
    many = [_claimed(f"gpu-{at}", state="prepared", message="it is prepared") for at in range(10)]
    assert explain.claim_lines(_claim(*many)) == [
        "claim mine: gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, gpu-6, gpu-7 and 2 more prepared"
    ]
    sliced = _claimed("gpu-0", state="prepared", enforced_by="the driver's time slices (long); memory: nothing")
    failed = _claimed("gpu-1", state="failed", step="PlaceTaken", message="a MIG device stands there (destroy it)")
    assert explain.claim_lines(_claim(sliced, failed)) == [
        "claim mine: gpu-0 prepared",
        "  share held by: the driver's time slices (long); memory: nothing",
        "claim mine: gpu-1 not prepared: a MIG device stands there (destroy it)",
    ]
    unsaid = _claimed("gpu-0", state="unreported")
    assert explain.claim_lines(_claim(unsaid)) == ["claim mine: gpu-0 allocated, and their driver says nothing of them"]
    assert explain.claim_lines(_claim(message="no driver")) == ["claim mine: no driver"]


def test_explain_tells_phases_cost_and_what_verified_the_gpus() -> None:
    found = view.Explanation(
        name="a",
        state="running",
        summary="on one",
        reason="",
        facts={},
        at=None,
        phases=(lifeview.PhaseView(name="queued", started_at="", ended_at="", duration_s=3),),
        cost=lifeview.CostView(
            currency="EUR", amount="1.250000", hourly="2.500000", gpu_seconds=1800, unpriced_seconds=0
        ),
        gpu_leases=(
            lifeview.ProofView(
                lease="l",
                gpu="GPU-1",
                model="H100",
                state="Held",
                held_at="",
                ended_at=None,
                verified_by="full-3",
                report="",
            ),
        ),
    )
    lines = explain.explanation_lines(found)
    assert lines[1].strip().startswith("phases: queued 3")
    assert lines[2].endswith(": 1.25 EUR so far, 2.50 EUR an hour")
    assert lines[3] == "  GPU-1: found clean by report full-3 before it was given away"
