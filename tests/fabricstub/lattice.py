"""Says which partitions the simulated fabrics offer: published tables of three machines, and one that nobody has seen.

Source: NVIDIA Fabric Manager User Guide, "Shared NVSwitch virtualization configurations".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lattice:
    links: int
    """NVLinks of a GPU."""
    partitions: dict[int, tuple[int, ...]]
    """Physical ids by partition id."""


def _numbered(first: int, sets: list[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    return {first + at: one for at, one in enumerate(sets)}


def _run(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


def _singles(count: int) -> list[tuple[int, ...]]:
    return [(one,) for one in _run(1, count)]


H100 = Lattice(18, _numbered(0, [_run(1, 8), _run(1, 4), _run(5, 8), (1, 3), (2, 4), (5, 7), (6, 8), *_singles(8)]))
B200 = Lattice(18, _numbered(1, [_run(1, 8), _run(1, 4), _run(5, 8), (1, 2), (3, 4), (5, 6), (7, 8), *_singles(8)]))
A100 = Lattice(
    12,
    _numbered(
        0,
        [
            _run(1, 16),
            _run(1, 8),
            _run(9, 16),
            (*_run(1, 4), *_run(9, 12)),
            (*_run(5, 8), *_run(13, 16)),
            (*_run(1, 4), *_run(13, 16)),
            (*_run(5, 8), *_run(9, 12)),
            *[_run(at, at + 3) for at in (1, 5, 9, 13)],
            *[(at, at + 1) for at in range(1, 16, 2)],
            *_singles(16),
        ],
    ),
)
# Six GPUs in threes and in pairs that cross them, ids with gaps, no partition of one for GPU 6.
UNSEEN = Lattice(
    5, {40: _run(1, 6), 41: (1, 2, 3), 43: (4, 5, 6), 50: (1, 4), 51: (2, 5), 52: (3, 6), **_numbered(60, _singles(5))}
)
LATTICES = {"h100": H100, "b200": B200, "a100": A100, "unseen": UNSEEN}
