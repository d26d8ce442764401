"""What a claim's status says of its devices: how far, since when, why not, and what holds programs to their share."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from fairlead.plan.claim.validate import resourceclaim as validate
from fairlead.plan.dra import devicestatus
from fairlead.plan.dra.devicestatus import Progress, Step
from fairlead.plan.dra.offered import Kind
from fairlead.plan.dra.preparation import Preparation, PreparedDevice, Share
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.resource.resourceclaim import AllocatedDeviceStatus, ResourceClaim
from tests.unit.node.dra.claimnode import DRIVER, POOL, claim, result

_DEVICE = PreparedDevice(
    request="gpus", reference="gpus", pool=POOL, device="gpu-0", kind=Kind.GPU, gpu="GPU-0", profile=""
)


def _progress(step: Step, *devices: PreparedDevice, at: float = 0.0, **fields: Any) -> Progress:
    found = Preparation(uid="u", namespace="team", name="one", devices=devices or (_DEVICE,))
    return Progress(step=step, at=at, preparation=found, **fields)


def _after(made: ResourceClaim, *steps: Progress) -> ResourceClaim:
    for one in steps:
        made = devicestatus.with_progress(made, DRIVER, POOL, one)
    return made


def test_a_step_is_a_condition_that_a_server_takes() -> None:
    made = _after(claim("one", result("gpu-0")), _progress(Step.HELD, at=60))
    (entry,) = made.status.devices
    (said,) = entry.conditions or ()
    assert (said.type, said.status, said.reason) == ("Prepared", "False", "GPUsHeld")
    assert (said.last_transition_time or "").startswith("1970-01-01T00:01:00")
    assert entry.data == {"step": "GPUsHeld", "gpu": "GPU-0"}
    stored = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, resource_version="1"))
    assert not list(validate.status_problems(stored, stored))


def test_the_time_is_that_of_the_step_and_stays_while_it_is_the_same() -> None:
    first = _after(claim("one", result("gpu-0")), _progress(Step.ASKED, at=1), _progress(Step.DONE, at=2))
    again = _after(first, _progress(Step.DONE, at=99))
    assert again is first
    (report,) = devicestatus.reports(first)
    assert (report.state, report.step, (report.since or "")[17:19]) == ("prepared", "Prepared", "02")


def test_a_failure_says_why_and_how_far_it_was() -> None:
    failed = _progress(Step.HELD, reason="DaemonNotReady", message="it is silent (the kubelet tries again)")
    (report,) = devicestatus.reports(_after(claim("one", result("gpu-0")), failed))
    assert (report.state, report.step, report.message) == ("failed", "DaemonNotReady", failed.message)
    wrong = Progress(step=Step.ASKED, at=0, reason="ClaimConfigInvalid", message="x" * 40_000)
    (report,) = devicestatus.reports(_after(claim("one", result("gpu-0")), wrong))
    assert (report.gpu, len(report.message)) == ("", 1024)


def test_what_others_say_of_the_claim_stays() -> None:
    network = {"request": "net", "driver": "net.example.com", "pool": POOL, "device": "eth1"}
    made = claim("one", result("gpu-0"), result("gpu-7", pool="elsewhere"))
    allocation = msgspec.to_builtins(made.status.allocation)
    allocation["devices"]["results"] = [*allocation["devices"]["results"], network]
    ready = meta.Condition(type="Ready", status="True", reason="Up")
    theirs = AllocatedDeviceStatus(driver="net.example.com", pool=POOL, device="eth1", conditions=(ready,))
    far = AllocatedDeviceStatus(driver=DRIVER, pool="elsewhere", device="gpu-7", conditions=(ready,))
    status = msgspec.convert({"allocation": allocation}, type(made.status))
    made = msgspec.structs.replace(made, status=msgspec.structs.replace(status, devices=(theirs, far)))
    told = _after(made, _progress(Step.DONE))
    assert told.status.devices[:2] == (theirs, far)
    assert {one.device: one.state for one in devicestatus.reports(told)} == {
        f"{DRIVER}/{POOL}/gpu-0": "prepared",
        f"{DRIVER}/elsewhere/gpu-7": "prepared",
        f"net.example.com/{POOL}/eth1": "prepared",
    }
    assert devicestatus.without(told, DRIVER, POOL).status.devices == (theirs, far)


def test_a_claim_that_is_not_allocated_any_more_gets_no_entry() -> None:
    made = claim("one")
    assert _after(made, _progress(Step.DONE)) is made
    assert devicestatus.reports(made) == ()


def test_a_device_of_which_nothing_is_said_is_unreported() -> None:
    (report,) = devicestatus.reports(claim("one", result("gpu-0", admin_access=True)))
    assert (report.state, report.is_admin) == ("unreported", True)


@pytest.mark.parametrize("data", [None, 5, "text", ["gpu"], {"gpu": {"a": 1}}, {"gpu": "G" * 5000}])
def test_data_that_a_liar_wrote_breaks_nothing(data: object) -> None:
    told = _after(claim("one", result("gpu-0")), _progress(Step.DONE))
    (entry,) = told.status.devices
    status = msgspec.structs.replace(told.status, devices=(msgspec.structs.replace(entry, data=data),))
    (report,) = devicestatus.reports(msgspec.structs.replace(told, status=status))
    assert len(report.gpu) <= 1024


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({}, ""),
        ({"share_id": "s"}, "nothing"),
        ({"share": Share(time_slice=3)}, "the driver's time slices (long); memory: nothing"),
        ({"share": Share(time_slice=9)}, "the driver's time slices (9); memory: nothing"),
        (
            {"share": Share(is_mps=True, memory_mib=1024, thread_percentage=30)},
            "MPS control daemon: 1024 MiB of memory and 30 % of the threads",
        ),
        ({"share": Share(is_mps=True)}, "MPS control daemon: no limits are set"),
        ({"share": Share(is_mps=True), "is_admin": True}, ""),
    ],
)
def test_what_holds_programs_to_their_share_is_said(device: dict[str, Any], words: str) -> None:
    assert devicestatus.enforced_by(dataclasses.replace(_DEVICE, **device)) == words
