"""Lets a GPU pass from hand to hand only through the ledger: the gate below Allocate.

`hold` gives all GPUs of one Allocate or refuses. Where they are free that is one transaction. Where one is not, the
kubelet is asked who has it: a kubelet asks again for what a pod has, and hands a GPU on before a plugin hears that its
pod ended. Only what is proved given back, closed and clean is free then; everything else is refused, within `ASKED_S`
where no process is ending.
The CDI entry of a GPU is on disk while it is held: written after the transaction, withdrawn before the release.

A ResourceClaim has its devices from Prepare to Unprepare, whatever the kubelet lists: the note of it is written in the
transaction that gives them, and taken back before any of them may come free.

`run` does the same without being asked, when pods end and on a slow clock. Whatever verification needs time is done
there, so that Allocate never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairlead import errors, telemetry
from fairlead.model.device import Device
from fairlead.model.ids import DeviceID
from fairlead.node.cdi import specfiles
from fairlead.node.inventory import latest
from fairlead.node.lease import cleaning as cleanings
from fairlead.node.lease import gpuholders, passthroughreset, requestsocket
from fairlead.node.lease import ledger as ledgers
from fairlead.node.lease import verifier as verifiers
from fairlead.node.lease.neighbours import exits
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import change, check, intent, neighbour, settle
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.row import Claim, Facts, Row, State, given_together
from fairlead.plan.lease.table import Event
from fairlead.plan.lease.verification import Reuse

if TYPE_CHECKING:
    from fairlead.node.fabric.keeper import PartitionKeeper

ASKED_S: Final = 2.0
"""Longest that Allocate looks for what became of a GPU: a kubelet admits no other pod meanwhile."""
SUCCEED_S: Final = 10.0
"""How long Allocate waits for the ledger where another agent has it: one that ends, in an update, the new one first.

A kubelet that hears of two plugins asks the newer one, and fails a pod for good where that one refuses.
"""
NEWS_S: Final = 0.8
"""How long Allocate waits for the store to report the end of a pod whose GPU is asked for."""
_NEWS_GAP_S: Final = 0.02
LET_GO_S: Final = 5.0
"""How long Allocate waits, beside `ASKED_S`, for the last processes of a pod that ended to let go of its GPU.

A pod that is deleted without grace is gone from the API server before its kubelet begins to kill it, which took 2.4 s
on a busy machine; and a kubelet fails a pod for good where Allocate refuses.
"""
_LET_GO_GAP_S: Final = 0.05
CLEANED_S: Final = 10.0
"""How long Allocate and Prepare wait, beside `ASKED_S`, for a GPU whose reset or scrub has begun.

A kubelet gives a GPU on as soon as its pod has ended, before it has heard that the GPU is being cleaned, and fails the
next pod for good where it is refused. It admits no other pod while it waits, so not longer.
"""
LINKED_S: Final = 8.0
"""How long Prepare waits for a claim's NVLink partition: with the rest it stays below the kubelet's 45 s."""
SLOW_S: Final = 5.0
NAMED_S: Final = 1.0
"""By this time after an Allocate's answer the kubelet's list names its pod."""
RETRY_S: Final = 1.0
_MOST_ROUNDS: Final = 4
"""Most looks in a row at one GPU: released, closed, cleaned, and one more."""
STILL_OPEN: Final = "DeviceStillOpen"
_KEPT_BACK: Final = frozenset({State.QUARANTINED, State.MAINTENANCE, State.GONE})
_CLEANED: Final = frozenset({State.DIRTY, State.SCRUBBING, State.VERIFYING})
NOT_OPEN: Final = "LedgerNotOpen"
_IN_USE: Final = "AlreadyRunning"
"""Reason of a ledger that another process has: `kernel.heldlock`."""


class Gate:
    """Possession on this node."""

    def __init__(
        self,
        folder: Path,
        holders: gpuholders.GPUHolders,
        specs: specfiles.SpecFiles,
        *,
        boot_id: str,
        clock: Callable[[], float] = time.time,
        verifier: verifiers.Verifier | None = None,
        told: Callable[[Change], None] = lambda _: None,
        is_kubelet_foreign: bool = False,
    ) -> None:
        """Open nothing yet.

        Args: folder: of the ledger.   boot_id: of the running kernel.   verifier: what verifies a GPU where its
              readings are not enough; None: they are.   told: called with every transition, once it is on disk.
              is_kubelet_foreign: not the embedded kubelet, so that it may ask for what another pod has. Ours asks again
              only for a container's own devices: when one is added or taken, or when their answer was lost.
        """
        self._is_kubelet_foreign = is_kubelet_foreign
        self._folder, self._holders, self._specs = folder, holders, specs
        self._boot_id, self._clock, self._told = boot_id, clock, told
        self._ledger: ledgers.Ledger | None = None
        self._opening: errors.FairleadError | None = None
        self._poked = asyncio.Event()
        self.opened = asyncio.Event()
        """Set once the ledger is open, so that GPUs can be given away."""
        self._cleaning = cleanings.Cleaning(verifier, boot_id=boot_id, wake=self.poke) if verifier is not None else None
        self._reuse = verifier.reuse if verifier is not None else Reuse.LOOK
        self._passing: cleanings.Cleaning | None = None
        """Of GPUs that are passed through: each is reset between two tenants, whatever the settings say."""
        self._passed_mark = passthroughreset.PASSED_ON
        self._fabric: PartitionKeeper | None = None
        """What switches NVLink partitions; None: there are none."""
        self._settling = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self.rows: latest.Latest[Mapping[str, Row]] = latest.Latest({})
        """The ledger's rows; empty while it is not open."""
        self.problems: latest.Latest[Mapping[str, tuple[str, str]]] = latest.Latest({})
        """Reason and message why a GPU must not be offered, by its key."""
        self._exits = exits.Exits(self.poke)
        self._leaving: set[str] = set()
        """GPUs that are being released: their CDI entries are gone, and the ledger is about to say so."""

    def keep_partitions(self, keeper: PartitionKeeper) -> None:
        """Have slots shown once their NVLink partition is active, and cleaned once it is not; before `run`."""
        self._fabric = keeper
        keeper.rows, keeper.told = (lambda: self.rows.value), self.poke

        async def condemn(key: str, why: str) -> None:
            await self.quarantine(key, why, by="the Fabric Manager")

        keeper.condemn = condemn

    def reset_by(self, resetter: cleanings.Verifies, *, mark: str = passthroughreset.PASSED_ON) -> None:
        """Have GPUs that are passed through reset by this between two tenants; to be called before `run`.

        Args: mark: how the verdicts begin by which such a GPU may stay free.
        """
        self._passing = cleanings.Cleaning(resetter, boot_id=self._boot_id, wake=self.poke)
        self._passed_mark = mark

    # what Allocate asks

    async def hold(self, resource: str, devices: Sequence[Device]) -> None:
        """Give devices away: all their GPUs are held and published afterwards, or nothing has changed.

        Raises: Conflict (`GPUHeld`), Unavailable (`GPUNotVerified`, `LedgerNotOpen`, …), DeviceFault (`GPUKeptBack`).
        """
        asks = _asks(resource, devices)
        if self._fabric is not None and any(len(device.gpus) > 1 for device in devices):
            self._fabric.assert_usable()
        async with self._deciding() as limit:
            await self._take_lent([device.vgpu for device in devices if device.vgpu])
            await self._hold(asks, limit)
            telemetry.crash_point("lease.before-show")
            await self._publish()
            telemetry.crash_point("lease.after-show")
        asyncio.get_running_loop().call_later(NAMED_S, self.poke)

    @contextlib.asynccontextmanager
    async def _deciding(self) -> AsyncIterator[asyncio.Timeout]:
        """Limit what Allocate or Prepare waits for. Raises: Unavailable (`LedgerSlow`): nothing was decided."""
        try:
            async with asyncio.timeout(ASKED_S) as limit:
                await self._until_opened(limit)
                yield limit
        except TimeoutError as error:
            self._opened()
            message = f"the ledger of this node decided nothing within {ASKED_S:g} s"
            hint = "the disk below it, the kubelet's list of devices or the whole machine is slow"
            raise errors.Unavailable(message, reason="LedgerSlow", hint=hint) from error

    # what Prepare and Unprepare ask

    @property
    def notes(self) -> Mapping[str, str]:
        """What is noted of each ResourceClaim that is prepared, by UID. Raises: Unavailable (`LedgerNotOpen`)."""
        return self._opened().notes

    async def hold_for_claim(self, uid: str, note: str, asks: Sequence[change.Ask]) -> None:
        """Give devices to a ResourceClaim and note how it is prepared, in one transaction; idempotent.

        A device that the claim has already, from a try that did not end, is its own.
        Raises: as `hold`, and Invalid (`FabricSetNotOffered`): NVLink joins no such set of GPUs; then neither is done.
        """
        keys = [ask.key for ask in asks]
        if self._fabric is not None:
            self._fabric.assert_partition(keys)

        def decide(rows: Mapping[str, Row]) -> tuple[Change, ...]:
            facts = Facts(at=self._clock(), boot_id=self._boot_id)
            own = {one.device for key in keys if key in rows for one in rows[key].claims if one.holder == uid}
            return change.plan_hold(rows, asks, facts=facts, listed=own)

        async with self._deciding() as limit:
            await self._doubt_used(keys)
            begun = any(one.holder == uid for key in keys if (row := self.rows.value.get(key)) for one in row.claims)
            try:
                # What is given now gets another epoch, which a look that began before does not go past. What the claim
                # has already keeps its epoch, so no look may be on the way.
                async with self._settling if begun else contextlib.nullcontext():
                    await self._act(decide, {uid: note})
            except errors.FairleadError as error:
                if error.reason not in {change.HELD, change.NOT_READY}:
                    raise
                async with self._settling:
                    listed = await self._holders.list_holdings()
                    await self._settle(keys, listed)
                await self._until_let_go(keys, listed, limit, asked=frozenset())
                async with self._settling:
                    await self._act(decide, {uid: note})

    async def link_claim(self, uid: str) -> None:
        """Wait until NVLink is switched on between the GPUs of a ResourceClaim that are passed through.

        Raises: Unavailable (`FabricNotSwitched`): it was not within `LINKED_S`.
        """
        if self._fabric is None:
            return
        clock = asyncio.get_running_loop().time
        deadline = clock() + LINKED_S
        while True:
            rows = [row for row in self.rows.value.values() if any(one.holder == uid for one in row.claims)]
            if all(map(self._is_ready, rows)):
                return
            if clock() > deadline:
                why = self._fabric.problem or "; ".join(self._fabric.waiting.values()) or "the Fabric Manager is slow"
                message = f"NVLink is not switched on between the claim's GPUs after {LINKED_S:g} s: {why}"
                hint = "`fairlead fabric status` asks the Manager; the kubelet tries again"
                raise errors.Unavailable(message, reason="FabricNotSwitched", hint=hint)
            self._fabric.poke()
            await asyncio.sleep(_LET_GO_GAP_S)

    async def adopt_claim(self, uid: str, note: str, asks: Sequence[change.Ask]) -> None:
        """Note a ResourceClaim that another driver prepared, and that its devices are its own; nothing is waited for.

        Raises: Conflict (`GPUHeld`), Unavailable, DeviceFault (`GPUKeptBack`): neither is done.
        """

        def decide(rows: Mapping[str, Row]) -> tuple[Change, ...]:
            own = {one.device for row in rows.values() for one in row.claims if one.holder == uid}
            facts = Facts(at=self._clock(), boot_id=self._boot_id, is_listed=True)  # the kubelet has it as prepared
            return change.plan_adoption(rows, asks, facts=facts, listed=own)

        async with self._deciding(), self._settling:
            await self._act(decide, {uid: note})

    async def note_claim(self, uid: str, note: str) -> None:
        """Note how a ResourceClaim is prepared, in place of what was noted. Raises: Unavailable."""
        async with self._deciding():
            await self._opened().act(lambda _: (), {uid: note})

    async def release_claim(self, uid: str) -> None:
        """Take the devices of a ResourceClaim back: free once no process has them; nothing where it has none.

        Its CDI file must be gone. Raises: Unavailable: it has them still.
        """
        async with self._deciding():
            keys = [row.key for row in self.rows.value.values() if any(one.holder == uid for one in row.claims)]
            async with self._settling:
                await self._opened().act(lambda _: (), {uid: None})
                if keys:
                    await self._settle(keys, await self._holders.list_holdings())
        self.poke()

    async def _until_opened(self, limit: asyncio.Timeout) -> None:
        """Wait for the ledger. Args: limit: of the whole Allocate; it begins anew once the ledger is open."""
        clock = asyncio.get_running_loop().time
        if not self.opened.is_set():
            if self._opening is not None and self._opening.reason == _IN_USE:
                limit.reschedule(clock() + SUCCEED_S)
            await self.opened.wait()
            limit.reschedule(clock() + ASKED_S)

    async def _hold(self, asks: tuple[change.Ask, ...], limit: asyncio.Timeout) -> None:
        facts = Facts(at=self._clock(), boot_id=self._boot_id)
        await self._doubt_used([ask.key for ask in asks])
        try:
            await self._act(lambda rows: change.plan_hold(rows, asks, facts=facts))
        except errors.FairleadError as error:
            if error.reason not in {change.HELD, change.NOT_READY}:
                raise
            telemetry.log.debug("gpu is not free, the kubelet is asked", reason=error.reason, error=error.message)
        else:
            return
        wanted = frozenset(claim.device for ask in asks for claim in ask.claims)
        living = await self._until_ended(asks, wanted) if self._is_kubelet_foreign else frozenset()
        async with self._settling:
            listed = await self._holders.list_holdings()
            ids = frozenset(name for one in listed for name in one.ids)
            # A device that our kubelet lists is asked for by the pod that has it; otherwise it has forgotten the pod.
            forgotten = wanted - ids - living
            await self._settle([ask.key for ask in asks], listed, asked=forgotten)
        await self._until_let_go([ask.key for ask in asks], listed, limit, asked=forgotten)
        # Only the embedded kubelet asks again: a real one lists no init containers, and asks once for each container.
        again = frozenset[str]() if self._is_kubelet_foreign else ids
        await self._act(lambda rows: change.plan_hold(rows, asks, facts=facts, listed=again))

    async def _take_lent(self, names: Sequence[str]) -> None:
        """Wait shortly until vGPUs are in this process' hands. Raises: Unavailable: a program has one open."""
        if not names:
            return
        deadline = asyncio.get_running_loop().time() + NEWS_S
        while used := await self._holders.find_lent_refusals(names):
            if asyncio.get_running_loop().time() > deadline:
                self._tell_problems()
                message = f"vGPU {', '.join(used)} was given back and is still open: {', '.join(used.values())}"
                hint = "end the virtual machine that has it"
                raise errors.Unavailable(message, reason=change.NOT_READY, hint=hint)
            await asyncio.sleep(_LET_GO_GAP_S)

    async def _doubt_used(self, keys: Sequence[str]) -> None:
        """Take free GPUs out of what can be given away where a program of no pod is on them, or they must be reset.

        One that is passed through must be in this process' hands before: it was not while no agent ran.
        """
        known = self._opened().rows.value
        free = [row for key in keys if (row := known.get(key)) is not None and row.state is State.FREE]
        used = {**await self._holders.find_refusing(free), **await self._holders.take(free)}
        used |= {row.key: found for row in free if (found := self._holders.obstacles(row))}
        used |= {row.key: () for row in free if self._holders.is_due(row.key)}
        if used:
            async with self._settling:
                await self._settle(list(used), await self._holders.list_holdings())
            self._tell_problems()

    async def _until_let_go(
        self, keys: Sequence[str], listed: gpuholders.Listed, limit: asyncio.Timeout, *, asked: frozenset[str]
    ) -> None:
        """Wait until processes that are ending have let go of these GPUs, and until cleaning that has begun is done.

        Args: limit: of the whole Allocate; the rest of it begins anew with each look that finds one of both.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        while (longest_s := max(self._awaited_s(key) for key in keys)) > clock() - begun:
            limit.reschedule(clock() + ASKED_S)
            if longest_s == CLEANED_S:
                self.poke()  # cleaning is begun by the rounds
            await asyncio.sleep(_LET_GO_GAP_S)
            async with self._settling:
                await self._settle(keys, listed, asked=asked)

    def _awaited_s(self, key: str) -> float:
        """Return how long a GPU is waited for as it stands: 0 where nothing that has begun would make it free."""
        row = self._row(self._opened().rows.value, key)
        if self._holders.openers.is_ending(row):
            return LET_GO_S
        is_cleaned = row.state in _CLEANED and not row.reason and self._cleaning_of(key) is not None
        return CLEANED_S if is_cleaned else 0.0

    async def _until_ended(self, asks: Iterable[change.Ask], wanted: frozenset[str]) -> frozenset[str]:
        """Wait shortly for the store to report the end of pods that have these devices; return those of pods that live.

        A kubelet may know of a pod's end first. It may also ask for what a living pod has: it regenerates what is in
        use while it waits for our answer, or while it takes in its pods anew, and forgets those it has yet to note.
        Source: kubernetes pkg/kubelet/cm/devicemanager (UpdateAllocatedDevices, which every List calls).
        """
        known = self._opened().rows.value
        rows = [known[ask.key] for ask in asks if ask.key in known]
        deadline = asyncio.get_running_loop().time() + NEWS_S
        while living := self._holders.living(rows) & wanted:
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_NEWS_GAP_S)
        return living

    def held(self, resource: str) -> frozenset[DeviceID]:
        """Return the devices of a resource that pods have which live, whatever the kubelet lists."""
        rows = [row for row in self.rows.value.values() if row.state is State.HELD]
        living = self._holders.living(rows)
        claims = (claim for row in rows for claim in row.claims if claim.resource == resource)
        return frozenset(DeviceID(claim.device) for claim in claims if claim.device in living)

    def _tell_problems(self) -> None:
        found: dict[str, tuple[str, str]] = {}
        rows = self.rows.value
        for key in {*self._holders.keys, *rows}:
            row = self._row(rows, key)
            openers = self._holders.openers.of(row)
            if row.state in _KEPT_BACK:
                found[key] = (f"Lease{row.state.value}", row.message or row.reason or row.state.value)
            elif neighbours := self._holders.openers.neighbours(row):
                found[key] = (neighbour.REASON, neighbour.message(neighbours, self._clock()))
            elif self._holders.openers.is_ending(row):
                continue
            elif openers:
                found[key] = (STILL_OPEN, f"given back, and not let go by {', '.join(openers)}")
            elif row.state is State.DIRTY and (said := self._judge(key)) is not check.PASSED:
                found[key] = (f"Verify{said.reason}", said.message)
            elif self._cleaning_of(key) is not None and row.state in _CLEANED:
                found[key] = _verifying(row)
        self.problems.set({**found, **self._holders.lent_problems})

    # without being asked

    def poke(self) -> None:
        """Look soon: a pod ended, or the kubelet's list or the inventory is another one."""
        self._poked.set()

    def update(self, snapshot: Snapshot) -> None:
        """Know these GPUs from now on."""
        self._holders.update(snapshot)
        self.poke()

    async def run(self) -> None:
        """Open the ledger, then keep it true, for ever; the ledger is closed at the end."""
        ledger = await self._open()
        try:
            await self._restart(ledger)
            self._ledger = ledger
            self.rows.set(ledger.rows.value)
            self._holders.let_go(ledger.rows.value.values())
            self.opened.set()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._turn(tasks), name="ledger: rounds")
                serving = requestsocket.serve(
                    self._folder, self._requested, lambda: dict(ledger.rows.value), self._indices
                )
                tasks.create_task(serving, name="ledger: requests")
        finally:
            self._ledger = None
            self._exits.close()
            self._holders.close()
            await asyncio.to_thread(ledger.close)

    async def _turn(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._poked.clear()
            both = [one for one in (self._cleaning, self._passing) if one is not None]
            for cleaning in both:
                cleaning.restart_after_approval()
            wait_s = await self._round()
            rows = self._opened().rows.value.values()
            for cleaning in both:
                own = [row for row in rows if self._cleaning_of(row.key) is cleaning]
                cleaning.start(tasks, own, self._act, self._look)
            try:
                async with asyncio.timeout(wait_s):
                    await self._poked.wait()
            except TimeoutError:
                continue

    def _indices(self) -> dict[int, str]:
        return {gpu.index: str(gpu.uuid) for gpu in self._holders.snapshot.inventory.gpus}

    async def _requested(self, decide: ledgers.Decision) -> tuple[Change, ...]:
        """Carry out what a person requests, and act on it at once."""
        changes = await self._act(decide)
        self._tell_problems()
        self.poke()
        return changes

    async def quarantine(self, gpu: str, why: str, by: str) -> None:
        """Keep a GPU back, at once or as soon as it comes back; nothing where it is so already."""
        facts = Facts(at=self._clock(), by=by, reason=intent.BY_HAND, message=why)
        await self._requested(lambda rows: intent.plan_intent(rows, intent.QUARANTINE, gpu, facts))

    async def _round(self) -> float:
        """Look at every GPU once; returns seconds until the next look."""
        keys = self._holders.keys
        try:
            async with self._settling:
                await self._settle(keys, await self._holders.list_holdings())
            await self._publish()
        except errors.FairleadError as error:
            telemetry.log.debug("gpus not looked at", reason=error.reason, error=error.message)
            return RETRY_S
        known, openers = self.rows.value, self._holders.openers
        rows = [self._row(known, key) for key in {*keys, *known}]
        refusing = {one.pid for row in rows for one in openers.neighbours(row)}
        self._exits.watch(refusing)
        return RETRY_S if refusing or any(map(openers.is_ending, rows)) else SLOW_S

    async def _open(self) -> ledgers.Ledger:
        """Open the ledger as soon as it can be: another agent may have it until that one ends."""
        while True:
            try:
                return await asyncio.to_thread(ledgers.Ledger, self._folder)
            except errors.FairleadError as error:
                if self._opening is None or self._opening.reason != error.reason:
                    telemetry.log.warning("ledger not open", reason=error.reason, error=errors.sentence(error))
                self._opening = error
            await asyncio.sleep(RETRY_S)

    async def _restart(self, ledger: ledgers.Ledger) -> None:
        facts = Facts(at=self._clock(), boot_id=self._boot_id)

        def decide(rows: Mapping[str, Row]) -> list[Change]:
            found: list[Change] = []
            for row in rows.values():
                events = change.restart_events(row, self._boot_id)
                if not events and row.state is State.FREE and not self._is_verified(row):
                    events = (Event.EXPIRED,)
                found += [change.transition(row, event, facts) for event in events]
            return found

        for one in await ledger.act(decide):
            _log(one)

    def _row(self, rows: Mapping[str, Row], key: str) -> Row:
        """Return the row of a GPU; of one that the ledger has not met yet, what it will begin as."""
        return rows.get(key) or Row(key=key, boot_id=self._boot_id)

    def _cleaning_of(self, key: str) -> cleanings.Cleaning | None:
        """Return what cleans a GPU between two tenants; None: its readings are enough."""
        return self._passing if self._holders.passthrough(key) is not None else self._cleaning

    def _is_verified(self, row: Row) -> bool:
        """Return whether a GPU that is free may stay so; which GPUs are passed through is not known at a start yet."""
        if row.verdict.startswith(passthroughreset.PASSED_ON):
            return row.verdict.startswith(self._passed_mark)
        return verifiers.is_enough(row, self._reuse)

    def _opened(self) -> ledgers.Ledger:
        if self._ledger is not None:
            return self._ledger
        why = f": {self._opening.message}" if self._opening is not None else ""
        hint = self._opening.hint if self._opening is not None else None
        raise errors.Unavailable(f"the ledger of this node is not open{why}", reason=NOT_OPEN, hint=hint)

    # steps

    async def _settle(
        self, keys: Iterable[str], listed: gpuholders.Listed, *, asked: frozenset[str] = frozenset()
    ) -> None:
        """Take each GPU as far as what is seen of it proves; those of one slot or ResourceClaim go together."""
        due = _whole(keys, self._opened().rows.value)
        for _ in range(_MOST_ROUNDS):
            if not due:
                break
            known = self._opened().rows.value
            rows = {key: self._row(known, key) for key in due}
            seen = await self._holders.look(
                tuple(rows.values()), listed, asked=asked, prepared=self._opened().notes.keys()
            )
            steps = {key: self._plan(row, seen[key]) for key, row in rows.items()}
            due = [key for key, found in steps.items() if found]
            self._leaving = {key for key in due if steps[key][-1].after.state is State.RELEASING}
            try:
                if self._leaving:
                    await self._publish()
                    telemetry.crash_point("lease.after-withdraw")
                if due:
                    await self._act(functools.partial(self._again, rows=rows, seen=seen, keys=due))
            finally:
                self._leaving = set()
        if self._fabric is not None:  # the nodes of a slot that was given back may be in our hands now
            self._fabric.poke()
        self._tell_problems()

    def _again(
        self, now: Mapping[str, Row], *, rows: Mapping[str, Row], seen: Mapping[str, settle.Seen], keys: Sequence[str]
    ) -> list[Change]:
        """Plan in the ledger's thread, for rows that are still those that were looked at."""
        found: list[Change] = []
        for key in keys:
            row = now.get(key) or rows[key]
            if row.epoch == rows[key].epoch:
                found += self._plan(row, seen[key])
        return found

    def _plan(self, row: Row, seen: settle.Seen) -> tuple[Change, ...]:
        finding, cleaning = self._judge(row.key), self._cleaning_of(row.key)
        if cleaning is not None and finding is check.PASSED:
            finding = cleaning.finding(row.key)
        return settle.plan_steps(
            row,
            seen,
            at=self._clock(),
            boot_id=self._boot_id,
            finding=finding,
            is_instant=cleaning is None,
        )

    def _judge(self, key: str) -> check.Finding:
        if (passed := self._holders.passthrough(key)) is not None:
            return check.judge_passthrough(passed)
        return check.judge(self._holders.reading(key), is_reset=self._reuse.has(Reuse.RESET))

    async def _look(self, key: str) -> tuple[str, ...]:
        """Return which processes have a GPU open now, or may have."""
        row = self._opened().rows.value.get(key) or Row(key=key)
        seen = await self._holders.look((row,), await self._holders.list_holdings(), asked=frozenset())
        return seen[key].users

    async def _act(self, decide: ledgers.Decision, notes: Mapping[str, str | None] | None = None) -> tuple[Change, ...]:
        ledger = self._opened()
        try:
            changes = await ledger.act(decide, notes)
        finally:
            self.rows.set(ledger.rows.value)
            self._holders.let_go(ledger.rows.value.values())
            if self._fabric is not None:
                self._fabric.poke()
        for one in changes:
            _log(one)
            self._told(one)
        return changes

    def _is_ready(self, row: Row) -> bool:
        """Return whether the slot of a held GPU has its NVLink; all others have none to wait for."""
        return self._fabric is None or self._holders.passthrough(row.key) is None or self._fabric.is_ready(row)

    async def _publish(self) -> None:
        """Make the CDI specs show the devices that are held, and no other."""
        async with self._publishing:
            shown = {
                name
                for row in self._opened().rows.value.values()
                if change.is_published(row) and row.key not in self._leaving and self._is_ready(row)
                for name in self._holders.cdi_names(row)
            }
            await self._specs.show(frozenset(shown))


def _asks(resource: str, devices: Iterable[Device]) -> tuple[change.Ask, ...]:
    by_gpu: dict[str, list[Claim]] = {}
    for device in devices:
        is_shared = device.part is not None or device.replica_of is not None
        claim = Claim(device=str(device.id), resource=resource, is_shared=is_shared)
        for gpu in device.gpus:
            by_gpu.setdefault(str(gpu), []).append(claim)
    return tuple(change.Ask(key=key, claims=tuple(claims)) for key, claims in by_gpu.items())


def _whole(keys: Iterable[str], rows: Mapping[str, Row]) -> list[str]:
    """Return keys with those of the GPUs that were given away together with them: a slot's entry shows them all."""
    asked = list(keys)
    claims = (claim for key in asked if key in rows for claim in rows[key].claims)
    return list(dict.fromkeys([*asked, *given_together(claims, rows)]))


def _verifying(row: Row) -> tuple[str, str]:
    why = f": {row.message}" if row.message else ""
    return f"Verify{row.reason}" if row.reason else "Verifying", f"it is {row.state.value.lower()}{why}"


def _log(one: Change) -> None:
    quiet = one.after.state not in {State.QUARANTINED, State.GONE}
    log = telemetry.log.info if quiet else telemetry.log.warning
    log(
        "gpu changed hands",
        gpu=one.after.key,
        lease=one.after.epoch,
        reason=one.event.value,
        state=one.after.state.value,
        error=one.after.message or None,
    )
