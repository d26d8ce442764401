"""Holds the state of one simulated machine: its GPUs' readings, instances, faults and pending events.

Everything below the simulated NVML and the simulated device tree reads and changes this state under one lock; a
condition wakes those who wait for events or hang in a slow call. What must outlast the process (MIG layouts, faults
that only a reset ends) is kept in a file by `save` and `restore`. Which faults exist and what they are called is
`sim.fault`'s business.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fairlead import files
from fairlead.frozen import frozen
from fairlead.silicon.sim import load, partition, profile

EVENT_DOUBLE_BIT: Final = 0x02
EVENT_XID: Final = 0x08
EVENT_MIG: Final = 0x100
EVENT_RECOVERY: Final = 0x8000
SUPPORTED_EVENTS: Final = 0x01 | EVENT_DOUBLE_BIT | EVENT_XID | EVENT_MIG | EVENT_RECOVERY
WHOLE_GPU: Final = 0xFFFFFFFF


@frozen
class Event:
    """What nvmlEventSetWait_v2 will hand out."""

    gpu: int
    type: int
    data: int
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU


@dataclass(slots=True)
class EventSet:
    """One nvmlEventSet_t: which GPUs it listens to, and what has happened since the last wait."""

    masks: dict[int, int] = field(default_factory=dict)
    queue: collections.deque[Event] = field(default_factory=collections.deque)
    is_freed: bool = False


@dataclass(slots=True)
class GPUState:
    """One simulated GPU now."""

    board: profile.Board
    partition: partition.Partition
    temperature_c: int | None = None
    """Set by a fault; None: what the load makes of it. So are power and utilization."""
    power_mw: int | None = None
    utilization_percent: int | None = None
    energy_mj: float = 0.0
    energy_at_s: float | None = None
    ecc_uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    recovery_action: int = 0
    is_lost: bool = False
    slow_s: float = 0.0
    mig_enabled: bool = False
    mig_pending: bool | None = None
    """The mode after the next reset; None: as it is."""
    processes: set[tuple[int, int]] = field(default_factory=set)
    """GPU and compute instances on which a fault has set processes; (-1, -1): the whole GPU."""
    programs: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Processes of this host that a fault has put on the GPU, by pid: memory in MiB, and whether they draw."""
    compute_mode: int = 0
    time_slice: int = 0
    """Of `nvidia-smi compute-policy`."""
    vbios: str = ""
    """Set by a fault, as a tenant would that rewrote it; empty: as it was made. So are the InfoROM and the serial."""
    inforom: str = ""
    serial: str = ""
    link_width: int = 0
    """PCIe lanes in use; 0: all."""
    scrub: str = ""
    """What a scrub comes to: `failed`, `hang`; empty: it succeeds."""

    def reset_hardware(self) -> None:
        """Do what a GPU reset does: instances are gone, and a pending mode counts."""
        self.partition.instances.clear()
        self.mig_enabled = self.mig_enabled if self.mig_pending is None else self.mig_pending
        self.mig_pending = None
        self.reset()

    def reset(self) -> None:
        """Forget readings and faults, as a GPU does that comes back; instances and the board stay as they are."""
        self._restore(*_READINGS, "is_lost", "slow_s")

    def recover(self) -> None:
        """Lift every fault, those of the board too; instances, MIG mode and compute mode stay."""
        self.reset()
        self._restore(*_BOARD_NUMBERS, *_BOARD_TEXTS)
        self.processes.clear()
        self.programs.clear()

    def living_programs(self) -> dict[int, tuple[int, bool]]:
        """Return the programs that have not ended: a driver lets go of those that have."""
        return {pid: told for pid, told in self.programs.items() if Path(f"/proc/{pid}").exists()}

    def _restore(self, *names: str) -> None:
        for name in names:
            setattr(self, name, _AS_MADE[name])

    def mig_uuids(self) -> list[str]:
        """Return the UUIDs of the MIG devices on it."""
        instances = self.partition.instances.values()
        return [profile.mig_uuid(self.board.uuid, item.id, number) for item in instances for number in item.computes]

    def read(self, holders: Sequence[str], at_s: float) -> load.Readings:
        """Return what the sensors say at a monotonic time, and count the energy used since they were read last."""
        found = load.read(self.board.part, holders, at_s, utilization_percent=self.utilization_percent)
        set_by_faults = {"temperature_c": self.temperature_c, "power_mw": self.power_mw}
        changes = {name: value for name, value in set_by_faults.items() if value is not None}
        found = dataclasses.replace(found, **changes)
        if self.energy_at_s is not None:
            self.energy_mj += found.power_mw * max(0.0, at_s - self.energy_at_s)
        self.energy_at_s = at_s
        return found


class Machine:
    """A simulated machine. Hold `lock` to read or change anything but the profile."""

    def __init__(self, spec: profile.Profile, clock: Callable[[], float] = time.monotonic) -> None:
        self.profile = spec
        self.clock = clock
        self.holders: Mapping[str, tuple[str, ...]] = {}
        """Who holds what, by UUID of the GPU or MIG device; whatever is not named is idle."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.gpus = [GPUState(board=board, partition=partition.Partition(board.part.mig)) for board in spec.boards]
        self.event_sets: dict[int, EventSet] = {}
        self.samples: dict[int, float | None] = {}
        """GPM samples that were not freed, by number: the utilization then; None: not taken yet."""
        self.wait_errors = 0
        """How many event waits still fail with an unknown error."""
        self.init_code = 0
        """NVML code with which the library refuses to start; 0: it starts."""
        self.is_closed = False
        self.state: Path | None = None
        """The file that holds what all processes of this simulated machine share; None: there is one process."""
        self._stamp: tuple[int, int] | None = None
        self.on_layout: list[Callable[[], None]] = []
        """Called, with the lock held, after MIG instances or the mode changed."""

    def is_busy(self, gpu: GPUState, instance: int = -1, compute: int = -1) -> bool:
        """Return whether processes run on a MIG device, or by default on the GPU or anything on it."""
        if instance < 0:
            return bool(gpu.processes or gpu.living_programs()) or any(
                self.holders.get(name) for name in (gpu.board.uuid, *gpu.mig_uuids())
            )
        uuid = profile.mig_uuid(gpu.board.uuid, instance, compute)
        return (instance, compute) in gpu.processes or bool(self.holders.get(uuid))

    def read(self, gpu: GPUState) -> load.Readings:
        """Return what a GPU's sensors say now."""
        uuids = (gpu.board.uuid, *gpu.mig_uuids())
        return gpu.read([name for uuid in uuids for name in self.holders.get(uuid, ())], self.clock())

    def post(self, event: Event) -> None:
        """Queue an event at every set that listens for it."""
        with self.lock:
            for item in self.event_sets.values():
                if item.masks.get(event.gpu, 0) & event.type:
                    item.queue.append(event)
            self.changed.notify_all()

    def wake(self) -> None:
        """Let waiters look at the state again."""
        with self.lock:
            self.changed.notify_all()

    def stall(self, gpu: GPUState) -> None:
        """Return at once, or after the GPU's slow-call time, or as soon as that fault is lifted."""
        with self.lock:
            if gpu.slow_s > 0:
                self.changed.wait_for(lambda: gpu.slow_s <= 0 or self.is_closed, timeout=gpu.slow_s)

    def close(self) -> None:
        """Release every waiter and every hanging call, for ever."""
        with self.lock:
            self.is_closed = True
            self.changed.notify_all()

    def layout_changed(self, gpu: GPUState) -> None:
        """Update the device tree, then wake those who wait for events."""
        for listener in self.on_layout:
            listener()
        self.post(Event(gpu=gpu.board.index, type=EVENT_MIG, data=0))

    def save(self) -> None:
        """Write what must outlast this process, atomically."""
        if self.state is None:
            return
        with self.lock:
            document = {"uuids": [gpu.board.uuid for gpu in self.gpus], "gpus": [_dump(gpu) for gpu in self.gpus]}
            files.write_atomic(self.state, json.dumps(document).encode(), durable=False)
            self._stamp = files.stamp(self.state)

    def take_up(self) -> None:
        """Take up what another process of this simulated machine has saved: a driver's state is its machine's.

        Another profile's file, or none, is ignored, and a damaged one set aside.
        """
        if self.state is None or (stamp := files.stamp(self.state)) == self._stamp:
            return
        with self.lock:
            self._stamp = stamp
            before = [_dump(gpu) for gpu in self.gpus]
            try:
                document = json.loads(self.state.read_bytes())
                if document["uuids"] != [gpu.board.uuid for gpu in self.gpus]:
                    return
                for gpu, row in zip(self.gpus, document["gpus"], strict=True):
                    if row != _dump(gpu):
                        _load(gpu, row)
                        self.post(Event(gpu=gpu.board.index, type=EVENT_MIG, data=0))
            except FileNotFoundError:
                return
            except (ValueError, KeyError, TypeError, partition.NoRoomError):
                files.set_aside(self.state, why="unreadable")
                for gpu, row in zip(self.gpus, before, strict=True):
                    _load(gpu, row)  # one of them may be taken up in part


_READINGS: Final = (
    "temperature_c",
    "power_mw",
    "utilization_percent",
    "ecc_uncorrected",
    "remap_pending",
    "remap_failed",
    "recovery_action",
)
"""Whole numbers, booleans or None that last until a reset, also over a restart."""
_BOARD_NUMBERS: Final = ("link_width",)
"""The same, but no reset ends them: `recover` does."""
_BOARD_TEXTS: Final = ("vbios", "inforom", "serial", "scrub")
"""Texts that no reset ends: firmware, and how the next scrub goes."""
_KEPT: Final = (*_READINGS, *_BOARD_NUMBERS)
_AS_MADE: Final = {one.name: one.default for one in dataclasses.fields(GPUState)}
"""By field; those with a default factory are in none of the tables above."""


def _dump(gpu: GPUState) -> dict[str, Any]:
    return {
        "readings": {name: getattr(gpu, name) for name in _KEPT},
        "firmware": {name: getattr(gpu, name) for name in _BOARD_TEXTS},
        "lost": gpu.is_lost,
        "mig": gpu.mig_enabled,
        "pending": gpu.mig_pending,
        "compute_mode": gpu.compute_mode,
        "time_slice": gpu.time_slice,
        "processes": sorted(map(list, gpu.processes)),
        "programs": [[pid, *told] for pid, told in sorted(gpu.programs.items())],
        "instances": [
            {
                "row": item.row.id,
                "start": item.start,
                "computes": [{"profile": ci.profile, "start": ci.start} for _, ci in sorted(item.computes.items())],
            }
            for item in gpu.partition.instances.values()
        ],
    }


def _load(gpu: GPUState, row: dict[str, Any]) -> None:
    pending = row.get("pending")
    gpu.is_lost, gpu.mig_enabled = bool(row["lost"]), bool(row["mig"])
    gpu.mig_pending = None if pending is None else bool(pending)
    gpu.compute_mode, gpu.time_slice = int(row.get("compute_mode", 0)), int(row.get("time_slice", 0))
    gpu.processes = {(int(instance), int(compute)) for instance, compute in row.get("processes", ())}
    gpu.programs = {int(pid): (int(memory), bool(draws)) for pid, memory, draws in row.get("programs", ())}
    gpu.partition.instances.clear()
    for name, value in row.get("readings", {}).items():  # a file of an earlier version has none
        if name not in _KEPT or not isinstance(value, int | None):
            raise KeyError(name)
        setattr(gpu, name, value)
    for name in _BOARD_TEXTS:
        setattr(gpu, name, str(row.get("firmware", {}).get(name, "")))
    for entry in row["instances"]:
        found = gpu.partition.find_row(entry["row"])
        if found is None:
            raise KeyError(entry["row"])
        instance = gpu.partition.create(found, entry["start"])
        for item in entry["computes"]:
            instance.create_compute(item["profile"], item["start"])
