"""Reads profiles of simulated machines: data files in `profiles/`, or a file of the user's.

A profile lists groups of like GPUs with their PCI addresses, NUMA node and links; what a GPU is comes from
`profiles/parts.toml`. A user's file may carry its own `[parts]` and `[shapes]` of the same form. UUIDs and serials
derive from the profile's name and the index, so a simulated machine is the same machine after every restart.
"""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fairlead import errors
from fairlead.frozen import frozen

FOLDER: Final = Path(__file__).parent / "profiles"
_PARTS: Final = FOLDER / "parts.toml"
_NAMESPACE: Final = uuid.UUID("6f1c5a0e-2b7d-5f0a-9d53-fa1e1ead0001")
_BRAND_NVIDIA: Final = 14
"""What today's drivers report of data centre GPUs, a Tesla T4 among them; 460 and older said 2, `tesla`."""
_LARGEST_BYTES: Final = 1 << 17
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_VERSION: Final = re.compile(r"[0-9]{1,5}(\.[0-9]{1,5}){1,3}")
_MOST_GPUS: Final = 64
_HIGHEST_MINOR: Final = 253
"""254 and 255 are nvidia-modeset and nvidiactl."""
_LONGEST_NAME: Final = 95
"""NVML_DEVICE_NAME_V2_BUFFER_SIZE, less the NUL."""
_MOST_LINKS, _MOST_SLICES, _HIGHEST_NUMA = 18, 16, 1023
_MOST: Final = 2**31 - 1
NVLINK_FORMS: Final = ("none", "mesh", "switch")
FRAMEWORKS: Final = ("mdev", "sriov")
LICENCES: Final = ("", "licensed", "unlicensed")
_MOST_FUNCTIONS: Final = 64
PCIE_LEVELS: Final = ("PSB", "PIX", "PXB", "PHB", "NODE")


@frozen
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


@frozen
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
    full_power_mw: int
    """At full load, which is also the limit."""
    sm_clock_mhz: int
    """Highest."""
    memory_clock_mhz: int
    brand: int = _BRAND_NVIDIA
    """NVML_BRAND_*."""
    has_memory_sensor: bool = False
    """Whether the memory has a thermometer of its own, as stacked memory has."""
    mig: tuple[MIGRow, ...] = ()
    """Empty: the part cannot be partitioned."""


@frozen
class Lending:
    """How a board lends vGPUs to guests."""

    framework: str
    """Member of `FRAMEWORKS`."""
    functions: int
    """SR-IOV virtual functions; mediated devices need none."""
    types: tuple[tuple[int, str], ...]
    """Number and name of each type."""
    lent: tuple[int, ...]
    """Number of the type of each vGPU that exists."""


@frozen
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
    clique: int | None = None
    """Number of its clique in the machine's NVLink fabric; None: it is in none."""
    lending: Lending | None = None
    """None: it lends no vGPUs."""
    licence: str = ""
    """Member of `LICENCES` where it is itself a vGPU that a hypervisor lends; empty: it is a board."""


@frozen
class Profile:
    """A whole simulated machine."""

    name: str
    title: str
    driver: str
    cuda: tuple[int, int]
    boards: tuple[Board, ...]
    cluster: bytes = bytes(16)
    """UUID of the NVLink fabric that the machine is part of, 16 bytes."""


def list_names() -> list[str]:
    """Return the names of the profiles that come with the package, in order."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path != _PARTS)


def load(name: str) -> Profile:
    """Read a profile by name, or from a `.toml` or `.json` file.

    Raises:  Invalid: no such profile (the message lists what is offered), or a file that breaks the form.
    """
    path = FOLDER / f"{name}.toml" if name in list_names() else Path(name)
    if "\0" in name or path.suffix not in {".toml", ".json"} or not path.is_file():
        message = f'no simulated profile "{name}" (offered: {", ".join(list_names())})'
        raise errors.Invalid(message, reason="ProfileUnknown", hint="give one of these or the path of a .toml file")
    try:
        document, own = _read(path), _read(_PARTS)
        shapes = {**own["shapes"], **document.get("shapes", {})}
        rows = {**own["parts"], **document.get("parts", {})}
        parts = {key: _part(key, row, shapes) for key, row in rows.items()}
        return _profile(path.stem, document, parts)
    except OSError as error:
        message = f"cannot read simulated profile {path}: {error.strerror}"
        raise errors.Invalid(message, reason="ProfileInvalid") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        message = f"simulated profile {path} breaks the form: {type(error).__name__} {error}"
        raise errors.Invalid(message, reason="ProfileInvalid", hint=f"compare with {FOLDER / 'h100x8.toml'}") from error


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise ValueError(f"larger than {_LARGEST_BYTES} bytes")
    text = data.decode()
    document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    if not isinstance(document, dict):
        raise TypeError("the document is not a table")
    return document


def _count(value: Any, top: int = _MOST) -> int:
    """Return a whole number from 0 to `top`. Raises: ValueError, TypeError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r:.100} is not a whole number")
    if not 0 <= value <= top:
        raise ValueError(f"{value!r:.100} is not from 0 to {top}")
    return value


def _pair(value: Any) -> tuple[int, int]:
    major, minor = value
    return _count(major, 9999), _count(minor, 9999)


def _named(value: Any) -> str:
    """Return a name as drivers give it: one short line. Raises: ValueError, TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is not a text")
    if not value.isprintable() or not 0 < len(value) <= _LONGEST_NAME:
        raise ValueError(f"{value!r:.100} is not one line of 1 to {_LONGEST_NAME} printable characters")
    return value


def _formed(form: re.Pattern[str], value: Any) -> str:
    """Return a text of this form: it becomes part of a path. Raises: ValueError."""
    text = str(value).lower()
    if form.fullmatch(text) is None:
        raise ValueError(f"{value!r:.100} is not of the form {form.pattern}")
    return text


def _part(key: str, row: Mapping[str, Any], shapes: Mapping[str, Any]) -> Part:
    return Part(
        key=key,
        name=_named(row["name"]),
        device_id=_count(row["device_id"], 0xFFFF),
        memory_mib=_count(row["memory_mib"]),
        compute_capability=_pair(row["compute_capability"]),
        nvlinks=_count(row.get("nvlinks", 0), _MOST_LINKS),
        idle_power_mw=_count(row.get("idle_power_mw", 30_000)),
        full_power_mw=_count(row.get("full_power_mw", 300_000)),
        sm_clock_mhz=_count(row.get("sm_clock_mhz", 1500)),
        memory_clock_mhz=_count(row.get("memory_clock_mhz", 1500)),
        brand=_count(row.get("brand", _BRAND_NVIDIA), 0xFF),
        has_memory_sensor=bool(row.get("memory_sensor", False)),
        mig=_mig(row["mig"], shapes) if "mig" in row else (),
    )


def _mig(table: Mapping[str, Any], shapes: Mapping[str, Any]) -> tuple[MIGRow, ...]:
    shape = shapes[table["shape"]]["rows"]
    columns = zip(shape, table["names"], table["memory_mib"], table["multiprocessors"], strict=True)
    return tuple(
        MIGRow(
            enum=_count(row["enum"], 0xFF),
            id=_count(row["id"], 0xFF),
            name=_named(name),
            slices=_count(row["slices"], _MOST_SLICES),
            size=_count(row["size"], _MOST_SLICES),
            starts=tuple(_count(start, _MOST_SLICES) for start in row["starts"]),
            limit=_count(row["limit"], _MOST_SLICES),
            memory_mib=_count(memory),
            multiprocessors=_count(count),
            takes_media=bool(row["media"]),
        )
        for row, name, memory, count in columns
    )


def _member(offered: tuple[str, ...], value: Any) -> str:
    """Return a text that is one of some. Raises: ValueError."""
    if value not in offered:
        raise ValueError(f"{value!r:.100} is not one of {offered}")
    return str(value)


def _lending(table: Mapping[str, Any]) -> Lending:
    framework = _member(FRAMEWORKS, table["framework"])
    types = {_count(number): _named(name) for name, number in table["types"].items()}
    numbers = {name: number for number, name in types.items()}
    lent = tuple(numbers[_named(name)] for name in table.get("lent", ()))
    functions = _count(table.get("functions", 0), _MOST_FUNCTIONS) if framework == "sriov" else 0
    if len(lent) > (functions if framework == "sriov" else _MOST_FUNCTIONS) or 0 in types:
        raise ValueError(f"{len(lent)} vGPUs of {functions} virtual functions")
    return Lending(framework=framework, functions=functions, types=tuple(types.items()), lent=lent)


def _profile(name: str, document: Mapping[str, Any], parts: Mapping[str, Part]) -> Profile:
    boards: list[Board] = []
    for number, group in enumerate(document["groups"]):
        part, first = parts[group["part"]], len(boards)
        nvlink, pcie = group.get("nvlink", "none"), group.get("pcie", "NODE")
        if nvlink not in NVLINK_FORMS or pcie not in PCIE_LEVELS:
            raise ValueError(f"nvlink {nvlink!r:.100} of {NVLINK_FORMS}, pcie {pcie!r:.100} of {PCIE_LEVELS}")
        minors = group.get("minors", range(first, first + len(group["pci"])))
        for pci, minor in zip(group["pci"], minors, strict=True):
            index = len(boards)
            if index == _MOST_GPUS:
                raise ValueError(f"more than {_MOST_GPUS} GPUs")
            boards.append(
                Board(
                    index=index,
                    minor=_count(minor, _HIGHEST_MINOR),
                    pci=_formed(_ADDRESS, pci),
                    numa=_count(group.get("numa", 0), _HIGHEST_NUMA),
                    group=number,
                    nvlink=nvlink if part.nvlinks else "none",
                    pcie=pcie,
                    part=part,
                    clique=_count(group["clique"]) if "clique" in group else None,
                    lending=_lending(group["vgpus"]) if "vgpus" in group else None,
                    licence=_member(LICENCES, group.get("licence", "")),
                    uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{name}/{index}')}",
                    serial=str(1_650_000_000_000 + uuid.uuid5(_NAMESPACE, f"serial/{name}/{index}").int % 10**9),
                )
            )
    if len({board.minor for board in boards}) != len(boards) or len({board.pci for board in boards}) != len(boards):
        raise ValueError("two GPUs share a minor number or a PCI address")
    return Profile(
        name=name,
        title=_named(document["title"]),
        driver=_formed(_VERSION, document["driver"]),
        cuda=_pair(document["cuda"]),
        boards=tuple(boards),
        cluster=uuid.UUID(document["cluster"]).bytes if "cluster" in document else bytes(16),
    )


def mig_uuid(gpu_uuid: str, gpu_instance: int, compute_instance: int) -> str:
    """Return the stable UUID of one compute instance."""
    return f"MIG-{uuid.uuid5(_NAMESPACE, f'{gpu_uuid}/{gpu_instance}/{compute_instance}')}"
