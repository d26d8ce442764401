"""The simulated libnvidia-ml as nvidia-ml-py drives it: marshalling, codes, and MIG from mode to device."""

from __future__ import annotations

import ctypes
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from fairlead.silicon.nvidia import binding
from fairlead.silicon.sim import machine, profile
from fairlead.silicon.sim.nvml import abi, library

NOT_SUPPORTED, NOT_FOUND, IN_USE, NO_ROOM, INVALID = 3, 6, 19, 23, 2


@pytest.fixture(scope="module")
def shared() -> tuple[Any, machine.Machine]:
    host = machine.Machine(profile.load("mixed"))
    return binding.Binding(library.SimulatedNVML(host)).nvml, host


@pytest.fixture
def api(shared: tuple[Any, machine.Machine]) -> Any:
    nvml, host = shared
    for gpu in host.gpus:
        gpu.reset()
        gpu.partition.instances.clear()
        gpu.mig_enabled = False
    return nvml


@pytest.fixture
def h100(api: Any) -> Any:
    device = api.nvmlDeviceGetHandleByIndex(0)
    api.nvmlDeviceSetMigMode(device, 1)
    return device


def code(api: Any, name: str, *arguments: object) -> int:
    with pytest.raises(api.NVMLError) as caught:
        getattr(api, name)(*arguments)
    return int(caught.value.value)


def placement(api: Any, start: int, size: int) -> Any:
    wanted = api.c_nvmlGpuInstancePlacement_t()
    wanted.start, wanted.size = start, size
    return ctypes.byref(wanted)


def test_the_machine_is_found_by_index_uuid_and_address(api: Any) -> None:
    assert api.nvmlDeviceGetCount() == 8
    device = api.nvmlDeviceGetHandleByIndex(6)
    for other in (
        api.nvmlDeviceGetHandleByUUID(api.nvmlDeviceGetUUID(device).encode()),
        api.nvmlDeviceGetHandleByPciBusId(b"00000000:CB:00.0"),
    ):
        assert api.nvmlDeviceGetIndex(other) == 6
    assert api.nvmlDeviceGetName(device) == "Tesla T4"
    assert api.nvmlDeviceGetMinorNumber(device) == 0


def test_versions_are_the_profiles(api: Any) -> None:
    assert api.nvmlSystemGetDriverVersion() == "550.163.01"
    assert api.nvmlSystemGetCudaDriverVersion() == 12040
    assert api.nvmlSystemGetNVMLVersion() == "12.550.163.01"


def test_memory_is_told_in_both_versions_of_the_struct(api: Any) -> None:
    device = api.nvmlDeviceGetHandleByIndex(4)
    one, two = api.nvmlDeviceGetMemoryInfo(device), api.nvmlDeviceGetMemoryInfo(device, version=api.nvmlMemory_v2)
    assert one.total == two.total == 40960 << 20
    assert one.used + one.free == one.total


def test_a_call_the_library_lacks_is_function_not_found(api: Any) -> None:
    device = api.nvmlDeviceGetHandleByIndex(0)
    assert code(api, "nvmlDeviceGetBoardId", device) == api.NVML_ERROR_FUNCTION_NOT_FOUND


def test_an_error_can_be_read_as_text(api: Any) -> None:
    assert "23" in str(api.NVMLError(NO_ROOM))


@pytest.mark.parametrize("index", [-1, 8, 4095])
def test_an_index_beyond_the_machine_is_invalid(api: Any, index: int) -> None:
    assert code(api, "nvmlDeviceGetHandleByIndex", index) == INVALID


def test_a_null_handle_is_invalid(api: Any) -> None:
    assert code(api, "nvmlDeviceGetName", api.c_nvmlDevice_t()) == INVALID


def test_a_lost_gpu_answers_nothing_and_others_everything(api: Any, shared: tuple[Any, machine.Machine]) -> None:
    device = api.nvmlDeviceGetHandleByIndex(1)
    shared[1].gpus[1].is_lost = True
    lost = api.NVML_ERROR_GPU_IS_LOST
    assert code(api, "nvmlDeviceGetUUID", device) == code(api, "nvmlDeviceGetHandleByIndex", 1) == lost
    assert api.nvmlDeviceGetUUID(api.nvmlDeviceGetHandleByIndex(2)).startswith("GPU-")


def test_a_mesh_shares_the_links_evenly(api: Any) -> None:
    device = api.nvmlDeviceGetHandleByIndex(0)
    far = [api.nvmlDeviceGetNvLinkRemotePciInfo(device, link).busId for link in range(18)]
    assert {far.count(bus) for bus in set(far)} == {6}
    assert api.nvmlDeviceGetNvLinkRemoteDeviceType(device, 0) == api.NVML_NVLINK_DEVICE_TYPE_GPU


def test_field_values_answer_field_by_field(api: Any) -> None:
    values = api.nvmlDeviceGetFieldValues(api.nvmlDeviceGetHandleByIndex(7), [91, 230, 1])
    assert [(value.nvmlReturn, value.value.uiVal) for value in values] == [
        (0, 0),
        (NOT_SUPPORTED, 0),
        (NOT_SUPPORTED, 0),
    ]


def test_mig_is_not_offered_where_the_part_has_none(api: Any) -> None:
    device = api.nvmlDeviceGetHandleByIndex(6)
    assert code(api, "nvmlDeviceGetMigMode", device) == code(api, "nvmlDeviceSetMigMode", device, 1) == NOT_SUPPORTED


def test_profiles_and_placements_are_told_with_mig_off(api: Any) -> None:
    device = api.nvmlDeviceGetHandleByIndex(0)
    info = api.nvmlDeviceGetGpuInstanceProfileInfo(device, api.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
    assert (info.id, info.sliceCount, info.instanceCount, info.name) == (9, 3, 2, "MIG 3g.40gb")
    count = ctypes.c_uint(8)
    places = (api.c_nvmlGpuInstancePlacement_t * 8)()
    api.nvmlDeviceGetGpuInstancePossiblePlacements(device, 9, ctypes.byref(places), ctypes.byref(count))
    assert [(p.start, p.size) for p in places[: count.value]] == [(0, 4), (4, 4)]


def test_a_short_array_of_placements_is_refused(api: Any) -> None:
    device, count = api.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint(1)
    places = (api.c_nvmlGpuInstancePlacement_t * 1)()
    arguments = (device, 9, ctypes.byref(places), ctypes.byref(count))
    assert code(api, "nvmlDeviceGetGpuInstancePossiblePlacements", *arguments) == api.NVML_ERROR_INSUFFICIENT_SIZE


def test_instances_need_mig_mode(api: Any) -> None:
    device = api.nvmlDeviceGetHandleByIndex(0)
    assert code(api, "nvmlDeviceCreateGpuInstance", device, 9) == NOT_SUPPORTED


def test_a_mig_device_from_mode_to_handle(api: Any, h100: Any) -> None:
    instance = api.nvmlDeviceCreateGpuInstanceWithPlacement(h100, 9, placement(api, 4, 4))
    assert code(api, "nvmlDeviceGetMigDeviceHandleByIndex", h100, 0) == NOT_FOUND
    compute = api.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    device = api.nvmlDeviceGetMigDeviceHandleByIndex(h100, 0)
    info, attributes = api.nvmlGpuInstanceGetInfo(instance), api.nvmlDeviceGetAttributes(device)
    assert (info.profileId, info.placement.start, info.placement.size) == (9, 4, 4)
    assert (attributes.gpuInstanceSliceCount, attributes.memorySizeMB) == (3, 40448)
    assert api.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert api.nvmlDeviceGetGpuInstanceId(device) == info.id
    assert api.nvmlDeviceGetComputeInstanceId(device) == api.nvmlComputeInstanceGetInfo(compute).id
    assert api.nvmlDeviceIsMigDeviceHandle(device).value == 1
    parent = api.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert api.nvmlDeviceGetIndex(parent) == api.nvmlDeviceGetIndex(api.nvmlGpuInstanceGetInfo(instance).device) == 0


def test_a_mig_device_is_found_by_uuid_and_keeps_it_after_being_made_again(api: Any, h100: Any) -> None:
    uuids = []
    for _ in range(2):
        instance = api.nvmlDeviceCreateGpuInstanceWithPlacement(h100, 14, placement(api, 2, 2))
        compute = api.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        uuids.append(api.nvmlDeviceGetUUID(api.nvmlDeviceGetMigDeviceHandleByIndex(h100, 0)))
        assert api.nvmlDeviceIsMigDeviceHandle(api.nvmlDeviceGetHandleByUUID(uuids[-1].encode())).value == 1
        api.nvmlComputeInstanceDestroy(compute)
        api.nvmlGpuInstanceDestroy(instance)
    assert uuids[0] == uuids[1]
    assert uuids[0].startswith("MIG-")


def test_what_is_in_use_is_not_destroyed_and_mig_not_switched_off(api: Any, h100: Any) -> None:
    instance = api.nvmlDeviceCreateGpuInstance(h100, 9)
    api.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert code(api, "nvmlGpuInstanceDestroy", instance) == IN_USE
    assert code(api, "nvmlDeviceSetMigMode", h100, 0) == IN_USE


def test_a_handle_of_something_destroyed_is_not_found(api: Any, h100: Any) -> None:
    instance = api.nvmlDeviceCreateGpuInstance(h100, 9)
    api.nvmlGpuInstanceDestroy(instance)
    assert code(api, "nvmlGpuInstanceGetInfo", instance) == NOT_FOUND


def test_a_placement_that_is_not_the_profiles_is_invalid(api: Any, h100: Any) -> None:
    for start, size in ((2, 4), (0, 3), (8, 4)):
        arguments = (h100, 9, placement(api, start, size))
        assert code(api, "nvmlDeviceCreateGpuInstanceWithPlacement", *arguments) == INVALID


def test_no_room_is_insufficient_resources_and_capacity_says_so_before(api: Any, h100: Any) -> None:
    while api.nvmlDeviceGetGpuInstanceRemainingCapacity(h100, 14):
        api.nvmlDeviceCreateGpuInstance(h100, 14)
    assert code(api, "nvmlDeviceCreateGpuInstance", h100, 14) == NO_ROOM
    assert api.nvmlDeviceGetGpuInstanceRemainingCapacity(h100, 19) == 1


def test_instances_are_listed_by_profile(api: Any, h100: Any) -> None:
    made = [api.nvmlDeviceCreateGpuInstance(h100, 19) for _ in range(3)]
    array, count = (api.c_nvmlGpuInstance_t * 7)(), ctypes.c_uint()
    api.nvmlDeviceGetGpuInstances(h100, 19, array, ctypes.byref(count))
    ids = {api.nvmlGpuInstanceGetInfo(item).id for item in made}
    assert {api.nvmlGpuInstanceGetInfo(item).id for item in array[: count.value]} == ids
    api.nvmlDeviceGetGpuInstances(h100, 9, array, ctypes.byref(count))
    assert count.value == 0


def test_compute_instances_divide_their_instance(api: Any, h100: Any) -> None:
    instance = api.nvmlDeviceCreateGpuInstance(h100, 9)
    info = api.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0)
    assert (info.sliceCount, info.instanceCount, info.name) == (1, 3, "MIG 1c.3g.40gb")
    made = [api.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(3)]
    assert api.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 0
    assert code(api, "nvmlGpuInstanceCreateComputeInstance", instance, 0) == NO_ROOM
    array, count = (api.c_nvmlComputeInstance_t * 8)(), ctypes.c_uint()
    api.nvmlGpuInstanceGetComputeInstances(instance, 0, array, ctypes.byref(count))
    assert [api.nvmlComputeInstanceGetInfo(item).placement.start for item in array[: count.value]] == [0, 1, 2]
    names = [api.nvmlDeviceGetName(api.nvmlDeviceGetMigDeviceHandleByIndex(h100, i)) for i in range(len(made))]
    assert names == ["NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"] * 3


@hypothesis.given(strategies.text(max_size=40), strategies.integers(min_value=1, max_value=50))
def test_a_text_is_stored_whole_or_refused(text: str, size: int) -> None:
    buffer = ctypes.create_string_buffer(size)
    try:
        abi.put_text(buffer, ctypes.c_uint(size), text.replace("\0", ""))
    except abi.RefusedError:
        assert len(text.replace("\0", "").encode()) >= size
    else:
        assert buffer.value.decode() == text.replace("\0", "")


@hypothesis.given(
    strategies.sampled_from(list(abi.Kind)),
    strategies.tuples(*[strategies.integers(min_value=0, max_value=4095)] * 3),
)
def test_a_handle_names_what_it_was_made_for(kind: abi.Kind, parts: tuple[int, int, int]) -> None:
    handle = ctypes.c_void_p()
    abi.put_handle(ctypes.byref(handle), kind, *parts)
    assert abi.parts_of(handle) == (kind, *parts)
