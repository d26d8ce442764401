"""The door of `fairlead dra check`: files of objects of resource.k8s.io, in any version, which strangers send."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fairlead.cli.layer.dra import read, report
from fairlead.plan.claim import gate
from tests.fuzz import hostile
from tests.fuzz.doors.text import OURS, plain
from tests.fuzz.harness import Door

_DEVICE: Final[dict[str, Any]] = {
    "name": "gpu-0",
    "attributes": {"type": {"string": "gpu"}, "gpu.example.com/version": {"version": "1.2.3"}, "n": {"int": 3}},
    "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}}}},
    "consumesCounters": [{"counterSet": "gpu-0", "counters": {"slices": {"value": "7"}}}],
    "taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
    "allowMultipleAllocations": True,
}
SLICE: Final[dict[str, Any]] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "one"},
    "spec": {
        "driver": "gpu.example.com",
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "devices": [_DEVICE],
    },
}
OLD_SLICE: Final[dict[str, Any]] = {
    **SLICE,
    "apiVersion": "resource.k8s.io/v1beta1",
    "spec": {**SLICE["spec"], "devices": [{"name": "gpu-0", "basic": {"attributes": {"type": {"string": "gpu"}}}}]},
}
CLAIM: Final[dict[str, Any]] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "train", "namespace": "team"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "a",
                    "exactly": {
                        "deviceClassName": "gpu.example.com",
                        "count": 2,
                        "selectors": [{"cel": {"expression": "device.driver == 'x'"}}],
                        "capacity": {"requests": {"memory": "1Gi"}},
                    },
                },
                {"name": "b", "firstAvailable": [{"name": "c", "deviceClassName": "x", "allocationMode": "All"}]},
            ],
            "constraints": [{"requests": ["a"], "matchAttribute": "gpu.example.com/type"}],
            "config": [{"requests": ["a"], "opaque": {"driver": "gpu.example.com", "parameters": {"k": None}}}],
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": "a",
                        "driver": "gpu.example.com",
                        "pool": "node-1",
                        "device": "gpu-0",
                        "shareID": "a671734a-e8e5-11e4-8fde-42010af09327",
                        "consumedCapacity": {"memory": "1Gi"},
                    }
                ]
            }
        },
        "reservedFor": [{"resource": "pods", "name": "x", "uid": "1"}],
    },
}
CLASS: Final[dict[str, Any]] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.example.com"},
    "spec": {"selectors": [{"cel": {"expression": "true"}}]},
}


def _check(data: bytes, folder: Path) -> None:
    file = folder / "claims.yaml"
    file.write_bytes(data)
    found = report.judge(read.objects([str(file)]), gate.DEFAULTS)
    for line in report.lines(found):
        assert len(line) < 1 << 20


_SPECIMENS: Final = (("slice", SLICE), ("old slice", OLD_SLICE), ("claim", CLAIM), ("class", CLASS))
DOORS: Final = (
    Door(name="claims, JSON", opened=plain(_check), specimens=_SPECIMENS, refusals=OURS, sample=120),
    Door(
        name="claims, YAML",
        every=3,
        opened=plain(lambda data, folder: _check(b"# YAML\n" + data, folder)),
        specimens=_SPECIMENS,
        values=hostile.YAML_VALUES,
        refusals=OURS,
        sample=120,
    ),
)
