"""Reads profiles of simulated machines: data files in `profiles/`, or a file of the user's.

A profile lists groups of like GPUs with their PCI addresses, NUMA node and links; what a GPU is comes from
`profiles/parts.toml`. A user's file may carry its own `[parts]` and `[shapes]` of the same form. UUIDs and serials
derive from the profile's name and the index, so a simulated machine is the same machine after every restart.
"""

from __future__ import annotations

import json
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairlead import errors

FOLDER: Final = Path(__file__).parent / "profiles"
_PARTS: Final = FOLDER / "parts.toml"
_NAMESPACE: Final = uuid.UUID("6f1c5a0e-2b7d-5f0a-9d53-fa1e1ead0001")
_BRAND_NVIDIA: Final = 14
"""What today's drivers report of data centre GPUs, a Tesla T4 among them; 460 and older said 2, `tesla`."""
NVLINK_FORMS: Final = ("none", "mesh", "switch")
PCIE_LEVELS: Final = ("PSB", "PIX", "PXB", "PHB", "NODE")


@dataclass(frozen=True, slots=True, kw_only=True)
class MIGRow:
    """One GPU instance profile of one part."""

    enum: int
    """NVML_GPU_INSTANCE_PROFILE_*."""
    id: int
    name: str
    slices: int
    """Compute slices."""
    size: int
    """Memory slices."""
    starts: tuple[int, ...]
    """Memory slices at which an instance may begin, ascending."""
    limit: int
    memory_mib: int
    multiprocessors: int
    takes_media: bool
    """Takes the media engines of the GPU: one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One product."""

    key: str
    name: str
    device_id: int
    """PCI device id."""
    memory_mib: int
    compute_capability: tuple[int, int]
    nvlinks: int
    idle_power_mw: int
    brand: int = _BRAND_NVIDIA
    """NVML_BRAND_*."""
    mig: tuple[MIGRow, ...] = ()
    """Empty: the part cannot be partitioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One GPU of a simulated machine, before anything happens to it."""

    index: int
    minor: int
    pci: str
    numa: int
    group: int
    nvlink: str
    pcie: str
    part: Part
    uuid: str
    serial: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A whole simulated machine."""

    name: str
    title: str
    driver: str
    cuda: tuple[int, int]
    boards: tuple[Board, ...]


def list_names() -> list[str]:
    """Return the names of the profiles that come with the package, in order."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path != _PARTS)


def load(name: str) -> Profile:
    """Read a profile by name, or from a `.toml` or `.json` file.

    Raises:  Invalid: no such profile (the message lists what is offered), or a file that breaks the form.
    """
    path = FOLDER / f"{name}.toml" if name in list_names() else Path(name)
    if path.suffix not in {".toml", ".json"} or not path.is_file():
        message = f'no simulated profile "{name}" (offered: {", ".join(list_names())})'
        raise errors.Invalid(message, reason="ProfileUnknown", hint="give one of these or the path of a .toml file")
    try:
        document, own = _read(path), _read(_PARTS)
        shapes = {**own["shapes"], **document.get("shapes", {})}
        rows = {**own["parts"], **document.get("parts", {})}
        parts = {key: _part(key, row, shapes) for key, row in rows.items()}
        return _profile(path.stem, document, parts)
    except (KeyError, TypeError, ValueError) as error:
        message = f"simulated profile {path} breaks the form: {type(error).__name__} {error}"
        raise errors.Invalid(message, reason="ProfileInvalid", hint=f"compare with {FOLDER / 'h100x8.toml'}") from error


def _read(path: Path) -> dict[str, Any]:
    text = path.read_text()
    document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    if not isinstance(document, dict):
        raise TypeError("the document is not a table")
    return document


def _part(key: str, row: Mapping[str, Any], shapes: Mapping[str, Any]) -> Part:
    major, minor = row["compute_capability"]
    return Part(
        key=key,
        name=str(row["name"]),
        device_id=int(row["device_id"]),
        memory_mib=int(row["memory_mib"]),
        compute_capability=(int(major), int(minor)),
        nvlinks=int(row.get("nvlinks", 0)),
        idle_power_mw=int(row.get("idle_power_mw", 30_000)),
        brand=int(row.get("brand", _BRAND_NVIDIA)),
        mig=_mig(row["mig"], shapes) if "mig" in row else (),
    )


def _mig(table: Mapping[str, Any], shapes: Mapping[str, Any]) -> tuple[MIGRow, ...]:
    shape = shapes[table["shape"]]["rows"]
    columns = zip(shape, table["names"], table["memory_mib"], table["multiprocessors"], strict=True)
    return tuple(
        MIGRow(
            enum=row["enum"],
            id=row["id"],
            name=name,
            slices=row["slices"],
            size=row["size"],
            starts=tuple(row["starts"]),
            limit=row["limit"],
            memory_mib=memory,
            multiprocessors=count,
            takes_media=row["media"],
        )
        for row, name, memory, count in columns
    )


def _profile(name: str, document: Mapping[str, Any], parts: Mapping[str, Part]) -> Profile:
    boards: list[Board] = []
    for number, group in enumerate(document["groups"]):
        part, first = parts[group["part"]], len(boards)
        nvlink, pcie = group.get("nvlink", "none"), group.get("pcie", "NODE")
        if nvlink not in NVLINK_FORMS or pcie not in PCIE_LEVELS:
            raise ValueError(f"nvlink {nvlink!r} of {NVLINK_FORMS}, pcie {pcie!r} of {PCIE_LEVELS}")
        minors = group.get("minors", range(first, first + len(group["pci"])))
        for pci, minor in zip(group["pci"], minors, strict=True):
            index = len(boards)
            boards.append(
                Board(
                    index=index,
                    minor=int(minor),
                    pci=str(pci).lower(),
                    numa=int(group.get("numa", 0)),
                    group=number,
                    nvlink=nvlink if part.nvlinks else "none",
                    pcie=pcie,
                    part=part,
                    uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{name}/{index}')}",
                    serial=str(1_650_000_000_000 + uuid.uuid5(_NAMESPACE, f"serial/{name}/{index}").int % 10**9),
                )
            )
    if len({board.minor for board in boards}) != len(boards) or len({board.pci for board in boards}) != len(boards):
        raise ValueError("two GPUs share a minor number or a PCI address")
    major, minor = document["cuda"]
    return Profile(
        name=name,
        title=str(document["title"]),
        driver=str(document["driver"]),
        cuda=(int(major), int(minor)),
        boards=tuple(boards),
    )


def mig_uuid(gpu_uuid: str, gpu_instance: int, compute_instance: int) -> str:
    """Return the stable UUID of one compute instance."""
    return f"MIG-{uuid.uuid5(_NAMESPACE, f'{gpu_uuid}/{gpu_instance}/{compute_instance}')}"
