"""Says how far a claim's devices are prepared, as `status.devices` of the claim carries it: one entry a device. Pure.

Each entry has the condition `Prepared` (its reason is the step reached, or why it failed; its message has the next
step), and in `data` what a person wants to know besides: the GPU, the MIG device, and what holds programs to their
share. Entries of other drivers and of other nodes are theirs.
Source: KEP-4817; resource.k8s.io/v1 AllocatedDeviceStatus (at most 8 conditions, 10 KiB of data).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from fairlead.frozen import frozen
from fairlead.plan.dra.preparation import Preparation, PreparedDevice
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.resource.resourceclaim import (
    AllocatedDeviceStatus,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from fairlead.wire.nvidia.claimconfig import INTERVALS
from fairlead.wire.text import timestamp

PREPARED: Final = "Prepared"
"""Type of the condition."""
NOTHING: Final = "nothing"
"""What holds programs to a share that nothing enforces."""
_MESSAGE: Final = 1024
"""Characters of a condition's message; a server takes 32,768, and a person reads one sentence."""


class Step(enum.Enum):
    """How far a claim is prepared; the value is the condition's reason."""

    ASKED = "Asked"
    HELD = "GPUsHeld"
    HARDWARE = "HardwareSet"
    FILE = "CDIFileWritten"
    DONE = "Prepared"


WORDS: Final[Mapping[Step, str]] = {
    Step.ASKED: "the kubelet has asked for it; its GPUs are not held for it yet",
    Step.HELD: "its GPUs are held for it in the ledger; they are being set up",
    Step.HARDWARE: "its GPUs are set up; its CDI file is being written",
    Step.FILE: "its CDI file is written; that is being noted",
    Step.DONE: "it is prepared",
}


@frozen
class Progress:
    """How far a claim is."""

    step: Step
    at: float
    """When it came there, in seconds since 1970."""
    preparation: Preparation | None = None
    """None: its configuration was not read, or is wrong."""
    reason: str = ""
    """Why it failed, one word; empty: it did not."""
    message: str = ""
    """The failure, with the next step."""


def with_progress(claim: ResourceClaim, driver: str, pool: str, progress: Progress) -> ResourceClaim:
    """Return a claim whose status says how far our devices of it are; those of others stay as they are."""
    allocation, known = claim.status.allocation, {_key(one): one for one in claim.status.devices}
    results = allocation.devices.results if allocation is not None else ()
    planned = progress.preparation.devices if progress.preparation is not None else ()
    by_key = {(one.device, one.share_id): one for one in planned}
    for result in results:
        if result.driver == driver and result.pool == pool:
            key = (driver, pool, result.device, result.share_id)
            found = by_key.get((result.device, result.share_id or ""))
            known[key] = _entry(result, progress, found, known.get(key))
    return _with_devices(claim, known.values())


def without(claim: ResourceClaim, driver: str, pool: str) -> ResourceClaim:
    """Return a claim whose status says nothing of our devices: it is unprepared."""
    return _with_devices(
        claim, (one for one in claim.status.devices if (one.driver, one.pool) != (driver, pool) or not _is_ours(one))
    )


@frozen
class Report:
    """What a claim's status says of one of its devices."""

    device: str
    """`DRIVER/POOL/NAME`, and `/SHARE` of a shared one."""
    state: str
    """`prepared`, `preparing`, `failed`, or `unreported`: its driver says nothing of it, or has not been asked yet."""
    step: str = ""
    """How far it is, or why it failed: one word."""
    message: str = ""
    since: str | None = None
    gpu: str = ""
    """UUID; empty: it is not said."""
    mig_device: str = ""
    enforced_by: str = ""
    """What holds programs to their share of it; empty: it is not shared, or that is not said."""
    is_admin: bool = False
    """Whether the claim only looks at it."""


def reports(claim: ResourceClaim) -> tuple[Report, ...]:
    """Return what is known of each device that is allocated to a claim, in the order of its allocation."""
    allocation, known = claim.status.allocation, {_key(one): one for one in claim.status.devices}
    results = allocation.devices.results if allocation is not None else ()
    return tuple(_report(one, known.get((one.driver, one.pool, one.device, one.share_id))) for one in results)


def _report(result: DeviceRequestAllocationResult, found: AllocatedDeviceStatus | None) -> Report:
    name = "/".join(filter(None, (result.driver, result.pool, result.device, result.share_id)))
    conditions = (found.conditions or ()) if found is not None else ()
    said = meta.find_condition(conditions, PREPARED) or meta.find_condition(conditions, "Ready")
    if found is None or said is None:
        return Report(device=name, state="unreported", is_admin=bool(result.admin_access))
    data = found.data if isinstance(found.data, dict) else {}
    is_going_on = said.reason in {one.value for one in Step}
    return Report(
        device=name,
        state="prepared" if said.status == "True" else "preparing" if is_going_on else "failed",
        step=said.reason,
        message=said.message,
        since=said.last_transition_time,
        gpu=_text(data, "gpu"),
        mig_device=_text(data, "migDevice"),
        enforced_by=_text(data, "shareEnforcedBy"),
        is_admin=bool(result.admin_access),
    )


def _text(data: Mapping[Any, Any], name: str) -> str:
    found = data.get(name)
    return found[:_MESSAGE] if isinstance(found, str) else ""


def enforced_by(device: PreparedDevice) -> str:
    """Return what holds programs to their share of a device, in words; empty: the claim has the device alone."""
    share = device.share
    if device.is_admin:
        return ""
    if share.is_mps:
        amounts = [
            f"{share.memory_mib} MiB of memory" if share.memory_mib is not None else "",
            f"{share.thread_percentage} % of the threads" if share.thread_percentage is not None else "",
        ]
        limits = " and ".join(filter(None, amounts))
        return f"MPS control daemon: {limits or 'no limits are set'}"
    if share.time_slice is not None:
        interval = next((name.lower() for name, one in INTERVALS.items() if one.value == share.time_slice), "")
        return f"the driver's time slices ({interval or share.time_slice}); memory: {NOTHING}"
    return NOTHING if device.share_id else ""


def _entry(
    result: DeviceRequestAllocationResult,
    progress: Progress,
    device: PreparedDevice | None,
    before: AllocatedDeviceStatus | None,
) -> AllocatedDeviceStatus:
    is_done = progress.step is Step.DONE and not progress.reason
    at = timestamp.emit(progress.at)
    wanted = meta.Condition(
        type=PREPARED,
        status="True" if is_done else "False",
        reason=progress.reason or progress.step.value,
        message=(progress.message or WORDS[progress.step])[:_MESSAGE],
        last_transition_time=at,
    )
    old = (before.conditions or ()) if before is not None else ()
    same = meta.find_condition(old, PREPARED)
    if same is not None and same.status == wanted.status and same.reason == wanted.reason:
        wanted = msgspec.structs.replace(wanted, last_transition_time=same.last_transition_time)
    return AllocatedDeviceStatus(
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        conditions=meta.with_condition(old, wanted),
        data=_data(device, progress),
        network_data=before.network_data if before is not None else None,
    )


def _data(device: PreparedDevice | None, progress: Progress) -> dict[str, Any]:
    told: dict[str, Any] = {"step": progress.step.value}
    if device is not None:
        more = {"gpu": device.gpu, "migDevice": device.instance, "shareEnforcedBy": enforced_by(device)}
        more |= {"opensBy": device.backend.value} if device.backend is not None else {}
        told |= {name: text for name, text in more.items() if text}
    return told


def _is_ours(one: AllocatedDeviceStatus) -> bool:
    return meta.find_condition(one.conditions or (), PREPARED) is not None


def _key(one: AllocatedDeviceStatus) -> tuple[str, str, str, str | None]:
    return one.driver, one.pool, one.device, one.share_id


def _with_devices(claim: ResourceClaim, devices: Iterable[AllocatedDeviceStatus]) -> ResourceClaim:
    status = msgspec.structs.replace(claim.status, devices=tuple(devices))
    return claim if status == claim.status else msgspec.structs.replace(claim, status=status)
