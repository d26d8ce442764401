"""Holds a cluster as arrays: what is free of each node and of each GPU, in the order that breaks ties.

Every change is written into a log of touched nodes, so that what is derived from the arrays (scores, fragmentation) is
rebuilt for those nodes alone. `checkpoint` and `rollback` try several changes and take them back: nothing is copied,
changes are undone in reverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fairlead.plan.schedule.engine.shape import WHOLE, Host, Shape

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class State:
    """What is free, node by node."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        """Take the nodes, empty, in the order that breaks ties."""
        self.hosts = tuple(hosts)
        self.slots = max((host.gpus for host in hosts), default=0) or 1
        self.cpu: Ints = np.array([host.cpu_milli for host in hosts], dtype=np.int64)
        self.memory: Ints = np.array([host.memory_mib for host in hosts], dtype=np.int64)
        self.gpus: Ints = np.array([host.gpus for host in hosts], dtype=np.int64)
        self.gpu: Ints = np.where(np.arange(self.slots) < self.gpus[:, None], WHOLE, 0).astype(np.int64)
        """By node and GPU: free milli-GPU; 0 also where a node has no such GPU."""
        self.whole: Ints = self.gpus.copy()
        """By node: GPUs of which nothing is taken."""
        self._shared: Ints = np.zeros(len(hosts), dtype=np.int64)
        """By node: GPUs of which a part is taken."""
        self.shared = 0
        """The same of all nodes."""
        self.models = {model: number for number, model in enumerate(sorted({host.model for host in hosts}))}
        self.model: Ints = np.array([self.models[host.model] for host in hosts], dtype=np.int64)
        self.held: Ints = np.zeros((len(hosts), self.slots + 1), dtype=np.int64)
        """By node: how many requests for a share (0), for one GPU (1), for two … are on it."""
        self.capacity_milli = int(self.gpus.sum()) * WHOLE
        self.taken_milli = 0
        self._log: list[int] = []
        self._log_from = 0
        """How many entries went before the first of the log."""
        self._undo: list[tuple[int, Shape, Sequence[int], int]] = []
        self._checkpoints = 0

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self.hosts)

    @property
    def now(self) -> int:
        """Return how many changes there have been."""
        return self._log_from + len(self._log)

    def touched(self, since: int) -> Ints | None:
        """Return the nodes that changed after that many changes; None: so many that all may have."""
        at = since - self._log_from
        if at < 0 or len(self._log) - at >= len(self.hosts):
            return None
        return np.array(sorted(set(self._log[at:])), dtype=np.int64)

    def can_host(self, shape: Shape, at: Ints) -> Bools:
        """Return which of the nodes have room for a request, whatever models they have."""
        fits = (self.cpu[at] >= shape.cpu_milli) & (self.memory[at] >= shape.memory_mib)
        if shape.gpus and shape.gpu_milli == WHOLE:
            fits &= self.whole[at] >= shape.gpus
        elif shape.gpus:
            fits &= (self.gpu[at] >= shape.gpu_milli).sum(axis=1) >= shape.gpus
        return fits

    def of_models(self, shape: Shape) -> Bools:
        """Return which nodes have a model that the request accepts."""
        numbers = [self.models[one] for one in shape.models if one in self.models]
        return np.isin(self.model, numbers) if shape.models else np.ones(len(self.hosts), dtype=np.bool_)

    def take(self, node: int, shape: Shape, devices: Sequence[int]) -> None:
        """Put a request onto a node and its GPUs. Raises: ValueError: it does not fit there."""
        free = self.gpu[node]
        short = len(devices) != shape.gpus or len(set(devices)) != len(devices)
        short |= self.cpu[node] < shape.cpu_milli or self.memory[node] < shape.memory_mib
        if short or any(not 0 <= one < self.slots or free[one] < shape.gpu_milli for one in devices):
            raise ValueError(f"{shape} does not fit on GPUs {devices} of {self.hosts[node].name}")
        self._move(node, shape, devices, -1)

    def give(self, node: int, shape: Shape, devices: Sequence[int]) -> None:
        """Free what a request took. Raises: ValueError: more would be free than there is."""
        host, free = self.hosts[node], self.gpu[node]
        over = self.cpu[node] + shape.cpu_milli > host.cpu_milli
        over |= self.memory[node] + shape.memory_mib > host.memory_mib
        if over or any(one >= host.gpus or free[one] + shape.gpu_milli > WHOLE for one in devices):
            raise ValueError(f"{shape} was not on GPUs {devices} of {host.name}")
        self._move(node, shape, devices, 1)

    def put(self, node: int, *, cpu_milli: int, memory_mib: int, whole: int, held: Mapping[int, int]) -> None:
        """Replace what is free of a node by what its pods leave: whole GPUs, of which the last ones are free.

        Not taken back by `rollback`.   Args: held: how many requests there are for each number of GPUs.
        """
        gpus = self.hosts[node].gpus
        free = max(0, min(whole, gpus))
        self.taken_milli += int(self.gpu[node].sum()) - free * WHOLE
        self.cpu[node], self.memory[node] = cpu_milli, memory_mib
        self.gpu[node] = 0
        self.gpu[node, gpus - free : gpus] = WHOLE
        self.held[node] = 0
        for size, count in held.items():
            if 0 < size <= gpus:
                self.held[node, size] = count
        self._touch(node)

    def _move(self, node: int, shape: Shape, devices: Sequence[int], sign: int) -> None:
        if self._checkpoints:
            self._undo.append((node, shape, devices, sign))
        self._apply(node, shape, devices, sign)

    def _apply(self, node: int, shape: Shape, devices: Sequence[int], sign: int) -> None:
        self.cpu[node] += sign * shape.cpu_milli
        self.memory[node] += sign * shape.memory_mib
        for one in devices:
            self.gpu[node, one] += sign * shape.gpu_milli
        if shape.gpus:
            self.held[node, 0 if shape.is_share else shape.gpus] -= sign
        self.taken_milli -= sign * shape.total_milli
        self._touch(node)

    def _touch(self, node: int) -> None:
        free = self.gpu[node]
        whole = np.count_nonzero(free == WHOLE)
        shared = np.count_nonzero(free) - whole
        self.whole[node] = whole
        self.shared += int(shared - self._shared[node])
        self._shared[node] = shared
        self._log.append(node)
        if len(self._log) > 8 * len(self.hosts) + 64:
            half = len(self._log) // 2
            del self._log[:half]
            self._log_from += half

    def checkpoint(self) -> int:
        """Begin to remember what changes; returns what `rollback` or `commit` takes. They may be nested."""
        self._checkpoints += 1
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Take every change since the checkpoint back."""
        while len(self._undo) > mark:
            node, shape, devices, sign = self._undo.pop()
            self._apply(node, shape, devices, -sign)
        self._checkpoints -= 1

    def commit(self, mark: int) -> None:
        """Keep every change since the checkpoint; an outer checkpoint may still take them back."""
        self._checkpoints -= 1
        if not self._checkpoints:
            del self._undo[mark:]
