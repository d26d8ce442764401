"""Allocate's answer in every device-list strategy, and what our own runtime reads out of it again."""

from __future__ import annotations

import itertools

import pytest
from google.protobuf.json_format import MessageToDict

from fairlead import errors
from fairlead.model.device import Device
from fairlead.model.driver import DeviceNode
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu.allocation import answer, companion
from fairlead.plan.gpu.allocation.answer import Strategy
from fairlead.plan.shim import request
from fairlead_cdi import annotation
from tests import devices

TWO = tuple(
    devices.gpu(f"GPU-{letter}", index=str(index), nodes=(f"/dev/nvidia{index}",))
    for index, letter in ((1, "a"), (3, "b"))
)
NODES = {
    path: DeviceNode(path=path, host_path=f"/root{path}", major=195, minor=0, mode=0o666)
    for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia3", "/dev/kfd")
}


def given(*strategies: Strategy, vendor: Vendor = Vendor.NVIDIA, **more: object) -> dict[str, object]:
    way = answer.AllocateOptions(strategies=frozenset(strategies), **more)  # type: ignore[arg-type]  # fields of a way by name
    return MessageToDict(answer.plan_answer(TWO, resource="r", vendor=vendor, options=way, nodes=NODES))


def test_the_default_is_the_field_made_for_it_and_nothing_else() -> None:
    made = MessageToDict(
        answer.plan_answer(TWO, resource="r", vendor=Vendor.NVIDIA, options=answer.DEFAULT, nodes=NODES)
    )
    assert made == {"cdiDevices": [{"name": "fairlead.dev/gpu=GPU-a"}, {"name": "fairlead.dev/gpu=GPU-b"}]}


def test_annotations_carry_the_same_names_under_a_key_that_is_always_the_same() -> None:
    made = given(Strategy.CDI_ANNOTATIONS)
    assert made.keys() == {"annotations"}
    (notes,) = made.values()
    assert isinstance(notes, dict)
    assert annotation.parse_annotations(notes)[1] == ("fairlead.dev/gpu=GPU-a", "fairlead.dev/gpu=GPU-b")
    assert given(Strategy.CDI_ANNOTATIONS) == made
    other = answer.AllocateOptions(strategies=frozenset({Strategy.CDI_ANNOTATIONS}))
    of_other = answer.plan_answer(TWO, resource="s", vendor=Vendor.NVIDIA, options=other, nodes={})
    assert not notes.keys() & of_other.annotations.keys()


def test_the_environment_names_them() -> None:
    assert given(Strategy.ENVVAR) == {"envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}}


def test_mounts_of_nothing_name_them() -> None:
    root = "/var/run/nvidia-container-devices"
    assert given(Strategy.VOLUME_MOUNTS) == {
        "envs": {"NVIDIA_VISIBLE_DEVICES": root},
        "mounts": [
            {"containerPath": f"{root}/GPU-{letter}", "hostPath": "/dev/null", "readOnly": True} for letter in "ab"
        ],
    }


def test_an_index_may_stand_for_the_uuid_where_it_is_known() -> None:
    assert given(Strategy.ENVVAR, ids="index") == {"envs": {"NVIDIA_VISIBLE_DEVICES": "1,3"}}
    way = answer.AllocateOptions(ids="index")
    nameless = devices.gpu("GPU-c")
    made = answer.plan_answer([nameless], resource="r", vendor=Vendor.NVIDIA, options=way, nodes={})
    assert [device.name for device in made.cdi_devices] == ["fairlead.dev/gpu=GPU-c"]


def test_a_replica_is_named_as_its_gpu() -> None:
    replica = devices.replicated(devices.gpu("GPU-a"), 3)
    made = answer.plan_answer([replica], resource="r", vendor=Vendor.NVIDIA, options=answer.DEFAULT, nodes={})
    assert [device.name for device in made.cdi_devices] == ["fairlead.dev/gpu=GPU-a"]


def test_device_nodes_are_listed_once_each_with_those_that_all_share() -> None:
    made = given(Strategy.CDI_CRI, passes_device_specs=True)
    assert made["devices"] == [
        {"containerPath": path, "hostPath": f"/root{path}", "permissions": "rw"}
        for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidia3")
    ]


@pytest.mark.parametrize("count", range(1, 5))
def test_other_vendors_devices_go_by_cdi_whatever_is_chosen(count: int) -> None:
    for chosen in itertools.combinations(Strategy, count):
        made = given(*chosen, vendor=Vendor.AMD)
        assert made.keys() <= {"cdiDevices", "annotations"}
        assert made


def test_nothing_granted_is_nothing_answered() -> None:
    ways = answer.AllocateOptions(strategies=frozenset(Strategy), passes_device_specs=True)
    assert MessageToDict(answer.plan_answer([], resource="r", vendor=Vendor.NVIDIA, options=ways, nodes=NODES)) == {}


class _Open(request.Policy):
    image_requests = "honour"
    accepts_volume_mounts = True


@pytest.mark.parametrize("strategy", [Strategy.CDI_ANNOTATIONS, Strategy.ENVVAR, Strategy.VOLUME_MOUNTS])
@pytest.mark.parametrize("ids", answer.ID_STRATEGIES)
def test_our_runtime_reads_the_same_devices_out_of_it(strategy: Strategy, ids: str) -> None:
    way = answer.AllocateOptions(strategies=frozenset({strategy}), ids=ids)
    made = answer.plan_answer(TWO, resource="r", vendor=Vendor.NVIDIA, options=way, nodes={})
    container = request.Container(
        env=dict(made.envs),
        annotations=dict(made.annotations),
        mounts=[mount.container_path for mount in made.mounts],
        is_privileged=False,
    )
    names = ["1", "3"] if ids == "index" else ["GPU-a", "GPU-b"]
    asked = tuple(f"fairlead.dev/gpu={name}" for name in names)
    defined: dict[str, object] = dict.fromkeys(asked)
    assert request.resolve(request.decide(container, _Open()), _Open(), defined) == asked


@pytest.mark.parametrize(
    ("text", "strategies"),
    [
        ("cdi-cri", {Strategy.CDI_CRI}),
        (" envvar , cdi-annotations,", {Strategy.ENVVAR, Strategy.CDI_ANNOTATIONS}),
    ],
)
def test_strategies_are_read_from_a_list(text: str, strategies: set[Strategy]) -> None:
    assert answer.parse_strategies(text) == strategies


@pytest.mark.parametrize("text", ["", " , ", "cdi", "envvar;cdi-cri"])
def test_a_strategy_that_there_is_not_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(errors.Invalid, match="offered: cdi-cri, cdi-annotations, envvar, volume-mounts"):
        answer.parse_strategies(text)


@pytest.mark.parametrize(
    ("strategies", "passes_specs", "runtimes", "is_refused"),
    [
        ("cdi-cri", False, "containerd://1.6.36", True),
        ("cdi-annotations,cdi-cri", False, "containerd://1.6.36", True),
        ("cdi-cri", False, "containerd://1.7.0", False),
        ("cdi-cri", False, "cri-o://1.22.3", True),
        ("cdi-cri", False, "unheard-of://0.1", False),
        ("cdi-cri", False, "", True),
        ("cdi-cri,cdi-annotations", False, "", True),
        ("cdi-cri", False, "containerd://2.2.1 containerd://1.6.36", True),
        ("cdi-cri", False, "containerd://2.2.1 cri-o://1.34.0", False),
        ("envvar", False, "", False),
        ("cdi-cri", True, "", False),
        ("envvar", False, "containerd://1.6.36", False),
        ("cdi-cri,volume-mounts", False, "containerd://1.6.36", False),
        ("cdi-cri", True, "containerd://1.6.36", False),
    ],
)
def test_an_engine_that_ignores_names_or_that_nobody_names_is_a_problem_where_names_alone_are_answered(
    strategies: str, passes_specs: bool, runtimes: str, is_refused: bool
) -> None:
    way = answer.AllocateOptions(strategies=answer.parse_strategies(strategies), passes_device_specs=passes_specs)
    assert (answer.find_problem(way, runtimes.split()) is not None) is is_refused


EVERYTHING = companion.Wanted(modes=("gdrcopy", "gds", "mofed"), channels=(0, 1))
BESIDE = {
    **NODES,
    **{
        path: DeviceNode(path=path, host_path=path, major=240, minor=0, mode=0o666)
        for path in ("/dev/gdrdrv", "/dev/nvidia-fs0", "/dev/nvidia-caps-imex-channels/channel0")
    },
}


def with_companions(*strategies: Strategy, vendor: Vendor = Vendor.NVIDIA) -> dict[str, object]:
    way = answer.AllocateOptions(strategies=frozenset(strategies), beside=EVERYTHING)
    return MessageToDict(answer.plan_answer(TWO, resource="r", vendor=vendor, options=way, nodes=BESIDE))


def test_what_the_machine_has_beside_its_gpus_is_given_and_the_rest_left_out() -> None:
    assert with_companions(Strategy.CDI_CRI)["cdiDevices"] == [
        {"name": name}
        for name in (
            "fairlead.dev/gpu=GPU-a",
            "fairlead.dev/gpu=GPU-b",
            "fairlead.dev/gdrcopy=all",
            "fairlead.dev/gds=all",
            "fairlead.dev/imex-channel=0",
        )
    ]
    assert with_companions(Strategy.ENVVAR) == {
        "envs": {
            "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
            "NVIDIA_GDRCOPY": "enabled",
            "NVIDIA_GDS": "enabled",
            "NVIDIA_IMEX_CHANNELS": "0",
        }
    }
    mounts = with_companions(Strategy.VOLUME_MOUNTS)["mounts"]
    assert isinstance(mounts, list)
    assert mounts[-1]["containerPath"] == "/var/run/nvidia-container-devices/imex/0"
    assert with_companions(Strategy.CDI_CRI, vendor=Vendor.AMD) == given(Strategy.CDI_CRI, vendor=Vendor.AMD)


def test_a_channel_that_is_required_and_absent_is_refused_by_its_number() -> None:
    wanted = companion.Wanted(channels=(0, 1), requires_channels=True)
    way = answer.AllocateOptions(beside=wanted)
    with pytest.raises(errors.Unavailable, match="IMEX channel 1 is required and not on this node"):
        answer.plan_answer(TWO, resource="r", vendor=Vendor.NVIDIA, options=way, nodes=BESIDE)


def _slot(name: str) -> Device:
    nodes = ("/dev/vfio/vfio", "/dev/vfio/12")
    return Device(id=DeviceID(name), cdi_name=f"nvidia.com/pgpu={name}", gpu=GPUUUID("pcie-1"), slot=name, nodes=nodes)


def test_a_slot_is_named_by_resource_and_id_whatever_the_strategy() -> None:
    options = answer.AllocateOptions(strategies=frozenset({Strategy.ENVVAR}), ids="index")
    given = answer.plan_answer(
        [_slot("x1-5")], resource="nvidia.com/pgpu", vendor=Vendor.NVIDIA, options=options, nodes={}
    )
    assert [one.name for one in given.cdi_devices] == ["nvidia.com/pgpu=x1-5"]
    assert dict(given.envs) == {}


def test_a_slot_that_is_named_by_its_address_is_told_to_kubevirts_launcher() -> None:
    resource = "nvidia.com/GH100_H100_SXM5_80GB"
    made = answer.plan_answer(
        [_slot("0000:0f:00.0")], resource=resource, vendor=Vendor.NVIDIA, options=answer.DEFAULT, nodes={}
    )
    assert dict(made.envs) == {"PCI_RESOURCE_NVIDIA_COM_GH100_H100_SXM5_80GB": "0000:0f:00.0"}
