"""The policies once more, without arrays, caches or tables: loops over nodes, GPUs and what is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.plan.schedule.engine.shape import Host, Shape
from fairlead.plan.schedule.policy.demand import most_frequent

CPU, GPU = 128_000, 8000


@dataclass
class Node:
    """One node."""

    host: Host
    cpu: int = 0
    memory: int = 0
    gpu: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    """Sizes of the requests on it; 0: a share."""

    @classmethod
    def of(cls, host: Host) -> Node:
        return cls(host, host.cpu_milli, host.memory_mib, [1000] * host.gpus)

    def fits(self, shape: Shape) -> bool:
        has = sum(free >= shape.gpu_milli for free in self.gpu) >= shape.gpus
        model = not shape.models or self.host.model in shape.models
        return has and model and self.cpu >= shape.cpu_milli and self.memory >= shape.memory_mib

    def take(self, shape: Shape, devices: Sequence[int]) -> None:
        self.cpu -= shape.cpu_milli
        self.memory -= shape.memory_mib
        for one in devices:
            self.gpu[one] -= shape.gpu_milli
        if shape.gpus:
            self.held.append(0 if shape.is_share else shape.gpus)

    def give(self, shape: Shape, devices: Sequence[int]) -> None:
        self.cpu += shape.cpu_milli
        self.memory += shape.memory_mib
        for one in devices:
            self.gpu[one] += shape.gpu_milli
        if shape.gpus:
            self.held.remove(0 if shape.is_share else shape.gpus)

    def tightest(self, shape: Shape) -> tuple[int, ...]:
        order = sorted((free, at) for at, free in enumerate(self.gpu) if free >= shape.gpu_milli)
        return tuple(at for _, at in order[: shape.gpus])


def fragmented(node: Node, table: Mapping[Shape, int], cpu: int, gpu: Sequence[int]) -> int:
    """Return the paper's F_n, times the sum of the table."""
    whole = 0
    for kind, count in table.items():
        has = sum(free >= kind.gpu_milli for free in gpu) >= kind.gpus > 0
        hosts = has and cpu >= kind.cpu_milli and (not kind.models or node.host.model in kind.models)
        whole += count * sum(free for free in gpu if not hosts or free < kind.gpu_milli)
    return whole


def _bucket(node: Node, shape: Shape, table: Mapping[Shape, int], devices: Sequence[int]) -> int:
    gpu = list(node.gpu)
    for one in devices:
        gpu[one] -= shape.gpu_milli
    gain = fragmented(node, table, node.cpu, node.gpu) - fragmented(node, table, node.cpu - shape.cpu_milli, gpu)
    return int(100 * (1 / (1 + math.exp(-gain / (1000 * (sum(table.values()) or 1))))))


def _descent(node: Node, shape: Shape, table: Mapping[Shape, int]) -> tuple[int, tuple[int, ...]]:
    if not shape.is_share:
        return _bucket(node, shape, table, node.tightest(shape)), node.tightest(shape)
    found = [(_bucket(node, shape, table, (at,)), at) for at, free in enumerate(node.gpu) if free >= shape.gpu_milli]
    best = max(found, key=lambda one: (one[0], -one[1]))
    return best[0], (best[1],)


def _packing(node: Node, shape: Shape) -> int:
    if not shape.gpus:
        return 0
    whole = node.gpu.count(1000)
    if whole == len(node.gpu):
        return max(33 - whole, whole)
    chosen = [node.gpu[at] for at in node.tightest(shape)]
    if opened := chosen.count(1000):
        return max(50 - opened, 33)
    return max(100 - sum(free // 10 for free in chosen) // 10, 50)


def _clustering(node: Node, shape: Shape) -> int:
    if not shape.gpus:
        return 0
    sizes = set(node.held)
    has = (0 if shape.is_share else shape.gpus) in sizes
    band = (75 if len(sizes) == 1 else 50) if has else 25 if not sizes else 0
    return band + 25 * (8000 - sum(node.gpu)) // 8000


def score(policy: str, node: Node, shape: Shape, table: Mapping[Shape, int]) -> tuple[int, tuple[int, ...]]:
    """Return what a node that fits is worth, and the GPUs that are taken."""
    if policy in {"fgd", "fairlead"}:
        return _descent(node, shape, most_frequent(table, 0.95 if policy == "fgd" else 1.0))
    free, asked = sum(node.gpu), shape.total_milli
    size, cpus = 1000 * len(node.gpu) or 1000, max(node.host.cpu_milli, 1)
    share = (size - (free if node.gpu else 0) + asked) / size if shape.gpus else 0.0
    if not shape.gpus:
        share = (node.host.cpu_milli - node.cpu + shape.cpu_milli) / cpus
    worth = {
        "dotprod": 100 * (1 - (node.cpu / CPU * (shape.cpu_milli / CPU) + free / GPU * (asked / GPU)) / 2),
        "bestfit": 100 * (1 - (node.cpu - shape.cpu_milli) / CPU / 2 - (free - asked) / GPU / 2),
        "packing": _packing(node, shape),
        "clustering": _clustering(node, shape),
        "binpack": 100 * share,
        "spread": 100 * (1 - share),
    }[policy]
    return math.floor(worth), node.tightest(shape)


def place(policy: str, nodes: Sequence[Node], shape: Shape, table: Mapping[Shape, int]) -> tuple[int, tuple[int, ...]]:
    """Return the chosen node's index and its GPUs; -1 where none fits."""
    best, chosen, devices = -math.inf, -1, tuple[int, ...]()
    for at, node in enumerate(nodes):
        if node.fits(shape):
            worth, gpus = score(policy, node, shape, table)
            if worth > best:
                best, chosen, devices = worth, at, gpus
    return chosen, devices
