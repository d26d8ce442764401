"""Keeps the active NVLink partitions those that the ledger's holders need.

The ledger comes first: once it says Held, the slot's partition is activated, and only then may the slot's CDI entry be
shown (`is_ready`), without which no machine starts. After the tenant, the entry is gone and the agent holds every node
of the slot again, so no machine has one: then the partition is deactivated, and only then may the ledger call a member
dirty (`obstacle`). Nothing here runs inside Allocate: a slow Manager makes the entry come later, and the kubelet's
retries of the sandbox wait for it.

Every few seconds the Manager lists what is active. One that was started again is given the list of what was, which it
wants within 60 s. While it does not answer, slots of several GPUs are given to nobody: which partitions are active is
not known. Machines that run keep their NVLink, and GPUs of one are given away as before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from fairlead import errors, telemetry
from fairlead.frozen import frozen
from fairlead.model.driver import PassthroughGPU
from fairlead.model.fabric import ManagerIdentity, Partition
from fairlead.model.ids import DeviceID
from fairlead.node.fabric import caller, resets
from fairlead.node.fabric.memory import FabricMemory
from fairlead.node.inventory import latest
from fairlead.plan.fabric import packing, reconcile
from fairlead.plan.fabric.lattice import Lattice
from fairlead.plan.fabric.reconcile import Verb
from fairlead.plan.lease.row import Claim, Row, State, given_together
from fairlead.plan.vfio import slot
from fairlead.silicon.fabric import connection, result
from fairlead.silicon.fabric.reached import Reached

POLL_S: Final = 5.0
"""Between two looks at the active set; a Manager that was started again ends itself after 60 s without the list."""
RETRY_S: Final = 1.0
UNKNOWN: Final = "FabricUnknown"
MISMATCH: Final = "FabricVersionMismatch"
Condemn = Callable[[str, str], Awaitable[None]]
"""Keeps a GPU back for a person. Args: the GPU's key, why."""


@frozen
class Versions:
    """What the settings say of versions; empty: nothing."""

    manager: str = ""
    """Of the Manager, where it does not say so itself."""
    guests: str = ""
    """Of the driver in tenants' machines on this node."""


class PartitionKeeper:
    """The partitions of this node's fabric."""

    def __init__(
        self,
        reached: Reached,
        memory: FabricMemory,
        *,
        gpus: Callable[[], Iterable[PassthroughGPU]],
        ours: Callable[[], Collection[str]],
        versions: Versions | None = None,
        poll_s: float = POLL_S,
        retry_s: float = RETRY_S,
    ) -> None:
        """Ask nothing yet.

        Args: gpus: returns this node's GPUs that are passed through.   ours: returns the keys of those whose nodes the
              agent has open, so that no machine has them.   versions: as the settings say them.
        """
        self._reached, self._memory, self._gpus, self._ours = reached, memory, gpus, ours
        self._caller, self._versions = caller.Caller(reached), versions or Versions()
        self.resets: Final = resets.Resets(memory, gpus)
        self._poll_s, self._retry_s = poll_s, retry_s
        self.rows: Callable[[], Mapping[str, Row]] = dict
        """Returns the ledger's rows; set by the ledger's owner."""
        self.told: Callable[[], None] = lambda: None
        """Called whenever another partition is active than before, or the Manager's state is another."""
        self.offered: Callable[[], None] = lambda: None
        """Called whenever the Manager offers other partitions than before."""
        self.condemn: Condemn = _condemn_none
        self.lattice = Lattice(memory.partitions)
        self._poked = asyncio.Event()
        self._is_fresh = True
        """Whether the next answer is the first one of a connection."""
        self._was_lost = False
        """Whether a Manager went away since it last took the list: the next one may wait for it, an empty one too."""
        self._is_new = True
        """Whether no Manager has answered since this agent began."""
        self._settled = ""
        """Which start of the Manager has listed what is active since this agent began, and waits for no list."""
        self._is_here = False
        """Whether this node was ever seen to have a fabric, or a GPU that may be in one."""
        self._faulty: dict[int, str] = {}
        self._said = ""
        self.state: latest.Latest[str] = latest.Latest("the Fabric Manager was not asked yet")
        """Why it is not known which partitions are active; empty: it is."""
        self.version: latest.Latest[str] = latest.Latest("")
        """Of the Manager that answered last; empty: none has, or nothing says it."""
        self.mismatch: latest.Latest[str] = latest.Latest("")
        """Why no tenant's driver fits the Manager; empty: it does, or one of the versions is not known."""
        self._activated: dict[str, tuple[float, float]] = {}
        """By slot: when its partition was last activated, and how long that took."""
        self.waiting: Mapping[int, str] = {}
        """Partitions that are needed and not active yet, and why."""

    @property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """Return the module numbers of each partition of several GPUs, in the Manager's order."""
        return tuple(one.modules for one in self.lattice.partitions if len(one.gpus) > 1)

    @property
    def ids(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return id and module numbers of each partition, in the Manager's order."""
        return tuple((one.id, tuple(one.modules)) for one in self.lattice.partitions)

    @property
    def active(self) -> frozenset[int]:
        """Return the ids of the partitions that are active, as far as is known."""
        return self._memory.active

    @property
    def problem(self) -> str:
        """Return why it is not known which partitions are active; empty: it is."""
        return self.state.value

    # what the ledger's gate asks

    def is_ready(self, row: Row) -> bool:
        """Return whether a held GPU may be shown to engines: its slot's partition is active.

        A GPU alone needs no NVLink: where nobody can activate its partition, or before its reset may, it is shown all
        the same.
        """
        return all(self._is_active(claim) for claim in row.claims)

    def _is_active(self, claim: Claim) -> bool:
        modules = self._modules_of(claim)
        found = self.lattice.find_exact(modules) if modules else None
        if len(modules) > 1:
            return found is not None and found.id in self.active
        return found is None or found.id in self.active or bool(self.problem) or modules[0] in self.resets.due_modules

    def obstacle(self, key: str) -> str:
        """Return which partition a GPU that no tenant has is still in, or may be; empty: none."""
        if not self._memory.is_known:
            if any(gpu.is_card for gpu in self._gpus() if str(gpu.key) == key):
                return ""
            return f"an NVLink partition, perhaps: none was ever listed here ({self.problem})"
        module, active = self._module(key), self.active | self._memory.doubtful
        for one in self.lattice.partitions:
            if one.id in active and len(one.gpus) > 1 and module in one.modules:
                why = f": {self.problem}" if self.problem else ""
                return f"NVLink partition {one.id}, which is active still{why}"
        return ""

    @property
    def unusable(self) -> tuple[str, str] | None:
        """Return reason and message why no slot of several GPUs may be given away; None: they may."""
        if self.problem:
            return UNKNOWN, self.problem
        return (MISMATCH, self.mismatch.value) if self.mismatch.value else None

    def assert_usable(self) -> None:
        """Refuse to give away several GPUs at once while none may be. Raises: Unavailable."""
        if (found := self.unusable) is not None:
            reason, message = found
            hint = "`fairlead fabric status` asks the Manager; see its log" if reason == UNKNOWN else None
            raise errors.Unavailable(f"no slot of several GPUs: {message}", reason=reason, hint=hint)

    def activation(self, device: str) -> tuple[float, float] | None:
        """Return when a slot's partition was last activated by this agent, Unix time, and how long that took.

        Returns: None: it was not.
        """
        return self._activated.get(device)

    def lost_slots(self) -> dict[str, str]:
        """Return the held slots whose NVLink ended with the Service VM, by id, each with what that means."""
        how = "its NVLink ended with the machine that had the switches: end its pod; a new one gets it again"
        return {str(slot.id_of(self._members(one))): how for one in self._memory.lost}

    def assert_partition(self, keys: Iterable[str]) -> None:
        """Refuse to give a claim several GPUs of this node's fabric that are no partition of it. Args: keys: its GPUs.

        Raises: Invalid (`FabricSetNotOffered`).   Unavailable: as `assert_usable`.
        """
        modules = sorted(module for key in keys if (module := self._module(key)) is not None)
        if len(modules) < 2:
            return
        self.assert_usable()
        if self.lattice.find_exact(modules) is None:
            same = [one for one in self.sets if len(one) == len(modules)]
            offered = ", ".join("-".join(map(str, one)) for one in same) or "none"
            message = (
                f"the claim has the modules {', '.join(map(str, modules))}, and NVLink has no partition of just these "
                f"(of {len(modules)} GPUs: {offered})"
            )
            hint = (
                f"constrain its requests by matchAttribute gpu.nvidia.com/partition{len(modules)}, or claim GPUs apart"
            )
            raise errors.Invalid(message, reason="FabricSetNotOffered", hint=hint)

    def prefer(self, available: Iterable[DeviceID], needed: Collection[DeviceID], count: int) -> tuple[DeviceID, ...]:
        """Return the slots to give away: those that leave the most of the larger partitions whole.

        Args: available: free slots of one resource, as the kubelet counts them.   needed: those of them that must be.
        Returns: `count` ids, or fewer where they are no partitions.
        """
        offered = dict.fromkeys(available)
        sizes = {slot.id_of(one.modules): one for one in self.lattice.partitions}
        free = {self._module(key) for key, row in self.rows().items() if row.state is State.FREE} - {None}
        chosen = [one for one in offered if one in needed]
        for one in chosen:
            free -= set(sizes[one].modules if one in sizes else ())
        size = next((len(sizes[one].gpus) for one in offered if one in sizes), 0)
        while len(chosen) < count:
            ranked = packing.rank(self.lattice, size, (module for module in free if module is not None))
            best = next((one for one in ranked if slot.id_of(one.modules) in offered.keys() - set(chosen)), None)
            if best is None:
                break
            chosen.append(slot.id_of(best.modules))
            free -= set(best.modules)
        return tuple(chosen)

    def tenants(self) -> tuple[str, ...]:
        """Return in words who has slots of several GPUs now."""
        found = dict[str, None]()
        for row in self.rows().values():
            for claim in row.claims if row.state is State.HELD else ():
                if len(self._modules_of(claim)) > 1:
                    found[f"{claim.namespace}/{claim.pod} ({claim.device})" if claim.pod else claim.device] = None
        return tuple(found)

    # the loop

    def poke(self) -> None:
        """Look soon: the ledger changed."""
        self._poked.set()

    async def run(self) -> None:
        """Keep the active set true, for ever."""
        while True:
            self._poked.clear()
            is_done = await self._round()
            try:
                async with asyncio.timeout(self._poll_s if is_done else self._retry_s):
                    await self._poked.wait()
                    if not is_done:
                        await asyncio.sleep(self._retry_s)
            except TimeoutError:
                continue

    async def _round(self) -> bool:
        """Compare and act once; returns whether nothing is left to do."""
        if not self._is_here:
            return self._stand_by()
        try:
            await self._look()
            while (step := self._next_step()) is not None:
                await self._carry_out(step)
            if ended := self._ended():
                await asyncio.to_thread(self._memory.note_ended, ended)
                self.told()
        except errors.FairleadError as error:
            self._lose(error)
            return False
        self._is_new = False
        if self.problem:
            self._said = ""
            self.state.set("")
            telemetry.log.info("fabric known", path=self._reached.name, partition=sorted(self.active))
            self.told()
        return not self.waiting

    def _stand_by(self) -> bool:
        """Ask no Manager while nothing here can have NVLink through switches; returns whether that is sure.

        In a pool with several kinds of nodes all have the setting. Switches are no sign: those of other trays, and of
        NVLink 5, are no functions of this node. So the GPUs decide, and what a Manager ever listed here: one GPU that
        may be a module has the Manager asked, from then on.
        """
        found = tuple(self._gpus())
        if self._memory.partitions or self._memory.linked or not all(gpu.is_card for gpu in found):
            self._is_here = True
            self.poke()
        elif found and not self._said:
            models = ", ".join(dict.fromkeys(gpu.model or gpu.address for gpu in found))
            self._said = (
                f"no GPU here can be a module of a board with NVSwitches ({models}): node.fabric=on does nothing"
            )
            telemetry.log.info("fabric not used", error=self._said)
            self.state.set(self._said)
        return bool(found)

    async def _look(self) -> None:
        """Take in the Manager's list; one that begins anew is told first what was active.

        One that has listed it before and was only reached anew has the list.
        """
        identity = await self._caller.identify(is_fresh=self._is_fresh)
        await self._meet(identity)
        # What was being switched when the connection ended is switched off first, whatever the list says of it.
        doubtful = self._memory.doubtful if self._is_fresh else frozenset[int]()
        try:
            listed = await self._caller.call(lambda manager: manager.list_partitions())
            missing = (self.active | self._memory.doubtful) - _active(listed)
            may_wait = self._was_lost and identity.start != self._settled
            has_begun = may_wait or (self._is_fresh and bool(missing))
        except errors.FairleadError as error:
            if not self._is_fresh or result.act_of(error) is not result.Act.RETRY or _is_lost(error):
                raise
            has_begun = True
        if has_begun:
            await self._replay()
            doubtful = self._memory.doubtful
            listed = await self._caller.call(lambda manager: manager.list_partitions())
            if lost := self.active - _active(listed):
                who = ", ".join(self.tenants())
                telemetry.log.error("fabric lost partitions", partition=sorted(lost), tenant=who, reason="FabricLost")
        self._is_fresh = self._was_lost = False
        self._settled = identity.start
        await self._take(listed, doubtful)

    async def _meet(self, identity: ManagerIdentity) -> None:
        """Note which Manager answers. One in another machine has switches that were reset: nothing is active there."""
        if identity.machine and identity.machine != self._memory.machine:
            gone = self.active | self._memory.doubtful if self._memory.machine else frozenset[int]()
            lost = frozenset(one for one in gone if len(self._members(one)) > 1)
            await asyncio.to_thread(self._memory.note_machine, identity.machine, lost, is_other=bool(gone))
            if gone:
                self._was_lost, self._settled = True, ""
                who = ", ".join(self.tenants())
                telemetry.log.error("fabric lost its machine", partition=sorted(gone), tenant=who, reason="FabricLost")
                self.told()
        if await self.resets.meet(identity.start):
            self.told()
        self._compare(identity.version or self._versions.manager)

    def _compare(self, manager: str) -> None:
        """Hold the Manager's version and that of tenants' driver against each other: NVLink fails with any other."""
        self.version.set(manager)
        guests = self._versions.guests
        if not manager or not guests or manager == guests:
            self.mismatch.set("")
            return
        self.mismatch.set(
            f"the Fabric Manager is of version {manager} and tenants' driver of {guests} (fabric.guest_driver): "
            f"install the Manager in {guests}, or give tenants' machines an image with {manager}"
        )

    async def _replay(self) -> None:
        """Tell the Manager what was active, and what may be; one that takes no list is logged."""
        known = self.active | self._memory.doubtful
        try:
            await self._caller.call(lambda manager: manager.set_active(known))
        except errors.FairleadError as error:
            if _is_lost(error) or error.context.get("code") == result.NOT_READY:
                raise  # what it lists before it took the list says nothing of the switches
            telemetry.log.warning("fabric did not take the active list", reason=error.reason, error=error.message)
            return
        telemetry.log.info("fabric given the active list", path=self._reached.name, partition=sorted(known))

    async def _take(self, listed: tuple[Partition, ...], doubtful: frozenset[int]) -> None:
        """Believe a list. Args: doubtful: partitions that the Manager believes to be active because we said so."""
        before, self.lattice = self.lattice, Lattice(listed)
        if [(one.id, one.modules) for one in before.partitions] != [(one.id, one.modules) for one in listed]:
            await asyncio.to_thread(self._memory.note_partitions, listed)
            self.offered()
        doubtful &= self.lattice.active
        await self._note(self.lattice.active - doubtful, doubtful)

    async def _note(self, active: frozenset[int], doubtful: frozenset[int]) -> None:
        before = (self.active, self._memory.doubtful)
        await asyncio.to_thread(self._memory.note, active, doubtful)
        if before != (active, doubtful):
            self.told()

    def _next_step(self) -> reconcile.Change | None:
        needed = self.needed()
        self._faulty = {one: why for one, why in self._faulty.items() if one in needed}
        if doubtful := sorted(self._memory.doubtful):
            # Programmed or not: switched off it is known again. No engine was ever shown it, or none is any more.
            return reconcile.Change(verb=Verb.DEACTIVATE, partition=doubtful[0])
        now = Lattice([dataclasses.replace(one, is_active=one.id in self.active) for one in self.lattice.partitions])
        changes = reconcile.plan(now, needed, self._used(needed), due=self.resets.due_modules)
        waiting = {**changes.waiting, **self._faulty}
        if fresh := {one: why for one, why in waiting.items() if self.waiting.get(one) != why}:
            telemetry.log.warning("fabric partitions wait", partition=sorted(fresh), error="; ".join(fresh.values()))
        self.waiting = waiting
        return next((step for step in changes.steps if step.partition not in self._faulty), None)

    def needed(self) -> frozenset[int]:
        """Return the partitions of the slots that the ledger has given away."""
        found = set[int]()
        for row in self.rows().values():
            for claim in row.claims if row.state is State.HELD else ():
                one = self.lattice.find_exact(self._modules_of(claim))
                if one is not None:
                    found.add(one.id)
        return frozenset(found)

    def _ended(self) -> frozenset[int]:
        """Return the lost partitions whose slots have ended; of GPUs that are not scanned yet that is not known."""
        known = {gpu.module for gpu in self._gpus()}
        return frozenset(one for one in self._memory.lost - self.needed() if known.issuperset(self._members(one)))

    def _used(self, needed: Collection[int]) -> frozenset[int]:
        """Return the modules that a machine may have, other than those that wait for their own partition.

        A slot that waits is in no CDI spec, so no machine has it. A GPU that this agent does not pass through is
        somebody else's.
        """
        waiting = {module for one in needed if one not in self.active for module in self._members(one)}
        free = {self._module(key) for key in self._ours()}
        return frozenset(self.lattice.modules) - free - waiting

    def _members(self, partition: int) -> tuple[int, ...]:
        found = self.lattice.find(partition)
        return found.modules if found is not None else ()

    async def _carry_out(self, step: reconcile.Change) -> None:
        one, is_on = step.partition, step.verb is Verb.ACTIVATE
        telemetry.log.info("fabric switched", path=self._reached.name, partition=one, method=step.verb.value)
        before, others = self.active, self._memory.doubtful - {one}
        was_doubtful = one in self._memory.doubtful
        await self._note(self.active - {one}, others | {one})
        # The ledger may have changed while that was written. From here on it lets no GPU of a doubtful partition go.
        if not was_doubtful and is_on is not (one in self.needed()):
            await self._note(before, others)
            return
        telemetry.crash_point(f"fabric.{step.verb.value}-begun")
        begun = time.monotonic()
        try:
            await self._caller.call(lambda manager: manager.activate(one) if is_on else manager.deactivate(one))
        except errors.DeviceFault as error:
            if not is_on:
                raise
            await self._condemn(one, error)  # half programmed, perhaps: it stays doubtful, and is switched off next
            return
        telemetry.crash_point(f"fabric.{step.verb.value}-done")
        if is_on:
            self._activated[str(slot.id_of(self._members(one)))] = (time.time(), time.monotonic() - begun)
        await self._note(self.active | {one} if is_on else self.active, others)

    async def _condemn(self, partition: int, error: errors.FairleadError) -> None:
        """Keep back the GPUs of a partition that the hardware refuses; it is not tried again for this tenant."""
        telemetry.log.error("fabric partition broken", partition=partition, reason=error.reason, error=error.message)
        self._faulty[partition] = error.message
        keys = [str(gpu.key) for gpu in self._gpus() if gpu.module in self._members(partition)]
        for key in keys:
            await self.condemn(key, error.message)

    def _lose(self, error: errors.FairleadError) -> None:
        self.resets.lose()
        is_waiting = error.context.get("code") == result.NOT_READY
        self._is_fresh = self._is_fresh or _is_lost(error) or is_waiting
        # One that was never reached is not lost: it may run since long, and has no use for a list.
        self._was_lost = self._was_lost or is_waiting or (_is_lost(error) and not self._is_new)
        problem = f"the Fabric Manager's state is not known: {errors.sentence(error)}"
        if problem != self._said:
            self._said = problem
            who = ", ".join(self.tenants())
            telemetry.log.error("fabric not known", reason=error.reason, error=error.message, tenant=who)
            self.state.set(f"{problem}; machines with NVLink: {who}" if who else problem)
            self.told()

    # names

    def _module(self, key: str) -> int | None:
        return next((gpu.module for gpu in self._gpus() if str(gpu.key) == key), None)

    def _modules_of(self, claim: Claim) -> tuple[int, ...]:
        """Return the modules of every GPU that the ledger gave together with this one."""
        given = given_together([claim], self.rows())
        return tuple(sorted(module for key in given if (module := self._module(key)) is not None))


async def _condemn_none(_key: str, _why: str) -> None:
    """Keep back nothing: there is no ledger yet."""


def _active(listed: Iterable[Partition]) -> frozenset[int]:
    return frozenset(one.id for one in listed if one.is_active)


def _is_lost(error: errors.FairleadError) -> bool:
    return error.context.get("code") in result.CONNECTION_LOST or error.reason == connection.HANGS
