"""The chart's policy on configurations of claims, evaluated by our own CEL: it refuses what the driver would refuse.

What only the driver finds is listed, so that a policy which learns more of it is noticed. The policy itself runs on a
real API server in the cluster ring.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import fairlead
from fairlead.wire.nvidia import claimconfig
from tests import policycel

_TEMPLATE: Final = Path(fairlead.__file__).parent / "chart" / "templates" / "claimconfigs.yaml"
_TEXT: Final = re.sub(r"\{\{-? /\*.*?\*/\}\}", "", _TEMPLATE.read_text(), flags=re.DOTALL)
_POLICY: Final = next(
    one
    for one in yaml.safe_load_all("\n".join(line for line in _TEXT.splitlines() if "{{" not in line))
    if one and one["kind"] == "ValidatingAdmissionPolicy"
)["spec"]
API: Final = {"apiVersion": "resource.nvidia.com/v1beta1"}
GPU: Final = "GPU-88535201-a939-5bdc-9b47-965acd172221"


def holds(expression: str, document: Any) -> bool:
    return policycel.holds(_POLICY, expression, document)


def refusals(parameters: Any, shape: str = "claim") -> list[str]:
    config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    documents: dict[str, Any] = {
        "claim": {"spec": {"devices": {"config": config}}},
        "template": {"spec": {"spec": {"devices": {"config": config}}}},
        "class": {"spec": {"config": config}},
    }
    return policycel.refusals(_POLICY, documents[shape])


def sharing(kind: str = "GpuConfig", **parts: Any) -> dict[str, Any]:
    return {**API, "kind": kind, "sharing": parts}


def mps(**parts: Any) -> dict[str, Any]:
    return sharing(strategy="MPS", mpsConfig=parts)


RIGHT: Final[tuple[dict[str, Any], ...]] = (
    {**API, "kind": "GpuConfig"},
    {**API, "kind": "GpuConfig", "sharing": None},
    sharing(strategy="TimeSlicing"),
    sharing(strategy="TimeSlicing", timeSlicingConfig={}),
    sharing(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"}),
    sharing("MigDeviceConfig", strategy="MPS", mpsConfig={}),
    mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi", multiUser=True),
    mps(defaultPerDevicePinnedMemoryLimit={"0": "10Gi", GPU: "1Mi"}),
    {**API, "kind": "VfioDeviceConfig", "iommu": {"backendPolicy": "PreferIommuFD", "enableAPIDevice": False}},
)
WRONG: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"apiVersion": "resource.nvidia.com/v1", "kind": "GpuConfig"},
    {**API, "kind": "GPUConfig"},
    {**API, "kind": "GpuConfig", "sharin": {}},
    {**API, "kind": "GpuConfig", "sharing": "MPS"},
    {**API, "kind": "VfioDeviceConfig", "sharing": {"strategy": "MPS"}},
    {**API, "kind": "VfioDeviceConfig", "iommu": {"backendPolicy": "Legacy"}},
    {**API, "kind": "VfioDeviceConfig", "iommu": {"policy": "LegacyOnly"}},
    sharing(),
    sharing(strategy="TimeSlice"),
    sharing(strategy="TimeSlicing", timeSlicingConfig={"interval": "Longer"}),
    sharing(strategy="TimeSlicing", timeSlicingConfig={"intervall": "Long"}),
    sharing(strategy="TimeSlicing", mpsConfig={}),
    sharing(strategy="MPS", timeSlicingConfig={"interval": "Long"}),
    sharing("MigDeviceConfig", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"}),
    mps(defaultActiveThreadPercentage=101),
    mps(defaultActiveThreadPercentage=-1),
    mps(defaultActiveThreadPercentage="50"),
    mps(defaultPinnedDeviceMemoryLimit="lots"),
    mps(defaultPinnedDeviceMemoryLimit="1"),
    mps(defaultPinnedDeviceMemoryLimit="17Ti"),
    mps(defaultPerDevicePinnedMemoryLimit={"../../etc": "1Gi"}),
    mps(defaultPerDevicePinnedMemoryLimit={"0": "1"}),
    mps(threads=3),
    mps(multiUser="yes"),
)
DRIVERS_ALONE: Final = (mps(defaultActiveThreadPercentage=12.5),)
"""Wrong, and not seen by the policy: CEL compares numbers of any kind."""


@pytest.mark.parametrize("parameters", RIGHT, ids=json.dumps)
def test_what_the_driver_reads_is_admitted(parameters: Any) -> None:
    assert claimconfig.read(parameters)[1] == ()
    assert refusals(parameters) == []


@pytest.mark.parametrize("parameters", WRONG, ids=json.dumps)
def test_what_the_driver_refuses_is_refused_where_it_is_written(parameters: Any) -> None:
    assert claimconfig.read(parameters)[1]
    assert refusals(parameters)


@pytest.mark.parametrize("parameters", DRIVERS_ALONE, ids=json.dumps)
def test_what_the_driver_alone_finds(parameters: Any) -> None:
    assert claimconfig.read(parameters)[1]
    assert refusals(parameters) == []


@pytest.mark.parametrize("shape", ["claim", "template", "class"])
def test_every_object_that_carries_configuration_is_judged(shape: str) -> None:
    assert refusals(RIGHT[4], shape) == []
    assert len(refusals(WRONG[3], shape)) == 1


def test_configuration_of_other_drivers_is_theirs() -> None:
    other = {"spec": {"devices": {"config": [{"opaque": {"driver": "x.example.com", "parameters": {"a": 1}}}, {}]}}}
    assert all(holds(one["expression"], other) for one in _POLICY["validations"])
    assert all(holds(one["expression"], {"spec": {}}) for one in _POLICY["validations"])
