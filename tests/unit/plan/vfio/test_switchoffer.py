"""NVSwitches as a resource: each function a device, all of them or none, and only for the Service VM's namespace."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import errors
from fairlead.model.driver import DeviceNode, PassthroughSwitch
from fairlead.plan.cdi import driverprofile
from fairlead.plan.vfio import switchoffer
from fairlead.wire.kubernetes import core, meta


def node(path: str, minor: int) -> DeviceNode:
    return DeviceNode(path=path, host_path=path, major=240, minor=minor, mode=0o600)


SHARED = node("/dev/vfio/vfio", 1)
BOARD = tuple(
    PassthroughSwitch(
        key=f"path-{number}", address=f"0000:40:00.{number}", group_nodes=(SHARED, node("/dev/vfio/9", 9)), numa_node=0
    )
    for number in (0, 2, 3, 4)
)


def pod(namespace: str, name: str, *, asks: bool = True, phase: str = "Pending") -> core.Pod:
    limits = {"nvidia.com/nvswitch": "4"} if asks else {}
    container = core.Container(name="fm", image="i", resources=core.ResourceRequirements(limits=limits))
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace=namespace),
        spec=core.PodSpec(containers=(container,)),
        status=core.PodStatus(phase=phase),
    )


def test_each_function_is_a_device_and_those_of_one_group_bring_one_node() -> None:
    (offered,) = switchoffer.plan_resource(BOARD, with_iommufd=False)
    assert offered.resource == "nvidia.com/nvswitch"
    assert [one.id for one in offered.devices] == ["path-0", "path-2", "path-3", "path-4"]
    assert all(one.is_healthy for one in offered.devices)
    (spec,) = switchoffer.plan_spec(BOARD, driverprofile.TENANT, with_iommufd=False)
    assert [f"{spec.kind}={one.name}" for one in spec.devices] == [one.cdi_name for one in offered.devices]
    assert {tuple(each.path for each in one.edits.device_nodes) for one in spec.devices} == {
        ("/dev/vfio/vfio", "/dev/vfio/9")
    }


def test_one_that_cannot_go_keeps_all_of_the_board_back() -> None:
    broken = (*BOARD[:3], dataclasses.replace(BOARD[3], problem="it is not bound"))
    for found, by_iommufd in ((broken, False), (BOARD, True)):
        (offered,) = switchoffer.plan_resource(found, with_iommufd=by_iommufd)
        assert {(one.is_healthy, one.reason) for one in offered.devices} == {(False, switchoffer.UNUSABLE)}
    assert switchoffer.plan_resource((), with_iommufd=False) == ()
    assert switchoffer.plan_spec(BOARD, driverprofile.TENANT, with_iommufd=True) == ()


@pytest.mark.parametrize(
    ("asked", "pods", "reason"),
    [
        (4, None, ""),
        (4, (pod("fabric", "vm"),), ""),
        (4, (pod("fabric", "vm"), pod("t-evil", "old", phase="Succeeded"), pod("t-a", "web", asks=False)), ""),
        (2, (pod("fabric", "vm"),), switchoffer.NOT_WHOLE),
        (4, (pod("fabric", "vm"), pod("t-evil", "x")), switchoffer.FOREIGN),
        (4, (pod("t-evil", "x"),), switchoffer.FOREIGN),
        (4, (), switchoffer.FOREIGN),
        (4, (pod("fabric", "vm", phase="Failed"),), switchoffer.FOREIGN),
    ],
)
def test_all_go_to_the_namespaces_pod_or_none_does(asked: int, pods: tuple[core.Pod, ...] | None, reason: str) -> None:
    found = switchoffer.find_refusal(asked, 4, pods, "fabric")
    assert (found.reason if found is not None else "") == reason
    if pods and reason == switchoffer.FOREIGN and any(one.metadata.namespace == "t-evil" for one in pods):
        assert isinstance(found, errors.Denied)
        assert "t-evil/x" in found.message
