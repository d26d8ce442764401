"""Opaque configuration of claims: what NVIDIA's documents mean, and every wrong one is named by its path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.nvidia import claimconfig
from fairlead.wire.nvidia.claimconfig import GPUConfig, Interval, MIGConfig, MPSSharing, TimeSlicing, VFIOConfig


def _gpu(**more: Any) -> dict[str, Any]:
    return {"apiVersion": claimconfig.API_VERSION, "kind": "GpuConfig", **more}


@pytest.mark.parametrize(
    ("document", "meant"),
    [
        (_gpu(), GPUConfig()),
        (_gpu(sharing={"strategy": "TimeSlicing"}), GPUConfig(sharing=TimeSlicing())),
        # NVIDIA's driver ends with a nil dereference at this one, which a tenant can write.
        (_gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}), GPUConfig(sharing=TimeSlicing())),
        (
            _gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}),
            GPUConfig(sharing=TimeSlicing(interval=Interval.LONG)),
        ),
        (_gpu(sharing={"strategy": "MPS", "mpsConfig": {}}), GPUConfig(sharing=MPSSharing())),
        (
            _gpu(
                sharing={
                    "strategy": "MPS",
                    "mpsConfig": {
                        "defaultActiveThreadPercentage": 50,
                        "defaultPinnedDeviceMemoryLimit": "10Gi",
                        "defaultPerDevicePinnedMemoryLimit": {"0": "5Gi"},
                        "multiUser": True,
                    },
                }
            ),
            GPUConfig(
                sharing=MPSSharing(
                    thread_percentage=50, memory_bytes=10 << 30, memory_by_gpu={"0": 5 << 30}, is_multi_user=True
                )
            ),
        ),
        (
            {"apiVersion": claimconfig.API_VERSION, "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}},
            MIGConfig(sharing=MPSSharing()),
        ),
        (
            {
                "apiVersion": claimconfig.API_VERSION,
                "kind": "VfioDeviceConfig",
                "iommu": {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True},
            },
            VFIOConfig(backend_policy="PreferIommuFD", has_api_device=True),
        ),
    ],
)
def test_a_right_document_is_read(document: Any, meant: claimconfig.Config) -> None:
    assert claimconfig.read(document) == (meant, ())


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "parameters: it is missing, needed: an object with apiVersion and kind"),
        ([], "parameters: it is 'list', needed: an object with apiVersion and kind"),
        ({"kind": "GpuConfig"}, "apiVersion: it is missing, needed: resource.nvidia.com/v1beta1"),
        (_gpu(kind="GpuConfg"), "needed: one of GpuConfig, MigDeviceConfig, VfioDeviceConfig; meant: GpuConfig?"),
        (_gpu(sharin={}), "sharin: nothing reads it; meant: sharing?"),
        (_gpu(sharing=3), "sharing: it is '3', needed: an object"),
        (_gpu(sharing={}), "sharing.strategy: it is missing, needed: one of TimeSlicing, MPS"),
        (_gpu(sharing={"strategy": "mps"}), "sharing.strategy: it is 'mps'"),
        (
            _gpu(sharing={"strategy": "MPS", "timeSlicingConfig": {}}),
            "sharing.timeSlicingConfig: it belongs to strategy TimeSlicing, and the strategy is MPS",
        ),
        (
            _gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Lang"}}),
            "sharing.timeSlicingConfig.interval: it is 'Lang', needed: one of Default, Short, Medium, Long",
        ),
        (_gpu(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}), "from 0 to 100"),
        (_gpu(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": True}}), "from 0 to 100"),
        (_gpu(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1"}}), "from 1Mi to 16Ti"),
        (
            _gpu(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "9" * 5000}}),
            "from 1Mi to 16Ti",
        ),
        (
            _gpu(sharing={"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"../0": "1Gi"}}}),
            "it is '../0', needed: a GPU's UUID",
        ),
        (
            {
                "apiVersion": claimconfig.API_VERSION,
                "kind": "MigDeviceConfig",
                "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
            },
            "sharing.timeSlicingConfig: nothing reads it",
        ),
    ],
)
def test_a_wrong_document_is_named_by_its_path(document: Any, said: str) -> None:
    _, problems = claimconfig.read(document)
    assert any(said in one for one in problems), problems


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["sharing", "strategy", "mpsConfig", "timeSlicingConfig", "interval", "iommu", "x\0"]),
            inner,
        )
    ),
)


@given(
    st.fixed_dictionaries(
        {
            "apiVersion": st.just(claimconfig.API_VERSION),
            "kind": st.sampled_from(["GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"]),
            "sharing": _JSON
            | st.fixed_dictionaries({"strategy": st.sampled_from(["MPS", "TimeSlicing"]), "mpsConfig": _JSON}),
        }
    )
)
def test_no_document_of_a_tenant_ends_the_reader(document: Any) -> None:
    found, problems = claimconfig.read(document)
    assert found is not None
    assert all("\0" not in one for one in problems)
