"""Parts of GPUs by amounts of compute and memory, as the live scheduler weighs nodes for them."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.model.device import Device
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu.allocation import choose
from fairlead.plan.gpu.offer.advertise import SharingRule
from fairlead.plan.schedule.topology import amounts
from fairlead.plan.sharing import replicate
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.nvidia.pluginconfig import MPS_CORE, MPS_MEMORY
from tests.unit.plan.schedule.topology.test_topology import Cluster, node_object

_WHOLE = (100, 80)


def _pod(uid: str, percent: int, gib: int, node: str = "") -> core.Pod:
    wanted = {MPS_CORE: percent, MPS_MEMORY: gib}
    resources = core.ResourceRequirements(limits=wanted, requests=wanted)
    spec = core.PodSpec(containers=(core.Container(name="c", image="i", resources=resources),), node_name=node)
    return core.Pod(metadata=meta.ObjectMeta(name=uid, namespace="default", uid=uid), spec=spec)


def _gpu(node: str, index: int, held: Mapping[str, tuple[int, int]]) -> GPUDevice:
    spec = gpudevice.GPUDeviceSpec(
        node_name=node,
        index=index,
        minor=index,
        uuid=f"GPU-{node}-{index}",
        vendor="nvidia",
        product="H100",
        memory="80Gi",
        simulated=False,
        resource=MPS_CORE,
        sharing="mps",
        replicas=100,
    )
    holders = tuple(
        gpudevice.Holder(
            namespace="default",
            pod=uid,
            pod_uid=uid,
            resource=name,
            devices=tuple(f"GPU-{node}-{index}::{at}" for at in range(units)),
        )
        for uid, part in held.items()
        for name, units in zip((MPS_CORE, MPS_MEMORY), part, strict=True)
    )
    status = gpudevice.GPUDeviceStatus(health=gpudevice.HEALTHY, holders=holders)
    return GPUDevice(metadata=meta.ObjectMeta(name=f"{node}-{index}"), spec=spec, status=status)


def _add(cluster: Cluster, node: str, *gpus: Mapping[str, tuple[int, int]]) -> None:
    offered = {MPS_CORE: str(100 * len(gpus)), MPS_MEMORY: str(80 * len(gpus))}
    cluster.cache.note_node(node_object(node, **offered))
    for index, held in enumerate(gpus):
        cluster.cache.note_device(_gpu(node, index, held))
        for uid, part in held.items():
            cluster.cache.note_pod(_pod(uid, *part, node))


def test_a_part_goes_where_one_gpu_has_both_amounts_and_not_where_two_have_them_together() -> None:
    cluster = Cluster()
    _add(cluster, "apart", {"a": (60, 50)}, {"b": (60, 50)})  # 80 % and 60 GiB free, 40 and 30 of each: fuller, too
    _add(cluster, "one", {}, {})
    found = cluster.ask(_pod("new", 50, 40))
    assert found.node == "one"
    assert found.devices == "GPU 0 has 50% and 40 GiB free there, and keeps 50% and 40 GiB"


def test_a_part_goes_to_the_gpu_that_it_fills_evenly() -> None:
    cluster = Cluster()
    _add(cluster, "a-memory", {"a": (10, 60)})  # would keep 40 % of its compute without any memory
    _add(cluster, "even", {"b": (50, 60)})
    assert cluster.ask(_pod("new", 50, 20)).node == "even"


def test_a_part_that_was_placed_and_has_no_units_yet_is_counted() -> None:
    cluster = Cluster()
    _add(cluster, "a", {})
    _add(cluster, "b", {"x": (50, 40)})
    cluster.cache.note_pod(_pod("late", 60, 20, "a"))
    assert cluster.ask(_pod("new", 50, 40)).node == "b"


def test_units_of_a_pod_that_is_gone_are_free() -> None:
    cluster = Cluster()
    _add(cluster, "a", {"gone": (90, 70)})
    _add(cluster, "b", {"x": (20, 20)})
    cluster.cache.note_pod(_pod("gone", 90, 70, "a"), is_gone=True)
    cluster.ask(_pod("new", 50, 40))
    offer = cluster.cache.views["a"].devices[MPS_CORE]
    assert isinstance(offer, amounts.FreeAmounts)
    assert offer.gpus[0].free == _WHOLE


def _device(index: int) -> Device:
    return Device(id=DeviceID(f"GPU-{index}"), cdi_name=f"nvidia.com/gpu=GPU-{index}", gpu=GPUUUID(f"GPU-{index}"))


_UNITS = tuple(
    {unit.id: unit for index in range(3) for unit in replicate.replicas(_device(index), most)} for most in _WHOLE
)
_free = st.tuples(st.integers(0, 100), st.integers(0, 80))


@settings(max_examples=20)
@given(st.lists(_free, min_size=1, max_size=3), st.tuples(st.integers(1, 100), st.integers(1, 80)))
def test_what_is_foretold_is_what_the_device_plugin_begins_with(free: list[amounts.Part], part: amounts.Part) -> None:
    gpus = tuple(amounts.Shared(at, _WHOLE, one) for at, one in enumerate(free))
    begun = {one.index for one in amounts.chosen(gpus, part)}
    plugin = set()
    for at in (0, 1):
        left = tuple(DeviceID(f"GPU-{index}::{unit}") for index, one in enumerate(free) for unit in range(one[at]))
        rule = SharingRule(means=replicate.MPS, packs=True, needs_one_gpu=True)
        if any(one[at] >= part[at] for one in free):
            got = choose.choose_devices(left, (), part[at], devices=_UNITS[at], topology=choose.Topology(), rule=rule)
            plugin |= {int(name.partition("::")[0].removeprefix("GPU-")) for name in got}
    assert begun == plugin


@given(st.lists(_free, min_size=1, max_size=4), st.tuples(st.integers(1, 100), st.integers(1, 80)))
def test_a_part_is_worth_something_only_where_each_gpu_that_may_be_chosen_has_both(
    free: list[amounts.Part], part: amounts.Part
) -> None:
    offer = amounts.FreeAmounts(tuple(amounts.Shared(at, _WHOLE, one) for at, one in enumerate(free)))
    worth = offer.worth(amounts.joined({MPS_CORE: part[0] * 1000, MPS_MEMORY: part[1] * 1000}, 1000))
    assert worth is not None
    assert 0 <= worth <= amounts.BEST
    if not any(one[0] >= part[0] and one[1] >= part[1] for one in free):
        assert worth == 0
