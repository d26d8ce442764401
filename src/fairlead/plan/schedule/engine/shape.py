"""Describes what a placement asks for, and counts all that is asked for in a table.

Equal requests are one `Shape`: the key of every cache. A GPU is divided into 1000 milli-GPU; a request for a share is
for one GPU, a request for whole GPUs may be for several.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

WHOLE: Final = 1000
"""Milli-GPU of one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One request."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_milli: int = WHOLE
    """Of each GPU; below `WHOLE` only where one GPU is asked for."""
    models: frozenset[str] = frozenset()
    """Acceptable models; empty: any."""
    rule: str = ""
    """Names what else must hold of a node; the engine's caller says which nodes these are."""

    def __post_init__(self) -> None:
        """Refuse what cannot be. Raises: ValueError."""
        is_amount = min(self.cpu_milli, self.memory_mib, self.gpus) >= 0 and 0 < self.gpu_milli <= WHOLE
        if not is_amount or (self.gpus != 1 and self.gpu_milli != WHOLE):
            raise ValueError(f"not a request: {self}; a share is of one GPU, 1 to {WHOLE} milli-GPU")

    @property
    def total_milli(self) -> int:
        """Return the milli-GPU that it takes in all."""
        return self.gpus * self.gpu_milli

    @property
    def is_share(self) -> bool:
        """Return whether it takes a part of one GPU."""
        return self.gpus == 1 and self.gpu_milli < WHOLE

    def kind(self) -> Shape:
        """Return what the fragmentation table distinguishes: neither memory nor rules."""
        return Shape(cpu_milli=self.cpu_milli, gpus=self.gpus, gpu_milli=self.gpu_milli, models=self.models)


def counted(shapes: Iterable[Shape]) -> Mapping[Shape, int]:
    """Return how often each kind is asked for, the most frequent first; of equal ones the one that came first."""
    return dict(collections.Counter(shape.kind() for shape in shapes).most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One node with nothing on it."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request went."""

    node: int
    devices: tuple[int, ...]
    """Indices of the GPUs on the node."""
    score: int
