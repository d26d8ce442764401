"""Slots and their names in each scheme, and the devices and specs made of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.model.driver import DeviceNode, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.cdi import driverprofile
from fairlead.plan.gpu import deviceids, health
from fairlead.plan.vfio import slot, slotoffer
from fairlead.settings import NodeSettings
from fairlead_cdi import emit, names

MODEL = "GH100 [H100 SXM5 80GB]"
_ADDRESSES = ("0000:0f:00.0", "0000:10:00.0", "0000:b8:00.0", "10000:01:00.0")
_MODULES = (5, 7, 2, None)


def node(path: str, minor: int) -> DeviceNode:
    return DeviceNode(path=path, host_path=path, major=240, minor=minor, mode=0o600)


CONTAINER, IOMMU = node("/dev/vfio/vfio", 196), node("/dev/iommu", 197)


def gpu(at: int, **more: object) -> PassthroughGPU:
    path = f"/dev/vfio/{at + 100}"
    found = PassthroughGPU(
        key=GPUUUID(f"pcie-00000000000000{at}"),
        vendor=Vendor.NVIDIA,
        address=_ADDRESSES[at],
        model=MODEL,
        module=_MODULES[at],
        group_nodes=(CONTAINER, node(path, at)),
        iommufd_nodes=(IOMMU, node(f"/dev/vfio/devices/vfio{at}", at)),
        numa_node=at % 2,
    )
    return dataclasses.replace(found, **more)  # type: ignore[arg-type]  # fields of PassthroughGPU


ALL = tuple(gpu(at) for at in (3, 1, 0, 2))


@pytest.mark.parametrize(
    ("scheme", "resource", "ids"),
    [
        ("slots", "nvidia.com/h100-sxm5-80gb-x1", ["x1-5", "x1-7", "x1-2", "x1-pcie-000000000000003"]),
        ("index", "nvidia.com/gpu", ["0", "1", "2", "3"]),
        ("kata", "nvidia.com/pgpu", ["x1-5", "x1-7", "x1-2", "x1-pcie-000000000000003"]),
        ("kubevirt", "nvidia.com/GH100_H100_SXM5_80GB", list(_ADDRESSES)),
    ],
)
def test_each_scheme_names_slots_in_the_order_of_pci(scheme: str, resource: str, ids: list[str]) -> None:
    found = slot.Naming(scheme=slot.Scheme(scheme)).slots(ALL)
    assert [(one.resource, one.id) for one in found] == [(resource, one) for one in ids]


def test_ids_stay_where_addresses_groups_and_order_change() -> None:
    moved = [dataclasses.replace(gpu(at), address=f"0000:{9 - at:02x}:00.0") for at in range(3)]
    before = {one.gpus[0].key: one.id for one in slot.Naming().slots([gpu(at) for at in range(3)])}
    assert {one.gpus[0].key: one.id for one in slot.Naming().slots(moved)} == before


def test_two_gpus_of_one_module_are_both_kept_back_under_ids_of_their_own() -> None:
    found = slot.Naming().slots([gpu(0), gpu(1, module=5)])
    assert {one.id for one in found} == {"x1-pcie-000000000000000", "x1-pcie-000000000000001"}
    assert all("module 5" in one.problem for one in found)


def test_two_gpus_that_say_to_be_one_are_both_kept_back() -> None:
    found = slot.Naming().slots([gpu(0), gpu(1, key=gpu(0).key)])
    assert all("so does another GPU" in one.problem for one in found)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (MODEL, "GH100_H100_SXM5_80GB"),
        ("AD102GL [RTX 6000 Ada / L40.S]", "AD102GL_RTX_6000_ADA___L40_S"),
        ("", ""),
        ("…\x1b[31m\0/../etc", "GPU_31M____ETC"),
    ],
)
def test_a_model_is_written_as_nvidias_kubevirt_plugin_does(model: str, name: str) -> None:
    assert slot.kubevirt_name(model) == name


@given(model=st.text(max_size=200), scheme=st.sampled_from(list(slot.Scheme)))
def test_whatever_a_board_calls_itself_its_spec_is_legal(model: str, scheme: slot.Scheme) -> None:
    found = slot.Naming(scheme=scheme).slots([gpu(0, model=model)])
    (spec,) = slotoffer.plan_specs(found, driverprofile.TENANT)
    emit.emit_json(spec)
    assert names.split_kind(spec.kind) == tuple(found[0].resource.split("/"))
    assert len(found[0].resource.partition("/")[2]) <= 63


def test_a_device_names_every_node_its_user_needs_and_its_kind_is_the_resource() -> None:
    found = slot.Naming().slots([gpu(0)])
    (spec,) = slotoffer.plan_specs(found, driverprofile.TENANT)
    (device,) = spec.devices
    assert (spec.kind, device.name) == ("nvidia.com/h100-sxm5-80gb-x1", "x1-5")
    assert [node.path for node in device.edits.device_nodes] == ["/dev/vfio/vfio", "/dev/vfio/100"]


def test_users_of_iommufd_get_its_nodes_and_one_that_has_none_is_kept_back() -> None:
    naming = slot.Naming(with_iommufd=True)
    (spec,) = slotoffer.plan_specs(naming.slots([gpu(0)]), driverprofile.TENANT)
    assert [one.path for one in spec.devices[0].edits.device_nodes] == ["/dev/iommu", "/dev/vfio/devices/vfio0"]
    (without,) = naming.slots([gpu(0, iommufd_nodes=())])
    assert "no nodes by iommufd" in without.problem


def test_the_published_daemonsets_names_bring_the_groups_node_alone() -> None:
    (spec,) = slotoffer.plan_specs(slot.Naming(scheme=slot.Scheme.INDEX).slots([gpu(0)]), driverprofile.TENANT)
    assert [node.path for node in spec.devices[0].edits.device_nodes] == ["/dev/vfio/100"]


def test_a_gpu_that_cannot_be_handed_out_stays_listed_and_is_in_no_spec() -> None:
    found = slot.Naming().slots([gpu(0, problem="0000:0f:00.1 is bound to snd_hda_intel"), gpu(1)])
    (ad,), _ = slotoffer.plan_resources(found, {}, ())
    assert [(one.id, one.reason) for one in ad.devices] == [("x1-5", slotoffer.UNUSABLE), ("x1-7", "")]
    (spec,) = slotoffer.plan_specs(found, driverprofile.TENANT)
    assert [one.name for one in spec.devices] == ["x1-7"]


def test_slots_whose_resource_is_taken_are_left_out_with_the_reason() -> None:
    found = slot.Naming(scheme=slot.Scheme.INDEX).slots([gpu(0)])
    offered, left_out = slotoffer.plan_resources(found, {}, {"nvidia.com/gpu"})
    assert offered == ()
    assert left_out[gpu(0).key].reason == slotoffer.NAME_TAKEN
    assert left_out[gpu(0).key].state is health.State.FAULTY


@pytest.mark.parametrize("scheme", list(slot.Scheme))
def test_what_pods_have_by_any_schemes_ids_is_known_after_the_scheme_changed(scheme: slot.Scheme) -> None:
    table = slotoffer.words(slot.Naming(scheme=scheme).slots(ALL))
    now = slot.Naming(scheme=scheme).slots(ALL)
    own = {one.gpus[0].key: deviceids.find_parts(one.resource, one.id, table) for one in now}
    assert all(parts == (deviceids.Part(gpu=key),) for key, parts in own.items())
    for former in (slot.Scheme.SLOTS, slot.Scheme.KATA):
        for one in slot.Naming(scheme=former).slots(ALL):
            assert deviceids.find_parts(one.resource, one.id, table) == (deviceids.Part(gpu=one.gpus[0].key),)


@pytest.mark.parametrize("alias", ["a/b", "-x", "0gpu", "a" * 64, "a\n", "--help", "ü"])
def test_an_alias_that_can_be_no_resources_name_is_refused(alias: str) -> None:
    with pytest.raises(errors.Invalid, match="vfio_alias"):
        slot.naming_of(NodeSettings(vfio="bound", vfio_names="kata", vfio_alias=alias))


@pytest.mark.parametrize("names", ["slots", "index", "kubevirt"])
def test_an_alias_by_which_no_resource_is_named_is_refused(names: str) -> None:
    with pytest.raises(errors.Invalid, match=f"with node.vfio_names={names} no resource is named by it"):
        slot.naming_of(NodeSettings(vfio="bound", vfio_names=names, vfio_alias="gpus"))
    assert slot.naming_of(NodeSettings(vfio="off", vfio_names=names, vfio_alias="gpus")) is None


@pytest.mark.parametrize("names", ["kata", "kubevirt"])
def test_switches_have_the_name_that_nvidias_plugins_take(names: str) -> None:
    chosen = NodeSettings(vfio="bound", vfio_names=names, vfio_switch_alias="GH100_NVSwitch")
    naming = slot.naming_of(chosen)
    assert naming is not None
    assert (naming.switches, slot.switch_resource(chosen)) == ("nvidia.com/GH100_NVSwitch", "nvidia.com/GH100_NVSwitch")
    plain = slot.naming_of(NodeSettings(vfio="bound", vfio_names=names))
    assert plain is not None
    assert plain.switches == "nvidia.com/nvswitch"


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        *(
            ({"vfio_switch_alias": alias}, 'node.vfio_switch_alias "')
            for alias in (
                "a/nvswitch",
                "-nvswitch",
                "nvswitch\n",
                "nvswitch" * 9,
                "--nvswitch",
                "nvswitch=1",
                "ünvswitch",
            )
        ),
        ({"vfio_switch_alias": "nvswitch\0"}, "is no name of a resource"),
        ({"vfio_switch_alias": "pgpu"}, 'node.vfio_switch_alias "pgpu" has no "nvswitch" in it'),
        ({"vfio_switch_alias": "gpu"}, 'node.vfio_switch_alias "gpu" has no "nvswitch" in it'),
        ({"vfio_switch_alias": "nvswitch2", "vfio_names": "slots"}, "node.vfio_names=slots is not the names"),
        ({"vfio_switch_alias": "nvswitch2", "vfio_names": "index"}, "node.vfio_names=index is not the names"),
        ({"vfio_switch_alias": "x", "vfio": "off"}, 'node.vfio_switch_alias "x"'),
        ({"vfio_alias": "NVSwitch"}, 'node.vfio_alias "NVSwitch" has "nvswitch" in it'),
    ],
)
def test_a_name_by_which_tenants_would_get_switches_is_refused(chosen: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.Invalid, match=says):
        slot.naming_of(NodeSettings(**{"vfio": "bound", "vfio_names": "kata", **chosen}))


def test_a_number_of_another_resource_is_no_slot() -> None:
    table = slotoffer.words(slot.Naming(scheme=slot.Scheme.INDEX).slots(ALL))
    assert deviceids.find_parts("squat.ai/fuse", "0", table) == ()


BOARD = tuple(gpu(at, module=module) for at, module in enumerate((5, 7, 2, 4)))


def test_partitions_are_slots_of_their_size_named_by_modules_with_every_node() -> None:
    found = slot.Naming().slots(BOARD, [(7, 5), (2, 4), (2, 4, 5, 7), (2, 3), (5,)])
    by_resource = slot.by_resource(found)
    assert {name: [one.id for one in items] for name, items in by_resource.items()} == {
        "nvidia.com/h100-sxm5-80gb-x1": ["x1-5", "x1-7", "x1-2", "x1-4"],
        "nvidia.com/h100-sxm5-80gb-x2": ["x2-5.7", "x2-2.4"],
        "nvidia.com/h100-sxm5-80gb-x4": ["x4-2.4.5.7"],
    }
    (four,) = by_resource["nvidia.com/h100-sxm5-80gb-x4"]
    assert [node.path for node in four.nodes] == ["/dev/vfio/vfio"] + [f"/dev/vfio/{at}" for at in (102, 103, 100, 101)]
    assert four.numa_node is None


def test_a_slot_of_several_is_one_device_that_names_each_gpu_and_is_ill_with_any() -> None:
    found = slot.Naming().slots((*BOARD[:3], dataclasses.replace(BOARD[3], problem="not viable")), [(2, 5), (4, 5)])
    ads, _ = slotoffer.plan_resources(found, {}, ())
    two = next(ad for ad in ads if ad.resource.endswith("-x2"))
    first, second = two.devices
    assert (first.id, first.gpus, first.is_healthy) == ("x2-2.5", (BOARD[2].key, BOARD[0].key), True)
    assert (second.id, second.is_healthy, second.reason) == ("x2-4.5", False, slotoffer.UNUSABLE)
    ill = {BOARD[0].key: health.Verdict(state=health.State.FAULTY, reason="Gone", message="gone")}
    ads, _ = slotoffer.plan_resources(found, ill, ())
    assert [one.reason for one in next(ad for ad in ads if ad.resource.endswith("-x2")).devices] == ["Gone", "Gone"]
    assert deviceids.find_parts(two.resource, "x2-2.5", slotoffer.words(found)) == (
        deviceids.Part(gpu=BOARD[2].key),
        deviceids.Part(gpu=BOARD[0].key),
    )


@pytest.mark.parametrize("scheme", ["index", "kata", "kubevirt"])
def test_names_of_others_have_none_for_several_gpus(scheme: str) -> None:
    found = slot.Naming(scheme=slot.Scheme(scheme)).slots(BOARD, [(2, 5)])
    assert {len(one.gpus) for one in found} == {1}


def test_a_partition_of_two_models_or_of_a_module_that_two_gpus_claim_is_no_slot() -> None:
    mixed = (*BOARD[:3], dataclasses.replace(BOARD[3], model="GB100 [B200]"))
    assert {len(one.gpus) for one in slot.Naming().slots(mixed, [(4, 5)])} == {1}
    twice = (*BOARD[:3], dataclasses.replace(BOARD[3], module=5))
    assert {len(one.gpus) for one in slot.Naming().slots(twice, [(2, 5)])} == {1}
