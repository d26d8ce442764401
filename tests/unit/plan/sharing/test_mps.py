"""MPS gives each replica an equal share, one daemon a GPU, and refuses what MPS cannot do."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import errors, settings
from fairlead.model.gpu import GPU, Inventory, MIGDevice, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID, DeviceID
from fairlead.node.deviceplugin import plugin as deviceplugin
from fairlead.plan.gpu import nodeconfig
from fairlead.plan.gpu.allocation import answer, choose
from fairlead.plan.gpu.offer import advertise, migoffer
from fairlead.plan.sharing import fields, mps, replicate
from fairlead.wire.nvidia import pluginreader
from fairlead.wire.proto import deviceplugin_pb2 as pb

ALL = "sharing: {mps: {%s resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
GIB = 1 << 30


def gpu(index: int, capability: tuple[int, int] = (9, 0)) -> GPU:
    return GPU(
        uuid=GPUUUID(f"GPU-{index}"),
        index=index,
        minor=index,
        pci_bus_id=f"0000:0{index}:00.0",
        name="H100" if capability == (9, 0) else "P100",
        memory_bytes=80 * GIB,
        compute_capability=capability,
    )


GPUS = (gpu(0), gpu(1), gpu(2, (6, 0)))


def offers(text: str, gpus: tuple[GPU, ...] = GPUS, **mig: str) -> dict[str, advertise.Advertisement]:
    config = nodeconfig.plan_config(settings.Settings(), pluginreader.parse(text, source="f"))
    known = {one.uuid: one for one in gpus}
    whole = advertise.plan_advertisements(
        Inventory(gpus=gpus),
        nvidia_resource="nvidia.com/gpu",
        verdicts={},
        known=known,
        mig=migoffer.MIGOffer(**mig),  # type: ignore[arg-type]
    )
    folders = {uuid: (f"/mps/{uuid}/pipe", f"/mps/{uuid}/shm") for uuid in known}
    return {ad.resource: ad for ad in mps.plan_clients(replicate.plan_shared(whole, config), known, folders)}


def allocate(text: str, *ids: str, gpus: tuple[GPU, ...] = GPUS) -> pb.ContainerAllocateResponse:
    found = deviceplugin.Plugin("nvidia.com/gpu", allocate_options=answer.DEFAULT)
    found.update(offers(text, gpus)["nvidia.com/gpu"], choose.Topology())
    return found._give(tuple(map(DeviceID, ids)))


def test_a_container_gets_its_daemon_its_limits_and_its_own_shared_memory() -> None:
    given = allocate(ALL % "", "GPU-1::2")
    assert dict(given.envs) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/pipe",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
    }
    mounts = {one.container_path: one.host_path for one in given.mounts}
    assert mounts == {"/mps/pipe": "/mps/GPU-1/pipe", "/dev/shm": "/mps/GPU-1/shm"}
    assert [one.name for one in given.cdi_devices] == ["fairlead.dev/gpu=GPU-1"]


def test_requests_above_one_are_refused_unless_the_file_allows_them_and_then_they_are_larger_shares() -> None:
    with pytest.raises(errors.RequestError, match="one is the most"):
        allocate(ALL % "", "GPU-1::2", "GPU-1::3")
    given = allocate(ALL % "failRequestsGreaterThanOne: false,", "GPU-1::2", "GPU-1::3")
    assert given.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert given.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40960M"


def test_replicas_of_several_gpus_are_refused_and_never_preferred() -> None:
    text = ALL % "failRequestsGreaterThanOne: false,"
    with pytest.raises(errors.RequestError, match="MPS serves one"):
        allocate(text, "GPU-0::0", "GPU-1::0")
    ad = offers(text)["nvidia.com/gpu"]
    devices = {device.id: device for device in ad.devices}
    free = tuple(name for name in devices if name not in {"GPU-0::0", "GPU-0::1", "GPU-2::0"})
    chosen = choose.choose_devices(free, (), 3, devices=devices, topology=choose.Topology(), rule=ad.rule)
    assert {devices[name].gpu for name in chosen} == {"GPU-1"}
    packed = dataclasses.replace(ad.rule, packs=True)
    chosen = choose.choose_devices(free, (), 2, devices=devices, topology=choose.Topology(), rule=packed)
    assert {devices[name].gpu for name in chosen} == {"GPU-0"}


def test_limits_are_the_daemons_own_where_nobody_has_more_than_one_share() -> None:
    fixed = mps.plan_daemons(offers(ALL % "").values())[GPUUUID("GPU-0")]
    assert (fixed.memory_mib, fixed.percent) == (20480, 25)
    free = mps.plan_daemons(offers(ALL % "failRequestsGreaterThanOne: false,").values())[GPUUUID("GPU-0")]
    assert (free.memory_mib, free.percent) == (None, None)


def test_a_gpu_before_volta_serves_sixteen_clients() -> None:
    text = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}"
    assert all(device.is_healthy for device in offers(text % 16)["nvidia.com/gpu"].devices)
    ads = offers(text % 17)
    ill = {(device.gpu, device.reason) for device in ads["nvidia.com/gpu"].devices if not device.is_healthy}
    assert ill == {("GPU-2", "MPSTooManyClients")}
    assert set(mps.plan_daemons(ads.values())) == {"GPU-0", "GPU-1"}
    volta = gpu(0, (7, 0))
    assert all(device.is_healthy for device in offers(text % 48, (volta,))["nvidia.com/gpu"].devices)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}", "49 clients are more than MPS serves: 48"),
        ("sharing: {mps: {resources: [{name: mig-1g.10gb, replicas: 2}]}}", "MIG devices are not shared by MPS"),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [MIG-1]}]}}", "MIG devices are not shared"),
        (
            "flags: {migStrategy: single}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}",
            "migStrategy: single",
        ),
        ("sharing: {mps: {resources: [{name: amd.com/gpu, replicas: 2}]}}", "not NVIDIA's"),
    ],
)
def test_what_mps_cannot_do_is_refused_with_its_path(text: str, word: str) -> None:
    with pytest.raises(errors.Invalid, match=word):
        offers(text)


def test_mig_devices_and_other_vendors_stay_unshared() -> None:
    part = MIGDevice(
        uuid=MIGUUID("MIG-1"),
        index=0,
        profile="1g.10gb",
        gpu_instance=1,
        compute_instance=0,
        placement_start=0,
        placement_size=1,
        memory_bytes=1,
    )
    split = dataclasses.replace(gpu(0), mig_enabled=True, mig_capable=True, mig_devices=(part,))
    other = dataclasses.replace(gpu(1), vendor=Vendor.AMD)
    ads = offers(ALL % "", (split, other), strategy="mixed")
    assert {name: [device.replica_of for device in ad.devices] for name, ad in ads.items()} == {
        "amd.com/gpu": [None],
        "nvidia.com/mig-1g.10gb": [None],
    }


def test_where_both_means_are_given_mps_counts() -> None:
    text = """
sharing:
  timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}
  mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}
"""
    assert {name: ad.rule.means for name, ad in offers(text).items()} == {"nvidia.com/gpu.shared": "mps"}
    texts = {one.path: one.text for one in fields.explain(pluginreader.parse(text, source="f"))}
    assert texts["sharing.timeSlicing"] == "sharing.mps is given too, and counts alone"
    assert "25 % of the threads and 1/4 of the memory" in texts["sharing.mps.resources[0]"]


def test_memory_that_the_driver_does_not_tell_is_not_limited_to_nothing() -> None:
    untold = (dataclasses.replace(gpu(0), memory_bytes=0),)
    given = allocate(ALL % "", "GPU-0::1", gpus=untold)
    assert dict(given.envs) == {"CUDA_MPS_PIPE_DIRECTORY": "/mps/pipe", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    [daemon] = mps.plan_daemons(offers(ALL % "failRequestsGreaterThanOne: true,", untold).values()).values()
    assert daemon.memory_mib is None
