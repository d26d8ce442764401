"""Replicas of shared GPUs, as the live scheduler weighs nodes for pods that ask for several."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.model.device import Device
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu.allocation import choose
from fairlead.plan.gpu.offer.advertise import SharingRule
from fairlead.plan.schedule.topology import replicas
from fairlead.plan.sharing import replicate
from fairlead.wire.kubernetes import gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from tests.unit.plan.schedule.topology.test_topology import Cluster, node_object, pod

SHARED = "nvidia.com/gpu.shared"
_EACH = 4


def _gpu(node: str, index: int, held: Mapping[str, int], means: str) -> GPUDevice:
    spec = gpudevice.GPUDeviceSpec(
        node_name=node,
        index=index,
        minor=index,
        uuid=f"GPU-{node}-{index}",
        vendor="nvidia",
        product="H100",
        memory="80Gi",
        simulated=False,
        resource=SHARED,
        sharing=means,
        replicas=_EACH,
    )
    holders = tuple(
        gpudevice.Holder(
            namespace="default",
            pod=uid,
            pod_uid=uid,
            resource=SHARED,
            devices=tuple(f"GPU-{node}-{index}::{at}" for at in range(count)),
        )
        for uid, count in held.items()
    )
    status = gpudevice.GPUDeviceStatus(health=gpudevice.HEALTHY, holders=holders)
    return GPUDevice(metadata=meta.ObjectMeta(name=f"{node}-{index}"), spec=spec, status=status)


def _add(cluster: Cluster, node: str, *gpus: Mapping[str, int], means: str = "time-slicing") -> None:
    cluster.cache.note_node(node_object(node, **{SHARED: str(_EACH * len(gpus))}))
    for index, held in enumerate(gpus):
        cluster.cache.note_device(_gpu(node, index, held, means))
        for uid, count in held.items():
            cluster.cache.note_pod(pod(uid, count, node, SHARED))


def test_two_replicas_go_where_they_are_of_two_gpus() -> None:
    cluster = Cluster()
    _add(cluster, "one", {"a": 4}, {"b": 1})  # fuller, and three are free: all of the second GPU
    _add(cluster, "two", {"c": 1}, {"d": 1})
    found = cluster.ask(pod("new", 2, resource=SHARED))
    assert (found.node, found.devices) == ("two", "2 replicas can be of different GPUs there, 0, 1")


def test_two_replicas_of_mps_go_where_one_gpu_has_both() -> None:
    cluster = Cluster()
    _add(cluster, "apart", {"a": 3}, {"b": 3}, means="mps")
    _add(cluster, "whole", {"c": 1}, {}, means="mps")
    found = cluster.ask(pod("new", 2, resource=SHARED))
    assert (found.node, found.devices) == ("whole", "2 replicas can be of one GPU there, 1")


def test_one_replica_goes_where_the_policy_sends_it() -> None:
    cluster = Cluster()
    _add(cluster, "empty", {}, {})
    _add(cluster, "used", {"a": 2}, {})
    assert cluster.ask(pod("new", 1, resource=SHARED)).node == "used"


def test_replicas_that_were_placed_and_are_not_given_yet_count_and_those_of_who_is_gone_do_not() -> None:
    cluster = Cluster()
    _add(cluster, "a", {"gone": 4}, {"b": 3})
    cluster.cache.note_pod(pod("gone", 4, "a", SHARED), is_gone=True)
    cluster.cache.note_pod(pod("late", 2, "a", SHARED))
    cluster.ask(pod("new", 2, resource=SHARED))
    offer = cluster.cache.views["a"].devices[SHARED]
    assert isinstance(offer, replicas.FreeReplicas)
    assert [(one.index, one.free) for one in offer.gpus] == [(0, 3), (1, 0)]


def test_an_unhealthy_gpus_replicas_are_of_no_gpu() -> None:
    cluster = Cluster()
    _add(cluster, "a", {}, {})
    lost = _gpu("a", 1, {}, "time-slicing")
    cluster.cache.note_device(msgspec.structs.replace(lost, status=gpudevice.GPUDeviceStatus(health="Unhealthy")))
    cluster.cache.note_node(node_object("a", **{SHARED: str(_EACH)}))
    assert cluster.ask(pod("new", 2, resource=SHARED)).devices == "2 replicas can be of one GPU there, 0"


def test_more_placed_than_is_free_says_nothing_of_devices() -> None:
    cluster = Cluster()
    _add(cluster, "a", {"b": 3})
    cluster.cache.note_pod(pod("late", 2, "a", SHARED))
    cluster.cache.changes()
    assert SHARED not in cluster.cache.views["a"].devices


_UNITS = {
    unit.id: unit
    for index in range(4)
    for unit in replicate.replicas(
        Device(id=DeviceID(f"GPU-{index}"), cdi_name=f"nvidia.com/gpu=GPU-{index}", gpu=GPUUUID(f"GPU-{index}")), _EACH
    )
}


@pytest.mark.parametrize("is_one_gpu", [False, True])
@settings(max_examples=50)
@given(st.lists(st.integers(0, _EACH), min_size=4, max_size=4), st.integers(1, 6))
def test_what_is_foretold_is_what_the_device_plugin_gives(is_one_gpu: bool, free: list[int], count: int) -> None:
    gpus = tuple(replicas.Shared(at, _EACH, left) for at, left in enumerate(free))
    told = replicas.chosen(gpus, count, is_one_gpu=is_one_gpu)
    able = max(free) >= count if is_one_gpu else sum(free) >= count
    assert bool(told) == able
    if able:
        left = tuple(DeviceID(f"GPU-{index}::{unit}") for index, one in enumerate(free) for unit in range(one))
        rule = dataclasses.replace(
            SharingRule(), means="mps" if is_one_gpu else "time-slicing", needs_one_gpu=is_one_gpu
        )
        given_ids = choose.choose_devices(left, (), count, devices=_UNITS, topology=choose.Topology(), rule=rule)
        taken = [int(name.partition("::")[0].removeprefix("GPU-")) for name in given_ids]
        assert {one.index for one in told} == set(taken)
        after = replicas.place(gpus, count, is_one_gpu=is_one_gpu)
        assert after is not None
        assert [one.free for one in after] == [left - taken.count(at) for at, left in enumerate(free)]
