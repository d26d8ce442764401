"""Runs in an HGX node: turns of tenants with slots and machines, and a checker beside them that knows none of ours.

A machine here is the real QEMU with a slot's functions by VFIO whose processor is never started (`-S`): groups are
opened, memory is pinned and mapped for the boards, and no guest boots.
"""

from __future__ import annotations

import functools
import importlib
import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import partitionchecker  # type: ignore[import-not-found]  # packed beside this file

SWITCHES = Path("/state/switches.json")
LEDGER = Path("/state/fairlead/lease/ledger.db")
CDI = Path("/var/run/cdi")
_WAIT_S = 200.0


class Turns:
    """Tenants, their machines, and what is said of them."""

    def __init__(self, facts: dict[str, Any], seed: int) -> None:
        self.facts, self.dice = facts, random.Random(seed)
        self.kubelet = importlib.import_module("kubelet")
        self.nodes = {path: int(module) for module, path in facts["groups"].items()}
        self.machines: dict[str, subprocess.Popen[bytes]] = {}
        """By slot."""
        self.pods: dict[str, str] = {}
        """Pod by slot, of pods that the kubelet has."""
        self.given = self.started = self.lingered = 0

    def place(self) -> partitionchecker.Place:
        return partitionchecker.Place(
            switches=SWITCHES,
            ledger=LEDGER,
            cdi=CDI,
            partitions={int(one): tuple(members) for one, members in self.facts["partitions"].items()},
            modules=self.facts["keys"],
            machines=self.using,
        )

    def using(self) -> dict[int, str]:
        """Return which machine has each GPU: by what its process has open, not by what was meant."""
        found: dict[int, str] = {}
        for slot, machine in list(self.machines.items()):
            try:
                places = [str(one.readlink()) for one in Path(f"/proc/{machine.pid}/fd").iterdir()]
            except OSError:
                continue
            found |= {self.nodes[place]: f"the machine of {slot}" for place in places if place in self.nodes}
        return found

    def admit(self) -> None:
        """Give a slot of two or four to a pod."""
        pod, size = f"turn-{self.given}", self.dice.choice((2, 2, 4))
        try:
            slot, *_ = self.kubelet.admit(pod, f"nvidia.com/pgpu-x{size}")
        except RuntimeError:
            return
        self.given += 1
        self.pods[slot] = pod

    def start(self, most: int) -> None:
        """Start the machine of a pod once its CDI entry is there, as Kata does."""
        for slot in [one for one in self.pods if one not in self.machines][:1]:
            if self.started >= most:
                return
            self.until(functools.partial(is_shown, slot), f"{slot} is not shown")
            words = [*self.facts["emulator"], "-S", "-display", "none", "-nodefaults", "-no-user-config"]
            words += ["-M", "q35,accel=kvm,memory-backend=memory", "-m", "16"]
            words += ["-object", "memory-backend-memfd,id=memory,size=16M,hugetlb=on,hugetlbsize=2M"]
            for at, module in enumerate(partitionchecker.slot_modules(slot)):
                words += ["-device", f"pcie-root-port,id=port{at},chassis={at + 1},slot={at + 1}"]
                words += ["-device", f"vfio-pci,host={self.facts['addresses'][str(module)]},bus=port{at}"]
            with Path(f"/run/started/machine-{slot}").open("wb") as log:
                self.machines[slot] = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            self.until(functools.partial(self.has_all, slot), f"the machine of {slot} has not all of its GPUs")
            self.started += 1

    def has_all(self, slot: str) -> bool:
        machine = self.machines[slot]
        if machine.poll() is not None:
            raise AssertionError(Path(f"/run/started/machine-{slot}").read_text()[-2000:])
        own = {module for module, who in self.using().items() if who == f"the machine of {slot}"}
        return own == set(partitionchecker.slot_modules(slot))

    def forget(self) -> None:
        """The kubelet forgets a pod; its machine may run on."""
        for slot in [one for one in self.pods if one in self.machines][:1]:
            self.end(slot)

    def is_named(self, slot: str) -> bool:
        rows = partitionchecker._rows(self.place()).values()
        return all(one.get("pod") for row in rows for one in row.get("claims", ()) if one["device"] == slot)

    def stop(self) -> None:
        """Kill a machine, of a pod or of one that is gone."""
        for slot in self.dice.sample(sorted(self.machines), min(1, len(self.machines))):
            self.lingered += slot not in self.pods
            machine = self.machines.pop(slot)
            machine.send_signal(signal.SIGKILL)
            machine.wait()
            if slot in self.pods:
                self.end(slot)

    def end(self, slot: str) -> None:
        """Have the kubelet forget a slot's pod, once the ledger knows whose it is."""
        self.until(functools.partial(self.is_named, slot), f"the ledger does not name the pod of {slot}")
        self.kubelet.end(self.pods.pop(slot))

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _WAIT_S
        while not is_so():
            if time.monotonic() > until:
                raise AssertionError(f"{what}: {json.dumps(partitionchecker._rows(self.place()))[-1500:]}")
            time.sleep(0.1)


def walk(facts: dict[str, Any], seed: int, machines: int, limit_s: float) -> dict[str, Any]:
    """Take turns until so many machines have run, or the time is over; then end all of it. Returns what was seen.

    Args: facts: `groups` by module, `addresses` by module, `keys` (module by the ledger's), `partitions`, `emulator`.
    """
    turns = Turns(facts, seed)
    begun = time.monotonic()
    with partitionchecker.Watch(turns.place(), gap_s=0.3) as watch:
        while turns.started < machines and time.monotonic() < begun + limit_s:
            for step in (turns.admit, lambda: turns.start(machines), turns.dice.choice((turns.forget, turns.stop))):
                step()
        while turns.machines:
            turns.stop()
        for slot in list(turns.pods):
            turns.end(slot)
        turns.until(lambda: not partitionchecker.find(turns.place())[1] and is_over(turns), "not all came back")
    return {
        "machines": turns.started,
        "lingered": turns.lingered,
        "given": turns.given,
        "seconds": time.monotonic() - begun,
        "looks": watch.looks,
        "longest_s": watch.longest_s,
        "violations": watch.violations,
    }


def is_shown(slot: str) -> bool:
    """Return whether an engine would resolve a slot's CDI name."""
    return slot in partitionchecker._shown(CDI)


def is_over(turns: Turns) -> bool:
    """Return whether every GPU is free again."""
    rows = partitionchecker._rows(turns.place())
    return len(rows) == len(turns.facts["keys"]) and {row["state"] for row in rows.values()} == {"Free"}
