"""Why a pod waits, as doctor and explain say it: each case of the trial has the reason that is true there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.plan.schedule import waiting
from fairlead.wire.kubernetes import core

_GPU = "nvidia.com/gpu"


def _pod(gpus: int = 1, node: str = "", phase: str = "Pending", cpu: str = "1", **spec: Any) -> core.Pod:
    container = {"name": "main", "resources": {"requests": {_GPU: gpus, "cpu": cpu}}}
    body = {"containers": [container], "nodeName": node, "schedulerName": "fairlead", **spec}
    return msgspec.convert({"metadata": {"name": "p"}, "spec": body, "status": {"phase": phase}}, core.Pod)


def _node(name: str = "a", gpus: int = 8, ready: str = "True", **spec: Any) -> core.Node:
    amounts = {_GPU: str(gpus), "cpu": "4", "pods": "110"}
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": ready}]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": status}, core.Node)


_RED = {"key": "red", "value": "yes", "effect": "NoSchedule"}
_ANTI = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}


@pytest.mark.parametrize(
    ("pod", "nodes", "others", "said"),
    [
        (_pod(9), [_node(), _node("b", 4)], [], f"9 {_GPU} asked, the largest node has 8"),
        (_pod(1, cpu="5500m"), [_node()], [], "5.5 cpu asked, the largest node has 4"),
        (_pod(1), [], [], "there are no nodes"),
        (
            _pod(1, nodeSelector={"a": "b"}),
            [_node()],
            [],
            "will never fit as things are: not with the labels that it asks for",
        ),
        (_pod(1), [_node(taints=[_RED])], [], "as things are: tainted red=yes, which it does not tolerate (1"),
        (_pod(1), [_node(unschedulable=True)], [], "closed to new containers (1, such as a)"),
        (_pod(1), [_node(ready="False")], [], ": not ready (1, such as a)"),
        (
            _pod(2),
            [_node()],
            [_pod(7, "a", "Running")],
            "is full: too few GPUs free (1, such as a)",
        ),
        (
            _pod(2),
            [_node()],
            [_pod(7, "a", "Succeeded")],
            "node a has room for it: scheduler",
        ),
        (_pod(2), [_node()], [], 'node a has room for it: scheduler "fairlead" has not placed it'),
        (_pod(1, schedulingGates=[{"name": "x/y"}]), [_node()], [], "its scheduling gates hold it: x/y"),
        (
            _pod(1, affinity=_ANTI),
            [_node()],
            [],
            'node a has room for it: scheduler "fairlead" has not placed it',
        ),
        (_pod(1, affinity=_ANTI, schedulerName="theirs"), [_node()], [], 'scheduler "theirs" has not placed it'),
    ],
)
def test_each_case_has_its_true_reason(pod: core.Pod, nodes: list[Any], others: list[Any], said: str) -> None:
    assert said in waiting.why(pod, nodes, [pod, *others], ours="fairlead")
