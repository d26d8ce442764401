"""Finds the resources that stand for a part of a GPU: so much memory, so much compute, isolated by some means. Pure.

Who asks names amounts; what a node has depends on its configuration: amounts or equal shares by MPS, MIG devices,
replicas by time. Of all parts that are large enough the smallest is taken, so that the rest of its GPU stays free.
MPS and MIG isolate, and one of them is required unless `none` is asked for. Then a replica by time will do, and only
where an even share of its GPU covers what is asked for: so a GPU is never promised twice, though nothing enforces it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model.gpu import GPU
from fairlead.plan.gpu.offer import migoffer
from fairlead.plan.sharing import mps, replicate
from fairlead.wire.nvidia import pluginconfig

MIG: Final = "mig"
NONE: Final = "none"
ISOLATIONS: Final = (replicate.MPS, MIG, NONE)
_GIB: Final = 1 << 30
MOST_SLICES: Final = 7
_NAMED: Final = re.compile(r"(?:(?P<part>\d+)c\.)?(?P<slices>\d+)g\.(?P<gigabytes>\d+)gb")
_LEAST_OF_NAME: Final = 0.85
"""Share of the GiB in a profile's name that its devices have at least: 1g.18gb of an H200 has 16."""
_HOW: Final[Mapping[str, str]] = {
    replicate.MPS: "`fairlead agent check FILE` says what a file with sharing.mps or fairlead.sharing.mpsAmounts does",
    MIG: "`fairlead mig apply` makes MIG devices, and --node-mig-strategy mixed offers them",
    NONE: "`fairlead agent check FILE` says what a file with sharing.timeSlicing does",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A part of a GPU as a user asks for it."""

    memory_bytes: int = 0
    """0: the same share as of the compute."""
    percent: int = 0
    """Of one GPU's compute; 0: the same share as of the memory."""
    isolation: str = ""
    """One of ISOLATIONS; empty: any that isolates."""

    def __str__(self) -> str:
        """Return it for a message."""
        amounts = (_shown(self.memory_bytes) if self.memory_bytes else "", f"{self.percent}%" if self.percent else "")
        return f"{' and '.join(filter(None, amounts))} of a GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGPU:
    """One GPU, and how its node offers it."""

    gpu: GPU
    resource: str
    means: str = ""
    """As `advertise.Offer.means`."""
    replicas: int = 0
    slices: int = MOST_SLICES
    """Compute slices that it is divided into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one node offers."""

    allocatable: Collection[str]
    """Resources of which it has any."""
    resource: str = pluginconfig.GPU_RESOURCE
    """Of whole GPUs, and of MIG devices that are offered like them."""
    gpus: Sequence[SharedGPU]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a container may be given: the resources to ask for, and what they come to."""

    isolation: str
    resources: tuple[tuple[str, int], ...]
    """Extended resources to ask for, and how many of each."""
    memory_bytes: int
    """0: the driver does not tell how much memory the GPU has."""
    percent: int

    def __str__(self) -> str:
        """Return it for a person."""
        asked = ", ".join(f"{name}={count}" for name, count in self.resources)
        limit = "nothing limits it" if self.isolation == NONE else f"isolated by {self.isolation.upper()}"
        memory = f"{_shown(self.memory_bytes)} and " if self.memory_bytes else ""
        return f"{asked}: {memory}{self.percent}% of a GPU, {limit}"


def find_part(wanted: Wanted, nodes: Iterable[Node]) -> Part:
    """Return the smallest part that some node offers and that covers what is wanted.

    Raises: Invalid (`FractionInvalid`): more than a GPU, or nothing, is asked for.   Insufficient
            (`IsolationAbsent`): no node offers such isolation; (`FractionTooLarge`): none of what is offered so is
            large enough; (`MemoryUnknown`): how large it is, is not known.
    """
    if not (wanted.memory_bytes or wanted.percent) or not 0 <= wanted.percent <= 100 or wanted.memory_bytes < 0:
        message = f"{wanted.percent}% and {wanted.memory_bytes} bytes are not a part of a GPU"
        raise errors.Invalid(message, reason="FractionInvalid", hint="memory above 0, compute from 1 to 100")
    found = {one for node in nodes for one in _parts(node, wanted)}
    means = {wanted.isolation} if wanted.isolation else {replicate.MPS, MIG}
    offered = [one for one in found if one.isolation in means]
    if not offered:
        raise _absent(wanted, {one.isolation for one in found})
    enough = [one for one in offered if one.memory_bytes >= wanted.memory_bytes and one.percent >= wanted.percent]
    if not enough and wanted.memory_bytes and not any(one.memory_bytes for one in offered):
        message = f"{wanted} cannot be promised: the driver does not tell how much memory these GPUs have"
        hint = "ask by --gpu-compute alone, or for a whole GPU: -g 1"
        raise errors.Insufficient(message, reason="MemoryUnknown", hint=hint)
    if not enough:
        largest = max(offered, key=_size)
        message = f"{wanted} is more than any part that is offered; the largest is {largest}"
        raise errors.Insufficient(message, reason="FractionTooLarge", hint="ask for less, or for a whole GPU: -g 1")
    return min(enough, key=_size)


def _size(one: Part) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    return one.memory_bytes, one.percent, ISOLATIONS.index(one.isolation), one.resources


def _absent(wanted: Wanted, there: Collection[str]) -> errors.Insufficient:
    others = f" (offered: {', '.join(sorted(there))})" if there else ""
    if wanted.isolation:
        message = f"no node offers parts of GPUs by {wanted.isolation}{others}"
        return errors.Insufficient(message, reason="IsolationAbsent", hint=_HOW[wanted.isolation])
    message = f"no node isolates parts of GPUs by MPS or MIG{others}"
    hint = "--isolation none takes a share that nothing enforces" if NONE in there else _HOW[replicate.MPS]
    return errors.Insufficient(message, reason="IsolationAbsent", hint=hint)


def _parts(node: Node, wanted: Wanted) -> Iterator[Part]:
    for one in node.gpus:
        if one.resource == pluginconfig.MPS_CORE:
            yield from _by_amount(one, wanted)
        elif one.replicas and one.resource in node.allocatable:
            yield Part(
                isolation=replicate.MPS if one.means == replicate.MPS else NONE,
                resources=((one.resource, 1),),
                memory_bytes=one.gpu.memory_bytes // one.replicas,
                percent=100 // one.replicas,
            )
    yield from _by_mig(node)


def _by_amount(one: SharedGPU, wanted: Wanted) -> Iterator[Part]:
    """Yield what covers the request on a GPU that is given by amounts; the whole of it where nothing does."""
    gib = one.gpu.memory_bytes // _GIB
    least = -(-100 // mps.clients_limit(one.gpu))
    if not gib:  # the driver does not tell it: compute alone can be promised
        percent = max(least, wanted.percent)
        yield Part(
            isolation=replicate.MPS, resources=((pluginconfig.MPS_CORE, percent),), memory_bytes=0, percent=percent
        )
        return
    memory = -(-wanted.memory_bytes // _GIB) or max(1, gib * wanted.percent // 100)
    percent = wanted.percent or min(100, -(-memory * 100 // gib))
    memory, percent = min(memory, gib), max(least, percent)
    yield Part(
        isolation=replicate.MPS,
        resources=((pluginconfig.MPS_CORE, percent), (pluginconfig.MPS_MEMORY, memory)),
        memory_bytes=memory * _GIB,
        percent=percent,
    )


def _by_mig(node: Node) -> Iterator[Part]:
    """Yield the MIG devices that a node offers by profile, or alike under one name."""
    divided = [one.gpu for one in node.gpus if one.gpu.mig_enabled]
    slices = max((one.slices for one in node.gpus if one.gpu.mig_enabled), default=MOST_SLICES)
    known = {mig.profile: mig.memory_bytes for gpu in divided for mig in gpu.mig_devices}
    for name in node.allocatable:
        domain, _, last = name.partition("/")
        if last.startswith("mig-") and (named := _NAMED.match(last.removeprefix("mig-"))):
            exact = next((size for one, size in known.items() if migoffer.resource_name(one, domain) == name), 0)
            yield _mig_part(name, named, exact, slices)
    if node.resource in node.allocatable and len(known) == 1 and len(divided) == len(node.gpus):
        [(profile, size)] = known.items()
        if named := _NAMED.match(profile):
            yield _mig_part(node.resource, named, size, slices)


def _mig_part(resource: str, named: re.Match[str], exact: int, slices: int) -> Part:
    own = int(named["part"] or named["slices"])
    size = exact or int(int(named["gigabytes"]) * _GIB * _LEAST_OF_NAME)
    return Part(isolation=MIG, resources=((resource, 1),), memory_bytes=size, percent=100 * own // slices)


def _shown(size: int) -> str:
    return f"{size / _GIB:.4g} GiB"


def of_percent(text: str) -> int:
    """Return a percentage, `30`, `30%` or `0.3`. Raises: Invalid (`FractionInvalid`)."""
    word = text.strip().removesuffix("%")
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    value = round(value * 100 if 0 < value < 1 and not text.endswith("%") else value, 6)
    if not 1 <= value <= 100 or value != int(value):
        message = f'compute "{text}" is not a whole percentage of a GPU'
        raise errors.Invalid(message, reason="FractionInvalid", hint="from 1 to 100, for example 30")
    return int(value)
