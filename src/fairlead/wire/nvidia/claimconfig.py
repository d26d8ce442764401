"""Reads the opaque configuration that ResourceClaims and DeviceClasses carry for NVIDIA's DRA driver.

`read` answers for one `opaque.parameters`: what it says, and each thing that is wrong with it, by its path. A key that
nothing reads is wrong, with the key that was meant, as NVIDIA's strict decoding refuses it; a part that is empty
(`timeSlicingConfig: {}`) means its defaults. Tenants write these documents, so every text and number is bounded.
Source: NVIDIA dra-driver-nvidia-gpu, api/nvidia.com/resource/v1beta1 (gpuconfig.go, migconfig.go, vfiodeviceconfig.go,
sharing.go).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead import errors
from fairlead.wire.kubernetes import quantity

API_VERSION: Final = "resource.nvidia.com/v1beta1"
TIME_SLICING: Final = "TimeSlicing"
MPS: Final = "MPS"
LEGACY_ONLY: Final = "LegacyOnly"
PREFER_IOMMUFD: Final = "PreferIommuFD"
BACKEND_POLICIES: Final = (LEGACY_ONLY, PREFER_IOMMUFD)
_MOST_LIMITS: Final = 64
"""More GPUs than a machine has."""
_LARGEST_MEMORY: Final = 1 << 44
_LONGEST_SHOWN: Final = 60
_WORD: Final = re.compile(r"[A-Za-z0-9]{1,60}")
_GPU: Final = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[0-9A-Fa-f-]{36}")


class Interval(enum.Enum):
    """How long a program has a GPU before the next one; the value is the driver's number for it."""

    DEFAULT = 0
    SHORT = 1
    MEDIUM = 2
    LONG = 3


INTERVALS: Final[Mapping[str, Interval]] = {one.name.capitalize(): one for one in Interval}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlicing:
    """Programs take turns."""

    interval: Interval | None = None
    """None: none is named, the driver's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MPSSharing:
    """Programs calculate at the same time, under a control daemon of the claim's own."""

    thread_percentage: int | None = None
    """Of the multiprocessors that each program may have; None: all."""
    memory_bytes: int | None = None
    """Of each GPU that each program may have; None: all."""
    memory_by_gpu: Mapping[str, int] = field(default_factory=dict)
    """The same for one GPU, by its UUID or its index in the claim."""
    is_multi_user: bool = False


Sharing = TimeSlicing | MPSSharing


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUConfig:
    """`GpuConfig`: of whole GPUs."""

    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MIGConfig:
    """`MigDeviceConfig`: of MIG devices."""

    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VFIOConfig:
    """`VfioDeviceConfig`: of GPUs for virtual machines."""

    backend_policy: str = ""
    """One of `BACKEND_POLICIES`; empty: not given."""
    has_api_device: bool | None = None
    """Whether containers get what all users of the way share, `/dev/vfio/vfio` or `/dev/iommu`; None: not given."""


Config = GPUConfig | MIGConfig | VFIOConfig


def read(parameters: Any) -> tuple[Config | None, tuple[str, ...]]:
    """Return what a document says, None where its kind is not known, and what is wrong with it."""
    reader = _Reader()
    found = reader.document(parameters)
    return found, tuple(reader.problems)


class _Reader:
    """Reads parts of a document; what is wrong is noted and read as absent."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def document(self, value: Any) -> Config | None:
        if not isinstance(value, dict):
            self._wrong("parameters", value, "an object with apiVersion and kind")
            return None
        if value.get("apiVersion") != API_VERSION:
            self._wrong("apiVersion", value.get("apiVersion"), API_VERSION)
            return None
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in _KINDS:
            near = _meant(kind, _KINDS) if isinstance(kind, str) else ""
            self._wrong("kind", kind, f"one of {', '.join(_KINDS)}{near}")
            return None
        read_kind, keys = _KINDS[kind]
        found: Config = read_kind(self, self._map(value, "", ("apiVersion", "kind", *keys)))
        return found

    def gpu(self, value: Mapping[str, Any]) -> GPUConfig:
        return GPUConfig(sharing=self._sharing(value.get("sharing"), "sharing", has_interval=True))

    def mig(self, value: Mapping[str, Any]) -> MIGConfig:
        return MIGConfig(sharing=self._sharing(value.get("sharing"), "sharing", has_interval=False))

    def vfio(self, value: Mapping[str, Any]) -> VFIOConfig:
        iommu = self._map(value.get("iommu"), "iommu", ("backendPolicy", "enableAPIDevice"))
        policy = self._choice(iommu.get("backendPolicy"), "iommu.backendPolicy", BACKEND_POLICIES)
        return VFIOConfig(
            backend_policy=policy or "",
            has_api_device=self._bool(iommu.get("enableAPIDevice"), "iommu.enableAPIDevice"),
        )

    def _sharing(self, value: Any, path: str, *, has_interval: bool) -> Sharing | None:
        if value is None:
            return None
        keys = ("strategy", "mpsConfig", *(("timeSlicingConfig",) if has_interval else ()))
        found = self._map(value, path, keys)
        strategy = self._choice(found.get("strategy"), f"{path}.strategy", (TIME_SLICING, MPS), is_needed=True)
        for key, own in (("timeSlicingConfig", TIME_SLICING), ("mpsConfig", MPS)):
            if strategy and strategy != own and found.get(key) is not None:
                self._add(f"{path}.{key}", f"it belongs to strategy {own}, and the strategy is {strategy}")
        if strategy == MPS:
            return self._mps(found.get("mpsConfig"), f"{path}.mpsConfig")
        if strategy != TIME_SLICING:
            return None
        at = f"{path}.timeSlicingConfig"
        named = self._choice(
            self._map(found.get("timeSlicingConfig"), at, ("interval",)).get("interval"), f"{at}.interval", INTERVALS
        )
        return TimeSlicing(interval=INTERVALS.get(named or ""))

    def _mps(self, value: Any, path: str) -> MPSSharing:
        keys = (
            "defaultActiveThreadPercentage",
            "defaultPinnedDeviceMemoryLimit",
            "defaultPerDevicePinnedMemoryLimit",
            "multiUser",
        )
        found = self._map(value, path, keys)
        share = found.get(keys[0])
        if share is not None and (isinstance(share, bool) or not isinstance(share, int) or not 0 <= share <= 100):
            self._wrong(f"{path}.{keys[0]}", share, "a whole number from 0 to 100")
            share = None
        at = f"{path}.{keys[2]}"
        limits = found.get(keys[2])
        if limits is not None and (not isinstance(limits, dict) or len(limits) > _MOST_LIMITS):
            self._wrong(at, limits, f"an object with at most {_MOST_LIMITS} GPUs")
            limits = None
        by_gpu: dict[str, int] = {}
        for gpu, limit in (limits or {}).items():
            if not _GPU.fullmatch(gpu):
                self._wrong(at, gpu, "a GPU's UUID or its index in the claim")
            elif (read_limit := self._memory(limit, f"{at}[{gpu}]")) is not None:
                by_gpu[gpu] = read_limit
        return MPSSharing(
            thread_percentage=share,
            memory_bytes=self._memory(found.get(keys[1]), f"{path}.{keys[1]}"),
            memory_by_gpu=by_gpu,
            is_multi_user=bool(self._bool(found.get(keys[3]), f"{path}.{keys[3]}")),
        )

    def _memory(self, value: Any, path: str) -> int | None:
        """Return bytes; None: absent, or wrong. MPS counts whole MiB, so that is the least."""
        if value is None:
            return None
        try:
            amount = (
                quantity.parse_quantity(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
            )
        except errors.Invalid:
            amount = None
        if amount is None or not 1 << 20 <= amount <= _LARGEST_MEMORY:
            self._wrong(path, value, "an amount of memory from 1Mi to 16Ti, as in 10Gi")
            return None
        return int(amount)

    def _map(self, value: Any, path: str, known: Collection[str]) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._wrong(path, value, "an object")
            return {}
        for key in value:
            if key not in known:
                word = key if _WORD.fullmatch(str(key)) else _shown(key)
                where = f"{path}.{word}" if path else word
                self._add(where, f"nothing reads it{_meant(str(key), known)}")
        return value

    def _choice(self, value: Any, path: str, offered: Collection[str], *, is_needed: bool = False) -> str | None:
        if value is None and not is_needed:
            return None
        if isinstance(value, str) and value in offered:
            return value
        near = _meant(value, offered) if isinstance(value, str) else ""
        self._wrong(path, value, f"one of {', '.join(offered)}{near}")
        return None

    def _bool(self, value: Any, path: str) -> bool | None:
        if value is None or isinstance(value, bool):
            return value
        self._wrong(path, value, "true or false")
        return None

    def _wrong(self, path: str, value: Any, wanted: str) -> None:
        self._add(path, f"{'it is missing' if value is None else f'it is {_shown(value)}'}, needed: {wanted}")

    def _add(self, path: str, text: str) -> None:
        self.problems.append(f"{path}: {text}")


def _meant(word: str, known: Collection[str]) -> str:
    near = errors.closest(word[:_LONGEST_SHOWN], known)
    return f"; meant: {near}?" if near else ""


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else type(value).__name__ if isinstance(value, dict | list) else str(value)
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


_KINDS: Final[Mapping[str, Any]] = {
    "GpuConfig": (_Reader.gpu, ("sharing",)),
    "MigDeviceConfig": (_Reader.mig, ("sharing",)),
    "VfioDeviceConfig": (_Reader.vfio, ("iommu",)),
}
"""By kind: what reads it, and its own keys."""
