"""Faults of one MIG instance: whose they are, how they end, and what outlives the agent."""

from __future__ import annotations

from fairlead.model.gpu import GPU, EventKind, GPUEvent, GPUHealth, Inventory, MIGDevice
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.node.inventory import health
from fairlead.plan.gpu import health as rules

GPU_A = GPUUUID("GPU-a")
ONE, TWO = MIGUUID("MIG-1"), MIGUUID("MIG-2")


def inventory(*devices: MIGUUID) -> Inventory:
    found = tuple(
        MIGDevice(
            uuid=uuid,
            index=place,
            profile="3g.40gb",
            gpu_instance=place + 1,
            compute_instance=0,
            placement_start=None,
            placement_size=None,
            memory_bytes=1,
        )
        for place, uuid in enumerate(devices)
    )
    gpu = GPU(
        uuid=GPU_A,
        index=0,
        minor=0,
        pci_bus_id="0000:01:00.0",
        name="X",
        memory_bytes=1,
        mig_enabled=True,
        mig_devices=found,
        health=GPUHealth(recovery_action=0),
    )
    return Inventory(gpus=(gpu,))


def xid(code: int, instance: int | None = None, compute: int | None = None) -> GPUEvent:
    return GPUEvent(kind=EventKind.XID, uuid=GPU_A, xid=code, gpu_instance=instance, compute_instance=compute)


def tracker() -> health.HealthTracker:
    made = health.HealthTracker()
    made.observe_inventory(inventory(ONE, TWO), now=0)
    return made


def ill(made: health.HealthTracker) -> set[str]:
    every = (*made.verdicts().items(), *made.device_verdicts().items())
    return {str(uuid) for uuid, verdict in every if not verdict.is_healthy}


def test_an_event_of_an_instance_is_about_its_devices_alone() -> None:
    made = tracker()
    [change] = made.observe_event(xid(95, 2), now=1)
    assert (change.uuid, change.reason) == (TWO, "XID95")
    assert ill(made) == {"MIG-2"}


def test_an_event_without_an_instance_is_about_the_gpu() -> None:
    made = tracker()
    made.observe_event(xid(79), now=1)
    assert ill(made) == {"GPU-a"}


def test_an_instance_that_nobody_knows_counts_against_the_gpu() -> None:
    made = tracker()
    made.observe_event(xid(95, 9), now=1)
    assert ill(made) == {"GPU-a"}


def test_another_compute_instance_is_not_meant() -> None:
    made = tracker()
    made.observe_event(xid(95, 2, 0), now=1)
    assert ill(made) == {"MIG-2"}


def test_an_applications_error_takes_no_device_away() -> None:
    made = tracker()
    assert made.observe_event(xid(94, 1), now=1) == ()
    assert ill(made) == set()


def test_a_device_comes_back_when_the_driver_asks_for_nothing() -> None:
    made = tracker()
    made.observe_event(xid(95, 1), now=1)
    made.observe_inventory(inventory(ONE, TWO), now=2)
    assert ill(made) == {"MIG-1"}
    for now in (10.0, 30.0):
        made.observe_inventory(inventory(ONE, TWO), now=now)
    assert ill(made) == set()


def test_a_device_that_is_gone_is_forgotten() -> None:
    made = tracker()
    made.observe_event(xid(95, 1), now=1)
    made.observe_inventory(inventory(TWO), now=2)
    assert made.device_verdicts() == {}


def test_a_latched_fault_of_a_device_outlives_the_agent() -> None:
    made = tracker()
    made.observe_event(xid(95, 1), now=1)
    again = health.HealthTracker(remembered=made.latched())
    again.observe_inventory(inventory(ONE, TWO), now=2)
    assert again.device_verdicts()[ONE].reason == "XID95"
    assert again.verdicts()[GPU_A] == rules.Verdict()
