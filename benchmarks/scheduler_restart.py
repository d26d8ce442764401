"""The live scheduler after a restart: lists read, every node judged, the first pod bound; in a process of its own.

`python -m benchmarks.scheduler_restart NODES PODS` prints one JSON line: seconds of processor from the first byte of
the lists to the binding, and the most memory. Pods come as pages of JSON, as an API server sends them; its own time
is not in it.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from fairlead import telemetry
from fairlead.control.scheduler.controller import Scheduler
from fairlead.plan.schedule.engine.rankings import EngineRankings
from fairlead.settings import ControlSettings
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.embedded.placement import EmbeddedPlacement
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core

_PAGE = 500
_GPU = "nvidia.com/gpu"
_AT = "2026-01-01T00:00:00Z"


def _node(at: int) -> dict[str, Any]:
    name = f"node-{at:05}"
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"z{at % 3}", "kubernetes.io/os": "linux"}
    amounts = {"cpu": "128", "memory": "768Gi", "pods": "110", _GPU: "8"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": _AT}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]},
    }


def _pod(at: int, nodes: int) -> dict[str, Any]:
    name, app = f"app-{at // 20}-7c9d8b5f6-{at:06}", f"app-{at // 20}"
    asked = {"cpu": "500m", "memory": "1Gi", **({_GPU: "1"} if at % 2 else {})}
    environment = [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(8)]
    mounts = [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}]
    main = {"name": "main", "image": "registry.example/app:1", "env": environment, "volumeMounts": mounts}
    conditions = [{"type": one, "status": "True", "lastTransitionTime": _AT} for one in ("PodScheduled", "Ready")]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": f"uid-{app}", "controller": True}
    return {
        "metadata": {
            "name": name,
            "namespace": f"team-{at % 50}",
            "uid": f"uid-{at:06}",
            "resourceVersion": str(at),
            "creationTimestamp": _AT,
            "labels": {"app": app, "pod-template-hash": "7c9d8b5f6"},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": f"node-{at % nodes:05}",
            "schedulerName": "fairlead",
            "containers": [main | {"resources": {"limits": asked, "requests": asked}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {"phase": "Running", "startTime": _AT, "podIP": "10.0.0.1", "conditions": conditions},
    }


def _pages(pods: int, nodes: int) -> Iterator[bytes]:
    for first in range(0, pods, _PAGE):
        yield json.dumps([_pod(at, nodes) for at in range(first, min(first + _PAGE, pods))]).encode()


async def measure(nodes: int, pods: int) -> float:
    """Return the processor's seconds until one more pod is bound."""
    store = MemoryStore()
    judges = EngineRankings("fairlead")
    scheduler = Scheduler(store, EmbeddedPlacement(store), ControlSettings(policy="fairlead"), rankings=judges)
    watches = {watch.kind: watch.keys for watch in scheduler.watches()}

    def feed(items: list[Any]) -> None:
        for item in items:
            watches[type(item)](Change(kind=ChangeKind.ADDED, object=item))

    there = json.dumps([_node(at) for at in range(nodes)]).encode()
    spent, begun = 0.0, time.process_time()
    feed(msgspec.json.decode(there, type=list[core.Node]))
    spent += time.process_time() - begun
    for page in _pages(pods, nodes):
        begun = time.process_time()
        feed(msgspec.json.decode(page, type=list[core.Pod]))
        spent += time.process_time() - begun
    waiting = _pod(pods, nodes)
    del waiting["status"], waiting["spec"]["nodeName"]
    for key in ("uid", "resourceVersion", "ownerReferences"):
        del waiting["metadata"][key]
    created = await store.create(msgspec.convert(waiting, core.Pod))
    begun = time.process_time()
    for key in watches[core.Pod](Change(kind=ChangeKind.ADDED, object=created)):
        await scheduler.reconcile(key)
    spent += time.process_time() - begun
    bound = await store.get(core.Pod, created.metadata.name, created.metadata.namespace)
    assert bound.spec.node_name, bound.status
    return spent


if __name__ == "__main__":
    telemetry.configure("error", "json")
    seconds = asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2])))
    print(json.dumps({"seconds": seconds, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
