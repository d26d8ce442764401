"""Decides which of the offered devices are tainted, and with what. Pure.

A device is tainted by what is held against its GPU, or against itself where it is a MIG device: an XID, no answer from
the driver, any other verdict, health that nobody watches, a state of the ledger in which it was not verified since its
last tenant, another door that still has it. Nothing is remembered: a taint is there as long as its cause, and ends with
it. Of `NoExecute` taints the API counts the time from `timeAdded`, so that of a stored taint stays.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/device_health.go (keys of NVIDIA's taints).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Final

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model.gpu import GPU
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.dra.offered import OfferedDevice
from fairlead.plan.gpu import health, label
from fairlead.wire.kubernetes.resource.device import Device, DeviceTaint

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
NONE: Final = "None"
EFFECTS: Final = (NONE, NO_SCHEDULE, NO_EXECUTE)
_XID: Final = "XID"
_LOST: Final = frozenset({"Lost", "Timeout", "Unreadable"})
"""Reasons of verdicts on GPUs that do not answer."""


class Key(enum.Enum):
    """Keys of the taints."""

    XID = "gpu.nvidia.com/xid"
    """An XID that takes the GPU out; the value is its number."""
    LOST = "gpu.nvidia.com/gpu-lost"
    UNMONITORED = "gpu.nvidia.com/unmonitored"
    """Nobody watches its health: it may be ill without a taint."""
    UNHEALTHY = "fairlead.dev/gpu-unhealthy"
    """Any other verdict; the value is its reason."""
    UNVERIFIED = "fairlead.dev/gpu-unverified"
    """Not verified since its last tenant; the value is its state in the ledger."""
    OTHER_DOOR = "fairlead.dev/gpu-other-door"
    """A container has it by another door; the value names the door."""


USUAL: Final[Mapping[Key, str]] = {**dict.fromkeys(Key, NO_SCHEDULE), Key.UNMONITORED: NONE}
"""Effects where nothing is set: what runs goes on, and nothing new begins."""
_ILLNESS: Final = frozenset({Key.XID, Key.LOST, Key.UNHEALTHY})


@frozen
class Against:
    """What is held against the GPUs of a node."""

    verdicts: Mapping[GPUUUID, health.Verdict] = field(default_factory=dict)
    device_verdicts: Mapping[MIGUUID, health.Verdict] = field(default_factory=dict)
    standing: Mapping[tuple[GPUUUID, str, int], MIGUUID] = field(default_factory=dict)
    """MIG devices that stand, by GPU, profile and first memory slice: of a partition that is made now."""
    unmonitored: Collection[GPUUUID] = frozenset()
    unverified: Mapping[GPUUUID, str] = field(default_factory=dict)
    """States of the ledger that are neither Free nor Held by a claim."""
    other_doors: Mapping[GPUUUID, str] = field(default_factory=dict)
    """Doors by which containers have GPUs that claims are offered."""


NOTHING: Final = Against()


def choose_effects(effect: str) -> Mapping[Key, str]:
    """Return the effect of each taint. Args: effect: of illnesses; empty: `NoSchedule`. Raises: Invalid."""
    if effect and effect not in EFFECTS:
        message = f'"{effect[:64]}" is not an effect of a taint'
        raise errors.Invalid(message, reason="TaintEffectInvalid", hint=f"effects: {', '.join(EFFECTS)}")
    return {key: effect if effect and key in _ILLNESS else usual for key, usual in USUAL.items()}


def plan_taints(
    devices: Iterable[OfferedDevice], against: Against, effects: Mapping[Key, str] = USUAL
) -> dict[str, tuple[DeviceTaint, ...]]:
    """Return the taints of each device that has some, by its name, in the order of `Key`; none says since when."""
    found = {one.name: tuple(_of_device(one, against, effects)) for one in devices}
    return {name: taints for name, taints in found.items() if taints}


def _of_device(device: OfferedDevice, against: Against, effects: Mapping[Key, str]) -> Iterator[DeviceTaint]:
    held = dict[Key, str]()
    for verdict in _verdicts(device, against):
        if not verdict.is_healthy:
            held.setdefault(*_illness(verdict))
    if device.gpu in against.unmonitored:
        held[Key.UNMONITORED] = ""
    if device.gpu in against.unverified:
        held[Key.UNVERIFIED] = against.unverified[device.gpu]
    if device.gpu in against.other_doors:
        held[Key.OTHER_DOOR] = against.other_doors[device.gpu]
    for key in Key:
        if key in held:
            yield DeviceTaint(key=key.value, value=label.label_value(held[key]), effect=effects[key])


def _verdicts(device: OfferedDevice, against: Against) -> Iterator[health.Verdict]:
    if device.gpu in against.verdicts:
        yield against.verdicts[device.gpu]
    place = device.placement
    made = against.standing.get((device.gpu, device.profile, place.start)) if place is not None else None
    instance = device.instance or made
    if instance is not None and instance in against.device_verdicts:
        yield against.device_verdicts[instance]


def find_illness(device: OfferedDevice, against: Against) -> str:
    """Return what is held against a device's health, its own before its GPU's; empty: it is well."""
    found = [verdict.message or verdict.reason for verdict in _verdicts(device, against) if not verdict.is_healthy]
    return found[-1] if found else ""


def find_standing(gpus: Iterable[GPU]) -> dict[tuple[GPUUUID, str, int], MIGUUID]:
    """Return the MIG devices that stand, by the place that partitions are known by."""
    return {
        (gpu.uuid, mig.profile, mig.placement_start): mig.uuid
        for gpu in gpus
        for mig in gpu.mig_devices
        if mig.placement_start is not None
    }


def _illness(verdict: health.Verdict) -> tuple[Key, str]:
    number = verdict.reason.removeprefix(_XID)
    if verdict.reason.startswith(_XID) and number.isdecimal():
        return Key.XID, number
    return (Key.LOST, verdict.reason) if verdict.reason in _LOST else (Key.UNHEALTHY, verdict.reason)


def with_times(wanted: Device, stored: Device | None) -> Device:
    """Return a device whose taints have been there as long as the same ones of the stored device."""
    if stored is None or not wanted.taints:
        return wanted
    since = {(one.key, one.value, one.effect): one.time_added for one in stored.taints}
    taints = tuple(
        msgspec.structs.replace(one, time_added=since.get((one.key, one.value, one.effect)))
        if one.time_added is None
        else one
        for one in wanted.taints
    )
    return msgspec.structs.replace(wanted, taints=taints)


def is_kept_off(held: Iterable[DeviceTaint]) -> bool:
    """Return whether taints keep claims that tolerate nothing off their device."""
    return any(one.effect in {NO_SCHEDULE, NO_EXECUTE} for one in held)
