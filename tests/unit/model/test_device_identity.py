"""A device is one thing: its id, its CDI name, its GPU and what it is a replica of never contradict each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model import cdikind, replica
from fairlead.model.device import Device, gpus_by_device
from fairlead.model.gpu import GPU, MIGDevice, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID, DeviceID
from tests import devices

IDS = st.sampled_from(("GPU-a", "MIG-1", "0000:c1:00.0", "x")).map(str)


@given(IDS, st.integers(min_value=0, max_value=10**6))
def test_a_replica_tells_whose_it_is(device: str, number: int) -> None:
    assert replica.origin(replica.name(device, number)) == device
    assert replica.origin(device) == device


@pytest.mark.parametrize("text", ["GPU-a::", "GPU-a::x", "GPU-a::1::2", "GPU-a::-1", "::1", "GPU-a:1", "GPU-a::\u0661"])
def test_what_is_no_replica_stands_for_itself(text: str) -> None:
    assert replica.origin(text) == text


@pytest.mark.parametrize(
    "wrong",
    [
        {"cdi_name": "fairlead.dev/gpu=GPU-a"},
        {"cdi_name": "MIG-1"},
        {"mig": None},
        {"mig": MIGUUID("MIG-2")},
        {"id": DeviceID("GPU-a")},
        {"id": DeviceID("MIG-1::0")},
        {"replica_of": DeviceID("GPU-a")},
        {"id": DeviceID("MIG-1::0"), "replica_of": DeviceID("GPU-a")},
        {"gpu": GPUUUID("MIG-1")},
    ],
)
def test_a_mig_device_that_would_be_answered_as_another_cannot_be_made(wrong: dict[str, object]) -> None:
    right = {
        "id": DeviceID("MIG-1"),
        "cdi_name": "fairlead.dev/gpu=MIG-1",
        "gpu": GPUUUID("GPU-a"),
        "mig": MIGUUID("MIG-1"),
    }
    assert Device(**right).name == "MIG-1"  # type: ignore[arg-type]  # fields by name
    with pytest.raises(ValueError, match="is not one device"):
        Device(**{**right, **wrong})  # type: ignore[arg-type]  # fields by name


def test_replicas_of_gpus_and_of_mig_devices_keep_the_name_of_what_they_stand_for() -> None:
    mig = devices.mig("MIG-1", on="GPU-a")
    assert [(one.name, one.gpu, one.replica_of) for one in (mig, devices.replicated(mig, 2))] == [
        ("MIG-1", "GPU-a", None),
        ("MIG-1", "GPU-a", "MIG-1"),
    ]
    assert devices.replicated(devices.gpu("GPU-a"), 0).cdi_name == "fairlead.dev/gpu=GPU-a"


def test_every_device_of_a_machine_is_on_one_gpu() -> None:
    mig = MIGDevice(
        uuid=MIGUUID("MIG-1"),
        index=0,
        profile="1g.10gb",
        gpu_instance=7,
        compute_instance=0,
        placement_start=0,
        placement_size=1,
        memory_bytes=1,
    )
    gpu = GPU(
        uuid=GPUUUID("GPU-a"), index=0, minor=0, pci_bus_id="0000:01:00.0", name="X", memory_bytes=1, mig_devices=(mig,)
    )
    assert gpus_by_device([gpu]) == {"GPU-a": "GPU-a", "MIG-1": "GPU-a"}


def test_kinds_of_allocations_are_nobody_elses_and_differ_by_vendor() -> None:
    own = set(cdikind.ALLOCATED.values())
    assert len(own) == len(cdikind.ALLOCATED) == len(Vendor)
    assert not own & set(cdikind.KINDS.values())
    assert {vendor.value for vendor in Vendor} == cdikind.ALLOCATED.keys() == cdikind.GPUS.keys()
