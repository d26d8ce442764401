"""Decides what each GPU of a machine should look like under one named configuration of a mig-parted file. Pure.

A configuration is a list of entries. An entry speaks for the GPUs that its device filter and its indexes choose; a GPU
that no entry chooses stays as it is. The generated configurations are those that NVIDIA's MIG manager makes for a node:
`all-disabled`, `all-enabled`, `all-PROFILE` and `all-balanced`.
Source: NVIDIA mig-parted, README "Configuration" and its generated configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors
from fairlead.model.ids import GPUUUID
from fairlead.model.mig import MIGProfile, Partition, device_name
from fairlead.plan.mig import packing
from fairlead.wire.nvidia import migparted

_BALANCED: Final[Mapping[int, Mapping[int, int]]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""Compute slices of the GPU → how many instances of each size `all-balanced` has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedGPU:
    """How one GPU should be."""

    is_enabled: bool
    devices: Mapping[str, int] = field(default_factory=dict)
    """MIG devices by profile name."""


def plan_wanted(name: str, file: migparted.Config, gpus: Sequence[Partition]) -> dict[GPUUUID, WantedGPU]:
    """Return what each GPU should be under a configuration; GPUs that it does not speak for are left out.

    Raises: NotFound: the file has no such configuration.   Invalid: two entries want different things of one GPU, or
            what a GPU cannot do; (`MIGConfigConcernsNone`): it speaks for no GPU of a machine that has some.
    """
    entries = file.find(name)
    if entries is None:
        offered = ", ".join(sorted(file.configs)) or "none"
        raise errors.NotFound(f'no MIG configuration "{name}" (offered: {offered})', reason="MIGConfigUnknown")
    found: dict[GPUUUID, WantedGPU] = {}
    for entry in entries:
        for gpu in gpus:
            if not entry.matches(gpu.index, gpu.device_filter):
                continue
            one = WantedGPU(is_enabled=entry.is_enabled, devices=dict(entry.devices))
            if found.setdefault(gpu.gpu, one) != one:
                message = f'MIG configuration "{name}" has two entries for GPU {gpu.index} that differ'
                hint = "give each entry its own devices or device-filter"
                raise errors.Invalid(message, reason="MIGConfigAmbiguous", hint=hint)
    for gpu in gpus:
        if gpu.gpu in found and not gpu.problem:
            _assert_possible(name, gpu, found[gpu.gpu])
    _assert_indexes(name, entries, gpus)
    if gpus and not found:
        raise _concerns_none(name, entries, gpus)
    return found


def _concerns_none(name: str, entries: Sequence[migparted.Entry], gpus: Sequence[Partition]) -> errors.Invalid:
    """Return why success would have done nothing: what the entries choose by, and what there is."""
    filters = sorted({one for entry in entries for one in entry.filters})
    here = sorted({f"{gpu.device_filter} ({gpu.name})" for gpu in gpus})
    why = "it has no entries" if not entries else "its lists of devices are empty"
    if filters:
        why = f"its device-filter takes {', '.join(filters)}, and this machine has {', '.join(here)}"
    message = f'MIG configuration "{name}" speaks for no GPU here: {why}'
    hint = f"add an entry for {', '.join(sorted({gpu.device_filter for gpu in gpus}))}, or choose another configuration"
    return errors.Invalid(message, reason="MIGConfigConcernsNone", hint=hint)


def _assert_indexes(name: str, entries: Iterable[migparted.Entry], gpus: Sequence[Partition]) -> None:
    known = {gpu.index for gpu in gpus}
    missing = sorted({index for entry in entries for index in entry.indexes or ()} - known)
    if missing:
        message = f'MIG configuration "{name}" names GPU {missing[0]}'
        hint = f"there are: {', '.join(map(str, sorted(known))) or 'none'}"
        raise errors.Invalid(message, reason="MIGDeviceUnknown", hint=hint)


def _assert_possible(name: str, gpu: Partition, wanted: WantedGPU) -> None:
    if wanted.is_enabled and not gpu.profiles:
        message = f'MIG configuration "{name}" enables MIG on GPU {gpu.index}, but {gpu.name} cannot be partitioned'
        hint = "choose GPUs by devices or device-filter"
        raise errors.Invalid(message, reason="MIGNotSupported", hint=hint)
    for word in wanted.devices:
        parse_device(word, gpu)


def parse_device(word: str, gpu: Partition) -> tuple[MIGProfile, int]:
    """Return the GPU instance profile and the compute slices of a MIG device by name.

    Raises: Invalid: the GPU does not offer it.
    """
    head, _, rest = word.partition(".")
    is_part = head.endswith("c") and head[:-1].isascii() and head[:-1].isdecimal()
    profile = gpu.find_profile(rest if is_part else word)
    slices = int(head[:-1]) if is_part else profile.slices if profile else 0
    if profile is None or slices not in list_compute_sizes(profile):
        offered = ", ".join(one.name for one in gpu.profiles)
        message = f'{gpu.name} (GPU {gpu.index}) does not offer MIG profile "{word}"'
        raise errors.Invalid(message, reason="MIGProfileUnknown", hint=f"it offers: {offered or 'none'}")
    return profile, slices


def list_compute_sizes(profile: MIGProfile) -> list[int]:
    """Return the compute slices that an instance's MIG devices may have: all of it, or at most half, rounded up."""
    parts = (1, 2, 3, 4)
    return [*(size for size in parts if size < profile.slices and 2 * size <= profile.slices + 1), profile.slices]


def generate(gpus: Iterable[Partition]) -> migparted.Config:
    """Return the configurations that suit these GPUs, for a machine that has no file."""
    capable = [gpu for gpu in gpus if gpu.profiles]
    configs: dict[str, list[migparted.Entry]] = {
        "all-disabled": [migparted.Entry(is_enabled=False)],
        "all-enabled": [_entry(gpu, {}) for gpu in _models(capable)],
    }
    for gpu in _models(capable):
        for profile in gpu.profiles:
            count = packing.remaining(gpu.profiles, ())[profile.name]
            entry = _entry(gpu, {profile.name: count})
            configs.setdefault(f"all-{label_name(profile.name)}", []).append(entry)
        if balanced := _balanced(gpu):
            configs.setdefault("all-balanced", []).append(_entry(gpu, balanced))
    return migparted.Config(configs={name: tuple(entries) for name, entries in configs.items()})


def label_name(profile: str) -> str:
    """Return a profile's name in the form that Kubernetes' labels and resource names take: `+` becomes a dot."""
    return profile.replace("+", ".")


def _models(gpus: Iterable[Partition]) -> list[Partition]:
    """Return one GPU of each model."""
    return list({gpu.device_filter: gpu for gpu in gpus}.values())


def _entry(gpu: Partition, devices: Mapping[str, int]) -> migparted.Entry:
    return migparted.Entry(filters=(gpu.device_filter,), is_enabled=True, devices=dict(devices))


def _balanced(gpu: Partition) -> dict[str, int]:
    whole = max(profile.slices for profile in gpu.profiles)
    shares = _BALANCED.get(whole, {})
    plain: dict[int, MIGProfile] = {}
    for profile in gpu.profiles:
        # Of several profiles of one size the plain one: the least memory, and neither media nor graphics in its name.
        if profile.slices not in plain or (profile.size, profile.name) < (
            plain[profile.slices].size,
            plain[profile.slices].name,
        ):
            plain[profile.slices] = profile
    wanted = {plain[slices].name: count for slices, count in shares.items() if slices in plain}
    return wanted if packing.pack(gpu.profiles, wanted) is not None else {}


def present(gpu: Partition) -> Counter[str]:
    """Return the MIG devices that a GPU has now, by profile name."""
    profiles = {one.name: one for one in gpu.profiles}
    return Counter(
        device_name(profiles[instance.profile], compute.slices)
        for instance in gpu.instances
        for compute in instance.computes
        if instance.profile in profiles
    )


def export(gpus: Iterable[Partition], name: str) -> migparted.Config:
    """Return the GPUs as they are, as a configuration: like GPUs of one model share an entry."""
    groups: dict[tuple[str, bool, tuple[tuple[str, int], ...]], list[int]] = {}
    for gpu in gpus:
        key = gpu.device_filter, gpu.is_enabled, tuple(sorted(present(gpu).items()))
        groups.setdefault(key, []).append(gpu.index)
    entries = [
        migparted.Entry(filters=(), indexes=tuple(indexes), is_enabled=is_enabled, devices=dict(devices))
        for (_, is_enabled, devices), indexes in groups.items()
    ]
    is_alike = len(entries) == 1
    if is_alike:
        entries = [migparted.Entry(is_enabled=entries[0].is_enabled, devices=entries[0].devices)]
    return migparted.Config(configs={name: tuple(entries)})


def modes_only(gpus: Iterable[Partition], goals: Mapping[GPUUUID, WantedGPU]) -> dict[GPUUUID, WantedGPU]:
    """Return the goals without their devices: only what a change of the mode costs."""
    have = {gpu.gpu: present(gpu) for gpu in gpus}
    return {
        uuid: WantedGPU(is_enabled=one.is_enabled, devices=have[uuid] if one.is_enabled else {})
        for uuid, one in goals.items()
    }


def differences(
    gpus: Iterable[Partition], wanted: Mapping[GPUUUID, WantedGPU], *, mode_only: bool = False
) -> list[str]:
    """Return what is not as it should be, a line each; empty: everything is."""
    found: list[str] = []
    for gpu in gpus:
        one = wanted.get(gpu.gpu)
        if one is None:
            continue
        if gpu.problem:
            found.append(f"GPU {gpu.index} does not answer: {gpu.problem}")
            continue
        if gpu.profiles and gpu.is_enabled != one.is_enabled:
            found.append(f"GPU {gpu.index}: MIG is {_on(gpu.is_enabled)}, should be {_on(one.is_enabled)}")
        elif gpu.is_pending != gpu.is_enabled:
            found.append(f"GPU {gpu.index}: MIG becomes {_on(gpu.is_pending)} at the next reset")
        have, should = present(gpu), Counter(dict(one.devices))
        if not mode_only and have != +should:
            found.append(f"GPU {gpu.index}: has {shown(have)}, should have {shown(should)}")
    return found


def _on(is_enabled: bool) -> str:
    return "on" if is_enabled else "off"


def shown(devices: Mapping[str, int]) -> str:
    """Return MIG devices for a person: `2 x 1g.10gb, 1 x 3g.40gb`."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(devices.items()) if count) or "no MIG devices"
