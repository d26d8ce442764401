"""Which GPUDevices a node should have: lost is not gone, and a silent driver takes nothing away."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from fairlead.model.gpu import GPU, Driver, Inventory, Link, LinkKind, MIGDevice, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.gpu import gpudevice as planner
from fairlead.plan.gpu import health
from fairlead.plan.gpu.offer import advertise
from fairlead.wire.kubernetes import gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from tests import devices

NODE = "worker-1"
NVIDIA = Driver(vendor=Vendor.NVIDIA, version="550.163.01", cuda_version=(12, 4))
FAULTY = health.Verdict(state=health.State.FAULTY, reason="XID79", message="XID 79")


def gpu(index: int, **changes: object) -> GPU:
    facts: dict[str, object] = {
        "uuid": GPUUUID(f"GPU-{index}A"),
        "index": index,
        "minor": index + 4,
        "pci_bus_id": f"0000:0{index}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 81559 << 20,
        "compute_capability": (9, 0),
        "brand": "nvidia",
        "numa_node": 0,
        "mig_capable": True,
    }
    return GPU(**{**facts, **changes})  # type: ignore[arg-type]  # facts of a GPU by name


def lost(index: int, *, uuid: bool = True, pci: bool = True) -> UnreadableGPU:
    return UnreadableGPU(
        index=index,
        pci_bus_id=f"0000:0{index}:00.0" if pci else None,
        uuid=GPUUUID(f"GPU-{index}A") if uuid else None,
        reason="Lost",
        message="gone",
    )


def machine(*gpus: GPU, gone: Iterable[UnreadableGPU] = (), drivers: tuple[Driver, ...] = (NVIDIA,)) -> Inventory:
    return Inventory(gpus=gpus, unreadable=tuple(gone), drivers=drivers)


def plan(
    inventory: Inventory,
    *,
    kept: Iterable[GPUDevice] = (),
    known: Iterable[GPU] = (),
    problem: str = "",
    verdicts: dict[GPUUUID, health.Verdict] | None = None,
) -> dict[str, planner.Wanted]:
    return planner.plan_devices(
        NODE,
        inventory,
        verdicts=verdicts or {},
        known={one.uuid: one for one in known},
        problem=problem,
        kept=kept,
    )


def objects(inventory: Inventory) -> list[GPUDevice]:
    return [
        GPUDevice(metadata=meta.ObjectMeta(name=name, generation=1), spec=wanted.spec)
        for name, wanted in plan(inventory).items()
    ]


def healths(wanted: dict[str, planner.Wanted]) -> dict[str, tuple[str, str]]:
    return {name: (one.health, one.reason) for name, one in wanted.items()}


def test_a_reading_becomes_the_facts_of_an_object() -> None:
    spec = plan(machine(gpu(0, mig_enabled=True, serial="42")))["gpu-0a"].spec
    assert msgspec.to_builtins(spec) == {
        "nodeName": NODE,
        "index": 0,
        "minor": 4,
        "uuid": "GPU-0A",
        "vendor": "nvidia",
        "product": "NVIDIA H100 80GB HBM3",
        "memory": "81559Mi",
        "simulated": False,
        "pciBusID": "0000:00:00.0",
        "numaNode": 0,
        "computeCapability": "9.0",
        "brand": "nvidia",
        "driverVersion": "550.163.01",
        "cudaVersion": "12.4",
        "migMode": "Enabled",
        "serial": "42",
        "nodeIndex": f"{NODE}/0",
    }


def test_an_object_says_how_the_gpu_reaches_the_others_and_where_its_mig_devices_stand() -> None:
    part = MIGDevice(
        uuid=MIGUUID("MIG-1"),
        index=3,
        profile="1g.10gb",
        gpu_instance=7,
        compute_instance=1,
        placement_start=6,
        placement_size=1,
        memory_bytes=9984 << 20,
    )
    there = gpu(0), gpu(1), gpu(2, mig_enabled=True, mig_devices=(part,))
    joined = Link(a=there[0].uuid, b=there[1].uuid, kind=LinkKind.NVLINK, lanes=12)
    apart = tuple(Link(a=one.uuid, b=there[2].uuid, kind=LinkKind.SYSTEM) for one in there[:2])
    found = planner.plan_devices(
        NODE,
        Inventory(gpus=there, links=(*apart, joined), drivers=(NVIDIA,)),
        verdicts={},
        known={},
        problem="",
        kept=(),
        mig={MIGUUID("MIG-1"): "nvidia.com/mig-1g.10gb"},
    )
    specs = {one.spec.index: one.spec for one in found.values()}
    assert specs[0].links == (
        gpudevice.GPULink(kind="NV", lanes=12, gpus=("0000:01:00.0",)),
        gpudevice.GPULink(kind="SYS", gpus=("0000:02:00.0",)),
    )
    assert specs[2].links == (gpudevice.GPULink(kind="SYS", gpus=("0000:00:00.0", "0000:01:00.0")),)
    slot = gpudevice.MIGSlice(
        uuid="MIG-1",
        profile="1g.10gb",
        start=6,
        size=1,
        resource="nvidia.com/mig-1g.10gb",
        index=3,
        gpu_instance=7,
        compute_instance=1,
        memory="9984Mi",
    )
    assert specs[2].mig_devices == (slot,)


def test_verdicts_decide_about_health() -> None:
    suspect = health.Verdict(state=health.State.SUSPECT, reason="TemperatureHigh", message="96 C")
    wanted = plan(machine(gpu(0), gpu(1), gpu(2)), verdicts={GPUUUID("GPU-1A"): FAULTY, GPUUUID("GPU-2A"): suspect})
    assert healths(wanted) == {
        "gpu-0a": ("Healthy", ""),
        "gpu-1a": ("Unhealthy", "XID79"),
        "gpu-2a": ("Healthy", ""),  # offered still
    }


def test_a_lost_gpu_keeps_its_facts_and_the_cause_of_its_fault() -> None:
    one = machine(gpu(0), gone=[lost(1)])
    assert healths(plan(one, known=[gpu(1)])) == {"gpu-0a": ("Healthy", ""), "gpu-1a": ("Lost", "Lost")}
    wanted = plan(one, known=[gpu(1)], verdicts={GPUUUID("GPU-1A"): FAULTY})
    assert (wanted["gpu-1a"].reason, wanted["gpu-1a"].spec.minor) == ("XID79", 5)


@pytest.mark.parametrize("gone", [lost(1), lost(1, uuid=False)], ids=["by uuid", "by address"])
def test_an_agent_that_began_after_the_loss_finds_the_gpu_by_its_object(gone: UnreadableGPU) -> None:
    kept = objects(machine(gpu(0), gpu(1)))
    wanted = plan(machine(gpu(0), gone=[gone]), kept=kept)
    assert healths(wanted)["gpu-1a"] == ("Lost", "Lost")
    assert wanted["gpu-1a"].spec == kept[1].spec


def test_a_gpu_that_nobody_can_name_takes_no_object_away() -> None:
    wanted = plan(machine(gpu(0), gone=[lost(1, uuid=False, pci=False)]), kept=objects(machine(gpu(0), gpu(1))))
    assert healths(wanted)["gpu-1a"] == ("Lost", planner.SILENT_REASON)


def test_a_gpu_that_was_taken_out_has_no_object_any_more() -> None:
    assert set(plan(machine(gpu(0)), kept=objects(machine(gpu(0), gpu(1))))) == {"gpu-0a"}


@pytest.mark.parametrize("problem", ["driver not loaded", ""])
def test_without_a_driver_every_gpu_is_lost_and_none_is_gone(problem: str) -> None:
    wanted = plan(machine(drivers=()), problem=problem, kept=objects(machine(gpu(0), gpu(1))))
    assert {health for health, _ in healths(wanted).values()} == {"Lost"}
    assert len(wanted) == 2


def test_another_vendors_driver_says_nothing_about_these() -> None:
    amd = Driver(vendor=Vendor.AMD, version="6.10")
    radeon = gpu(0, uuid=GPUUUID("0000:0c:00.0"), vendor=Vendor.AMD)
    wanted = plan(machine(radeon, drivers=(amd,)), kept=objects(machine(gpu(0))))
    assert healths(wanted) == {
        "worker-1.0000-0c-00.0": ("Healthy", ""),
        "gpu-0a": ("Lost", planner.SILENT_REASON),
    }


def test_simulated_objects_go_when_the_silicon_is_real() -> None:
    simulated = msgspec.structs.replace(objects(machine(gpu(7)))[0], metadata=meta.ObjectMeta(name="worker-1.gpu-7a"))
    simulated = msgspec.structs.replace(simulated, spec=msgspec.structs.replace(simulated.spec, simulated=True))
    assert set(plan(machine(gpu(0), gone=[lost(1, uuid=False, pci=False)]), kept=[simulated])) == {"gpu-0a"}


@pytest.mark.parametrize(
    ("uuid", "simulated", "name"),
    [
        ("GPU-6E1F-AB", False, "gpu-6e1f-ab"),
        ("GPU-6E1F-AB", True, "node.example.gpu-6e1f-ab"),
        ("0000:C1:00.0", False, "node.example.0000-c1-00.0"),
    ],
)
def test_names_are_unique_in_the_cluster(uuid: str, simulated: bool, name: str) -> None:
    assert gpudevice.object_name(uuid, "node.example", simulated=simulated) == name


def test_the_longest_node_name_still_gives_a_name() -> None:
    name = gpudevice.object_name(f"GPU-{'a' * 36}", "n" * 253, simulated=True)
    assert len(name) <= 253


# status

HEALTHY = planner.Wanted(spec=objects(machine(gpu(0)))[0].spec, health="Healthy")
BROKEN = planner.Wanted(spec=HEALTHY.spec, health="Unhealthy", reason="XID79", message="XID 79")


def told(device: GPUDevice, wanted: planner.Wanted, now: str) -> GPUDevice:
    return planner.with_status(device, wanted, now=now)


def test_the_condition_says_since_when() -> None:
    device = told(objects(machine(gpu(0)))[0], HEALTHY, "t1")
    device = told(device, BROKEN, "t2")
    device = told(device, planner.Wanted(spec=HEALTHY.spec, health="Lost", reason="Lost", message="gone"), "t3")
    (condition,) = device.status.conditions
    assert (condition.status, condition.reason, condition.last_transition_time) == ("False", "Lost", "t2")
    (condition,) = told(device, HEALTHY, "t4").status.conditions
    assert (condition.status, condition.reason, condition.last_transition_time) == ("True", "Healthy", "t4")


def test_what_others_say_in_the_status_stays() -> None:
    device = objects(machine(gpu(0)))[0]
    holder = gpudevice.Holder(namespace="team", pod="train")
    other = meta.Condition(type="Verified", status="True")
    status = gpudevice.GPUDeviceStatus(health="Unknown", holders=(holder,), conditions=(other,))
    changed = told(msgspec.structs.replace(device, status=status), BROKEN, "t1").status
    assert changed.holders == (holder,)
    assert changed.conditions[0] == other
    assert (changed.health, changed.message) == ("Unhealthy", "XID 79")


def test_a_reading_in_the_message_alone_is_no_news_but_another_generation_is() -> None:
    device = told(objects(machine(gpu(0)))[0], BROKEN, "t1")
    warmer = planner.Wanted(spec=HEALTHY.spec, health="Unhealthy", reason="XID79", message="97 C")
    assert told(device, warmer, "t2") is device
    newer = msgspec.structs.replace(device, metadata=msgspec.structs.replace(device.metadata, generation=2))
    assert told(newer, BROKEN, "t2").status.conditions[0].observed_generation == 2


def test_pods_that_hold_a_gpu_are_named_with_their_namespace_and_once_each() -> None:
    holders = [
        gpudevice.Holder(namespace="a", pod="x", container="one"),
        gpudevice.Holder(namespace="a", pod="x", container="two"),
        gpudevice.Holder(namespace="b", pod="x"),
    ]
    assert gpudevice.name_pods(holders) == "a/x,b/x"
    assert gpudevice.name_pods([]) == ""


def test_a_shared_gpu_names_the_resource_the_means_and_the_count_of_its_replicas() -> None:
    whole = devices.gpu("GPU-a")
    rule = advertise.SharingRule(means="time-slicing")
    replicas = tuple(devices.replicated(whole, number) for number in range(4))
    ad = advertise.Advertisement(
        resource="nvidia.com/gpu.shared", vendor=Vendor.NVIDIA, devices=(*replicas, devices.gpu("GPU-b")), rule=rule
    )
    assert advertise.offers_of([ad]) == {
        "GPU-a": advertise.Offer(resource="nvidia.com/gpu.shared", means="time-slicing", replicas=4),
        "GPU-b": advertise.Offer(resource="nvidia.com/gpu.shared"),
    }
