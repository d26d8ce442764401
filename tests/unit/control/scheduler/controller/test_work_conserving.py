"""No pod waits while there is room for it that nobody is promised: drawn clusters, decided by the live scheduler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.control.scheduler import snapshot
from fairlead.plan.schedule import reference
from fairlead.settings import ControlSettings
from fairlead.wire.kubernetes import api, core
from tests.unit.control.scheduler.plane import GPU

_QUEUES = ("red", "blue")


def _node(number: int, gpus: int) -> dict[str, Any]:
    status = {"allocatable": {GPU: str(gpus), "pods": "9"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}, "status": status}


def _pod(number: int, gpus: int, queue: str, priority: int) -> dict[str, Any]:
    amounts = {GPU: str(gpus)}
    main = {"name": "main", "image": "i", "resources": {"limits": amounts, "requests": amounts}}
    about = {"name": f"p{number:02}", "namespace": queue or "default", "uid": str(number)}
    spec = {"schedulerName": "fairlead", "containers": [main], "priority": priority}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def _queue(name: str, limit: int, guarantee: int) -> dict[str, Any]:
    spec = {"namespaces": [name], "limit": {GPU: str(limit)}, "guarantee": {GPU: str(min(guarantee, limit))}}
    return {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


_PODS = st.tuples(st.integers(1, 8), st.sampled_from(["", *_QUEUES]), st.integers(0, 2))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
    st.lists(_PODS, min_size=1, max_size=14),
    st.lists(st.tuples(st.integers(1, 16), st.integers(0, 4)), min_size=2, max_size=2) | st.just([]),
)
def test_a_pod_waits_only_for_room_that_is_not_there_or_is_another_queues(
    nodes: list[int], pods: list[tuple[int, str, int]], queues: list[tuple[int, int]]
) -> None:
    items = [_node(number, gpus) for number, gpus in enumerate(nodes)]
    items += [_queue(name, *spec) for name, spec in zip(_QUEUES, queues, strict=False)]
    items += [_pod(number, *pod) for number, pod in enumerate(pods)]
    control = ControlSettings(preemption=False)
    found = asyncio.run(snapshot.replay(snapshot.Snapshot(items=tuple(items)), control))
    assert len(found) == len(pods)
    decoder = api.object_decoder(core.Pod)
    known = {item["metadata"]["name"]: decoder.decode(json.dumps(item)) for item in items if item["kind"] == "Pod"}
    bound = {one.name: one.node for one in found if one.node}
    views = [_view(item, known, bound) for item in items if item["kind"] == "Node"]
    taken = {name: _gpus(known[one] for one in bound if known[one].metadata.namespace == name) for name in _QUEUES}
    free = sum(view.free(GPU) for view in views) // reference.UNIT
    for one in found:
        if one.node:
            continue
        assert one.step is not None
        need, own = reference.pod_info(known[one.name]), known[one.name].metadata.namespace
        if all(reference.first_refusal(need, view) is not None for view in views):
            continue
        limits = dict(zip(_QUEUES, queues, strict=False))
        asked = _gpus([known[one.name]])
        is_at_limit = own in limits and taken[own] + asked > limits[own][0]
        promised = sum(max(0, min(spec[1], spec[0]) - taken[name]) for name, spec in limits.items() if name != own)
        assert is_at_limit or asked > free - promised, (one.step.message, views)


def _view(item: dict[str, Any], pods: dict[str, core.Pod], bound: dict[str, str]) -> reference.NodeInfo:
    node = api.object_decoder(core.Node).decode(json.dumps(item))
    return reference.node_info(node, [pods[name] for name, where in bound.items() if where == node.metadata.name])


def _gpus(pods: Iterable[core.Pod]) -> int:
    return sum(reference.gpus_of(reference.pod_info(pod).requests) for pod in pods)
