"""The Kubernetes store's figures: decoding a list, and what a cache of very many pods weighs.

Pods are made to the shape and size that a v1.36 API server answers with (2.7 kB each, managed fields included). The
cache is measured in a process of its own (`python -m benchmarks.store`), which decodes pages as the store does and
keeps the objects by uid, as a controller does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import frame
from fairlead.wire.kubernetes import api, core

_PODS, _PAGE, _MANY = 2000, 500, 100_000
_CLIENTS = "docs/design/peers.md, Kubernetes clients: lightkube 1.0.1, 150 ms on a list of 9.86 MB"


def pod(number: int) -> dict[str, Any]:
    """A pod as an API server stores it."""
    owned = {"f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:team": {}}}, "f:spec": {"f:containers": "x" * 700}}
    account = {
        "name": "kube-api-access-x",
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    return {
        "metadata": {
            "name": f"train-{number:06}",
            "namespace": f"team-{number % 50}",
            "uid": f"7a0cbb0c-1111-4222-8333-{number:012}",
            "resourceVersion": str(100_000 + number),
            "generation": 1,
            "creationTimestamp": "2026-11-21T09:00:00Z",
            "labels": {"app": "train", "team": f"t{number % 10}"},
            "managedFields": [{"manager": "fairlead", "operation": "Update", "apiVersion": "v1", "fieldsV1": owned}],
        },
        "spec": {
            "volumes": [
                {"name": "kube-api-access-x", "projected": {"sources": [{"x": "y" * 300}], "defaultMode": 420}}
            ],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.invalid/cuda:1",
                    "env": [{"name": f"E{index}", "value": "v" * 20} for index in range(5)],
                    "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4", "memory": "16Gi"}},
                    "volumeMounts": [account],
                    "terminationMessagePath": "/dev/termination-log",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "nodeName": f"node-{number % 1000}",
            "schedulerName": "fairlead",
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-11-21T09:00:01Z", "lastProbeTime": None}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "qosClass": "Burstable",
        },
    }


def page(first: int, count: int) -> bytes:
    """One page of a list as it arrives."""
    items = [pod(number) for number in range(first, first + count)]
    return json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": items}).encode()


@frame.benchmark("store.list")
def list_decode() -> Iterable[frame.Row]:
    body, decoder = page(0, _PODS), api.page_decoder(core.Pod)
    yield frame.Row(
        name=f"typed decode of a list of {_PODS:,} pods ({len(body) / 1e6:.1f} MB)",
        ours=frame.best_of(lambda: decoder.decode(body), 15),
        unit="ms",
        peer_source=_CLIENTS,
        bar=20.0,
    )


@frame.benchmark("store.informer")
def informer() -> Iterable[frame.Row]:
    done = subprocess.run([sys.executable, "-m", "benchmarks.store"], check=True, capture_output=True, text=True)
    yield frame.Row(name=f"resident memory with {_MANY:,} pods cached", ours=float(done.stdout), unit="MB", bar=1000.0)


def main() -> None:
    """Fill a cache page by page and print the largest resident size in MB."""
    cache = {}
    for first in range(0, _MANY, _PAGE):
        for item in api.page_decoder(core.Pod).decode(page(first, _PAGE)).items:
            cache[item.metadata.uid] = item
    status = Path("/proc/self/status").read_text().splitlines()
    peak_kb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert len(cache) == _MANY
    print(peak_kb / 1024)


if __name__ == "__main__":
    main()
