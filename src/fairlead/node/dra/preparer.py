"""Prepares and unprepares ResourceClaims on this node: journal and possession, hardware, CDI file, answer.

Prepare reads the claim, plans (`plan.dra.preparation`), and takes the GPUs together with a note of the plan in one
transaction of the ledger. Then the hardware is set up, the CDI file written and the note marked done. Whatever fails is
taken back at once; what a crash leaves begun is undone by the next try, or by `reap` where the claim is gone. Unprepare
goes the other way: the file first, the GPUs last, and those come free only once no process has them open.

Claims of different GPUs do not wait for each other: a lock a claim, and one a GPU, taken in the order of the keys.

What is prepared by its note and is not there is set up again beside the calls (`restore`): a call for such a claim
waits for that, or comes first and leaves nothing to restore.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from fairlead import errors, telemetry
from fairlead.model.driver import DeviceNode
from fairlead.node.dra import claimfile, hardware, journal
from fairlead.plan.dra import consumption, metadata
from fairlead.plan.dra import preparation as plans
from fairlead.plan.dra.devicestatus import Progress, Step
from fairlead.plan.dra.preparation import Node, Preparation, PreparedDevice, Stage
from fairlead.plan.lease import change
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.device import DeviceAttribute
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

PATIENCE_S: Final = 25.0
"""Longest that Prepare waits for a GPU that its last holder is giving back.

A claim may be given to another pod before the kubelet has unprepared it, and a kubelet that is refused asks again after
up to 90 s. With `FETCH_S` it stays below `driver.CALL_S`.
"""
_GAP_S: Final = 0.2
_PASSING: Final = frozenset({change.HELD, change.NOT_READY, plans.TWICE, plans.DIFFERS, consumption.EXCEEDED})
"""Reasons that end with the other claim or pod."""
FETCH_S: Final = 10.0
"""Longest that the API server is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """A claim as a kubelet names it."""

    namespace: str
    name: str
    uid: str

    @property
    def words(self) -> str:
        """Name it for messages."""
        return f"{self.namespace}/{self.name}"


class Possession(journal.Notes, Protocol):
    """What is asked of the ledger (`node.lease.gate`)."""

    async def hold_for_claim(self, uid: str, note: str, asks: Sequence[change.Ask]) -> None:
        """Give devices to a claim, with a note; all or nothing."""
        ...

    async def adopt_claim(self, uid: str, note: str, asks: Sequence[change.Ask]) -> None:
        """Note a claim that another driver prepared, with its devices; all or nothing."""
        ...

    async def link_claim(self, uid: str) -> None:
        """Wait until NVLink is switched on between a claim's GPUs that are passed through."""
        ...

    async def note_claim(self, uid: str, note: str) -> None:
        """Replace the note of a claim."""
        ...

    async def release_claim(self, uid: str) -> None:
        """Take the devices of a claim back, with its note."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a preparer knows of the node."""

    node: Callable[[], Node]
    """What it offers now."""
    pods: Callable[[], Collection[core.Pod]]
    """Its pods, as far as the store has listed them."""
    said: Callable[[str, str, str], None] = lambda _claim, _reason, _text: None
    """Called with what a person should know of a claim."""
    told: Callable[[ClaimRef, Progress | None], None] = lambda _claim, _progress: None
    """Called with how far a claim is prepared; None: it is unprepared. Must not wait."""
    clock: Callable[[], float] = time.time
    patience_s: float = PATIENCE_S
    """See there."""


_Locks = weakref.WeakValueDictionary[str, asyncio.Lock]


class Preparer:
    """The claims of one node."""

    def __init__(
        self,
        store: Store,
        possession: Possession,
        kept: journal.Journal,
        parts: tuple[claimfile.ClaimFiles, hardware.Hardware],
        around: Surroundings,
    ) -> None:
        """Take the parts it stands on; nothing is read yet."""
        self._store, self._possession, self._journal = store, possession, kept
        self._files, self._hardware = parts
        self._around = around
        self._claims: _Locks = weakref.WeakValueDictionary()
        self._gpus: _Locks = weakref.WeakValueDictionary()
        self._steps: dict[str, Step] = {}
        """By UID: how far a claim is that is being prepared."""
        self._shown: dict[str, tuple[DeviceNode, ...] | None] = {}
        """By UID: the nodes of GPUs that are passed through, as the claim's file has them; None: it was removed."""

    async def start(self) -> None:
        """Take up what an earlier process left: keep the daemons, sweep files. Raises: Unavailable: no ledger."""
        self._hardware.keep(self._done())
        for path in await self._files.sweep(self._journal.uids()):
            telemetry.log.warning("cdi file of no prepared claim removed", path=str(path))

    async def restore(self) -> None:
        """Set up again what a reboot took, or an earlier process that ended had begun to unprepare; side by side.

        A claim that cannot be is said, and stays as it is until its pod is unprepared.
        """
        boot_id = self._around.node().boot_id
        async with asyncio.TaskGroup() as tasks:
            for one in self._done():
                if not await self._is_done(one, boot_id):
                    tasks.create_task(self._restore(one, boot_id), name=f"dra: restores {one.words}")

    def _done(self) -> tuple[Preparation, ...]:
        return tuple(one for one in self._journal.all() if one.stage is Stage.DONE)

    async def prepare(self, ref: ClaimRef) -> tuple[tuple[PreparedDevice, tuple[str, ...]], ...]:
        """Prepare a claim; returns its devices, each with its CDI names. Idempotent.

        Raises: FairleadError: nothing of it is left, or what is left is undone by the next call.
        """
        with self._telling(ref):
            return await self._prepare(ref)

    async def _prepare(self, ref: ClaimRef) -> tuple[tuple[PreparedDevice, tuple[str, ...]], ...]:
        async with _locked(self._claims, [ref.uid]):
            known = self._journal.find(ref.uid)
            node = self._around.node()
            is_done = known is not None and await self._is_done(known, node.boot_id)
            try:
                claim = await self._fetch(ref)
            except errors.Unavailable:
                if known is None or not is_done:
                    raise
                return _answer(known)  # the API server is away: what was prepared is known
            shares = known.shares if known is not None else {}
            wanted = plans.plan(claim, ref.uid, node, at=self._around.clock(), known=shares)
            if known is not None and is_done and _is_same(known, wanted.preparation):
                self._tell(known, Step.DONE)
                return _answer(known)
            self._tell(wanted.preparation, Step.ASKED)
            done = await self._carry_out_patiently(wanted.preparation, node.driver)
            for remark in wanted.remarks:
                self._around.said(ref.words, "ClaimConfigUnused", remark)
            return _answer(done)

    async def unprepare(self, ref: ClaimRef) -> None:
        """Unprepare a claim; nothing where it is not prepared. Raises: FairleadError: try again."""
        async with _locked(self._claims, [ref.uid]):
            known = self._journal.find(ref.uid)
            if known is None:
                await self._files.remove(ref.uid, None)
                await self._possession.release_claim(ref.uid)
                return
            await self._assert_unused(known)
            async with _locked(self._gpus, sorted({one.gpu for one in known.devices})):
                await self._take_back(known)
                await self._possession.release_claim(ref.uid)
            self._around.told(ref, None)
            telemetry.log.info("claim unprepared", claim=known.words)

    async def renew(self) -> None:
        """Have the files of prepared claims name the nodes of GPUs that are passed through as they are now.

        A GPU that is bound anew, or in another boot, has another number below /dev/vfio, and its old one may be another
        GPU's. While it is not bound there is no file, so no container starts with what was its node.
        """
        boot_id = self._around.node().boot_id
        for one in self._journal.all():
            if one.stage is not Stage.DONE or all(device.backend is None for device in one.devices):
                continue
            now, before = self._files.passed_nodes(one), self._shown.get(one.uid, ())
            if now == before:
                continue
            if one.boot_id == boot_id and (one.uid in self._shown or await self._files.is_there(one.uid)):
                await self._show_again(one)
            elif now is not None:
                await self._restore(one, boot_id)

    async def _show_again(self, known: Preparation) -> None:
        async with _locked(self._claims, [known.uid]):
            if self._journal.find(known.uid) != known:
                return
            nodes = self._files.passed_nodes(known)
            try:
                if nodes is None:
                    await self._files.remove(known.uid, None)
                else:
                    await self._files.write(known, self._attributes(known))
            except errors.FairleadError as error:
                telemetry.log.warning("claim's file not renewed", claim=known.words, error=errors.sentence(error))
                return
            self._shown[known.uid] = nodes
            telemetry.log.info(
                "claim's gpus have other nodes", claim=known.words, state="shown" if nodes else "not bound"
            )

    async def reap(self) -> tuple[str, ...]:
        """Unprepare claims that no longer exist, or were made anew; returns them by name.

        A claim with an allocation is not deleted as long as a pod is reserved for it, so nobody uses those.
        """
        gone: list[str] = []
        for one in self._journal.all():
            ref = ClaimRef(namespace=one.namespace, name=one.name, uid=one.uid)
            try:
                is_gone = (await self._fetch(ref)).metadata.uid != one.uid
            except errors.NotFound:
                is_gone = True
            except errors.FairleadError as error:
                telemetry.log.debug("claim not looked at", claim=one.words, reason=error.reason)
                continue
            if is_gone:
                try:
                    await self.unprepare(ref)
                except errors.FairleadError as error:
                    telemetry.log.warning("claim not reaped", claim=one.words, reason=error.reason, error=error.message)
                    continue
                gone.append(one.words)
                telemetry.log.warning("claim unprepared that is gone", claim=one.words)
        return tuple(gone)

    @contextlib.contextmanager
    def _telling(self, ref: ClaimRef) -> Iterator[None]:
        """Have it said why a claim was not prepared, whatever it is."""
        try:
            yield
        except errors.FairleadError as error:
            self._fail(ref, error.reason, errors.sentence(error))
            raise
        except asyncio.CancelledError:
            self._fail(ref, "Interrupted", "it was not prepared within the time of one call; the kubelet tries again")
            raise
        except Exception as error:
            self._fail(ref, type(error).__name__, "a defect of fairlead; the agent's log has more")
            raise
        finally:
            self._steps.pop(ref.uid, None)

    def _tell(self, found: Preparation, step: Step) -> None:
        self._steps[found.uid] = step
        ref = ClaimRef(namespace=found.namespace, name=found.name, uid=found.uid)
        self._around.told(ref, Progress(step=step, at=self._around.clock(), preparation=found))

    def _fail(self, ref: ClaimRef, reason: str, message: str, found: Preparation | None = None) -> None:
        step = self._steps.get(ref.uid, Step.ASKED)
        at = self._around.clock()
        self._around.told(ref, Progress(step=step, at=at, preparation=found, reason=reason, message=message))

    async def _is_done(self, known: Preparation, boot_id: str) -> bool:
        """Return whether nothing is left to do for a claim: in this boot, and with its file there."""
        return known.stage is Stage.DONE and known.boot_id == boot_id and await self._files.is_there(known.uid)

    async def _restore(self, noted: Preparation, boot_id: str) -> None:
        """Set a claim up again: kubelets do not ask again for what their checkpoint has as prepared."""
        ref = ClaimRef(namespace=noted.namespace, name=noted.name, uid=noted.uid)
        async with _locked(self._claims, [noted.uid]):
            try:
                known = self._journal.find(noted.uid)
                if known is None or known.stage is not Stage.DONE or await self._is_done(known, boot_id):
                    return  # a call came first
                async with _locked(self._gpus, sorted({one.gpu for one in known.devices})):
                    with self._telling(ref):
                        again = dataclasses.replace(known, boot_id=boot_id)
                        await self._set_up(again, functools.partial(self._hardware.renew, again))
            except errors.FairleadError as error:
                self._around.said(noted.words, error.reason, f"not set up again after the start: {error.message}")
                telemetry.log.error("claim not restored", claim=noted.words, reason=error.reason, error=error.message)
            else:
                telemetry.log.info("claim restored", claim=noted.words)

    async def _carry_out_patiently(self, wanted: Preparation, driver: str) -> Preparation:
        """Carry out a plan as soon as the last holders of its GPUs let it; no lock of a GPU is held meanwhile."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._around.patience_s
        while True:
            known = self._journal.find(wanted.uid)
            keys = {one.gpu for item in (known, wanted) if item is not None for one in item.devices}
            try:
                async with _locked(self._gpus, sorted(keys)):
                    if known is not None:
                        await self._take_back(known)
                        if {one.gpu for one in known.devices} - {one.gpu for one in wanted.devices}:
                            await self._possession.release_claim(known.uid)
                    return await self._carry_out(wanted, driver)
            except errors.FairleadError as error:
                if error.reason not in _PASSING or clock() >= deadline:
                    raise
                telemetry.log.debug("claim waits for its gpus", claim=wanted.words, reason=error.reason)
                ref = ClaimRef(namespace=wanted.namespace, name=wanted.name, uid=wanted.uid)
                self._fail(ref, error.reason, f"it waits: {errors.sentence(error)}", wanted)
            await asyncio.sleep(_GAP_S)

    async def _carry_out(self, wanted: Preparation, driver: str) -> Preparation:
        others = self._journal.all()
        if (conflict := plans.find_conflict(wanted, others)) is not None:
            raise conflict
        if (excess := plans.find_excess(wanted, others, self._around.node().devices)) is not None:
            raise excess
        read = await self._hardware.check(wanted)
        telemetry.crash_point("dra.before-hold")
        await self._possession.hold_for_claim(wanted.uid, journal.emit(wanted), plans.asks(wanted, driver))
        telemetry.crash_point("dra.after-hold")
        try:
            done = await self._set_up(wanted, functools.partial(self._hardware.make, wanted, read))
        except BaseException:
            await asyncio.shield(self._give_up(wanted))
            raise
        telemetry.log.info("claim prepared", claim=done.words, gpu=[one.gpu for one in done.devices])
        return done

    async def _set_up(self, wanted: Preparation, make: Callable[[], Awaitable[Mapping[str, str]]]) -> Preparation:
        self._tell(wanted, Step.HELD)
        made = await make()
        telemetry.crash_point("dra.after-hardware")
        done = plans.done(wanted, made)
        self._tell(done, Step.HARDWARE)
        await self._possession.link_claim(done.uid)
        self._shown[done.uid] = self._files.passed_nodes(done)
        await self._files.write(done, self._attributes(done))
        telemetry.crash_point("dra.after-file")
        self._tell(done, Step.FILE)
        await self._possession.note_claim(done.uid, journal.emit(done))
        telemetry.crash_point("dra.after-note")
        self._tell(done, Step.DONE)
        return done

    def _attributes(self, preparation: Preparation) -> dict[str, Mapping[str, DeviceAttribute]]:
        offered = self._around.node().devices
        named = {one.device for one in preparation.devices} & offered.keys()
        return {name: offered[name].device.attributes for name in named}

    async def _give_up(self, wanted: Preparation) -> None:
        """Take back what was begun; what cannot be is left noted, for the next try or the reaper."""
        try:
            await self._take_back(wanted)
            await self._possession.release_claim(wanted.uid)
        except errors.FairleadError as error:
            telemetry.log.warning("claim not taken back", claim=wanted.words, reason=error.reason, error=error.message)

    async def _take_back(self, known: Preparation) -> None:
        self._shown.pop(known.uid, None)
        await self._files.remove(known.uid, known)
        telemetry.crash_point("dra.after-file-removed")
        await self._hardware.undo(known)
        telemetry.crash_point("dra.after-undo")

    async def _assert_unused(self, known: Preparation) -> None:
        """Refuse to take a claim from under a running pod, as kubelets up to 1.36 may ask for one that pods share.

        Which of its pods ended is not said: of a claim of one pod it is that one.
        Raises: Conflict (`ClaimInUse`).
        """
        reserved = {one.uid: one.name for one in known.pods}
        with contextlib.suppress(errors.FairleadError):
            claim = await self._fetch(ClaimRef(namespace=known.namespace, name=known.name, uid=known.uid))
            if claim.metadata.uid == known.uid:
                reserved |= {one.uid: one.name for one in claim.status.reserved_for if one.resource == "pods"}
        if len(reserved) < 2:
            return
        running = [pod for pod in self._around.pods() if pod.metadata.uid in reserved and _runs(pod)]
        if running:
            message = f"claim {known.words} is in use by pod {running[0].metadata.name}"
            hint = "it is unprepared once that pod has ended; kubelets before 1.37 may ask too early"
            raise errors.Conflict(message, reason="ClaimInUse", hint=hint)

    async def _fetch(self, ref: ClaimRef) -> ResourceClaim:
        try:
            async with asyncio.timeout(FETCH_S):
                return await self._store.get(ResourceClaim, ref.name, ref.namespace)
        except TimeoutError as error:
            message = f"claim {ref.words} was not read within {FETCH_S:g} s"
            raise errors.Unavailable(message, reason="StoreSlow", hint="the kubelet tries again") from error


@contextlib.asynccontextmanager
async def _locked(locks: _Locks, keys: Sequence[str]) -> AsyncIterator[None]:
    """Hold the locks of some keys, which are in order; a lock that nobody has or waits for is forgotten."""
    held: list[asyncio.Lock] = []
    async with contextlib.AsyncExitStack() as stack:
        for key in keys:
            held.append(locks.setdefault(key, asyncio.Lock()))
            await stack.enter_async_context(held[-1])
        yield


def _answer(found: Preparation) -> tuple[tuple[PreparedDevice, tuple[str, ...]], ...]:
    """Return devices with their CDI names; the first of a request brings the request's metadata, too."""
    first = {request: devices[0] for request, devices in metadata.requests(found)}

    def names(one: PreparedDevice) -> tuple[str, ...]:
        more = (metadata.cdi_name(found, one.request),) if first[one.request] is one else ()
        return (found.cdi_name(one), *more)

    return tuple((one, names(one)) for one in found.devices)


def _is_same(known: Preparation, wanted: Preparation) -> bool:
    """Return whether a prepared claim still has the allocation that it was prepared for."""

    def of(found: Preparation) -> Mapping[tuple[str, str, str], object]:
        return {(one.request, one.device, one.share_id): (one.share, one.is_admin, one.gpu) for one in found.devices}

    return of(known) == of(wanted)


def _runs(pod: core.Pod) -> bool:
    """Return whether a pod may have processes still."""
    if pod.status.phase in core.ENDED_PHASES or pod.metadata.deletion_timestamp:
        return False
    states = pod.status.container_statuses
    return not states or any(one.state.terminated is None for one in states)
