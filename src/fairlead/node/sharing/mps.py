"""Keeps one MPS control daemon for each GPU that the configuration shares by MPS, and says which are ready.

Each GPU has a task that makes what is what should be: folders, the compute mode EXCLUSIVE_PROCESS (written down before
it is set), the daemon, its limits. A GPU is ready once its daemon has answered. A daemon that dies or falls silent is
started again with back-off; its clients have lost their GPU contexts by then, and until the new one answers nothing of
the GPU is given away. Where the configuration shares a GPU by MPS no more its daemon stays until the last client's pod
has ended, then the compute mode is what it was before. An agent that starts takes living daemons up as they are.

The part is optional: what goes wrong here keeps this GPU's replicas back and touches no other device.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.model.gpu import ComputeMode
from fairlead.model.ids import GPUUUID
from fairlead.node.inventory import latest
from fairlead.node.sharing import mpsdaemon, mpsrecord
from fairlead.plan.sharing import mps
from fairlead.silicon.port import ComputeModes, MPSProgram

HELD: Final = "MPSHeldOtherwise"
DIED: Final = "MPSDaemonDied"
MISSING: Final = "MPSProgramMissing"
CHECK_S: Final = 5.0
"""How often a daemon is asked whether it is alive."""
_BACKOFF_S: Final = (0.5, 60.0)
_GOOD_RUN_S: Final = 60.0
_HANGING_S: Final = 120.0


States = Mapping[GPUUUID, mps.DaemonState]
Told = Callable[[GPUUUID, str, str], None]
"""Called with the GPU, the reason (empty: ready) and a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the daemons use of this machine."""

    state: Path
    """Where records lie."""
    root: Path
    """Where the daemons' folders lie."""
    boot_id: str
    modes: ComputeModes
    program: Callable[[], MPSProgram | None]
    """Asked at each start: a driver may come later."""
    held: Callable[[], frozenset[GPUUUID] | None]
    """Returns the GPUs that pods have, or have a part of; None: it is not known."""
    is_standing_by: Callable[[], bool]
    """Whether another agent serves this node, and the daemons are its."""


class Daemons:
    """The daemons of one node."""

    def __init__(self, machine: Machine, *, told: Told = lambda _gpu, _reason, _text: None) -> None:
        """Take the machine; nothing is read before `run`. Args: told: called whenever a GPU's reason changes."""
        self.states: latest.Latest[States] = latest.Latest({})
        """Of every GPU that has, or is to have, a daemon."""
        self._machine, self._told = machine, told
        self._wanted: latest.Latest[Mapping[GPUUUID, mps.Daemon] | None] = latest.Latest(None)
        self._wakes: dict[GPUUUID, asyncio.Event] = {}

    def want(self, wanted: Mapping[GPUUUID, mps.Daemon]) -> None:
        """Have these daemons and no others from now on."""
        if self._wanted.set(dict(wanted)):
            self.poke()

    def poke(self) -> None:
        """Look again: pods have come or gone."""
        for wake in self._wakes.values():
            wake.set()

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Keep the daemons, for ever; they live on when this is cancelled (see `end_all`)."""
        meter.heartbeat("mps", None)
        running: dict[GPUUUID, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            async for wanted in self._wanted.changes():
                records = await asyncio.to_thread(mpsrecord.read_all, self._machine.state)
                for gpu in (wanted or {}).keys() | records.keys():
                    if gpu not in running or running[gpu].done():
                        self._wakes.setdefault(gpu, asyncio.Event())
                        running[gpu] = tasks.create_task(self._keep(gpu, meter), name=f"mps {gpu}")

    async def end_all(self) -> None:
        """End every daemon and give each GPU its compute mode back; what fails is logged and left to the next start."""
        async with asyncio.TaskGroup() as tasks:
            for gpu, record in (await asyncio.to_thread(mpsrecord.read_all, self._machine.state)).items():
                tasks.create_task(self._end(gpu, record))

    async def _end(self, gpu: GPUUUID, record: mpsrecord.Record) -> None:
        try:
            await self._take_down(gpu, record)
        except errors.FairleadError as error:
            telemetry.log.warning("mps daemon not ended", gpu=gpu, reason=error.reason, error=error.message)

    async def _keep(self, gpu: GPUUUID, meter: telemetry.Meter) -> None:
        """Make this GPU what it should be, again and again, until it needs no daemon and has none."""
        waits, loop = Backoff(first_s=_BACKOFF_S[0], last_s=_BACKOFF_S[1]), asyncio.get_running_loop()
        while True:
            self._wakes[gpu].clear()
            began = loop.time()
            try:
                is_done = await self._turn(gpu)
                if is_done and gpu not in (self._wanted.value or {}):  # it may have been asked for meanwhile
                    return
                continue
            except errors.FairleadError as error:
                self._say(gpu, error.reason, errors.sentence(error))
                meter.add(telemetry.MPS_FAILURES, error.reason)
            if loop.time() - began > _GOOD_RUN_S:
                waits.reset()
            await self._sleep(gpu, waits.next())

    async def _turn(self, gpu: GPUUUID) -> bool:
        """Do what is next; returns whether nothing is left to do. Raises: FairleadError: try again later."""
        wanted, held = self._wanted.value, self._machine.held()
        record = (await asyncio.to_thread(mpsrecord.read_all, self._machine.state)).get(gpu)
        if wanted is None or self._machine.is_standing_by():
            await self._sleep(gpu, CHECK_S)
            return False
        if gpu not in wanted:
            return await self._wind_up(gpu, record, held)
        if record is None and (held is None or gpu in held):
            self._say(gpu, HELD, "pods have it without MPS: it is shared by MPS once they have ended")
            await self._sleep(gpu, CHECK_S)
            return False
        if self.states.value.get(gpu) is None:
            self._say(gpu, mps.STARTING, "its MPS control daemon has not answered yet")
        control = await self._bring_up(gpu, record, wanted[gpu])
        self._say(gpu, "", "its MPS control daemon answers")
        await self._watch(gpu, control, wanted[gpu])
        return False

    async def _wind_up(self, gpu: GPUUUID, record: mpsrecord.Record | None, held: frozenset[GPUUUID] | None) -> bool:
        """End a daemon that is not wanted any more, once it has no clients; returns whether that is done."""
        if record is None:
            self._forget(gpu)
            return True
        if held is None or gpu in held:
            self._say(
                gpu, mps.DRAINING, "pods are clients of its MPS daemon still: it is given away once they have ended"
            )
            await self._sleep(gpu, CHECK_S)
            return False
        await self._take_down(gpu, record)
        self._forget(gpu)
        return True

    async def _bring_up(self, gpu: GPUUUID, record: mpsrecord.Record | None, wanted: mps.Daemon) -> mpsdaemon.Control:
        """Return the control of a daemon that answers and has its limits."""
        control = self._control(gpu, self._machine.root)
        folders = mpsdaemon.folders_of(self._machine.root, gpu)
        if (problem := await asyncio.to_thread(mpsdaemon.find_intruder, folders)) or (
            record is None and await asyncio.to_thread(mpsdaemon.find_daemon, folders) is not None
        ):
            message = f"the folder of its MPS daemon is not ours: {problem or f'a daemon runs in {folders.pipe}'}"
            hint = "end that daemon (`echo quit | nvidia-cuda-mps-control`), or set FAIRLEAD_PLUGIN_MPS_ROOT"
            raise errors.Conflict(message, reason=mpsdaemon.FOREIGN, hint=hint)
        if record is None or record.boot_id != self._machine.boot_id or record.root != self._machine.root.absolute():
            before = await self._machine.modes.read_mode(gpu)
            if record is not None and record.boot_id in {self._machine.boot_id, ""}:
                await self._take_down(gpu, record)  # it stands in another folder
                before = record.mode
            record = mpsrecord.Record(
                gpu=gpu, mode=before, boot_id=self._machine.boot_id, root=self._machine.root.absolute()
            )
            telemetry.crash_point("mps.before-record")
            await asyncio.to_thread(mpsrecord.write, self._machine.state, record)
        telemetry.crash_point("mps.before-mode")
        if await self._machine.modes.read_mode(gpu) is not ComputeMode.EXCLUSIVE_PROCESS:
            await self._machine.modes.set_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
        telemetry.crash_point("mps.before-start")
        if await asyncio.to_thread(mpsdaemon.find_daemon, folders) is None:
            await control.start()
            telemetry.log.info("mps daemon started", gpu=gpu, path=str(folders.base))
        else:
            await control.check()
        telemetry.crash_point("mps.before-limits")
        await control.set_limits(wanted)
        telemetry.crash_point("mps.after-limits")
        return control

    def _control(self, gpu: GPUUUID, root: Path) -> mpsdaemon.Control:
        program = self._machine.program()
        if program is None:
            message = "nvidia-cuda-mps-control is not installed, which shares GPUs by MPS"
            hint = "install the driver's compute utilities, or share by sharing.timeSlicing"
            raise errors.Unavailable(message, reason=MISSING, hint=hint)
        return mpsdaemon.Control(gpu, mpsdaemon.folders_of(root, gpu), program)

    async def _watch(self, gpu: GPUUUID, control: mpsdaemon.Control, wanted: mps.Daemon) -> None:
        """Return when something else is wanted. Raises: DeviceFault: the daemon has ended; Unavailable: is silent."""
        folders = mpsdaemon.folders_of(self._machine.root, gpu)
        while (self._wanted.value or {}).get(gpu) == wanted and not self._machine.is_standing_by():
            pid = await asyncio.to_thread(mpsdaemon.find_daemon, folders)
            if pid is None or await mpsdaemon.wait_end(pid, within_s=CHECK_S, wake=self._wakes[gpu]):
                message = f"the MPS control daemon of {gpu} has ended: its clients have lost the GPU"
                raise errors.DeviceFault(message, reason=DIED, hint=f"look into {folders.log}; it is started again")
            try:
                await control.check()
            except errors.Unavailable:
                mpsdaemon.kill(pid)  # what hangs serves no client
                raise

    async def _take_down(self, gpu: GPUUUID, record: mpsrecord.Record) -> None:
        """End the daemon and give the GPU its mode back. Raises: FairleadError: the record stays for another try."""
        telemetry.crash_point("mps.before-quit")
        await self._control(gpu, self._machine.root if record.root == Path() else record.root).end()
        telemetry.crash_point("mps.before-restore")
        with contextlib.suppress(errors.NotFound):  # a GPU that was taken out has no mode any more
            if (
                record.boot_id in {self._machine.boot_id, ""}
                and await self._machine.modes.read_mode(gpu) is ComputeMode.EXCLUSIVE_PROCESS
            ):
                await self._machine.modes.set_mode(gpu, record.mode)
        telemetry.crash_point("mps.before-forget")
        await asyncio.to_thread(mpsrecord.remove, self._machine.state, gpu)
        telemetry.log.info("mps daemon ended", gpu=gpu)

    def _say(self, gpu: GPUUUID, reason: str, message: str) -> None:
        before = self.states.value.get(gpu)
        if self.states.set({**self.states.value, gpu: mps.DaemonState(reason, message)}):
            if before is None or before.reason != reason:
                self._told(gpu, reason, message)
            if reason and reason != mps.STARTING:
                telemetry.log.warning("mps daemon not ready", gpu=gpu, reason=reason, error=message)

    def _forget(self, gpu: GPUUUID) -> None:
        self.states.set({uuid: state for uuid, state in self.states.value.items() if uuid != gpu})

    async def _sleep(self, gpu: GPUUUID, longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._wakes[gpu].wait()
