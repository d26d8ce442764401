"""Decides the steps from the partition a GPU has to the one it should have: as few as possible. Pure.

GPU instances that stand and are wanted stay where they are, with the MIG devices in them that are wanted. Devices in
use weigh more than all others, so a layout that spares them is found wherever there is one; where there is none, the
change is refused, unless it may drain them. Steps that destroy come first, then the mode, then what is created.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.model.mig import ComputeInstance, GPUInstance, MIGProfile, Partition, Slot, device_name
from fairlead.plan.mig import packing, wanted

_BUSY_WORTH: Final = 1000
"""Of a slot with a device in use; others are worth 2, or 3 where all their devices can stay."""


class Act(enum.Enum):
    """What one step does."""

    DESTROY_COMPUTE = "destroy MIG device"
    DESTROY_INSTANCE = "destroy GPU instance"
    SET_MODE = "switch MIG"
    RESET = "reset the GPU"
    CREATE_INSTANCE = "create GPU instance"
    CREATE_COMPUTE = "create MIG device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of the driver."""

    act: Act
    instance: int | None = None
    """Id of the GPU instance; None for one that is still to be created."""
    compute: int | None = None
    slot: Slot | None = None
    slices: int = 0
    """Compute slices of the MIG device to be created."""
    is_enabled: bool = False
    """The mode that SET_MODE sets."""
    device: str = ""
    """The MIG device concerned, for a person."""

    def __str__(self) -> str:
        """Return a line of the change list."""
        where = f" at {self.slot.start}" if self.slot is not None else ""
        sign = "+" if self.act in {Act.CREATE_INSTANCE, Act.CREATE_COMPUTE} else "-"
        if self.act is Act.SET_MODE:
            return f"switch MIG {'on' if self.is_enabled else 'off'} (and reset the GPU, if its driver asks for it)"
        if self.act in {Act.DESTROY_INSTANCE, Act.CREATE_INSTANCE}:
            return f"{sign} GPU instance {self.slot.profile if self.slot else self.instance}{where}"
        if self.act in {Act.DESTROY_COMPUTE, Act.CREATE_COMPUTE}:
            return f"{sign} MIG device {self.device}{where}"
        return str(self.act.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """All steps of one GPU, in order."""

    gpu: Partition
    steps: tuple[Step, ...] = ()
    kept: tuple[Slot, ...] = ()
    """GPU instances that stay."""
    layout: tuple[Slot, ...] = ()
    """GPU instances afterwards."""
    drained: tuple[MIGUUID, ...] = ()
    """MIG devices in use that the change ends."""
    ends_gpu: bool = False
    """The whole GPU is in use and its mode changes."""

    @property
    def fragmentation(self) -> float:
        """Share of placements that better places would open, afterwards."""
        return packing.fragmentation(self.gpu.profiles, self.layout)


@dataclass(frozen=True, slots=True)
class _Bundle:
    """One GPU instance that is wanted: the compute slices of its MIG devices, ascending."""

    profile: MIGProfile
    sizes: tuple[int, ...]


def plan_change(
    gpu: Partition, goal: wanted.WantedGPU, *, in_use: Collection[str] = (), may_drain: bool = False
) -> Change:
    """Return the steps that make a GPU what it should be.

    Args:   in_use: UUIDs of GPUs and MIG devices that a container holds, beside what the driver counts as busy.
            may_drain: devices in use may be ended.
    Raises: Invalid: no layout holds what is wanted.   Conflict: it would end what is in use.
    """
    change = _plan_on(gpu, goal, frozenset(in_use)) if goal.is_enabled else _plan_off(gpu, frozenset(in_use))
    if (change.drained or change.ends_gpu) and not may_drain:
        raise _in_use(change)
    return change


def _in_use(change: Change) -> errors.Conflict:
    named = ", ".join(change.drained) or str(change.gpu.gpu)
    message = f"GPU {change.gpu.index}: the change would end what is in use: {named}"
    return errors.Conflict(message, reason="MIGInUse", hint="wait for it, or allow it with --drain")


def _plan_off(gpu: Partition, in_use: frozenset[str]) -> Change:
    if not gpu.is_enabled and not gpu.is_pending:
        return Change(gpu=gpu)
    steps = [step for instance in gpu.instances for step in _destroy(gpu, instance)]
    busy = [one.uuid for instance in gpu.instances for one in _busy(instance, in_use) if one.uuid is not None]
    return Change(
        gpu=gpu,
        steps=(*steps, Step(act=Act.SET_MODE, is_enabled=False)),
        drained=tuple(busy),
        ends_gpu=gpu.gpu in in_use or gpu.is_busy,
    )


def _plan_on(gpu: Partition, goal: wanted.WantedGPU, in_use: frozenset[str]) -> Change:
    bundles = plan_bundles(gpu, goal.devices)
    counts = Counter(bundle.profile.name for bundle in bundles)
    worth = {instance.slot: _worth(instance, bundles, in_use) for instance in gpu.instances}
    layout = packing.pack(gpu.profiles, counts, worth=worth)
    if layout is None:
        message = f"GPU {gpu.index} ({gpu.name}) cannot hold {wanted.shown(goal.devices)} at once"
        raise errors.Invalid(message, reason="MIGNoPlacement", hint=_room(gpu))
    steps: list[Step] = []
    builds: list[Step] = []
    kept: list[Slot] = []
    left = list(bundles)
    standing = {instance.slot: instance for instance in gpu.instances if instance.slot in layout}
    for instance in sorted(standing.values(), key=lambda one: -_worth(one, bundles, in_use)):
        bundle = max(
            (one for one in left if one.profile.name == instance.profile),
            key=lambda one: _overlap(instance, one.sizes, in_use),
        )
        left.remove(bundle)
        kept.append(instance.slot)
        gone, made = _recompute(gpu, instance, bundle, in_use)
        steps += gone
        builds += made
    doomed = [instance for instance in gpu.instances if instance.slot not in standing]
    steps += [step for instance in doomed for step in _destroy(gpu, instance)]
    ended = {(step.instance, step.compute) for step in steps if step.act is Act.DESTROY_COMPUTE}
    drained = [
        one.uuid
        for instance in gpu.instances
        for one in _busy(instance, in_use)
        if (instance.id, one.id) in ended and one.uuid is not None
    ]
    mode = list(_mode_steps(gpu))
    for slot in (slot for slot in layout if slot not in standing):
        bundle = next(one for one in left if one.profile.name == slot.profile)
        left.remove(bundle)
        builds += _create(slot, bundle)
    return Change(
        gpu=gpu,
        steps=(*steps, *mode, *builds),
        kept=tuple(sorted(kept, key=lambda slot: slot.start)),
        layout=layout,
        drained=tuple(drained),
        ends_gpu=bool(mode) and (gpu.gpu in in_use or gpu.is_busy),
    )


def _mode_steps(gpu: Partition) -> Iterator[Step]:
    if not gpu.is_pending:
        yield Step(act=Act.SET_MODE, is_enabled=True)
    elif not gpu.is_enabled:
        yield Step(act=Act.RESET)


def _room(gpu: Partition) -> str:
    most = packing.remaining(gpu.profiles, ())
    return f"an empty one holds at most {', '.join(f'{count} x {name}' for name, count in most.items())}"


def plan_bundles(gpu: Partition, devices: Mapping[str, int]) -> list[_Bundle]:
    """Return the GPU instances that MIG devices need: parts of one profile share as few instances as hold them.

    Raises: Invalid: a profile is not offered.
    """
    found: list[_Bundle] = []
    parts: dict[str, tuple[MIGProfile, list[int]]] = {}
    for word, count in devices.items():
        profile, slices = wanted.parse_device(word, gpu)
        if slices == profile.slices:
            found += [_Bundle(profile, (slices,))] * count
        else:
            parts.setdefault(profile.name, (profile, []))[1].extend([slices] * count)
    for profile, sizes in parts.values():
        bins: list[list[int]] = []
        for size in sorted(sizes, reverse=True):  # first fit, the largest first
            room = next((one for one in bins if sum(one) + size <= profile.slices), None)
            if room is None:
                bins.append([size])
            else:
                room.append(size)
        found += [_Bundle(profile, tuple(sorted(one))) for one in bins]
    return found


def _busy(instance: GPUInstance, in_use: frozenset[str]) -> list[ComputeInstance]:
    return [one for one in instance.computes if one.is_busy or one.uuid in in_use]


def _worth(instance: GPUInstance, bundles: Sequence[_Bundle], in_use: frozenset[str]) -> int:
    sizes = tuple(sorted(one.slices for one in instance.computes))
    is_whole = any(one.profile.name == instance.profile and one.sizes == sizes for one in bundles)
    return _BUSY_WORTH * len(_busy(instance, in_use)) + (3 if is_whole else 2)


def _overlap(instance: GPUInstance, sizes: tuple[int, ...], in_use: frozenset[str]) -> tuple[int, bool, int]:
    """Return how well wanted MIG devices suit those of an instance: devices in use spared, equal, devices spared."""
    have, should = Counter(one.slices for one in instance.computes), Counter(sizes)
    busy = Counter(one.slices for one in _busy(instance, in_use))
    return (busy & should).total(), have == should, (have & should).total()


def _recompute(
    gpu: Partition, instance: GPUInstance, bundle: _Bundle, in_use: frozenset[str]
) -> tuple[list[Step], list[Step]]:
    """Return the steps that destroy and create MIG devices of an instance that stays."""
    should = Counter(bundle.sizes)
    busy = {one.id for one in _busy(instance, in_use)}
    gone: list[Step] = []
    for one in sorted(instance.computes, key=lambda one: one.id not in busy):
        if should[one.slices] > 0:
            should[one.slices] -= 1
        else:
            gone.append(_destroy_compute(gpu, instance, one))
    made = [
        Step(
            act=Act.CREATE_COMPUTE,
            instance=instance.id,
            slot=instance.slot,
            slices=size,
            device=device_name(bundle.profile, size),
        )
        for size in sorted(should.elements(), reverse=True)
    ]
    return gone, made


def _destroy(gpu: Partition, instance: GPUInstance) -> Iterator[Step]:
    for one in instance.computes:
        yield _destroy_compute(gpu, instance, one)
    yield Step(act=Act.DESTROY_INSTANCE, instance=instance.id, slot=instance.slot)


def _destroy_compute(gpu: Partition, instance: GPUInstance, one: ComputeInstance) -> Step:
    profile = gpu.find_profile(instance.profile)
    name = device_name(profile, one.slices) if profile is not None else instance.profile
    return Step(
        act=Act.DESTROY_COMPUTE,
        instance=instance.id,
        compute=one.id,
        slot=instance.slot,
        slices=one.slices,
        device=f"{name} ({one.uuid})" if one.uuid else name,
    )


def _create(slot: Slot, bundle: _Bundle) -> Iterator[Step]:
    yield Step(act=Act.CREATE_INSTANCE, slot=slot)
    for size in sorted(bundle.sizes, reverse=True):
        yield Step(act=Act.CREATE_COMPUTE, slot=slot, slices=size, device=device_name(bundle.profile, size))


def plan_changes(
    gpus: Iterable[Partition],
    goals: Mapping[GPUUUID, wanted.WantedGPU],
    *,
    in_use: Collection[str] = (),
    may_drain: bool = False,
) -> tuple[Change, ...]:
    """Return the changes of all GPUs that need one, in index order; raises as `plan_change`, before any is done."""
    found = [plan_change(gpu, goals[gpu.gpu], in_use=in_use, may_drain=may_drain) for gpu in gpus if gpu.gpu in goals]
    return tuple(change for change in found if change.steps)
