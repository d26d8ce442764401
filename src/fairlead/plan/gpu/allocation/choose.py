"""Chooses the devices of one container: preferred allocation. Pure.

Choosing `size` of the free GPUs is one quadratic problem. Every pair of GPUs has a worth when both go to the container
(`together`: bandwidth between them, then one NUMA node) and a worth when both stay free (`left`: bandwidth between
them, then sharing a buddy cell of 8, 4 or 2, so that jobs go into the most broken cell and whole groups stay whole).
The parts are stacked in one integer, most important first, so that one comparison decides and ties fall to the lower
index. NVSwitch makes all pairs equal; then NUMA and cells decide, as they should.

The search is exact where it can be and bounded everywhere. GPUs that are all alike are taken in order (two equal
ones never make two branches), which leaves about a thousand sets for 8 of 16; a step budget ends what is larger, and
then the better of the search so far and a grown-and-exchanged set is the answer. Devices that share a GPU (replicas,
MIG devices) are spread over GPUs instead. The kubelet sets no deadline for this call and fails the pod when it fails,
so unknown free ids are tolerated and come last.

Source: kubelet deviceplugin/v1beta1 api.proto, GetPreferredAllocation; pair scores as the field uses them, with
NVSwitch counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors
from fairlead.model.device import Device
from fairlead.model.gpu import GPU, Inventory, LinkKind
from fairlead.model.ids import DeviceID
from fairlead.plan.gpu.offer.advertise import UNSHARED, SharingRule

_PCIE_SCORE: Final[Mapping[LinkKind, int]] = {
    LinkKind.SYSTEM: 10,
    LinkKind.SAME_NODE: 20,
    LinkKind.HOST_BRIDGE: 30,
    LinkKind.MULTI_SWITCH: 40,
    LinkKind.SINGLE_SWITCH: 50,
    LinkKind.SAME_BOARD: 60,
}
_LANE_SCORE: Final = 100
_CELLS: Final = (2, 4, 8)
_STEP_BUDGET: Final = 2000
"""Search steps per call; one is about a microsecond."""

Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Pair worths of one machine's GPUs, by rank; built once per inventory."""

    rank: Mapping[str, int] = field(default_factory=dict)
    """GPU uuid → row; NUMA node by NUMA node, in index order."""
    together: Matrix = ()
    left: Matrix = ()


def pair_score(kind: LinkKind, lanes: int) -> int:
    """Return the points of one pair: 10 (across sockets) to 60 (one board), 100 for each NVLink or XGMI link."""
    return _PCIE_SCORE.get(kind) or _LANE_SCORE * max(lanes, 1)


def plan_topology(inventory: Inventory) -> Topology:
    """Weigh every pair of GPUs once, so that no call reads the hardware."""
    gpus = sorted(inventory.gpus, key=lambda gpu: (gpu.numa_node is None, gpu.numa_node or 0, gpu.index))
    rank = {str(gpu.uuid): position for position, gpu in enumerate(gpus)}
    size = len(gpus)
    score = [[0] * size for _ in range(size)]
    for link in inventory.links:
        if link.a in rank and link.b in rank:
            a, b = rank[link.a], rank[link.b]
            score[a][b] = score[b][a] = pair_score(link.kind, link.lanes)
    place = _cell_positions(gpus)
    pairs = size * (size - 1) // 2 + 1
    top = max((points for row in score for points in row), default=0) * pairs + 1
    # Each criterion is a digit of a number of mixed radix, so that a higher one outweighs all that are lower.
    # Least important first: locality of the chosen, free pairs of 2, of 4, of 8, free bandwidth, NUMA, bandwidth.
    unit = list(itertools.accumulate([1, len(_CELLS) * pairs + 1, pairs, pairs, pairs, top, pairs], lambda a, b: a * b))
    together, left = [[0] * size for _ in gpus], [[0] * size for _ in gpus]
    for a, b in itertools.permutations(range(size), 2):
        shared = [place[a][0] == place[b][0] and place[a][1] // cell == place[b][1] // cell for cell in _CELLS]
        together[a][b] = sum(shared) + unit[5] * (place[a][0] == place[b][0]) + unit[6] * score[a][b]
        left[a][b] = sum(unit[1 + level] for level, is_in in enumerate(shared) if is_in) + unit[4] * score[a][b]
    return Topology(rank=rank, together=tuple(map(tuple, together)), left=tuple(map(tuple, left)))


def _cell_positions(gpus: Sequence[GPU]) -> list[tuple[int | None, int]]:
    seen: Counter[int | None] = Counter()
    places = []
    for gpu in gpus:
        places.append((gpu.numa_node, seen[gpu.numa_node]))
        seen[gpu.numa_node] += 1
    return places


def choose_devices(
    available: tuple[DeviceID, ...],
    must_include: tuple[DeviceID, ...],
    size: int,
    *,
    devices: Mapping[DeviceID, Device],
    topology: Topology,
    rule: SharingRule = UNSHARED,
    near: str | None = None,
    taken: frozenset[DeviceID] = frozenset(),
) -> tuple[DeviceID, ...]:
    """Choose `size` of `available` for one container, `must_include` among them.

    Args:    available: free ids, any order.   must_include: a subset of them.   devices: all advertised, in order.
             rule: how replicas are given away.   near: the GPU to take them of, where it has enough.
             taken: what a container has, whatever `available` says; chosen last.
    Returns: `size` ids in advertised order; the same for the same sets.
    Raises:  Insufficient: fewer than `size` are free.   RequestError: `must_include` does not fit in.
    """
    free, needed = tuple(dict.fromkeys(available)), frozenset(must_include)
    _check(free, needed, size)
    if taken and not rule.needs_one_gpu:
        free, needed = _taken_last(free, needed, size, taken)
    if rule.needs_one_gpu:
        free = _on_one_gpu(free, needed, size, devices, packs=rule.packs, near=near)
    if rule.packs and size > len(needed):
        return _in_order(_spread(free, needed, size, devices, rule), devices)
    if size == len(free) or size == len(needed):
        return _in_order(free if size == len(free) else needed, devices)
    known = [item for item in _in_order(free, devices) if item in devices]
    gpus = [_gpu_of(devices[item]) for item in known]
    is_shared = len(set(gpus)) < len(gpus)
    if is_shared or len(known) < size or not needed <= set(known) or not all(gpu in topology.rank for gpu in gpus):
        return _in_order(_spread(free, needed, size, devices, rule), devices)
    rank = {item: topology.rank[gpu] for item, gpu in zip(known, gpus, strict=True)}
    by_rank = {row: item for item, row in rank.items()}
    rows = choose_rows(sorted(by_rank), frozenset(rank[item] for item in needed), size, topology)
    return _in_order([by_rank[row] for row in rows], devices)


def _taken_last(
    free: tuple[DeviceID, ...], needed: frozenset[DeviceID], size: int, taken: frozenset[DeviceID]
) -> tuple[tuple[DeviceID, ...], frozenset[DeviceID]]:
    """Return what to choose of and what must be chosen, so that nothing taken is while something else is there."""
    rest = tuple(item for item in free if item in needed or item not in taken)
    return (rest, needed) if len(rest) >= size else (free, frozenset(rest))


def _check(free: Sequence[DeviceID], needed: frozenset[DeviceID], size: int) -> None:
    if missing := sorted(needed - set(free)):
        message = f'device "{missing[0]}" must be included but is not available'
        raise errors.RequestError(message, reason="MustIncludeUnavailable")
    if size < len(needed):
        message = f"allocation size {size} is smaller than the {len(needed)} devices that must be included"
        raise errors.RequestError(message, reason="AllocationSizeInvalid")
    if size > len(free):
        message = f"{size} devices asked for, {len(free)} available"
        raise errors.Insufficient(message, reason="InsufficientDevices")


def _on_one_gpu(
    free: Sequence[DeviceID],
    needed: frozenset[DeviceID],
    size: int,
    devices: Mapping[DeviceID, Device],
    *,
    packs: bool,
    near: str | None,
) -> tuple[DeviceID, ...]:
    """Return the free devices of the one GPU that has enough; all of them where none has, and Allocate refuses.

    Of several it is the GPU with most free, or where replicas are packed the one with fewest; ties go to the first.
    """
    by_gpu: dict[str, list[DeviceID]] = {}
    for item in _in_order(free, devices):
        if item in devices:
            by_gpu.setdefault(_gpu_of(devices[item]), []).append(item)
    enough: list[list[DeviceID]] = [items for items in by_gpu.values() if len(items) >= size and needed <= set(items)]
    if not enough:
        return tuple(free)
    enough.sort(key=lambda items: (_gpu_of(devices[items[0]]) != near, len(items) if packs else -len(items)))
    return tuple(enough[0])


def _gpu_of(device: Device) -> str:
    return device.gpu


def _in_order(chosen: Iterable[DeviceID], devices: Mapping[DeviceID, Device]) -> tuple[DeviceID, ...]:
    place = {item: position for position, item in enumerate(devices)}
    return tuple(sorted(chosen, key=lambda item: (place.get(item, len(place)), item)))


def _spread(
    free: Sequence[DeviceID],
    needed: frozenset[DeviceID],
    size: int,
    devices: Mapping[DeviceID, Device],
    rule: SharingRule,
) -> list[DeviceID]:
    """Take device after device from the GPU that gave this container fewest, then the one with fewest in use.

    Where replicas are packed it is the GPU with most in use, whatever it gave, unless GPUs must differ.
    """
    gpu = {item: _gpu_of(devices[item]) if item in devices else "" for item in free}
    in_use = Counter(_gpu_of(device) for device in devices.values())
    in_use.subtract(gpu.values())
    chosen = list(_in_order(needed, devices))
    given = Counter(gpu[item] for item in chosen)
    left = [item for item in _in_order(free, devices) if item not in needed]

    def rank(item: DeviceID) -> tuple[bool, int, int]:
        if rule.packs:
            return item not in devices, given[gpu[item]] * rule.needs_different_gpus, -in_use[gpu[item]]
        return item not in devices, given[gpu[item]], in_use[gpu[item]]

    while len(chosen) < size:
        best = min(left, key=rank)
        left.remove(best)
        chosen.append(best)
        given[gpu[best]] += 1
        in_use[gpu[best]] += 1
    return chosen


def choose_rows(free: Sequence[int], needed: frozenset[int], size: int, topology: Topology) -> list[int]:
    """Return the ranks of the GPUs to take. Args: free: ranks, ascending, `needed` among them; at least `size`.

    Reduced to: pick `count` of `worth`'s positions, maximising their worths plus their pair worths.
    """
    if size in {len(free), len(needed)}:
        return list(free if size == len(free) else needed)
    optional = [row for row in free if row not in needed]
    pair = [[topology.together[a][b] + topology.left[a][b] for b in optional] for a in optional]
    # Taking a row loses its pairs among the free, counted back in `pair` where both are taken.
    worth = [
        sum(topology.together[a][b] + topology.left[a][b] for b in needed) - sum(topology.left[a][b] for b in free)
        for a in optional
    ]
    picked = _Search(worth, pair, size - len(needed)).run()
    return [*needed, *(optional[position] for position in picked)]


class _Search:
    """Depth first over positions in order; equal positions are only ever taken in order."""

    def __init__(self, worth: Sequence[int], pair: Sequence[Sequence[int]], count: int) -> None:
        self.worth, self.pair, self.count = worth, pair, count
        self.is_twin = [position > 0 and self._are_twins(position - 1, position) for position in range(len(worth))]
        self.steps = 0
        self.best: tuple[int, ...] = ()
        self.value: int | None = None

    def _are_twins(self, a: int, b: int) -> bool:
        if self.worth[a] != self.worth[b]:
            return False
        return all(x == y for k, (x, y) in enumerate(zip(self.pair[a], self.pair[b], strict=True)) if k not in {a, b})

    def run(self) -> tuple[int, ...]:
        self._descend(0, self.worth, (), 0)
        if self.steps > _STEP_BUDGET:
            grown, value = self._grow()
            if self.value is None or value > self.value:
                return grown
        return self.best

    def _descend(self, start: int, gain: Sequence[int], taken: tuple[int, ...], value: int) -> None:
        missing = self.count - len(taken)
        if missing == 0:
            if self.value is None or value > self.value:
                self.best, self.value = taken, value
            return
        last = len(gain) - missing
        for position in range(start, last + 1):
            if position > start and self.is_twin[position]:
                continue  # its equal before it was skipped: the same set by another name
            self.steps += 1
            if self.steps > _STEP_BUDGET:
                return
            after = [a + b for a, b in zip(gain, self.pair[position], strict=True)] if missing > 1 else gain
            self._descend(position + 1, after, (*taken, position), value + gain[position])

    def _grow(self) -> tuple[tuple[int, ...], int]:
        """Grow a set from every position, then exchange single members while that helps."""
        sets = [self._exchange(self._grow_from(position)) for position in range(len(self.worth))]
        return max(sets, key=lambda item: item[1])

    def _grow_from(self, seed: int) -> list[int]:
        taken, gain = [seed], [a + b for a, b in zip(self.worth, self.pair[seed], strict=True)]
        while len(taken) < self.count:
            best = max((position for position in range(len(gain)) if position not in taken), key=gain.__getitem__)
            taken.append(best)
            gain = [a + b for a, b in zip(gain, self.pair[best], strict=True)]
        return taken

    def _exchange(self, taken: list[int]) -> tuple[tuple[int, ...], int]:
        gain = [self.worth[k] + sum(self.pair[k][t] for t in taken) for k in range(len(self.worth))]
        for _ in range(self.count):
            delta, out, into = max(
                (gain[j] - gain[i] - self.pair[i][j], -i, -j) for i in taken for j in range(len(gain)) if j not in taken
            )
            if delta <= 0:
                break
            taken[taken.index(-out)] = -into
            gain = [g + self.pair[-into][k] - self.pair[-out][k] for k, g in enumerate(gain)]
        members = tuple(sorted(taken))
        value = sum(self.worth[k] for k in members) + sum(
            self.pair[a][b] for a, b in itertools.combinations(members, 2)
        )
        return members, value
