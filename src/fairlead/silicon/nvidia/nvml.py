"""Implements the silicon port for NVIDIA GPUs, through NVML.

One scan reads the library's own facts in one lane and every GPU in its own: a GPU that is lost or hangs becomes an
`UnreadableGPU`, named from an earlier scan, and the others are read as ever. The library is opened when it is there and
opened again after the driver as a whole has failed, so a driver that appears later is found. Events come from the
thread of `watcher`; files and device nodes from `driver`.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Driver, GPUEvent, Inventory, LinkKind, UnreadableGPU, Vendor
from fairlead.model.sample import Sample
from fairlead.silicon import eventbus
from fairlead.silicon.nvidia import binding, callthread, driver, gpureader, partitioner, sampler, topology, watcher
from fairlead.silicon.pci import pci

VENDOR_ID: Final = 0x10DE
_JOIN_S: Final = 2.0


class NVMLSilicon:
    """The Silicon port over `nvidia-ml-py`."""

    def __init__(
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
    ) -> None:
        """Touch nothing yet: the library is opened by the first scan or watch.

        Args:    root: where /dev, /proc and /sys lie.   driver_root: the driver's user space, below `root`.
                 call_timeout_s: after this a GPU that has not answered is unreadable.
                 library: a simulated `pynvml.nvmlLib`, the path of a library, or None for the system's.
                 probe_s: how often a GPU that does not answer is tried again while events are watched.
                 search: where else the driver's files are.
                 reset: resets one GPU; None: the driver's nvidia-smi does.
        """
        self._reset = reset or partitioner.smi_reset(root, driver_root)
        self._is_released = False
        self._search = search
        self._root, self._driver_root = root, driver_root
        self._call_timeout_s, self._library, self._is_simulated = call_timeout_s, library, is_simulated
        self._binding: binding.Binding | None = None
        self._opening = threading.Lock()
        self._scanning = asyncio.Lock()
        self._lanes = callthread.CallThreads("nvml")
        self._feed = eventbus.EventBus()
        self._roster = eventbus.KnownGPUs(self._feed)
        self._levels: dict[tuple[str, str], LinkKind] = {}
        self._watcher = watcher.Watcher(
            self._open,
            events=self._feed,
            roster=self._roster,
            lanes=self._lanes,
            call_timeout_s=call_timeout_s,
            probe_s=probe_s,
        )

    async def scan(self) -> Inventory:
        """Read everything now; see the port."""
        async with self._scanning:
            try:
                nvml, found, count = await self._start()
            except errors.Unavailable as error:
                if error.reason == "DriverLibraryMissing" and not self._has_kernel_driver():
                    return Inventory()
                raise
            calls: dict[str, Callable[[], gpureader.Reading]] = {
                f"gpu{index}": functools.partial(gpureader.read, nvml, index, self._root) for index in range(count)
            }
            answers = await self._lanes.run_all(calls, timeout_s=self._call_timeout_s)
            readings, unreadable = self._sort(list(answers.values()), nvml)
            await self._learn_levels(nvml, readings)
            return Inventory(
                gpus=tuple(reading.gpu for reading in readings),
                unreadable=(*unreadable, *self._unlisted(readings, unreadable, count)),
                links=topology.links(readings, self._levels, self._root),
                drivers=(found,),
                is_simulated=self._is_simulated,
            )

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        """Read every GPU's counters; see the port's Sampler. Lanes of its own: a scan never finds one occupied."""
        try:
            nvml, _, count = await self._start(lane="sampled library")
        except errors.Unavailable:
            return ()
        calls: dict[str, Callable[[], tuple[Sample, ...]]] = {
            f"sampled gpu{index}": functools.partial(sampler.read, nvml, index) for index in range(count)
        }
        answers = await self._lanes.run_all(calls, timeout_s=within_s)
        return tuple(sample for answer in answers.values() if isinstance(answer, tuple) for sample in answer)

    def partitioner(self) -> partitioner.NVMLPartitioner:
        """Return who partitions these GPUs; see the port's Partitioner."""
        return partitioner.NVMLPartitioner(
            self._open, lanes=self._lanes, call_timeout_s=self._call_timeout_s, reset=self._reset_released
        )

    async def _reset_released(self, gpu: str, pci_bus_id: str) -> None:
        """Reset a GPU while this process has none of the driver's files open: a client would keep it from happening."""
        async with self._scanning:
            is_quiet = await asyncio.to_thread(self._watcher.hold, _JOIN_S)
            self._is_released = True
            try:
                opened, self._binding = self._binding, None
                if opened is not None and is_quiet:
                    await self._lanes.run("close", opened.shut_down, timeout_s=self._call_timeout_s)
                await self._reset(gpu, pci_bus_id)
            finally:
                self._is_released = False
                self._watcher.let_go()

    async def scan_driver(self) -> tuple[DriverFiles, ...]:
        """Read device nodes, modules and libraries; see the port."""
        files = await asyncio.to_thread(driver.scan, self._root, self._driver_root, self._search)
        return () if files is None else (files,)

    def watch_events(self) -> AsyncIterator[GPUEvent]:
        """Yield driver events for ever.

        The first is CHANGED without a GPU and says that listening has begun: a scan after it misses nothing. It comes
        again whenever the event source had to be set up anew.
        """
        subscription = self._feed.subscribe()
        self._watcher.start()
        return subscription

    def stop(self) -> None:
        """Ask the event thread to end, without waiting for it."""
        self._watcher.stop()

    async def close(self) -> None:
        """Stop the event thread and release the library, unless a call still hangs in it."""
        self.stop()
        has_ended = await asyncio.to_thread(self._watcher.join, _JOIN_S)
        opened, self._binding = self._binding, None
        if opened is not None and has_ended:
            await self._lanes.run("close", opened.shut_down, timeout_s=self._call_timeout_s)

    def _open(self) -> binding.Binding:
        """Open the library if it is not open; blocking."""
        with self._opening:
            if self._is_released:
                hint = "it goes on after the reset"
                raise errors.Unavailable("a GPU is being reset", reason="DriverReleased", hint=hint)
            if self._binding is None:
                library = self._library or driver.find_nvml(self._root, self._driver_root, self._search)
                self._binding = binding.Binding(library)
            return self._binding

    async def _start(self, *, lane: str = "library") -> tuple[binding.Binding, Driver, int]:
        """Open the library and read its own facts: the driver and the number of GPUs."""
        try:
            return await self._lanes.run(lane, self._read_driver, timeout_s=self._call_timeout_s)
        except errors.DeviceFault as error:
            message = f"nvml does not return from its start within {self._call_timeout_s} s"
            raise errors.Unavailable(message, reason="DriverHangs", hint="see dmesg for NVRM messages") from error

    def _read_driver(self) -> tuple[binding.Binding, Driver, int]:
        nvml = self._open()
        try:
            version, count = nvml.nvml.nvmlSystemGetDriverVersion(), nvml.nvml.nvmlDeviceGetCount()
        except nvml.error as error:
            self._binding = None  # the next scan opens the library anew: the driver may have been reloaded
            nvml.shut_down()
            raise binding.start_error(error) from error
        cuda = nvml.reading("nvmlSystemGetCudaDriverVersion")
        pair = (cuda // 1000, cuda % 1000 // 10) if cuda else None
        return nvml, Driver(vendor=Vendor.NVIDIA, version=version, cuda_version=pair), count

    def _has_kernel_driver(self) -> bool:
        return (self._root / "proc/driver/nvidia").exists()

    def _sort(
        self, answers: list[gpureader.Reading | Exception], nvml: binding.Binding
    ) -> tuple[list[gpureader.Reading], list[UnreadableGPU]]:
        """Part the readings from the failures, both in index order, and note who answered."""
        readings, unreadable = [], []
        for index, answer in enumerate(answers):
            if isinstance(answer, gpureader.Reading):
                readings.append(answer)
                seen = eventbus.Seen(uuid=answer.gpu.uuid, pci_bus_id=answer.gpu.pci_bus_id)
                self._roster.answered(index, seen)
            elif isinstance(answer, (nvml.error, errors.DeviceFault)):
                unreadable.append(self._unreadable(index, binding.gpu_error(answer)))
            else:
                raise answer
        return readings, unreadable

    def _unreadable(self, index: int, fault: errors.DeviceFault) -> UnreadableGPU:
        self._roster.silent(index, fault.message)
        seen = self._roster.find(index)
        return UnreadableGPU(
            index=index,
            pci_bus_id=seen.pci_bus_id if seen else None,
            uuid=seen.uuid if seen else None,
            reason=fault.reason,
            message=errors.sentence(fault),
        )

    def _unlisted(
        self, readings: list[gpureader.Reading], unreadable: list[UnreadableGPU], count: int
    ) -> list[UnreadableGPU]:
        """GPUs bound to the driver that NVML does not list at all.

        Empty where an unreadable GPU has no known address: it could be the one.
        """
        if any(item.pci_bus_id is None for item in unreadable):
            return []
        listed = {reading.gpu.pci_bus_id for reading in readings} | {item.pci_bus_id for item in unreadable}
        bound = [a for a in pci.list_displays(self._root, VENDOR_ID) if pci.driver_of(self._root, a) == "nvidia"]
        return [
            UnreadableGPU(
                index=count + place,
                pci_bus_id=address,
                uuid=None,
                reason="Unreadable",
                message=f"bound to the driver at {address} but not listed by nvml (see dmesg for NVRM messages)",
            )
            for place, address in enumerate(address for address in bound if address not in listed)
        ]

    async def _learn_levels(self, nvml: binding.Binding, readings: list[gpureader.Reading]) -> None:
        """Ask for the PCIe levels of pairs not seen before; what cannot be told is asked again at the next scan."""
        unknown = topology.missing(readings, self._levels)
        calls: dict[str, Callable[[], dict[str, LinkKind]]] = {
            f"topology{place}": functools.partial(topology.read_levels, nvml, readings[place], others)
            for place, others in unknown.items()
        }
        answers = await self._lanes.run_all(calls, timeout_s=self._call_timeout_s)
        for place, answer in zip(unknown, answers.values(), strict=True):
            if isinstance(answer, dict):
                one = readings[place].gpu.pci_bus_id
                self._levels |= {(one, other): level for other, level in answer.items()}
