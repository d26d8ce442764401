"""MIG devices and replicas at the plugin: each is answered as what it is, in every strategy, never as its GPU."""

from __future__ import annotations

import json

import pytest
from google.protobuf.json_format import MessageToDict

from fairlead import errors
from fairlead.model.device import Device
from fairlead.model.driver import DeviceNode
from fairlead.model.gpu import Vendor
from fairlead.node.deviceplugin import plugin as deviceplugin
from fairlead.node.trace import steps
from fairlead.plan.gpu.allocation import answer, choose
from fairlead.plan.gpu.allocation.answer import Strategy
from fairlead.plan.gpu.offer import advertise
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests import devices

RESOURCE = "nvidia.com/mig-1g.10gb"
CAPS = "/dev/nvidia-caps/nvidia-cap"
MIGS = tuple(
    devices.mig(
        f"MIG-{gpu}{place}",
        on=f"GPU-{gpu}",
        index=f"{gpu}:{place}",
        nodes=(f"/dev/nvidia{gpu}", f"{CAPS}{gpu}{place}"),
    )
    for gpu in range(2)
    for place in range(2)
)
NODES = [
    DeviceNode(path=path, host_path=path, major=1, minor=1, mode=0o666)
    for path in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", *(f"{CAPS}{n}" for n in ("00", "01", "10", "11")))
]


def plugin(*offered: Device, way: answer.AllocateOptions = answer.DEFAULT) -> deviceplugin.Plugin:
    made = deviceplugin.Plugin(RESOURCE, allocate_options=way)
    advertised = advertise.Advertisement(resource=RESOURCE, vendor=Vendor.NVIDIA, devices=offered)
    made.update(advertised, choose.Topology(), nodes=NODES)
    return made


async def allocate(served: deviceplugin.Plugin, *ids: str) -> pb.ContainerAllocateResponse:
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
    return (await served.allocate(request)).container_responses[0]


@pytest.mark.parametrize("ids", answer.ID_STRATEGIES)
@pytest.mark.parametrize("strategy", Strategy)
async def test_sibling_mig_devices_are_answered_each_as_itself(strategy: Strategy, ids: str) -> None:
    way = answer.AllocateOptions(strategies=frozenset({strategy}), ids=ids)
    made = await allocate(plugin(*MIGS, way=way), "MIG-01", "MIG-00")
    words = ["0:0", "0:1"] if ids == "index" else ["MIG-00", "MIG-01"]
    named = {
        Strategy.CDI_CRI: list(wire.cdi_names(made)),
        Strategy.CDI_ANNOTATIONS: list(wire.cdi_names(made)),
        Strategy.ENVVAR: made.envs.get("NVIDIA_VISIBLE_DEVICES", "").split(","),
        Strategy.VOLUME_MOUNTS: [mount.container_path.rpartition("/")[2] for mount in made.mounts],
    }[strategy]
    is_cdi = strategy in answer.CDI
    assert named == [f"fairlead.dev/gpu={word}" if is_cdi else word for word in words]
    assert "GPU-" not in json.dumps(MessageToDict(made))


@pytest.mark.parametrize("strategy", Strategy)
async def test_replicas_of_a_mig_device_are_that_device_once(strategy: Strategy) -> None:
    shared = tuple(devices.replicated(mig, n) for mig in MIGS for n in range(2))
    way = answer.AllocateOptions(strategies=frozenset({strategy}))
    made = MessageToDict(await allocate(plugin(*shared, way=way), "MIG-10::1", "MIG-10::0"))
    assert made == MessageToDict(await allocate(plugin(*MIGS, way=way), "MIG-10"))


async def test_device_specs_are_those_of_the_mig_device_and_no_siblings() -> None:
    way = answer.AllocateOptions(passes_device_specs=True)
    made = await allocate(plugin(*MIGS, way=way), "MIG-01")
    assert [spec.container_path for spec in made.devices] == ["/dev/nvidiactl", "/dev/nvidia0", f"{CAPS}01"]


async def test_one_ill_mig_device_leaves_its_sibling_to_be_given() -> None:
    ill = devices.mig("MIG-00", on="GPU-0", is_healthy=False, reason="XID79")
    served = plugin(ill, *MIGS[1:])
    with pytest.raises(errors.DeviceFault, match="XID79"):
        await allocate(served, "MIG-00")
    assert wire.cdi_names(await allocate(served, "MIG-01")) == ("fairlead.dev/gpu=MIG-01",)


async def test_preferred_mig_devices_are_spread_over_gpus_and_named_as_themselves() -> None:
    asked = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=[device.id for device in MIGS], allocation_size=2
    )
    served = plugin(*MIGS)
    made = await served.preferred_allocation(pb.PreferredAllocationRequest(container_requests=[asked]))
    assert list(made.container_responses[0].deviceIDs) == ["MIG-00", "MIG-10"]


async def test_the_trace_says_what_was_answered() -> None:
    made = await allocate(plugin(*MIGS), "MIG-01")
    step = steps.allocated("main", RESOURCE, made, wire.cdi_names(made), at=0, duration_s=None)
    said = step.facts["answer"]
    assert isinstance(said, dict)
    assert said["cdi_devices"] == ["fairlead.dev/gpu=MIG-01"]


async def test_nothing_is_allocated_while_the_engine_may_ignore_it_and_the_next_step_is_said() -> None:
    served = plugin(*MIGS)
    served.refusal = answer.find_problem(answer.DEFAULT, ())
    for _ in range(2):
        with pytest.raises(errors.Unavailable, match="it is not known which container engine") as caught:
            await allocate(served, "MIG-00")
        assert caught.value.reason == "EngineUnknown"
        assert "FAIRLEAD_NODE_ENGINE" in (caught.value.hint or "")
    served.refusal = answer.find_problem(answer.DEFAULT, ("containerd://2.2.1",))
    assert wire.cdi_names(await allocate(served, "MIG-00")) == ("fairlead.dev/gpu=MIG-00",)
