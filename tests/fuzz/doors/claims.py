"""The doors of `fairlead dra …`: files of objects of resource.k8s.io, in any version, which strangers send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.cli.layer.dra import evaluate, explain, given, published, read, report
from fairlead.plan.claim import gate
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
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


_WAITING: Final = {**CLAIM, "metadata": {"name": "waits", "namespace": "team"}, "status": {}}
_TEMPLATE: Final[dict[str, Any]] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpus", "namespace": "team"},
    "spec": {"spec": CLAIM["spec"]},
}
_POD: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "team"},
    "spec": {
        "containers": [{"name": "a", "image": "b"}],
        "nodeSelector": {"zone": "a"},
        "resourceClaims": [
            {"name": "g", "resourceClaimTemplateName": "gpus"},
            {"name": "h", "resourceClaimName": "waits"},
        ],
    },
    "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]},
}
_NODE: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-1", "labels": {"zone": "a"}},
}
_RULE: Final[dict[str, Any]] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "sick"},
    "spec": {"deviceSelector": {"driver": "gpu.example.com"}, "taint": {"key": "k", "effect": "NoSchedule"}},
}
_CLUSTER: Final = [SLICE, CLAIM, CLASS, _WAITING, _TEMPLATE, _POD, _NODE, _RULE]
_ASKED: Final = explain.Asked(gates=gate.DEFAULTS, release="1.37", every=True)


def _look(data: bytes, folder: Path) -> None:
    """Look at a cluster with each verb, as far as it can be looked at."""
    file = folder / "cluster.yaml"
    file.write_bytes(data)
    found = read.objects([str(file)], read.Kinds(needed=dialect.KINDS, beside=(core.Pod, core.Node)))
    for line in _lines(found):
        assert len(line) < 1 << 20


def _lines(found: read.Objects) -> Iterator[str]:
    selector = evaluate.compiled('device.attributes["gpu.example.com"].type == "gpu"', "1.37")
    devices, left_out = evaluate.devices(found.of(ResourceSlice), ())
    yield from evaluate.lines(evaluate.evaluate(selector, devices, left_out=left_out), every=True)
    yield from published.lines(published.published(found, gate.DEFAULTS, has_devices=True, every=True))
    yield from published.free_lines(published.free(found, gate.DEFAULTS, attribute="gpu.example.com/type", every=True))
    yield from given.lines(given.given(found, namespace="", every=True))
    for name in ("claim/waits", "pod/web", "claim/train"):
        yield from explain.lines(explain.explain(found, name, "", _ASKED))


def _evaluate(data: bytes, _folder: Path) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise errors.Invalid("not UTF-8", reason="CELInvalid") from error
    devices, _ = evaluate.devices([msgspec.convert(SLICE, ResourceSlice)], ())
    done = evaluate.evaluate(evaluate.compiled(text, "1.37"), devices)
    for line in evaluate.lines(done, every=True):
        assert len(line) < 10_000


def _list(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": items}


_EXPRESSIONS: Final = (
    "device.driver == 'gpu.example.com' && device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) >= 0",
    "device.attributes['gpu.example.com'].map(name, [dyn(name), dyn(3u), dyn(1.5), dyn(b'x'), dyn(null)])",
)
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
    Door(name="claims, looked at", opened=plain(_look), specimens=(("cluster", _list(_CLUSTER)),), refusals=OURS),
    Door(
        name="expressions",
        opened=plain(_evaluate),
        specimens=tuple((text, text) for text in _EXPRESSIONS),
        encode=lambda text: str(text).encode("utf-8", "surrogatepass"),
        refusals=OURS,
    ),
)
