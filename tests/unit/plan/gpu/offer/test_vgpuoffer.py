"""How vGPUs are offered: names, verdicts, variables; a board that lends is not given whole."""

from __future__ import annotations

import pytest
from google.protobuf.json_format import MessageToDict

from fairlead.model.driver import VGPU, DeviceNode, DriverFiles
from fairlead.model.gpu import GPU, Inventory, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu import health
from fairlead.plan.gpu.allocation import answer
from fairlead.plan.gpu.allocation.answer import Strategy
from fairlead.plan.gpu.offer import advertise, vgpuoffer
from tests import devices

BOARD = GPU(
    uuid=GPUUUID("GPU-a"),
    index=0,
    minor=0,
    pci_bus_id="0000:07:00.0",
    name="L40S",
    memory_bytes=1,
    vgpu_types=((9, "X-9Q"),),
)
OTHER = GPU(uuid=GPUUUID("GPU-b"), index=1, minor=1, pci_bus_id="0000:87:00.0", name="L40S", memory_bytes=1)
NODE = DeviceNode(path="/dev/vfio/31", host_path="/dev/vfio/31", major=1, minor=2, mode=0o600)
SHARED = DeviceNode(path="/dev/vfio/vfio", host_path="/dev/vfio/vfio", major=10, minor=196, mode=0o666)
LENT = VGPU(id="0000:07:00.4", parent=BOARD.pci_bus_id, type="NVIDIA L40S-12Q", nodes=(NODE,))
NAME = "nvidia.com/NVIDIA_L40S-12Q"
KNOWN = {gpu.uuid: gpu for gpu in (BOARD, OTHER)}


def files(*vgpus: VGPU) -> tuple[DriverFiles, ...]:
    return (DriverFiles(vendor=Vendor.NVIDIA, version="1", vgpus=vgpus),)


def offered(*vgpus: VGPU, **more: object) -> dict[str, list[tuple[str, bool, str]]]:
    given: dict[str, object] = {"domain": "nvidia.com", "verdicts": {}, "known": KNOWN, **more}
    found = vgpuoffer.plan_vgpus(files(*vgpus), Inventory(), **given)  # type: ignore[arg-type]  # by name
    return {ad.resource: [(one.id, one.is_healthy, one.reason) for one in ad.devices] for ad in found}


def test_a_type_is_a_resource_in_the_words_of_the_field() -> None:
    assert offered(LENT) == {NAME: [("0000:07:00.4", True, "")]}


def test_a_type_that_only_nvml_names_is_offered_by_that_name() -> None:
    assert offered(VGPU(id="0000:07:00.5", parent=BOARD.pci_bus_id, type_id=9)) == {
        "nvidia.com/X-9Q": [("0000:07:00.5", True, "")]
    }


@pytest.mark.parametrize(
    ("type_name", "wanted"),
    [("A/B\n../x", "A_B_.._x"), ("--", ""), ("", ""), ("é" * 9, ""), ("x" * 99, "x" * 63)],
)
def test_a_name_is_always_one_that_kubernetes_takes(type_name: str, wanted: str) -> None:
    assert vgpuoffer.resource_name(type_name, "d") == (f"d/{wanted}" if wanted else "")


def test_a_type_named_as_another_resource_is_not_offered_under_it() -> None:
    assert offered(LENT, taken={NAME}) == {}


def test_it_shares_its_boards_verdict_and_has_reasons_of_its_own() -> None:
    ill = health.Verdict(state=health.State.FAULTY, reason="XID79")
    assert offered(LENT, verdicts={BOARD.uuid: ill})[NAME][0][1:] == (False, "XID79")
    assert offered(LENT, verdicts={OTHER.uuid: ill})[NAME][0][1:] == (True, "")
    broken = VGPU(id="0000:07:00.4", parent=BOARD.pci_bus_id, type="NVIDIA L40S-12Q", problem="no node")
    assert offered(broken)[NAME][0][1:] == (False, vgpuoffer.UNUSABLE)


def test_a_board_that_does_not_answer_takes_its_vgpus_out() -> None:
    lost = UnreadableGPU(index=0, pci_bus_id=BOARD.pci_bus_id, uuid=None, reason="Lost", message="gone")
    [ad] = vgpuoffer.plan_vgpus(files(LENT), Inventory(unreadable=(lost,)), domain="nvidia.com", verdicts={}, known={})
    assert [(one.is_healthy, one.reason) for one in ad.devices] == [(False, "Lost")]


def test_a_board_that_lends_is_not_given_whole_and_its_neighbour_is() -> None:
    whole = advertise.Advertisement(
        resource="nvidia.com/gpu", vendor=Vendor.NVIDIA, devices=(devices.gpu("GPU-a"), devices.gpu("GPU-b"))
    )
    [left] = vgpuoffer.without_lenders([whole], files(LENT), KNOWN)
    assert [one.id for one in left.devices] == ["GPU-b"]
    assert vgpuoffer.without_lenders([whole], files(), KNOWN) == (whole,)


def test_launchers_find_addresses_and_uuids_in_the_variables_that_they_read() -> None:
    assert vgpuoffer.variables(NAME, ["0000:07:00.4", "0000:07:00.5"]) == {
        "PCI_RESOURCE_NVIDIA_COM_NVIDIA_L40S-12Q": "0000:07:00.4,0000:07:00.5"
    }
    assert vgpuoffer.variables("nvidia.com/GRID_T4-4Q", ["u-1"]) == {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-4Q": "u-1"}


@pytest.mark.parametrize("strategy", Strategy)
def test_allocate_names_a_vgpu_by_cdi_whatever_is_chosen_and_never_as_a_gpu_to_see(strategy: Strategy) -> None:
    way = answer.AllocateOptions(strategies=frozenset({strategy}), passes_device_specs=True)
    made = MessageToDict(
        answer.plan_answer(
            [devices.vgpu("0000:07:00.4", on="GPU-a", nodes=(NODE.path,))],
            resource=NAME,
            vendor=Vendor.NVIDIA,
            options=way,
            nodes={NODE.path: NODE, SHARED.path: SHARED, "/dev/nvidiactl": NODE},
        )
    )
    assert made["envs"] == {"PCI_RESOURCE_NVIDIA_COM_NVIDIA_L40S-12Q": "0000:07:00.4"}
    assert [one["containerPath"] for one in made["devices"]] == ["/dev/vfio/vfio", "/dev/vfio/31"]
    named = made.get("cdiDevices") or made["annotations"]
    assert "fairlead.dev/vgpu=0000:07:00.4" in str(named)
