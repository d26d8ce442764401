"""Joins several vendors' silicon: inventories and events merged, no vendor's failure hiding another's GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from fairlead import errors, telemetry
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPUEvent, Inventory
from fairlead.model.ids import GPUUUID
from fairlead.model.neighbour import GPUProcess
from fairlead.model.sample import Sample
from fairlead.silicon import port, vendors


class CompositeSilicon:
    """The Silicon port over several others, in the order given."""

    def __init__(self, parts: Sequence[port.SampledSilicon]) -> None:
        self._parts = tuple(parts)
        self._complaints: set[str] = set()

    async def scan(self) -> Inventory:
        """Read every vendor side by side.

        Raises:  Unavailable: a vendor's driver refuses to start and no other vendor has a GPU.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_scan(part)) for part in self._parts]
        answers = [task.result() for task in tasks]
        joined, failed = vendors.join(answers)
        for error in failed:
            if error.message not in self._complaints:
                self._complaints.add(error.message)
                telemetry.log.warning("gpu driver not readable", reason=error.reason, error=error.message)
        return joined

    async def scan_driver(self) -> tuple[DriverFiles, ...]:
        """Read every vendor's files, in order."""
        return tuple([files for part in self._parts for files in await part.scan_driver()])

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        """Read every vendor's counters side by side; see the port's Sampler."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part.sample(within_s=within_s)) for part in self._parts]
        return tuple(sample for task in tasks for sample in task.result())

    async def watch_events(self) -> AsyncIterator[GPUEvent]:
        """Yield every vendor's events as they come."""
        # A queue of one: further events wait in their source's subscription, which coalesces them.
        queue: asyncio.Queue[GPUEvent] = asyncio.Queue(1)
        sources = [part.watch_events() for part in self._parts]
        async with asyncio.TaskGroup() as group:
            pumps = [group.create_task(_pump(source, queue)) for source in sources]
            try:
                while True:
                    yield await queue.get()
            except GeneratorExit:  # closed by its reader: end the pumps, then leave the group in peace
                for pump in pumps:
                    pump.cancel()

    def partitioner(self) -> port.Partitioner | None:
        """Return the first vendor's that has one: no two vendors partition GPUs."""
        able = [part.partitioner() for part in self._parts if isinstance(part, port.Partitionable)]
        return next((one for one in able if one is not None), None)

    def compute_modes(self) -> port.ComputeModes | None:
        """Return the first vendor's that has some: only NVIDIA's GPUs do."""
        able = [part.compute_modes() for part in self._parts if isinstance(part, port.MPSSilicon)]
        return next((one for one in able if one is not None), None)

    def mps_program(self) -> port.MPSProgram | None:
        """Return the first that is installed: only NVIDIA's driver has one."""
        able = [part.mps_program() for part in self._parts if isinstance(part, port.MPSSilicon)]
        return next((one for one in able if one is not None), None)

    def time_slices(self) -> port.TimeSlices | None:
        """Return the first vendor's: only NVIDIA's driver sets them."""
        able = [part.time_slices() for part in self._parts if isinstance(part, port.TimeSliced)]
        return next((one for one in able if one is not None), None)

    async def list_programs(self, gpus: Collection[GPUUUID]) -> Mapping[GPUUUID, tuple[GPUProcess, ...]]:
        """Return what each vendor's driver tells; see the port."""
        able = [part for part in self._parts if isinstance(part, port.Programs)]
        answers = await asyncio.gather(*(part.list_programs(gpus) for part in able))
        return {gpu: found for answer in answers for gpu, found in answer.items()}

    def inspector(self) -> port.Inspector | None:
        """Return the first vendor's that has one: only NVIDIA's GPUs are verified so far."""
        able = [part.inspector() for part in self._parts if isinstance(part, port.Inspectable)]
        return next((one for one in able if one is not None), None)

    async def close(self) -> None:
        """Close every vendor's, all of them even when one fails."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts:
                group.create_task(part.close())


async def _scan(part: port.Silicon) -> Inventory | errors.Unavailable:
    try:
        return await part.scan()
    except errors.Unavailable as error:
        return error


async def _pump(source: AsyncIterator[GPUEvent], queue: asyncio.Queue[GPUEvent]) -> None:
    async for event in source:
        await queue.put(event)
