"""Lists the published MIG profiles of each model, for planning without the hardware. Pure data.

NVML is the truth wherever it answers; these tables serve `fairlead mig plan --model` and a driver too old to name its
profiles. All parts of seven compute slices place instances alike; what differs are the names and the memory.
Source: NVIDIA MIG User Guide, "Supported MIG Profiles"; go-nvml, GPU instance profile ids; mig-parted, device filters
of deployments/container/nvidia-mig-manager.yaml; `nvidia-smi mig -lgip` of an RTX PRO 6000, as Bottlerocket's kit and
GKE's device plugin record it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.model.mig import MIGProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    id: int
    slices: int
    size: int
    starts: tuple[int, ...]
    limit: int
    media: bool = False


_SEVEN: Final = (
    _Row(id=19, slices=1, size=1, starts=(0, 1, 2, 3, 4, 5, 6), limit=7),
    _Row(id=20, slices=1, size=1, starts=(0, 1, 2, 3, 4, 5, 6), limit=1, media=True),
    _Row(id=15, slices=1, size=2, starts=(0, 2, 4, 6), limit=4),
    _Row(id=14, slices=2, size=2, starts=(0, 2, 4), limit=3),
    _Row(id=9, slices=3, size=4, starts=(0, 4), limit=2),
    _Row(id=5, slices=4, size=4, starts=(0,), limit=1),
    _Row(id=0, slices=7, size=8, starts=(0,), limit=1),
)
_FOUR: Final = (
    _Row(id=14, slices=1, size=1, starts=(0, 1, 2, 3), limit=4),
    _Row(id=21, slices=1, size=1, starts=(0, 1, 2, 3), limit=1, media=True),
    _Row(id=5, slices=2, size=2, starts=(0, 2), limit=2),
    _Row(id=6, slices=2, size=2, starts=(0, 2), limit=1, media=True),
    _Row(id=0, slices=4, size=4, starts=(0,), limit=1),
)
_GRAPHICS: Final = (
    _Row(id=14, slices=1, size=1, starts=(0, 1, 2, 3), limit=4),
    _Row(id=21, slices=1, size=1, starts=(0, 1, 2, 3), limit=1, media=True),
    _Row(id=47, slices=1, size=1, starts=(0, 1, 2, 3), limit=4),
    _Row(id=65, slices=1, size=1, starts=(0, 1, 2, 3), limit=1, media=True),
    _Row(id=67, slices=1, size=1, starts=(0, 1, 2, 3), limit=4),
    _Row(id=5, slices=2, size=2, starts=(0, 2), limit=2),
    _Row(id=35, slices=2, size=2, starts=(0, 2), limit=2),
    _Row(id=64, slices=2, size=2, starts=(0, 2), limit=1, media=True),
    _Row(id=66, slices=2, size=2, starts=(0, 2), limit=2),
    _Row(id=0, slices=4, size=4, starts=(0,), limit=1),
    _Row(id=32, slices=4, size=4, starts=(0,), limit=1),
)
"""Of workstation and server cards with graphics: each size also with graphics, all media engines, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One product."""

    title: str
    device_ids: tuple[int, ...]
    """PCI device ids, without the vendor's."""
    profiles: tuple[MIGProfile, ...]


def _seven(title: str, device_ids: tuple[int, ...], *gigabytes: int) -> Model:
    """Return a part of seven compute slices. Args: gigabytes: of 1g, the 1g of two memory slices, 2g, 3g, 4g, 7g."""
    one, double, two, three, four, whole = gigabytes
    names = (f"1g.{one}gb", f"1g.{one}gb+me", f"1g.{double}gb", f"2g.{two}gb", f"3g.{three}gb", f"4g.{four}gb")
    return Model(title=title, device_ids=device_ids, profiles=_profiles(_SEVEN, (*names, f"7g.{whole}gb")))


def _profiles(shape: tuple[_Row, ...], names: tuple[str, ...]) -> tuple[MIGProfile, ...]:
    return tuple(
        MIGProfile(
            id=row.id,
            name=name,
            slices=row.slices,
            size=row.size,
            starts=row.starts,
            limit=row.limit,
            takes_media=row.media,
        )
        for row, name in zip(shape, names, strict=True)
    )


MODELS: Final[Mapping[str, Model]] = {
    "a100-40": _seven("NVIDIA A100 40GB", (0x20B0, 0x20B1, 0x20F1, 0x20F6), 5, 10, 10, 20, 20, 40),
    "a100-80": _seven("NVIDIA A100 80GB", (0x20B2, 0x20B5, 0x20F3, 0x20F5), 10, 20, 20, 40, 40, 80),
    "h100-80": _seven("NVIDIA H100 80GB", (0x2330, 0x2331, 0x2322, 0x2324), 10, 20, 20, 40, 40, 80),
    "h100-94": _seven("NVIDIA H100 NVL", (0x2321, 0x233A), 12, 24, 24, 47, 47, 94),
    "h100-96": _seven("NVIDIA H100 96GB", (0x233D,), 12, 24, 24, 48, 48, 96),
    "gh200-96": _seven("NVIDIA GH200 480GB", (0x2342,), 12, 24, 24, 48, 48, 96),
    "h200-141": _seven("NVIDIA H200", (0x2335, 0x233B), 18, 35, 35, 71, 71, 141),
    "gh200-144": _seven("NVIDIA GH200 144G", (0x2348,), 18, 36, 36, 72, 72, 144),
    "b200-180": _seven("NVIDIA B200", (0x2901,), 23, 45, 45, 90, 90, 180),
    "gb200-186": _seven("NVIDIA GB200", (0x2941,), 23, 47, 47, 93, 93, 186),
    "b300-269": _seven("NVIDIA B300", (0x3182,), 34, 67, 67, 135, 135, 269),
    "gb300-278": _seven("NVIDIA GB300", (0x31C2,), 35, 70, 70, 139, 139, 278),
    "a30-24": Model(
        title="NVIDIA A30",
        device_ids=(0x20B7,),
        profiles=_profiles(_FOUR, ("1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb")),
    ),
    "rtxpro6000-96": Model(
        title="NVIDIA RTX PRO 6000 Blackwell",
        device_ids=(0x2BB1, 0x2BB4, 0x2BB5),
        profiles=_profiles(
            _GRAPHICS,
            (
                *("1g.24gb", "1g.24gb+me", "1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me"),
                *("2g.48gb", "2g.48gb+gfx", "2g.48gb+me.all", "2g.48gb-me"),
                *("4g.96gb", "4g.96gb+gfx"),
            ),
        ),
    ),
}
"""By the name that `--model` takes."""


def find_model(device_id: int) -> Model | None:
    """Return the model of a PCI device id."""
    return next((model for model in MODELS.values() if device_id in model.device_ids), None)


def slices_of(name: str, otherwise: int) -> int:
    """Return the compute slices that a product is divided into, by its name; `otherwise` where it is not listed."""
    model = next((one for one in MODELS.values() if name.startswith(one.title)), None)
    return max(one.slices for one in model.profiles) if model is not None else otherwise
