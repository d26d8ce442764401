"""Implements the silicon port for NVIDIA GPUs, through NVML.

Scans are those of `scanner`, whose calls are awaited here. Events come from the thread of `watcher`; files and device
nodes from `driver`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Final, TypeVar

from fairlead import errors
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPUEvent, Inventory
from fairlead.model.ids import GPUUUID
from fairlead.model.neighbour import GPUProcess
from fairlead.model.sample import Sample
from fairlead.silicon import eventbus, knowngpus, port
from fairlead.silicon.nvidia import (
    asynccalls,
    computemode,
    inspector,
    partitioner,
    programs,
    scanner,
    timeslice,
    watcher,
)
from fairlead.silicon.nvidia.counters import profiler, sampler
from fairlead.silicon.nvidia.files import driver, modefiles

T = TypeVar("T")
_JOIN_S: Final = 2.0


class NVMLSilicon:
    """The Silicon port over `nvidia-ml-py`."""

    def __init__(  # noqa: PLR0913 (what it stands on, by name)
        self,
        root: Path,
        driver_root: Path,
        *,
        call_timeout_s: float,
        library: object | Path | None = None,
        is_simulated: bool = False,
        probe_s: float = 2.0,
        search: driver.Search = driver.EVERYWHERE_USUAL,
        reset: partitioner.Reset | None = None,
        scrub: inspector.Scrub | None = None,
    ) -> None:
        """Touch nothing yet: the library is opened by the first scan or watch.

        Args:    root: where /dev, /proc and /sys lie.   driver_root: the driver's user space, below `root`.
                 call_timeout_s: after this a GPU that has not answered is unreadable.
                 library: a simulated `pynvml.nvmlLib`, the path of a library, or None for the system's.
                 probe_s: how often a GPU that does not answer is tried again while events are watched.
                 search: where else the driver's files are.
                 reset: resets one GPU; None: the driver's nvidia-smi does.
                 scrub: clears one GPU's memory; None: nothing does.
        """
        self._reset = reset or partitioner.smi_reset(root, driver_root)
        self._scrub = scrub
        self._root, self._driver_root, self._search = root, driver_root, search
        self._call_timeout_s = call_timeout_s
        self._scanning = asyncio.Lock()
        self._partitioning, self._moding, self._asking = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._profiler = profiler.Profiler()
        self._threads = asynccalls.AsyncCallThreads("nvml")
        self._events = eventbus.EventBus()
        self._known = knowngpus.KnownGPUs(self._events.publish)
        self._scanner = scanner.Scanner(
            root,
            driver_root,
            call_timeout_s=call_timeout_s,
            known=self._known,
            library=library,
            is_simulated=is_simulated,
            search=search,
        )
        self._watcher = watcher.Watcher(
            self._scanner.open,
            events=self._events,
            known=self._known,
            threads=self._threads,
            call_timeout_s=call_timeout_s,
            probe_s=probe_s,
        )

    async def scan(self) -> Inventory:
        """Read everything now; see the port."""
        async with self._scanning:
            return await self._carry_out(self._scanner.scan())

    async def _carry_out(self, steps: scanner.Steps[T]) -> T:
        """Await the driver calls of a scan, each with its limit. Raises: as the scan."""
        try:
            calls = next(steps)
            while True:
                calls = steps.send(await self._threads.run_all(calls, timeout_s=self._call_timeout_s))
        except StopIteration as end:
            found: T = end.value
            return found

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        """Read every GPU's counters; see the port's Sampler. Its call threads are not those of scans."""
        try:
            library = await self._carry_out(self._scanner.start(target="sampled library"))
        except errors.Unavailable:
            return ()
        calls: dict[str, Callable[[], tuple[Sample, ...]]] = {
            f"sampled gpu{index}": functools.partial(sampler.read, library.binding, index, self._profiler)
            for index in range(library.count)
        }
        answers = await self._threads.run_all(calls, timeout_s=within_s)
        return tuple(sample for answer in answers.values() if isinstance(answer, tuple) for sample in answer)

    async def list_programs(self, gpus: Collection[GPUUUID]) -> Mapping[GPUUUID, tuple[GPUProcess, ...]]:
        """Return the programs that are on GPUs now; see the port."""
        read = functools.partial(programs.read, self._scanner.open, tuple(gpus))
        try:
            async with self._asking:
                return await self._threads.run("programs", read, timeout_s=programs.LIMIT_S)
        except errors.FairleadError:
            return {}

    def partitioner(self) -> partitioner.NVMLPartitioner:
        """Return who partitions these GPUs; see the port's Partitioner."""
        return partitioner.NVMLPartitioner(
            self._scanner.open,
            threads=self._threads,
            call_timeout_s=self._call_timeout_s,
            reset=self._reset_released,
            turn=self._partitioning,
        )

    def compute_modes(self) -> computemode.NVMLComputeModes:
        """Return who sets these GPUs' compute modes; see the port's ComputeModes."""
        return computemode.NVMLComputeModes(
            self._scanner.open, threads=self._threads, call_timeout_s=self._call_timeout_s, turn=self._moding
        )

    def inspector(self) -> inspector.NVMLInspector:
        """Return who reads and cleans these GPUs; see the port's Inspector."""
        return inspector.NVMLInspector(
            self._scanner.open,
            threads=self._threads,
            call_timeout_s=self._call_timeout_s,
            reset=self.partitioner().reset,
            scrub=self._scrub,
        )

    def mps_program(self) -> port.MPSProgram | None:
        """Return the driver's MPS control program; see the port."""
        return computemode.find_program(self._root, self._driver_root)

    def time_slices(self) -> port.TimeSlices | None:
        """Return who sets time slices; see the port's TimeSliced."""
        argv = timeslice.find_program(self._root, self._driver_root)
        return timeslice.SMITimeSlices(argv) if argv is not None else None

    async def _reset_released(self, gpu: str, pci_bus_id: str) -> None:
        """Reset a GPU while this process has none of the driver's files open: a client would keep it from happening."""
        async with self._scanning:
            is_quiet = await asyncio.to_thread(self._watcher.hold, _JOIN_S)
            self._scanner.is_released = True
            try:
                opened = self._scanner.release()
                if opened is not None and is_quiet:
                    await self._threads.run("close", opened.shut_down, timeout_s=self._call_timeout_s)
                await self._reset(gpu, pci_bus_id)
            finally:
                self._scanner.is_released = False
                self._watcher.let_go()

    async def scan_driver(self) -> tuple[DriverFiles, ...]:
        """Read device nodes, modules and libraries; see the port."""
        return await asyncio.to_thread(self._scan_driver)

    def _scan_driver(self) -> tuple[DriverFiles, ...]:
        files = driver.scan(self._root, self._driver_root, self._search)
        if files is None:
            return ()
        place = modefiles.Place(root=self._root, driver_root=self._driver_root, search=self._search)
        return (dataclasses.replace(files, companions=modefiles.list_companions(place)),)

    def watch_events(self) -> AsyncIterator[GPUEvent]:
        """Yield driver events for ever.

        The first is CHANGED without a GPU and says that listening has begun: a scan after it misses nothing. It comes
        again whenever the event source had to be set up anew.
        """
        subscription = self._events.subscribe()
        self._watcher.start()
        return subscription

    def stop(self) -> None:
        """Ask the event thread to end, without waiting for it."""
        self._watcher.stop()

    async def close(self) -> None:
        """Stop the event thread and release the library, unless a call still hangs in it."""
        self.stop()
        has_ended = await asyncio.to_thread(self._watcher.join, _JOIN_S)
        opened = self._scanner.release()
        if opened is not None and has_ended:
            await self._threads.run("close", opened.shut_down, timeout_s=self._call_timeout_s)
