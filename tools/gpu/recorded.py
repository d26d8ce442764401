"""Holds simulated silicon to a record of a real GPU: every fact that the simulation invents for that model.

`python -m tools.gpu.recorded FILE…` lists the differences. A record is `nvml.json` of a report; those in tests/data/gpu
are replayed by tests/contract/test_recorded_gpus.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from fairlead.model.gpu import GPU, Inventory
from fairlead.model.mig import MIGProfile, Partition
from fairlead.model.sample import Sample
from fairlead.silicon.nvidia import nvml
from fairlead.silicon.sim import profile, silicon
from tools.gpu import recording

_FACTS: Final = ("memory_bytes", "compute_capability", "brand", "mig_capable")
"""What is the same for all boards of a model; the rest is the board's, the machine's or the moment's."""
_FIXED: Final = ("power_limit_mw", "memory_total_bytes")
_NOT_OF_THE_BOARD: Final = frozenset({"gpu", "mig", "activity"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one silicon says of its GPUs."""

    inventory: Inventory
    samples: tuple[Sample, ...]
    partitions: tuple[Partition, ...]

    def sample_of(self, gpu: GPU) -> Sample | None:
        """Return the counters of a whole GPU."""
        return next((one for one in self.samples if one.gpu == gpu.uuid and one.mig is None), None)

    def profiles_of(self, gpu: GPU) -> dict[str, MIGProfile]:
        """Return the profiles of a GPU by name."""
        found = next((one for one in self.partitions if one.gpu == gpu.uuid), None)
        return {one.name: one for one in found.profiles} if found else {}


def read_record(document: dict[str, Any]) -> Reading:
    """Replay a record. Raises: ValueError: its format is another.   Unavailable: it has no answer to begin with."""
    with tempfile.TemporaryDirectory(prefix="fairlead-record-") as name:
        library = recording.ReplayedNVML(document)
        return asyncio.run(_read(nvml.NVMLSilicon(Path(name), Path("/"), call_timeout_s=20, library=library)))


def read_simulated(name: str) -> Reading:
    """Read a profile of simulated silicon."""
    with tempfile.TemporaryDirectory(prefix="fairlead-record-") as folder:
        return asyncio.run(_read(silicon.SimulatedSilicon(Path(folder), name)))


async def _read(made: nvml.NVMLSilicon | silicon.SimulatedSilicon) -> Reading:
    try:
        inventory = await made.scan()
        samples = await made.sample(within_s=20)
        return Reading(inventory=inventory, samples=samples, partitions=await made.partitioner().list_partitions())
    finally:
        await made.close()


def differences(document: dict[str, Any]) -> tuple[str, ...]:
    """Return what simulated silicon says of a record's models and the real ones do not, a sentence each."""
    real = read_record(document)
    if not real.inventory.gpus:
        return ("the record has no GPU that answered",)
    found: list[str] = []
    models = {gpu.name: gpu for gpu in real.inventory.gpus}
    for name, gpu in models.items():
        simulated = _find_simulated(name)
        if simulated is None:
            found.append(f"{name}: no profile of simulated silicon has this model")
            continue
        reading, twin = simulated
        found += [f"{name}: {line}" for line in _compare(real, gpu, reading, twin)]
    return tuple(found)


def _find_simulated(name: str) -> tuple[Reading, GPU] | None:
    for one in profile.list_names():
        if any(board.part.name == name for board in profile.load(one).boards):
            reading = read_simulated(one)
            return reading, next(gpu for gpu in reading.inventory.gpus if gpu.name == name)
    return None


def _compare(real: Reading, gpu: GPU, simulated: Reading, twin: GPU) -> Iterator[str]:
    for name in _FACTS:
        yield from _differ(name, getattr(twin, name), getattr(gpu, name))
    yield from _compare_samples(simulated.sample_of(twin), real.sample_of(gpu))
    ours, theirs = simulated.profiles_of(twin), real.profiles_of(gpu)
    for name in sorted(ours.keys() | theirs.keys()):
        mine, real_one = ours.get(name), theirs.get(name)
        if mine is not None and real_one is not None and real_one.engines is None:
            mine = dataclasses.replace(mine, engines=None)  # a record of before they were read says nothing of them
        yield from _differ(f"MIG {name}", mine, real_one)


def _compare_samples(ours: Sample | None, theirs: Sample | None) -> Iterator[str]:
    if ours is None or theirs is None:
        yield from _differ("counters", ours is not None, theirs is not None)
        return
    for field in dataclasses.fields(Sample):
        if field.name in _NOT_OF_THE_BOARD:
            continue
        mine, real = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name in _FIXED:
            yield from _differ(field.name, mine, real)
        else:
            yield from _differ(f"tells {field.name}", mine is not None, real is not None)


def _differ(name: str, ours: object, theirs: object) -> Iterator[str]:
    if ours != theirs:
        yield f"{name}: simulated {ours}, real {theirs}"


def main(paths: Sequence[str]) -> int:
    """Print the differences of records; returns 1 where there is one."""

    code = 0
    for path in paths:
        for line in differences(json.loads(Path(path).read_text())):
            print(f"{path}: {line}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
