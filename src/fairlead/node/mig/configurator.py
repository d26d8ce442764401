"""Keeps this node's MIG partitions as a named configuration says: the one of the Node's label, else of a setting.

The label `nvidia.com/mig.config` names it, `nvidia.com/mig.config.state` says how it is: `pending` while GPUs are
changed, then `success` or `failed`. Nothing is remembered: each round looks at what stands and plans what is missing,
so an agent that was killed at any step goes on from the GPUs as they are. A round that ends in any way but `success` is
`failed`, whatever ended it, and is tried again: `pending` never outlives a round.

Devices that a change would end are offered to nobody while it runs. What is in use is left alone and makes the round
fail, unless the node may be drained (setting `node.mig_drain`); it is tried again as soon as the kubelet's list or the
Node's labels change.
Source: NVIDIA mig-parted, deployments/gpu-operator (labels and their values).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead import errors, files, telemetry
from fairlead.backoff import Backoff
from fairlead.model.ids import GPUUUID
from fairlead.model.mig import Partition
from fairlead.node.inventory import latest
from fairlead.node.mig import apply, drain
from fairlead.plan.mig import change, wanted
from fairlead.silicon.port import Partitioner
from fairlead.wire.nvidia import migparted

LABEL: Final = "nvidia.com/mig.config"
STATE_LABEL: Final = "nvidia.com/mig.config.state"
PENDING, SUCCESS, FAILED = "pending", "success", "failed"
REASON: Final = "MIGReconfiguring"
"""Why devices are kept back while their GPU is changed."""
_BACKOFF_S: Final = (1.0, 60.0)
_CHECK_S: Final = 300.0
"""How often partitions are looked at that are as they should be."""
_ROUND_S: Final = 900.0
SETTLE_S: Final = 0.5
"""An Allocate that began before devices were kept back shows in the kubelet's list by then."""

Told = Callable[[str, str, str], None]
"""Called with the configuration's name, its new state, and a sentence."""


class Configurator:
    """Follows one node's choice of a configuration."""

    def __init__(
        self,
        partitioner: Partitioner,
        *,
        file: Path | None,
        default: str,
        labels: latest.Latest[Mapping[str, str] | None] | None,
        in_use: Callable[[], Awaitable[frozenset[str]]],
        state: latest.Latest[str],
        told: Told = lambda _name, _state, _text: None,
        patience_s: float = apply.PATIENCE_S,
    ) -> None:
        """Take what to follow; nothing is read before `run`.

        Args:   file: of mig-parted's format; None: configurations that suit the GPUs.   default: where the Node names
                none; empty: then nothing is changed.   labels: of the Node; None: there is no Node.
                in_use: asks the kubelet which GPUs and MIG devices are held, by UUID.
                state: takes the value of the state's label; empty: no configuration is chosen.
                patience_s: how long a device that its holder has let go of may stay busy.
        """
        self.state = state
        self.blocked: latest.Latest[frozenset[str]] = latest.Latest(frozenset())
        """GPUs and MIG devices, by UUID, that are given to nobody now."""
        self._partitioner = partitioner
        self._file, self._default, self._labels = file, default, labels
        self._in_use, self._told = in_use, told
        self._last_told = ("", "", "")
        self.drain: drain.Drain | None = None
        """Ends the pods in the way, where that is allowed; None: nothing does."""
        self._patience_s = patience_s
        self._wake = asyncio.Event()

    def poke(self) -> None:
        """Have it look again soon: somebody let go of a device, or the silicon changed."""
        self._wake.set()

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Follow for ever."""
        async with asyncio.TaskGroup() as tasks:
            if self._labels is not None:
                tasks.create_task(self._follow(self._labels.changes()))
            waits = Backoff(first_s=_BACKOFF_S[0], last_s=_BACKOFF_S[1])
            chosen: object = None
            while True:
                self._wake.clear()
                meter.heartbeat("mig", _ROUND_S)
                before, chosen = chosen, self._choice()
                if chosen != before:
                    waits.reset()
                is_done = await self._round(self.chosen())
                if is_done:
                    waits.reset()
                await self._sleep(_CHECK_S if is_done else waits.next())

    async def _follow(self, changes: AsyncIterator[Mapping[str, str] | None]) -> None:
        before: object = None
        async for _ in changes:
            if (chosen := self._choice()) != before:
                before = chosen
                self._wake.set()

    async def _sleep(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def chosen(self) -> str:
        """Return the name of the configuration to be in force; empty: none."""
        labels = (self._labels.value if self._labels is not None else None) or {}
        return labels.get(LABEL, "") or self._default

    def _choice(self) -> tuple[str, bool]:
        """Return what labels and settings ask for: which configuration, and whether pods may be ended for it."""
        return self.chosen(), self.drain is not None and self.drain.is_allowed()

    async def _round(self, name: str) -> bool:
        """Make the GPUs what the configuration says; returns whether they are."""
        if not name:
            self.state.set("")
            return True
        problem = "the round was ended"
        try:
            problem = await self._reconcile(name)
        except errors.FairleadError as error:
            problem = errors.sentence(error)
            telemetry.log.warning("mig configuration not applied", reason=error.reason, error=problem, state=name)
        finally:
            self.blocked.set(frozenset())
            self._tell(name, FAILED if problem else SUCCESS, problem)
        return not problem

    def _tell(self, name: str, state: str, text: str) -> None:
        """Tell what is new: the state, or of the same state another configuration or another reason."""
        is_new = self.state.set(state)
        if is_new or (name, state, text) != self._last_told:
            self._told(name, state, text)
        self._last_told = (name, state, text)

    async def _reconcile(self, name: str) -> str:
        """Return what is still not as it should be; empty: nothing. Raises: as planning and applying."""
        gpus = await self._partitioner.list_partitions()
        parsed = await asyncio.to_thread(self._read) if self._file is not None else wanted.generate(gpus)
        goals = wanted.plan_wanted(name, parsed, gpus)
        if not wanted.differences(gpus, goals):
            return ""
        may_drain = self.drain is not None and self.drain.is_allowed()
        # Raises before anything is announced or changed.
        change.plan_changes(gpus, goals, in_use=await self._in_use(), may_drain=may_drain)
        self._tell(name, PENDING, "")
        telemetry.crash_point("mig.after-pending")
        changes = await self._keep_back(gpus, goals, may_drain=may_drain)
        if self.drain is not None and (held := _drained(changes)):
            await self.drain.end_holders(held, why=f"the MIG configuration {name} ends its device")
            telemetry.crash_point("mig.after-drain")
            # What is still busy now belongs to no pod, and is left alone.
            changes = await self._keep_back(gpus, goals, may_drain=False)
        await apply.apply_changes(self._partitioner, changes, patience_s=self._patience_s)
        return "; ".join(wanted.differences(await self._partitioner.list_partitions(), goals))

    async def _keep_back(
        self, gpus: Sequence[Partition], goals: Mapping[GPUUUID, wanted.WantedGPU], *, may_drain: bool
    ) -> tuple[change.Change, ...]:
        """Plan the changes, and keep back what they end. Raises: as planning.

        Somebody may have been given one of the devices before it was kept back, and then other devices are spared: only
        a plan that ends nothing but what has been kept back for a while counts.
        """
        while True:
            changes = change.plan_changes(gpus, goals, in_use=await self._in_use(), may_drain=may_drain)
            ended = frozenset(_ended(changes))
            if ended <= self.blocked.value:
                return changes
            self.blocked.set(self.blocked.value | ended)
            await asyncio.sleep(min(SETTLE_S, self._patience_s))

    def _read(self) -> migparted.Config:
        """Read the file. Raises: NotFound, Unavailable: it cannot be read; Invalid: it breaks the format."""
        path = self._file or Path()
        data = files.read_regular(path, limit_bytes=migparted.LARGEST_BYTES)
        if data is None:
            message = f"there is no MIG configuration file {path}"
            raise errors.NotFound(message, reason="MIGConfigUnreadable", hint="set FAIRLEAD_NODE_MIG_CONFIG_FILE")
        return migparted.parse_config(data, source=str(path))


def _ended(changes: tuple[change.Change, ...]) -> set[str]:
    """Return what must not be given away while these changes run, by UUID: devices that end, GPUs that change mode."""
    found: set[str] = set()
    for one in changes:
        if any(step.act is change.Act.SET_MODE for step in one.steps):
            found |= {str(one.gpu.gpu), *_devices(one.gpu)}
        gone = {(step.instance, step.compute) for step in one.steps if step.act is change.Act.DESTROY_COMPUTE}
        found |= {
            str(compute.uuid)
            for instance in one.gpu.instances
            for compute in instance.computes
            if (instance.id, compute.id) in gone
        }
    return found


def _drained(changes: tuple[change.Change, ...]) -> set[str]:
    """Return what is held and these changes end, by UUID."""
    return {str(one) for found in changes for one in found.drained} | {
        str(found.gpu.gpu) for found in changes if found.ends_gpu
    }


def _devices(gpu: Partition) -> set[str]:
    return {str(one.uuid) for instance in gpu.instances for one in instance.computes}
