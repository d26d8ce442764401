"""A list of devices that a kubelet would not take is not sent: its GPUs say so instead."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fairlead.model import replica
from fairlead.model.device import Device
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node import withholding
from fairlead.node.inventory import latest
from fairlead.plan.gpu.offer.advertise import Advertisement
from fairlead.plan.sharing import replicate
from fairlead.wire.proto import deviceplugin_pb2 as pb

_LARGEST = 4 << 20


def _gpu(number: int) -> Device:
    uuid = f"GPU-0123abcd-0123-4567-89ab-{number:012}"
    name = f"nvidia.com/gpu={uuid}"
    return Device(id=DeviceID(uuid), cdi_name=name, gpu=GPUUUID(uuid), index=str(number), numa_node=1)


def _offered(gpus: int, replicas: int) -> Advertisement:
    devices = tuple(one for number in range(gpus) for one in replicate.replicas(_gpu(number), replicas))
    return Advertisement(resource="nvidia.com/gpu", vendor=Vendor.NVIDIA, devices=devices)


def _judge(ad: Advertisement) -> Any:
    class Quiet:
        problem, names, folder = None, frozenset(str(device.cdi_name) for device in ad.devices), "/"

    class Others:
        def problem(self, _resource: str, _device: Device) -> None: ...

    quiet = cast("Any", Quiet())
    one = withholding.Withholding(
        engine=quiet, conflicts=latest.Latest(()), specs=quiet, others=cast("Any", Others()), parts=(), mps=None
    )
    (found,), withheld = one.judge((ad,))
    return found, withheld


def test_as_many_replicas_of_one_gpu_as_a_file_may_ask_for_are_offered() -> None:
    ad = _offered(1, 16_384)
    assert _judge(ad) == (ad, {})


def test_a_list_beyond_what_a_kubelet_takes_is_kept_back_with_both_figures() -> None:
    ad = _offered(4, 16_384)
    found, withheld = _judge(ad)
    assert found.devices == ()
    assert {verdict.reason for verdict in withheld.values()} == {withholding.LIST_TOO_LARGE}
    (message,) = {verdict.message for verdict in withheld.values()}
    assert "65536 devices of nvidia.com/gpu" in message
    assert str(_LARGEST) in message


@pytest.mark.parametrize("is_healthy", [True, False])
def test_the_size_is_reckoned_at_no_less_than_it_is(*, is_healthy: bool) -> None:
    device = _gpu(3)
    name = replica.name(device.id, 16_383)
    health = "Healthy" if is_healthy else "Unhealthy"
    line = pb.Device(ID=name, health=health, topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=7)]))
    sent = pb.ListAndWatchResponse(devices=[line]).ByteSize()
    assert len(name) + withholding._LINE - 8 <= sent <= len(name) + withholding._LINE
