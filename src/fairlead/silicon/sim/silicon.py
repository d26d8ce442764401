"""Implements the silicon port over a simulated host, with the real NVML code in between.

Nothing here stands in for `NVMLSilicon`; the simulation begins below it, at the C functions and the files.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import fairlead
from fairlead import errors
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPUEvent, Inventory
from fairlead.model.ids import GPUUUID
from fairlead.model.neighbour import GPUProcess
from fairlead.model.sample import Sample
from fairlead.silicon import port
from fairlead.silicon.nvidia import nvml
from fairlead.silicon.sim import fault as faults
from fairlead.silicon.sim import host, machine

_PROBE_S: Final = 0.2
_MPS_CONTROL: Final = Path(fairlead.__file__).parent / "kernel/programs/mpscontrol.py"
"""Run as a program, never imported: it starts processes of its own."""
_PROGRAM: Final = 1
"""The pid of what a fault puts on a GPU, as the simulated library tells it."""


class SimulatedSilicon(host.SimulatedHost):
    """The Silicon, Sampler, Workloads and Faults ports over a simulated machine."""

    def __init__(self, folder: Path, name: str, *, call_timeout_s: float = 10.0) -> None:
        """Build the host. Args, Raises: as `SimulatedHost`."""
        super().__init__(folder, name)
        self.machine.on_layout.append(self._layout_changed)
        self._nvml = nvml.NVMLSilicon(
            self.tree.path,
            Path("/"),
            call_timeout_s=call_timeout_s,
            library=self.library,
            is_simulated=True,
            probe_s=_PROBE_S,
            reset=self._reset,
            scrub=self._scrub,
        )

    async def scan(self) -> Inventory:
        """Read everything now; see the port."""
        return await self._nvml.scan()

    async def scan_driver(self) -> tuple[DriverFiles, ...]:
        """Read the simulated device tree; see the port."""
        return await self._nvml.scan_driver()

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        """Read the counters; see the port's Sampler."""
        return await self._nvml.sample(within_s=within_s)

    def hold(self, holders: Mapping[str, tuple[str, ...]]) -> None:
        """Let who holds GPUs use them; see the port's Workloads."""
        with self.machine.lock:
            self.machine.holders = dict(holders)

    def watch_events(self) -> AsyncIterator[GPUEvent]:
        """Yield driver events for ever; see `NVMLSilicon.watch_events`."""
        return self._nvml.watch_events()

    def inject(self, fault: str, *, gpu: int | None, value: str | None) -> str:
        """Apply one fault; see the Faults port."""
        self.machine.take_up()
        done = faults.inject(self.machine, fault, gpu=gpu, value=value)
        self.machine.save()
        return done

    def partitioner(self) -> port.Partitioner:
        """Return who partitions the GPUs, by the real calls over the simulated library."""
        return self._nvml.partitioner()

    def compute_modes(self) -> port.ComputeModes:
        """Return who sets compute modes, by the real calls over the simulated library."""
        return self._nvml.compute_modes()

    def mps_program(self) -> port.MPSProgram:
        """Return the stand-in, which speaks the real program's text protocol and limits nothing."""
        return port.MPSProgram(argv=(sys.executable, "-I", "-S", str(_MPS_CONTROL)), has_own_memory=False)

    def time_slices(self) -> port.TimeSlices:
        """Return who sets time slices, which nothing on a simulated GPU feels."""
        return _TimeSlices(self.machine)

    async def _reset(self, gpu: str, _: str) -> None:
        """Reset a GPU as the driver does: not under processes, and its instances are gone."""
        with self.machine.lock:
            found = next(one for one in self.machine.gpus if one.board.uuid == gpu)
            if self.machine.is_busy(found):
                message = f"GPU {found.board.index} is in use and was not reset"
                raise errors.Conflict(message, reason="MIGInUse", hint="stop what runs on it first")
            found.reset_hardware()
            self.machine.layout_changed(found)

    async def list_programs(self, gpus: Collection[GPUUUID]) -> Mapping[GPUUUID, tuple[GPUProcess, ...]]:
        """Return those that a fault has put on GPUs; programs of containers have no pid here."""
        with self.machine.lock:
            self.machine.take_up()
            return {
                GPUUUID(one.board.uuid): tuple(_programs(one))
                for one in self.machine.gpus
                if one.board.uuid in gpus and not one.is_lost
            }

    def inspector(self) -> port.Inspector:
        """Return who reads and cleans the GPUs, by the real calls over the simulated library."""
        return self._nvml.inspector()

    async def _scrub(self, gpu: str) -> None:
        """Clear a GPU's memory, in no time, unless a fault keeps it from it."""
        found = next(one for one in self.machine.gpus if one.board.uuid == gpu)
        while not self.machine.is_closed:
            with self.machine.lock:
                self.machine.take_up()
                state = found.scrub
            if state == "failed":
                message = f"{gpu} did not read back what was written"
                raise errors.DeviceFault(message, reason="ScrubFailed", hint="replace the GPU")
            if state != "hang":
                return
            await asyncio.sleep(_PROBE_S)

    async def close(self) -> None:
        """Stop the event thread and let every hanging call go; the device tree stays."""
        self._nvml.stop()
        self.machine.close()
        await self._nvml.close()

    def _layout_changed(self) -> None:
        self.tree.refresh()
        self.machine.save()


def _programs(gpu: machine.GPUState) -> Iterator[GPUProcess]:
    if gpu.processes:
        yield GPUProcess(pid=_PROGRAM)
    for pid, (memory_mib, draws) in sorted(gpu.living_programs().items()):
        yield GPUProcess(pid=pid, memory_bytes=memory_mib << 20 or None, is_graphics=draws)


class _TimeSlices:
    """Keeps the time slices that were set."""

    def __init__(self, held: machine.Machine) -> None:
        self._machine = held

    async def set_time_slice(self, gpu: GPUUUID, interval: int) -> None:
        """Set the interval; see the port."""
        with self._machine.lock:
            found = next((one for one in self._machine.gpus if one.board.uuid == gpu), None)
            if found is None:
                raise errors.NotFound(f"there is no GPU {gpu}", reason="GPUUnknown")
            found.time_slice = interval
        self._machine.save()
