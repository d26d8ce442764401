"""Turns of pods and of programs that open GPUs' nodes, run within an HGX node; packed as a module. Nothing of Fairlead.

A pod's program opens the node of its GPU and may outlive the pod; a stranger opens any node and closes it at once.
What must never be is written down: a stranger who gets in where the ledger says Free before and after, and a GPU in
two pods. Kubelets name a pod in their list some time after they admitted it; only a pod that the ledger names is ended.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import kubelet  # type: ignore[import-not-found]  # packed beside this file
import passedchecker  # type: ignore[import-not-found]  # as above

_WEIGHTS = {"admit": 20, "open": 20, "shut": 15, "end": 15, "stranger": 30}
_SETTLE_EVERY, _SETTLE_S = 50, 60


class _Walk:
    def __init__(self, nodes: Mapping[str, str], keys: Mapping[str, str], resource: str, agent: int, seed: int) -> None:
        self.nodes, self.keys, self.resource, self.agent = nodes, keys, resource, agent
        self.dice, self.seed = random.Random(seed), seed
        self.pods: dict[str, str] = {}
        """Pod by device id."""
        self.openers: dict[str, int] = {}
        """Pid by device id, of programs that have its node open."""
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def turn(self, number: int) -> None:
        (what,) = self.dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        getattr(self, what)(number)

    def admit(self, number: int) -> None:
        if len(self.pods) == len(self.nodes):
            return
        try:
            device, _ = kubelet.admit(f"pod-{self.seed}-{number}", self.resource)
        except RuntimeError:
            self.counts["refused"] += 1
            return
        if device in self.pods or device in self.openers:
            self.violations.append(f"turn {number}: {device} is given away, and {self.pods.get(device)} has it still")
        self.pods[device] = f"pod-{self.seed}-{number}"
        self.counts["admitted"] += 1

    def open(self, number: int) -> None:
        idle = sorted(self.pods.keys() - self.openers.keys())
        if not idle:
            return
        device = self.dice.choice(idle)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, _try_open(self.nodes[device]).encode() or b"in")
            while True:
                signal.pause()
        os.close(writer)
        said = os.read(reader, 16).decode()
        os.close(reader)
        if said == "in":
            self.openers[device] = pid
            self.counts["opened"] += 1
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.violations.append(f"turn {number}: the pod {self.pods[device]} cannot open {device}: {said}")

    def shut(self, _number: int) -> None:
        if self.openers:
            device = self.dice.choice(sorted(self.openers))
            self.close(device)

    def close(self, device: str) -> None:
        pid = self.openers.pop(device)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def end(self, _number: int) -> None:
        rows = passedchecker.rows_in_node().values()
        named = {claim["device"] for row in rows for claim in row.get("claims", ()) if claim.get("pod")}
        if known := sorted(self.pods.keys() & named):
            device = self.dice.choice(known)
            kubelet.end(self.pods.pop(device))
            self.counts["ended, open still" if device in self.openers else "ended"] += 1

    def stranger(self, number: int) -> None:
        device = self.dice.choice(sorted(self.nodes))
        before = self.row(device)
        said = _try_open(self.nodes[device], is_kept=False)
        after = self.row(device)
        self.counts["stranger in" if not said else f"stranger {said}"] += 1
        if not said and before["state"] == after["state"] == "Free" and before["epoch"] == after["epoch"]:
            self.violations.append(f"turn {number}: {device} was Free, and a stranger had {self.nodes[device]}")

    def row(self, device: str) -> dict[str, Any]:
        found: dict[str, Any] = passedchecker.rows_in_node()[self.keys[device]]
        return found

    def settle(self) -> None:
        """Wait until nothing contradicts itself; the board is looked at from outside."""
        until, found = time.monotonic() + _SETTLE_S, ["not looked at"]
        while found and time.monotonic() < until:
            found = passedchecker.find("/", passedchecker.LEDGER, "/var/run/cdi", agent=self.agent, only=self.only)
        self.violations += found

    @property
    def only(self) -> list[str]:
        groups = {path.rpartition("/")[2] for path in self.nodes.values()}
        functions = "/sys/bus/pci/devices"
        return [
            name
            for name in os.listdir(functions)  # noqa: PTH208 - names
            if os.path.exists(f"{functions}/{name}/iommu_group")  # noqa: PTH110
            and os.readlink(f"{functions}/{name}/iommu_group").rpartition("/")[2] in groups  # noqa: PTH115
        ]


def _try_open(path: str, *, is_kept: bool = True) -> str:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as problem:
        return errno.errorcode[problem.errno or 0]
    if not is_kept:
        os.close(descriptor)
    return ""


def walk(
    nodes: dict[str, str], keys: dict[str, str], resource: str, agent: int, seed: int, turns: int, limit_s: float
) -> dict[str, Any]:
    """Run turns, and end all pods and programs; returns what happened.

    Args: nodes: of each device's group, by device id.   keys: the ledger's, by device id.   agent: its pid.
          limit_s: after which no other turn begins.
    """
    made, begun, number = _Walk(nodes, keys, resource, agent, seed), time.monotonic(), 0
    while number < turns and time.monotonic() < begun + limit_s and not made.violations:
        number += 1
        made.turn(number)
        if number % _SETTLE_EVERY == 0:
            made.settle()
    took = time.monotonic() - begun
    while made.openers:
        made.close(min(made.openers))
    until = time.monotonic() + _SETTLE_S
    while made.pods and time.monotonic() < until:
        made.end(0)
        time.sleep(0.2)
    if made.pods:
        made.violations.append(f"pods that the ledger never named: {sorted(made.pods)}")
    return {"turns": number, "seconds": round(took, 1), "counts": dict(made.counts), "violations": made.violations}
