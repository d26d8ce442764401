"""Objects of resource.k8s.io, each with a name, that a real API server was asked to judge.

`tests/data/claim/answers.json` has its answers by these names: those of the registry strategies of Kubernetes 1.37.2
(defaults, dropped fields, hand-written and declared rules), run as a Go program over the same documents. A case whose
object changes needs a new answer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]
LONG = "a" * 64
_UUID = "0b0e8f3c-5a3d-4c58-9f5c-1c2d3e4f5a6b"
_GONE = object()
GONE: Any = _GONE
"""Value of a change: the field is taken away."""


def changed(document: Document, changes: dict[str, Any]) -> Document:
    """Return a copy of a document with other values at some dotted paths; numbers are places in lists."""
    copied: Document = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        owner: Any = copied
        for step in parents:
            if isinstance(owner, dict) and step not in owner:
                owner[step] = {}
            owner = owner[step]
        if value is _GONE:
            del owner[last]
        elif isinstance(owner, list) and last == len(owner):
            owner.append(value)
        else:
            owner[last] = value
    return copied


def _object(kind: str, spec: Document, **about: Any) -> Document:
    is_namespaced = kind.startswith("ResourceClaim")
    metadata = {"name": "one", **({"namespace": "team"} if is_namespaced else {}), **about}
    version = "resource.k8s.io/v1alpha3" if kind == "ResourcePoolStatusRequest" else "resource.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


_EXPRESSION = 'device.driver == "gpu.example.com"'
EXACTLY: Document = {
    "deviceClassName": "gpu.example.com",
    "selectors": [{"cel": {"expression": _EXPRESSION}}],
    "allocationMode": "ExactCount",
    "count": 2,
    "tolerations": [
        {"key": "example.com/taint", "operator": "Equal", "value": "x", "effect": "NoExecute", "tolerationSeconds": 60}
    ],
    "capacity": {"requests": {"memory": "10Gi"}},
}
CLAIM = _object(
    "ResourceClaim",
    {
        "devices": {
            "requests": [
                {"name": "gpu", "exactly": EXACTLY},
                {
                    "name": "any",
                    "firstAvailable": [
                        {"name": "large", "deviceClassName": "large.example.com", "count": 1},
                        {"name": "all", "deviceClassName": "small.example.com", "allocationMode": "All"},
                    ],
                },
            ],
            "constraints": [
                {"requests": ["gpu", "any/large"], "matchAttribute": "resource.kubernetes.io/pcieRoot"},
                {"distinctAttribute": "gpu.example.com/uuid"},
            ],
            "config": [
                {"requests": ["any"], "opaque": {"driver": "gpu.example.com", "parameters": {"kind": "Config", "n": 1}}}
            ],
        }
    },
)
TEMPLATE = _object(
    "ResourceClaimTemplate",
    {"metadata": {"labels": {"app": "x"}, "annotations": {"example.com/why": "y"}}, "spec": CLAIM["spec"]},
)
DEVICE: Document = {
    "name": "gpu-0",
    "attributes": {
        "model": {"string": "A100"},
        "gpu.example.com/index": {"int": 0},
        "healthy": {"bool": False},
        "driverVersion": {"version": "1.2.3-rc.1+build.5"},
    },
    "capacity": {
        "memory": {
            "value": "80Gi",
            "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "max": "80Gi", "step": "1Gi"}},
        },
        "cores": {"value": "8", "requestPolicy": {"default": "2", "validValues": ["1", "2", "8"]}},
        "plain": {"value": "1500m"},
    },
    "taints": [{"key": "example.com/taint", "value": "x", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
    "consumesCounters": [{"counterSet": "set-0", "counters": {"memory": {"value": "40Gi"}}}],
    "bindsToNode": True,
    "bindingConditions": ["example.com/ready"],
    "bindingFailureConditions": ["example.com/failed"],
    "allowMultipleAllocations": True,
}
SLICE = _object(
    "ResourceSlice",
    {
        "driver": "gpu.example.com",
        "pool": {"name": "node-1/gpus", "generation": 3, "resourceSliceCount": 2},
        "nodeName": "node-1",
        "devices": [DEVICE, {"name": "gpu-1"}],
    },
)
_SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
PLACED = changed(
    SLICE,
    {
        "spec.nodeName": GONE,
        "spec.perDeviceNodeSelection": True,
        "spec.devices": [
            {"name": "a", "nodeName": "node-1"},
            {"name": "b", "nodeSelector": _SELECTOR},
            {"name": "c", "allNodes": True},
        ],
    },
)
COUNTERS = changed(
    SLICE,
    {"spec.devices": GONE, "spec.sharedCounters": [{"name": "set-0", "counters": {"memory": {"value": "80Gi"}}}]},
)
CLASS = _object(
    "DeviceClass",
    {
        "selectors": [{"cel": {"expression": _EXPRESSION}}],
        "config": [{"opaque": {"driver": "gpu.example.com", "parameters": {"a": [1]}}}],
        "extendedResourceName": "example.com/gpu",
    },
)
RULE = _object(
    "DeviceTaintRule",
    {
        "deviceSelector": {"driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"},
        "taint": {"key": "example.com/broken", "value": "yes", "effect": "NoExecute"},
    },
)
QUESTION = _object("ResourcePoolStatusRequest", {"driver": "gpu.example.com", "poolName": "node-1", "limit": 5})
STORED = changed(CLAIM, {"metadata.resourceVersion": "5", "metadata.uid": "u", "metadata.generation": 1})
RESULT: Document = {"request": "gpu", "driver": "gpu.example.com", "pool": "node-1/gpus", "device": "gpu-0"}
ALLOCATED = changed(
    STORED,
    {
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            **RESULT,
                            "shareID": _UUID,
                            "consumedCapacity": {"memory": "1Gi"},
                            "bindingConditions": ["example.com/ready"],
                            "bindingFailureConditions": ["example.com/failed"],
                            "tolerations": [{"operator": "Exists"}],
                        },
                        {**RESULT, "request": "any/large", "device": "gpu-1"},
                    ],
                    "config": [
                        {
                            "source": "FromClass",
                            "requests": ["gpu"],
                            "opaque": {"driver": "gpu.example.com", "parameters": {"a": 1}},
                        }
                    ],
                },
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
                    ]
                },
                "allocationTimestamp": "2026-01-01T00:00:00Z",
            },
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "1"}],
            "devices": [
                {
                    "driver": "gpu.example.com",
                    "pool": "node-1/gpus",
                    "device": "gpu-1",
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "True",
                            "reason": "Up",
                            "message": "",
                            "lastTransitionTime": "2026-01-01T00:00:00Z",
                        }
                    ],
                    "data": {"a": 1},
                    "networkData": {"interfaceName": "eth0", "ips": ["192.0.2.5/24"], "hardwareAddress": "02:00"},
                }
            ],
        }
    },
)

_REQUESTS = "spec.devices.requests"
_GPU = f"{_REQUESTS}.0.exactly"
_ANY = f"{_REQUESTS}.1.firstAvailable"
_CONSTRAINT = "spec.devices.constraints.0"
_CONFIG = "spec.devices.config.0"
_CLAIMS: dict[str, Document] = {
    "full": {},
    "no-name": {"metadata.name": ""},
    "bad-name": {"metadata.name": "One_"},
    "long-name": {"metadata.name": "a" * 254},
    "bad-labels": {"metadata.labels": {"a/b/c": "x", "ok": "-"}, "metadata.annotations": {"": "x"}},
    "finalizers": {"metadata.finalizers": ["plain", "a/b", "resource.kubernetes.io/delete-protection"]},
    "owner": {"metadata.ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": ""}]},
    "owners": {
        "metadata.ownerReferences": [
            {"apiVersion": "a/b/c", "kind": "A", "name": "a", "uid": "1", "controller": True},
            {"apiVersion": "v1", "kind": "Event", "name": "b", "uid": "2", "controller": True},
        ]
    },
    "prefix": {"metadata.generateName": "A_-"},
    "prefix-good": {"metadata.generateName": "a-"},
    "finalizers-both": {"metadata.finalizers": ["orphan", "foregroundDeletion"]},
    "annotations-long": {"metadata.annotations": {"a": "x" * 2**18}},
    "label-domains": {"metadata.labels": {"/a": "x", "A_/b": "x", "a/": "x", f"a/{LONG}": LONG}},
    "no-requests": {"spec.devices": {}},
    "null-requests": {"spec.devices.requests": None, "spec.devices.constraints": GONE, "spec.devices.config": GONE},
    "request-bad-name": {f"{_REQUESTS}.0.name": "GPU", "spec.devices.constraints.0.requests": ["any"]},
    "request-dotted-name": {f"{_REQUESTS}.0.name": "a.b", "spec.devices.constraints.0.requests": ["any"]},
    "request-no-name": {f"{_REQUESTS}.0.name": "", "spec.devices.constraints.0.requests": ["any"]},
    "request-long-name": {f"{_REQUESTS}.0.name": LONG, "spec.devices.constraints.0.requests": [LONG]},
    "request-nul": {f"{_REQUESTS}.0.name": 'a\0"\\\n\u00e9\u200b', "spec.devices.constraints.0.requests": ["any"]},
    "request-twice": {f"{_REQUESTS}.2": {"name": "gpu", "exactly": {"deviceClassName": "x"}}},
    "request-neither": {f"{_REQUESTS}.2": {"name": "none"}},
    "request-both": {f"{_REQUESTS}.0.firstAvailable": [{"name": "a", "deviceClassName": "b"}]},
    "requests-33": {_REQUESTS: [{"name": f"r{at}", "exactly": {"deviceClassName": "x"}} for at in range(33)]},
    "class-none": {f"{_GPU}.deviceClassName": ""},
    "class-bad": {f"{_GPU}.deviceClassName": "A_b"},
    "class-long": {f"{_GPU}.deviceClassName": "a" * 254},
    "count-0": {f"{_GPU}.count": 0},
    "count-negative": {f"{_GPU}.count": -1},
    "count-largest": {f"{_GPU}.count": 2**63 - 1},
    "mode-all-count": {f"{_GPU}.allocationMode": "All"},
    "mode-wrong": {f"{_GPU}.allocationMode": "Some"},
    "selector-empty": {f"{_GPU}.selectors": [{}]},
    "selector-long": {f"{_GPU}.selectors.0.cel.expression": " " * 10241},
    "selectors-33": {f"{_GPU}.selectors": [{"cel": {"expression": "true"}}] * 33},
    "toleration-key": {f"{_GPU}.tolerations.0.key": "a b"},
    "toleration-exists": {f"{_GPU}.tolerations.0.operator": "Exists"},
    "toleration-value": {f"{_GPU}.tolerations.0.value": "-"},
    "toleration-default": {f"{_GPU}.tolerations.0.operator": GONE},
    "toleration-operator": {f"{_GPU}.tolerations.0.operator": "Like"},
    "toleration-effect": {f"{_GPU}.tolerations.0.effect": "Sometimes"},
    "toleration-empty": {f"{_GPU}.tolerations.0": {}},
    "tolerations-17": {f"{_GPU}.tolerations": [{"operator": "Exists"}] * 17},
    "admin": {f"{_GPU}.adminAccess": True},
    "admin-false": {f"{_GPU}.adminAccess": False},
    "admin-allowed": {f"{_GPU}.adminAccess": True, "metadata.namespace": "admin"},
    "alternative-name": {f"{_ANY}.0.name": "A", f"{_CONSTRAINT}.requests": ["gpu"]},
    "alternative-twice": {f"{_ANY}.1.name": "large"},
    "alternative-class": {f"{_ANY}.0.deviceClassName": ""},
    "alternative-bad-class": {f"{_ANY}.0.deviceClassName": "-"},
    "alternative-count": {f"{_ANY}.1.count": 3},
    "alternative-mode": {f"{_ANY}.1.allocationMode": "Some"},
    "alternative-selectors": {f"{_ANY}.1.selectors": [{}] * 33},
    "alternatives-9": {_ANY: [{"name": "large", "deviceClassName": "x"}] * 9},
    "constraint-unknown": {f"{_CONSTRAINT}.requests": ["none"]},
    "constraint-unknown-alternative": {f"{_CONSTRAINT}.requests": ["any/none", "gpu/x", "a/b/c", "/", ""]},
    "constraint-parent": {f"{_CONSTRAINT}.requests": ["any"]},
    "constraint-twice": {f"{_CONSTRAINT}.requests": ["gpu", "gpu"]},
    "constraint-requests-33": {f"{_CONSTRAINT}.requests": ["gpu"] * 33},
    "constraint-none": {f"{_CONSTRAINT}.matchAttribute": GONE},
    "constraint-both": {f"{_CONSTRAINT}.distinctAttribute": "a.b/c"},
    "constraint-plain": {f"{_CONSTRAINT}.matchAttribute": "model"},
    "constraint-empty": {f"{_CONSTRAINT}.matchAttribute": ""},
    "constraint-half": {f"{_CONSTRAINT}.matchAttribute": "/a", "spec.devices.constraints.1.distinctAttribute": "a/"},
    "constraint-bad-name": {f"{_CONSTRAINT}.matchAttribute": "A_/1b"},
    "constraint-long": {f"{_CONSTRAINT}.matchAttribute": f"{LONG}/{'b' * 33}"},
    "constraint-three": {f"{_CONSTRAINT}.matchAttribute": "a/b/c"},
    "constraints-33": {"spec.devices.constraints": [{"matchAttribute": "x"}] * 33},
    "config-unknown": {f"{_CONFIG}.requests": ["none"]},
    "config-twice": {f"{_CONFIG}.requests": ["gpu", "gpu"]},
    "config-none": {f"{_CONFIG}.opaque": GONE},
    "config-driver": {f"{_CONFIG}.opaque.driver": ""},
    "config-bad-driver": {f"{_CONFIG}.opaque.driver": "a_b"},
    "config-upper-driver": {f"{_CONFIG}.opaque.driver": "GPU.example.com"},
    "config-long-driver": {f"{_CONFIG}.opaque.driver": LONG},
    "config-long-bad-driver": {f"{_CONFIG}.opaque.driver": "_" * 64},
    "config-no-parameters": {f"{_CONFIG}.opaque.parameters": GONE},
    "config-null": {f"{_CONFIG}.opaque.parameters": None},
    "config-list": {f"{_CONFIG}.opaque.parameters": [1]},
    "config-text": {f"{_CONFIG}.opaque.parameters": "x"},
    "config-empty-object": {f"{_CONFIG}.opaque.parameters": {}},
    "config-long": {f"{_CONFIG}.opaque.parameters": {"a": "x" * 10232}},
    "config-longest": {f"{_CONFIG}.opaque.parameters": {"a": "x" * 10231}},
    "configs-33": {"spec.devices.config": [{}] * 33},
    "derived-dropped": {f"{_GPU}.derivedAttributes": [{"name": "x", "expression": ""}]},
    "many-wrong": {
        f"{_REQUESTS}.0.name": "A",
        f"{_GPU}.count": -5,
        f"{_GPU}.deviceClassName": "",
        f"{_CONSTRAINT}.matchAttribute": "x",
        f"{_CONFIG}.opaque.driver": "",
    },
}
_DERIVED = [{"name": "example.com/group", "expression": "1"}]
_DERIVED_CLAIMS: dict[str, Document] = {
    "derived": {f"{_GPU}.derivedAttributes": _DERIVED, f"{_CONSTRAINT}.matchAttribute": "example.com/group"},
    "derived-unused": {f"{_GPU}.derivedAttributes": _DERIVED},
    "derived-twice": {f"{_GPU}.derivedAttributes": _DERIVED * 2, f"{_CONSTRAINT}.matchAttribute": "example.com/group"},
    "derived-empty": {f"{_GPU}.derivedAttributes": [{"name": "", "expression": ""}]},
    "derived-plain": {
        f"{_GPU}.derivedAttributes": [{"name": "group", "expression": "1"}],
        f"{_CONSTRAINT}.matchAttribute": "group",
    },
    "derived-33": {f"{_GPU}.derivedAttributes": [{"name": f"a/b{at}", "expression": "1"} for at in range(33)]},
    "derived-of-alternative": {
        f"{_ANY}.1.derivedAttributes": _DERIVED,
        f"{_CONSTRAINT}": {"requests": ["any"], "matchAttribute": "example.com/group"},
    },
    "derived-of-other-alternative": {
        f"{_ANY}.1.derivedAttributes": _DERIVED,
        f"{_CONSTRAINT}": {"requests": ["any/large"], "matchAttribute": "example.com/group"},
    },
}
_TEMPLATES: dict[str, Document] = {
    "full": {},
    "metadata": {"spec.metadata": {"name": "x", "finalizers": ["a/b"], "labels": {"-": "x"}}},
    "request": {"spec.spec.devices.requests.0.name": "A"},
    "count": {"spec.spec.devices.requests.0.exactly.count": -1},
    "admin": {"spec.spec.devices.requests.0.exactly.adminAccess": True},
    "no-namespace": {"metadata.name": "a.B"},
}
_GPU0 = "spec.devices.0"
_MEMORY = f"{_GPU0}.capacity.memory"
_RANGE = f"{_MEMORY}.requestPolicy.validRange"
_CORES = f"{_GPU0}.capacity.cores"
_SLICES: dict[str, Document] = {
    "full": {},
    "namespace": {"metadata.name": "A"},
    "driver-none": {"spec.driver": ""},
    "driver-bad": {"spec.driver": "a_b"},
    "driver-upper": {"spec.driver": "GPU.Example.com"},
    "driver-long": {"spec.driver": LONG},
    "pool-none": {"spec.pool.name": ""},
    "pool-bad": {"spec.pool.name": "a//B"},
    "pool-long": {"spec.pool.name": "a" * 254},
    "pool-counts": {"spec.pool.generation": -1, "spec.pool.resourceSliceCount": 0},
    "place-none": {"spec.nodeName": GONE},
    "place-empty-node": {"spec.nodeName": ""},
    "place-bad-node": {"spec.nodeName": "Node"},
    "place-two": {"spec.allNodes": True, "spec.nodeSelector": _SELECTOR},
    "place-false": {"spec.nodeName": GONE, "spec.allNodes": False, "spec.perDeviceNodeSelection": False},
    "selector-no-term": {"spec.nodeName": GONE, "spec.nodeSelector": {"nodeSelectorTerms": []}},
    "selector-good": {
        "spec.nodeName": GONE,
        "spec.nodeSelector": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": "a", "operator": "Exists"},
                        {"key": "a", "operator": "Lt", "values": ["1"]},
                        {"key": "a", "operator": "NotIn", "values": ["", "x"]},
                    ],
                    "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}],
                }
            ]
        },
    },
    "selector-field-values": {
        "spec.nodeName": GONE,
        "spec.nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": []}]}]
        },
    },
    "selector-rules": {
        "spec.nodeName": GONE,
        "spec.nodeSelector": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": "a", "operator": "In"},
                        {"key": "a", "operator": "Exists", "values": ["x"]},
                        {"key": "a", "operator": "Gt", "values": ["1", "2"]},
                        {"key": "a", "operator": "Like", "values": ["-"]},
                        {"key": "a b", "operator": "Exists"},
                    ],
                    "matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": ["A", "b"]},
                        {"key": "metadata.uid", "operator": "Exists"},
                    ],
                }
            ]
        },
    },
    "counters-and-devices": {"spec.sharedCounters": COUNTERS["spec"]["sharedCounters"]},
    "device-name": {f"{_GPU0}.name": "GPU_0"},
    "device-twice": {"spec.devices.1.name": "gpu-0"},
    "devices-65": {"spec.devices": [DEVICE, *({"name": f"d{at}"} for at in range(64))]},
    "devices-128": {"spec.devices": [{"name": f"d{at}"} for at in range(128)]},
    "devices-129": {"spec.devices": [{"name": f"d{at}"} for at in range(129)]},
    "attributes-33": {f"{_GPU0}.attributes": {f"a{at}": {"int": at} for at in range(30)}},
    "attribute-none": {f"{_GPU0}.attributes": {"a": {}}},
    "attribute-two": {f"{_GPU0}.attributes": {"a": {"int": 0, "string": ""}}},
    "attribute-long": {f"{_GPU0}.attributes": {"a": {"string": "x" * 65}, "b": {"version": "1.0.0-" + "x" * 60}}},
    "attribute-bytes": {f"{_GPU0}.attributes": {"a": {"string": "\u00e9" * 33}}},
    "attribute-version": {f"{_GPU0}.attributes": {"a": {"version": "1.2"}, "b": {"version": "1.2.3\n"}}},
    "attribute-list-dropped": {f"{_GPU0}.attributes": {"a": {"ints": [1, 2]}}},
    "attribute-names": {
        f"{_GPU0}.attributes": {key: {"int": 1} for key in ("1a", "/a", "a/", "a_b/c", "a/b/c", "x" * 33, f"{LONG}/y")}
    },
    "attribute-no-name": {f"{_GPU0}.attributes": {"": {"int": 1}}},
    "capacity-names": {f"{_GPU0}.capacity": {"a-b": {"value": "1"}, f"{'d' * 70}/{'i' * 40}": {"value": "1"}}},
    "policy-not-shared": {f"{_GPU0}.allowMultipleAllocations": False},
    "policy-not-set": {f"{_GPU0}.allowMultipleAllocations": GONE},
    "policy-both": {f"{_MEMORY}.requestPolicy.validValues": ["1Gi"]},
    "policy-no-default": {f"{_MEMORY}.requestPolicy.default": GONE, f"{_CORES}.requestPolicy.default": GONE},
    "policy-default-only": {f"{_MEMORY}.requestPolicy": {"default": "900Gi"}},
    "values-order": {f"{_CORES}.requestPolicy.validValues": ["2", "1", "8"]},
    "values-twice": {f"{_CORES}.requestPolicy.validValues": ["1500m", "2", "2000m"]},
    "values-large": {f"{_CORES}.requestPolicy.validValues": ["2", "9"]},
    "values-default": {f"{_CORES}.requestPolicy.default": "3"},
    "values-11": {f"{_CORES}.requestPolicy.validValues": [str(at) for at in range(1, 12)]},
    "range-no-min": {f"{_RANGE}.min": GONE},
    "range-min-large": {f"{_RANGE}": {"min": "81Gi"}},
    "range-default-low": {f"{_MEMORY}.requestPolicy.default": "1Mi"},
    "range-default-high": {f"{_MEMORY}.requestPolicy.default": "90Gi"},
    "range-max-large": {f"{_RANGE}.max": "81Gi"},
    "range-max-low": {f"{_RANGE}.max": "512Mi"},
    "range-step-0": {f"{_RANGE}.step": "0"},
    "range-step-negative": {f"{_RANGE}.step": "-1"},
    "range-step-large": {f"{_RANGE}.step": "80Gi"},
    "range-step-uneven": {f"{_RANGE}.step": "3Gi"},
    "range-step-default": {f"{_MEMORY}.requestPolicy.default": "1025Mi"},
    "range-step-fraction": {f"{_RANGE}": {"min": "500m", "step": "500m"}, f"{_MEMORY}.requestPolicy.default": "1"},
    "range-negative": {f"{_RANGE}": {"min": "-2", "step": "1"}, f"{_MEMORY}.requestPolicy.default": "-1"},
    "taint-key": {f"{_GPU0}.taints.0.key": ""},
    "taint-value": {f"{_GPU0}.taints.0.value": "a b"},
    "taint-effect": {f"{_GPU0}.taints.0.effect": ""},
    "taint-effect-wrong": {f"{_GPU0}.taints.0.effect": "Sometimes"},
    "taints-17": {f"{_GPU0}.taints": [{"key": "a", "effect": "None"}] * 17},
    "taints-17-no-effect": {f"{_GPU0}.taints": [{"key": "a"}] * 17},
    "consumes-3": {f"{_GPU0}.consumesCounters": [{"counterSet": "s", "counters": {"a": {"value": "1"}}}] * 3},
    "consumes-twice": {f"{_GPU0}.consumesCounters": [{"counterSet": "s", "counters": {"a": {"value": "1"}}}] * 2},
    "consumes-nothing": {f"{_GPU0}.consumesCounters": [{"counterSet": ""}]},
    "consumes-names": {f"{_GPU0}.consumesCounters": [{"counterSet": "S_", "counters": {"A": {"value": "1"}}}]},
    "consumes-33": {
        f"{_GPU0}.consumesCounters.0.counters": {f"c{at}": {"value": "1"} for at in range(33)},
    },
    "device-place": {f"{_GPU0}.nodeName": "node-1"},
    "binding-only": {f"{_GPU0}.bindingFailureConditions": GONE},
    "failure-only": {f"{_GPU0}.bindingConditions": GONE},
    "binding-overlap": {f"{_GPU0}.bindingFailureConditions": ["example.com/ready"]},
    "binding-twice": {f"{_GPU0}.bindingConditions": ["a", "a"], f"{_GPU0}.bindingFailureConditions": ["b", "b"]},
    "binding-5": {f"{_GPU0}.bindingConditions": [f"a{at}" for at in range(5)]},
    "failures-5": {f"{_GPU0}.bindingFailureConditions": [f"a{at}" for at in range(5)]},
    "binding-name": {f"{_GPU0}.bindingConditions": ["a b"], f"{_GPU0}.bindingFailureConditions": [""]},
    "gated-dropped": {
        "spec.skipNodeOperations": ["x"],
        "spec.partitionTypeAttribute": "x",
        f"{_GPU0}.nodeAllocatableResources": {"x": {}},
        f"{_GPU0}.consumesCounters.0.compatibilityGroups": ["A"],
    },
}
_PLACED: dict[str, Document] = {
    "full": {},
    "none": {"spec.devices.0.nodeName": GONE},
    "empty-node": {"spec.devices.0.nodeName": ""},
    "bad-node": {"spec.devices.0.nodeName": "A"},
    "two": {"spec.devices.0.allNodes": True},
    "false": {"spec.devices.2.allNodes": False},
    "selector": {"spec.devices.1.nodeSelector.nodeSelectorTerms": []},
}
_SETS = "spec.sharedCounters"
_COUNTERS: dict[str, Document] = {
    "full": {},
    "name": {f"{_SETS}.0.name": "A"},
    "no-name": {f"{_SETS}.0.name": ""},
    "none": {f"{_SETS}.0.counters": {}},
    "counter-name": {f"{_SETS}.0.counters": {"A": {"value": "1"}, LONG: {"value": "1"}}},
    "twice": {f"{_SETS}.1": {"name": "set-0", "counters": {"a": {"value": "1"}}}},
    "sets-9": {_SETS: [{"name": f"s{at}", "counters": {"a": {"value": "1"}}} for at in range(9)]},
    "counters-33": {f"{_SETS}.0.counters": {f"c{at}": {"value": "1"} for at in range(33)}},
}
_GATED = (
    "DRAListTypeAttributes",
    "DRAOptionalNodeOperations",
    "DRAPartitionableDevicesType",
    "DRANodeAllocatableResources",
    "DRADeviceCompatibilityGroups",
    "DRAFractionalCapacityRange",
)
_RESOURCES = f"{_GPU0}.nodeAllocatableResources"
_GROUPS = f"{_GPU0}.consumesCounters.0.compatibilityGroups"
_GATED_SLICES: dict[str, Document] = {
    "lists": {f"{_GPU0}.attributes": {"a": {"ints": [1]}, "b": {"strings": ["x"]}, "c": {"versions": ["1.0.0"]}}},
    "lists-empty": {
        f"{_GPU0}.attributes": {key: {key: []} for key in ("ints", "bools", "strings", "versions")},
    },
    "lists-two": {f"{_GPU0}.attributes": {"a": {"ints": [1], "bools": [True]}}},
    "lists-values": {f"{_GPU0}.attributes": {"a": {"strings": ["x" * 65]}, "b": {"versions": ["1", "1.0.0"]}}},
    "lists-49": {f"{_GPU0}.attributes": {"a": {"ints": list(range(49))}}},
    "lists-48": {f"{_GPU0}.attributes": {"a": {"ints": list(range(48))}}},
    "lists-65-devices": {
        "spec.devices": [{"name": f"d{at}", "attributes": {"a": {"ints": [1]}}} for at in range(65)],
    },
    "skip": {"spec.skipNodeOperations": ["NodePrepareResources", "NodeUnprepareResources"]},
    "skip-all": {"spec.skipNodeOperations": ["*"]},
    "skip-prepare": {"spec.skipNodeOperations": ["NodePrepareResources"]},
    "skip-wrong": {"spec.skipNodeOperations": ["x", "*", "*"]},
    "type": {"spec.partitionTypeAttribute": "gpu.example.com/model"},
    "type-full-name": {"spec.partitionTypeAttribute": "example.com/none"},
    "type-not-text": {"spec.partitionTypeAttribute": "gpu.example.com/index"},
    "type-malformed": {"spec.partitionTypeAttribute": "model"},
    "type-no-counters": {
        "spec.partitionTypeAttribute": "gpu.example.com/model",
        f"{_GPU0}.consumesCounters": GONE,
    },
    "resources": {
        _RESOURCES: {
            "cpu": {"mapping": {"capacityKey": "cores", "capacityMultiplier": "1"}},
            "memory": {"mapping": {"deviceMultiplier": "1Gi"}, "overhead": {"perPod": "0", "perContainer": "1Mi"}},
            "hugepages-1Gi": {"overhead": {"perPod": "1"}},
        }
    },
    "resources-name": {_RESOURCES: {"example.com/gpu": {"overhead": {"perPod": "1"}}}},
    "resources-none": {_RESOURCES: {"cpu": {}}},
    "resources-key": {_RESOURCES: {"cpu": {"mapping": {"capacityKey": "none", "capacityMultiplier": "0"}}}},
    "resources-empty-key": {_RESOURCES: {"cpu": {"mapping": {"capacityKey": "", "capacityMultiplier": "-1"}}}},
    "resources-no-multiplier": {_RESOURCES: {"cpu": {"mapping": {"capacityKey": "cores"}}}},
    "resources-no-key": {_RESOURCES: {"cpu": {"mapping": {"capacityMultiplier": "1"}}}},
    "resources-both": {
        _RESOURCES: {"cpu": {"mapping": {"capacityKey": "cores", "capacityMultiplier": "1", "deviceMultiplier": "0"}}}
    },
    "resources-no-mapping": {_RESOURCES: {"cpu": {"mapping": {}}}},
    "resources-no-overhead": {_RESOURCES: {"cpu": {"overhead": {}}}},
    "resources-negative": {_RESOURCES: {"cpu": {"overhead": {"perPod": "-1", "perContainer": "-1m"}}}},
    "groups": {_GROUPS: ["a", "b"]},
    "groups-3": {_GROUPS: ["a", "b", "c"]},
    "groups-twice": {_GROUPS: ["a", "a"]},
    "groups-name": {_GROUPS: ["A_"]},
    "fraction": {_RANGE: {"min": "500m", "max": "2", "step": "500m"}, f"{_MEMORY}.requestPolicy.default": "1500m"},
    "fraction-uneven": {_RANGE: {"min": "500m", "step": "300m"}, f"{_MEMORY}.requestPolicy.default": "1"},
    "fraction-default": {_RANGE: {"min": "1", "step": "1"}, f"{_MEMORY}.requestPolicy.default": "1500m"},
    "fraction-fine": {_RANGE: {"min": "1u", "step": "1"}, f"{_MEMORY}.requestPolicy.default": "1"},
    "fraction-signs": {
        f"{_CORES}.requestPolicy": {"default": "-1500m", "validValues": ["-1500m", "-1.500", "1", "1.0", "1k", "1.5k"]},
    },
    "fraction-values": {
        f"{_CORES}.requestPolicy": {"default": "1", "validValues": ["1", "1500m", "1500m", "2"]},
    },
}
_CLASSES: dict[str, Document] = {
    "full": {},
    "empty": {"spec": {}},
    "name": {"metadata.name": "A_"},
    "long-name": {"metadata.name": "a" * 254},
    "no-name": {"metadata.name": ""},
    "selector": {"spec.selectors": [{}]},
    "selectors-33": {"spec.selectors": [{}] * 33},
    "configs-33": {"spec.config": [{}] * 33},
    "config": {"spec.config": [{}]},
    "driver": {"spec.config.0.opaque.driver": "-"},
    "parameters": {"spec.config.0.opaque.parameters": [1]},
    "resource-plain": {"spec.extendedResourceName": "gpu"},
    "resource-empty": {"spec.extendedResourceName": ""},
    "resource-kubernetes": {"spec.extendedResourceName": "kubernetes.io/gpu"},
    "resource-requests": {"spec.extendedResourceName": "requests.example.com/gpu"},
    "resource-long": {"spec.extendedResourceName": f"example.com/{LONG}"},
    "resource-bad": {"spec.extendedResourceName": "Example.com/a b"},
    "resource-three": {"spec.extendedResourceName": "a/b/c"},
}
_RULES: dict[str, Document] = {
    "full": {},
    "no-selector": {"spec.deviceSelector": GONE},
    "selector-empty": {"spec.deviceSelector": {}},
    "driver": {"spec.deviceSelector.driver": "a_"},
    "driver-empty": {"spec.deviceSelector.driver": ""},
    "pool": {"spec.deviceSelector.pool": "A"},
    "pool-empty": {"spec.deviceSelector.pool": ""},
    "device": {"spec.deviceSelector.device": "A"},
    "key": {"spec.taint.key": ""},
    "value": {"spec.taint.value": "a b"},
    "effect": {"spec.taint.effect": ""},
    "effect-wrong": {"spec.taint.effect": "Sometimes"},
    "effect-none": {"spec.taint.effect": "None"},
}
_QUESTIONS: dict[str, Document] = {
    "full": {},
    "no-driver": {"spec.driver": ""},
    "driver": {"spec.driver": "a_"},
    "pool": {"spec.poolName": "a//B"},
    "pool-empty": {"spec.poolName": ""},
    "pool-none": {"spec.poolName": GONE},
    "limit-0": {"spec.limit": 0},
    "limit-large": {"spec.limit": 1001},
    "limit-none": {"spec.limit": GONE},
    "type-dropped": {"spec.defaultPartitionTypeAttribute": "x"},
}
_RESULT0 = "status.allocation.devices.results.0"
_DATA = "status.devices.0"
_NETWORK = f"{_DATA}.networkData"
_CONDITION = f"{_DATA}.conditions.0"
_STATUSES: dict[str, Document] = {
    "full": {},
    "request": {f"{_RESULT0}.request": "none"},
    "alternative": {f"{_RESULT0}.request": "any/none"},
    "driver": {f"{_RESULT0}.driver": "", _DATA: {"driver": "", "pool": "", "device": ""}},
    "pool": {f"{_RESULT0}.pool": "a//B"},
    "pool-none": {f"{_RESULT0}.pool": ""},
    "device": {f"{_RESULT0}.device": "A"},
    "share-id": {f"{_RESULT0}.shareID": "x"},
    "share-id-upper": {f"{_RESULT0}.shareID": _UUID.upper()},
    "toleration": {f"{_RESULT0}.tolerations": [{"operator": "Like"}]},
    "binding": {f"{_RESULT0}.bindingFailureConditions": GONE},
    "results-33": {"status.allocation.devices.results": [RESULT] * 33, "status.devices": []},
    "config-source": {"status.allocation.devices.config.0.source": ""},
    "config-source-wrong": {"status.allocation.devices.config.0.source": "FromPod"},
    "config-request": {"status.allocation.devices.config.0.requests": ["none", "gpu", "gpu"]},
    "config-opaque": {"status.allocation.devices.config.0.opaque": GONE},
    "configs-65": {"status.allocation.devices.config": [{}] * 65},
    "selector": {"status.allocation.nodeSelector.nodeSelectorTerms": []},
    "selector-none": {"status.allocation.nodeSelector": GONE},
    "user": {"status.reservedFor": [{}]},
    "users-twice": {"status.reservedFor": [{"resource": "pods", "name": "a", "uid": "1"}] * 2},
    "users-257": {"status.reservedFor": [{"resource": "pods", "name": "a", "uid": str(at)} for at in range(257)]},
    "users-unallocated": {"status.allocation": GONE, "status.devices": GONE},
    "report-unallocated": {f"{_DATA}.device": "gpu-9"},
    "report-share-id": {f"{_DATA}.shareID": "x"},
    "report-twice": {"status.devices": [{"driver": "gpu.example.com", "pool": "node-1/gpus", "device": "gpu-1"}] * 2},
    "report-null-conditions": {f"{_DATA}.conditions": None},
    "conditions-9": {f"{_DATA}.conditions": [ALLOCATED["status"]["devices"][0]["conditions"][0]] * 9},
    "condition-type": {f"{_CONDITION}.type": ""},
    "condition-bad-type": {f"{_CONDITION}.type": "a b"},
    "condition-status": {f"{_CONDITION}.status": "Maybe"},
    "condition-no-status": {f"{_CONDITION}.status": ""},
    "condition-reason": {f"{_CONDITION}.reason": "a b"},
    "condition-no-reason": {f"{_CONDITION}.reason": ""},
    "condition-long": {f"{_CONDITION}.reason": "a" * 1025, f"{_CONDITION}.message": "a" * 32769},
    "condition-time": {f"{_CONDITION}.lastTransitionTime": None},
    "condition-generation": {f"{_CONDITION}.observedGeneration": -1},
    "data-list": {f"{_DATA}.data": [1]},
    "data-long": {f"{_DATA}.data": {"a": "x" * 10240}},
    "network-none": {_NETWORK: GONE},
    "network-names": {f"{_NETWORK}.interfaceName": "x" * 257, f"{_NETWORK}.hardwareAddress": "x" * 129},
    "network-17": {f"{_NETWORK}.ips": ["x"] * 17},
    "network-ips": {
        f"{_NETWORK}.ips": [
            *("192.0.2.5", "192.0.2.005/24", "192.0.2.5/33", "2001:DB8::1/64", "::ffff:192.168.0.1/120", "x"),
            *(
                "192.0.2.6/24",
                "192.0.2.6/24",
                "fe80::1%eth0/64",
                "2001:db8::1/129",
                "1.2.3/8",
                "1.2.3.4/+8",
                "1.2.3.4/08",
            ),
        ]
    },
}
_DELETED = {"metadata.deletionTimestamp": "2026-01-02T00:00:00Z", "metadata.deletionGracePeriodSeconds": 0}


def _cases_of(kind: str, base: Document, table: dict[str, Document], gates: tuple[str, ...] = ()) -> Iterator[Document]:
    for name, changes in table.items():
        yield {"name": f"{kind}/{name}", "op": "create", "gates": gates, "obj": changed(base, changes)}


def _update(name: str, old: Document, changes: dict[str, Any], op: str = "update", gates: Any = ()) -> Document:
    stored = changed(old, {"metadata.resourceVersion": "5", "metadata.uid": "u", "metadata.generation": 1})
    return {"name": f"{op}/{name}", "op": op, "gates": gates, "obj": changed(stored, changes), "old": stored}


def _updates() -> Iterator[Document]:
    yield _update("claim-same", CLAIM, {})
    yield _update("claim-labels", CLAIM, {"metadata.labels": {"a": "b"}})
    yield _update("claim-spec", CLAIM, {f"{_GPU}.count": 3})
    yield _update("claim-no-version", CLAIM, {"metadata.resourceVersion": GONE})
    yield _update("claim-name", CLAIM, {"metadata.name": "two"})
    yield _update("claim-generation", changed(CLAIM, _DELETED), {"metadata.labels": {"a": "b"}})
    yield _update("claim-finalizer", changed(CLAIM, _DELETED), {"metadata.finalizers": ["a/b"]})
    yield _update("claim-bad-labels", CLAIM, {"metadata.labels": {"a b": "-"}})
    yield _update("template-same", TEMPLATE, {})
    yield _update("template-spec", TEMPLATE, {"spec.spec.devices.requests.0.exactly.count": 9})
    yield _update("slice-same", SLICE, {})
    yield _update("slice-driver", SLICE, {"spec.driver": "b.example.com"})
    yield _update("slice-pool", SLICE, {"spec.pool.name": "b", "spec.pool.generation": 4})
    yield _update("slice-node", SLICE, {"spec.nodeName": "node-2"})
    yield _update("slice-node-gone", SLICE, {"spec.nodeName": GONE, "spec.allNodes": True})
    yield _update("slice-device", SLICE, {"spec.devices.2": {"name": "Bad"}})
    bad = changed(SLICE, {f"{_CORES}.requestPolicy.default": "3", f"{_GPU0}.taints.0.effect": "Old"})
    yield _update("slice-stored-capacity", bad, {"spec.pool.generation": 4})
    yield _update("slice-changed-capacity", bad, {f"{_CORES}.value": "9"})
    old = changed(SLICE, {f"{_GPU0}.attributes": {"a": {"ints": [1]}}})
    yield _update("slice-gate-in-use", old, {f"{_GPU0}.attributes": {"a": {"ints": [1, 2]}}})
    yield _update("class-same", CLASS, {})
    yield _update("class-resource", CLASS, {"spec.extendedResourceName": "b"})
    long = changed(CLASS, {"spec.config.0.opaque.parameters": {"a": "x" * 20000}})
    yield _update("class-stored-parameters", long, {"metadata.labels": {"a": "b"}})
    yield _update("class-changed-parameters", long, {"spec.config.0.opaque.parameters": {"b": "x" * 20000}})
    yield _update("rule-same", RULE, {})
    yield _update("rule-effect", RULE, {"spec.taint.effect": "Sometimes"})
    yield _update("rule-stored-effect", changed(RULE, {"spec.taint.effect": "Old"}), {"spec.taint.value": "b"})
    yield _update("question-same", QUESTION, {})
    yield _update("question-limit", QUESTION, {"spec.limit": 6})
    for name, changes in _STATUSES.items():
        yield _update(name, STORED, {"status": changed(ALLOCATED, changes)["status"]}, "status")
    yield _update("allocated-same", ALLOCATED, {}, "status")
    yield _update("allocated-changed", ALLOCATED, {f"{_RESULT0}.device": "gpu-3"}, "status")
    yield _update("deallocated", ALLOCATED, {"status.allocation": GONE, "status.reservedFor": GONE}, "status")
    deleted = changed(ALLOCATED, _DELETED)
    yield _update("deleted-less", deleted, {"status.reservedFor": []}, "status")
    users = [{"resource": "pods", "name": "new", "uid": "2"}]
    yield _update("deleted-more", deleted, {"status.reservedFor": users}, "status")
    yield _update(
        "admin", STORED, {"status": changed(ALLOCATED, {f"{_RESULT0}.adminAccess": True})["status"]}, "status"
    )
    gated = changed(ALLOCATED, {f"{_RESULT0}.skipNodeOperations": ["NodePrepareResources", "x"]})["status"]
    yield _update("skip-dropped", STORED, {"status": gated}, "status")
    yield _update("skip", STORED, {"status": gated}, "status", ("DRAOptionalNodeOperations",))
    condition = ALLOCATED["status"]["devices"][0]["conditions"][0]
    yield _update("rule", RULE, {"status": {"conditions": [condition]}}, "status")
    yield _update("rule-conditions", RULE, {"status": {"conditions": [{**condition, "reason": ""}] * 9}}, "status")


def cases() -> Iterator[Document]:
    """Yield every case: a name, the operation, the feature gates that are on beside the defaults, and the objects."""
    yield from _cases_of("claim", CLAIM, _CLAIMS)
    yield from _cases_of("claim", CLAIM, _DERIVED_CLAIMS, ("DRADerivedAttributes",))
    yield from _cases_of("template", TEMPLATE, _TEMPLATES)
    yield from _cases_of("slice", SLICE, _SLICES)
    yield from _cases_of("placed", PLACED, _PLACED)
    yield from _cases_of("counters", COUNTERS, _COUNTERS)
    yield from _cases_of("gated", SLICE, _GATED_SLICES, _GATED)
    yield from _cases_of("class", CLASS, _CLASSES)
    yield from _cases_of("rule", RULE, _RULES)
    yield from _cases_of("question", QUESTION, _QUESTIONS)
    typed = {"type": {"spec.defaultPartitionTypeAttribute": "x"}}
    yield from _cases_of("question", QUESTION, typed, ("DRAPartitionableDevicesType",))
    yield from _updates()
