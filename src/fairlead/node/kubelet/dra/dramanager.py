"""Plays the kubelet's DRA manager: has claims prepared for the first pod that uses them, and unprepared after the last.

A claim is looked at first and every driver found, so that a pod that cannot have its claims leaves nothing behind. Then
its record names the pod and is on disk, and only then each driver gets one call for all claims that are to be prepared.
The same goes backwards: the record says that a claim is being unprepared before the call is made, and from then on no
other pod takes it up. Calls are repeated after a restart, which drivers must bear. Pods that share a claim wait for
each other; others do not. A claim that was given other devices while an earlier pod is still on the old ones, as after
a forced deletion, waits until those are unprepared: the reference would hand out the old ones.
Source: Kubernetes pkg/kubelet/cm/dra/manager.go, release 1.37 (behaviour).
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.node.kubelet.dra import answercheck, claimrecord
from fairlead.node.kubelet.dra.claimrecord import PREPARE, UNPREPARE, ClaimRecord, DeviceRecord
from fairlead.node.kubelet.dra.drivers import Drivers
from fairlead.plan.claim.life import lifecycle
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.resourceclaim import EXTENDED_RESOURCE_CLAIM, ResourceClaim

Key = tuple[str, str]
"""Namespace and name of a claim."""
Records = Mapping[Key, ClaimRecord]
NOT_MADE: Final = "ClaimNotMade"


class DRAManager:
    """The claims of one node. All methods run on the event loop."""

    def __init__(self, store: Store, drivers: Drivers, folder: Path) -> None:
        """Take where claims are, who prepares them, and the folder of the checkpoint, which must exist."""
        self._store, self._drivers = store, drivers
        self._file = claimrecord.state_file(folder)
        self._records: Records = {}
        self._boot = ""
        self._turns: weakref.WeakValueDictionary[Key, asyncio.Lock] = weakref.WeakValueDictionary()
        self._writing = asyncio.Lock()

    # what is kept

    def load(self, boot: str) -> bool:
        """Read the checkpoint; returns False where it was damaged and the records must be rebuilt by `restore`.

        Args: boot: id of the machine's boot.
        """
        found, self._boot = self._file.load(), boot
        self._records = {one.key: claimrecord.since_boot(one, boot) for one in found or ()}
        return found is not None

    async def restore(self, pods: Iterable[core.Pod]) -> None:
        """Write down which claims pods of this node may have had prepared, after a damaged checkpoint.

        They count as not prepared: the next start of a container has them prepared again, and each is unprepared with
        its last pod, though it may never have been prepared. Both are harmless.
        """
        records: dict[Key, ClaimRecord] = {}
        for pod in pods:
            for name in lifecycle.claim_names(pod):
                with contextlib.suppress(errors.NotFound):
                    claim = await self._store.get(ResourceClaim, name, pod.metadata.namespace)
                    if claim.status.allocation is not None and _is_reserved(claim, pod):
                        fresh = records.get((pod.metadata.namespace, name), claimrecord.of_claim(claim))
                        records[fresh.key] = _with_pod(fresh, pod.metadata.uid)
        await self._write(lambda _: records)

    def holders(self) -> frozenset[str]:
        """Return the uids of pods that a record names."""
        return frozenset(uid for one in self._records.values() for uid in one.pods)

    def of_pod(self, uid: str) -> tuple[ClaimRecord, ...]:
        """Return the records that name a pod."""
        return tuple(one for _, one in sorted(self._records.items()) if uid in one.pods)

    def devices(self, pod: core.Pod, container: core.Container) -> tuple[tuple[str, str, DeviceRecord], ...]:
        """Return what a container has by claims: its own word for each (`gpus/big`), the driver, and the device.

        A claim that is not prepared for the pod gives nothing. That of extended resources has its own name for a word.
        """
        return tuple((word, driver, device) for word, _, driver, device in self._devices(pod, container))

    def claimed(self, pod: core.Pod, container: core.Container) -> tuple[tuple[str, str, DeviceRecord], ...]:
        """Return what a container has by claims: the claim's name, the driver, and the device."""
        return tuple((claim, driver, device) for _, claim, driver, device in self._devices(pod, container))

    def _devices(self, pod: core.Pod, container: core.Container) -> Iterator[tuple[str, str, str, DeviceRecord]]:
        for word, claim, request in _used(pod, container):
            record = self._records.get((pod.metadata.namespace, claim))
            if record is not None and pod.metadata.uid in record.pods and record.phase == claimrecord.PREPARED:
                for driver, device in claimrecord.matching(record, request):
                    yield word, claim, driver, device

    def cdi_devices(self, pod: core.Pod, container: core.Container) -> tuple[str, ...]:
        """Return the CDI names that a container has by claims, each once."""
        found = (name for _, _, one in self.devices(pod, container) for name in one.cdi_devices)
        return tuple(dict.fromkeys(found))

    # preparing

    def is_prepared(self, pod: core.Pod) -> bool:
        """Return whether every claim of a pod is prepared for it."""
        ready = {one.name for one in self.of_pod(pod.metadata.uid) if one.phase == claimrecord.PREPARED}
        return not _unmade(pod) and ready.issuperset(lifecycle.claim_names(pod))

    async def prepare(self, pod: core.Pod) -> tuple[ClaimRecord, ...]:
        """Have the claims of a pod prepared; those that are stay as they are. Idempotent across a crash.

        Returns: the pod's records.
        Raises:  NotFound, Conflict: a claim is not there, not the pod's, or not allocated; Unavailable: a driver is not
                 registered, does not answer in time, or refuses; ProtocolError: its answer cannot be used.
        """
        if self.is_prepared(pod):
            return self.of_pod(pod.metadata.uid)
        fresh = await self._look(pod)
        for one in fresh:  # before the wait for its turn, which may be a driver's that hangs
            _known(self._records.get(one.key), one)
        async with self._turn(one.key for one in fresh):
            waiting = await self._refer(pod.metadata.uid, fresh)
            problems = await self._call_prepare(waiting)
        if problems:
            raise problems[0]
        return self.of_pod(pod.metadata.uid)

    async def _look(self, pod: core.Pod) -> tuple[ClaimRecord, ...]:
        """Return the claims of a pod as records, changing nothing. Raises: as `prepare`."""
        if unmade := _unmade(pod):
            message = f"the claim behind {unmade[0]} of the pod is not made yet"
            raise errors.Unavailable(message, reason=NOT_MADE, hint="`fairlead trace` says why, where it cannot be")
        owned = {name: one.name for one, name in lifecycle.templated(pod) if name}
        found = []
        for name in lifecycle.claim_names(pod):
            claim = await self._store.get(ResourceClaim, name, pod.metadata.namespace)
            _check(claim, pod, owned.get(name))
            if name == _extended(pod):
                _check_extended(claim, pod)
            record = claimrecord.of_claim(claim)
            for driver in record.callers(PREPARE):
                self._drivers.find(driver)
            found.append(record)
        return tuple(found)

    async def _refer(self, uid: str, fresh: Iterable[ClaimRecord]) -> tuple[ClaimRecord, ...]:
        """Write down that a pod uses claims; returns those that are to be prepared. Raises: Conflict."""
        wanted = {one.key: _with_pod(_known(self._records.get(one.key), one), uid) for one in fresh}
        telemetry.crash_point("dramanager.before-refer")
        await self._write(lambda records: {**records, **wanted})
        telemetry.crash_point("dramanager.before-prepare")
        return tuple(one for one in wanted.values() if one.phase != claimrecord.PREPARED)

    async def _call_prepare(self, claims: tuple[ClaimRecord, ...]) -> tuple[errors.FairleadError, ...]:
        """Call each driver once, side by side, and keep the claims that all their drivers have prepared."""
        verdicts = await self._call(claims, PREPARE)
        telemetry.crash_point("dramanager.after-prepare")
        ready = {
            one.key: claimrecord.with_devices(
                one, {driver: verdicts[driver].devices[one.uid] for driver in one.callers(PREPARE)}, self._boot
            )
            for one in _done(claims, verdicts, PREPARE)
        }
        if ready:
            await self._write(lambda records: {**records, **ready})
        telemetry.crash_point("dramanager.after-keep")
        return tuple(problem for one in verdicts.values() for problem in one.problems)

    async def _call(self, claims: tuple[ClaimRecord, ...], call: str) -> Mapping[str, answercheck.Verdict]:
        """Return what each driver's answer comes to, by driver; a call that fails as a whole is a problem, too."""
        batches = {
            driver: tuple(one for one in claims if driver in one.callers(call))
            for driver in sorted({driver for one in claims for driver in one.callers(call)})
        }
        found = await asyncio.gather(*(self._ask(driver, batch, call) for driver, batch in batches.items()))
        return dict(zip(batches, found, strict=True))

    async def _ask(self, driver: str, batch: tuple[ClaimRecord, ...], call: str) -> answercheck.Verdict:
        named = tuple(one.named for one in batch)
        try:
            if call == PREPARE:
                return answercheck.prepared(driver, batch, await self._drivers.prepare(driver, named))
            return answercheck.unprepared(driver, batch, await self._drivers.unprepare(driver, named))
        except errors.FairleadError as error:
            return answercheck.Verdict(devices={}, problems=(error,))

    # unpreparing

    async def unprepare(self, uid: str) -> tuple[ClaimRecord, ...]:
        """Give the claims of a pod back: those of no other pod are unprepared. Idempotent across a crash.

        Returns: the claims that were unprepared now.
        Raises:  Unavailable: a driver is not registered, does not answer in time, or refuses; ProtocolError: its answer
                 cannot be used. What the others have done is kept.
        """
        if uid not in self.holders():
            return ()
        async with self._turn(one.key for one in self.of_pod(uid)):
            last = await self._let_go(uid)
            verdicts = await self._call(last, UNPREPARE)
            telemetry.crash_point("dramanager.after-unprepare")
            gone = {one.key for one in _done(last, verdicts, UNPREPARE)}
            if gone:
                await self._write(lambda records: {key: one for key, one in records.items() if key not in gone})
        problems = [problem for one in verdicts.values() for problem in one.problems]
        if problems:
            raise problems[0]
        return last

    async def _let_go(self, uid: str) -> tuple[ClaimRecord, ...]:
        """Write down that a pod's claims have one pod less; returns those that no pod uses any more."""
        mine = self.of_pod(uid)
        shared = {one.key: _without_pod(one, uid) for one in mine if len(one.pods) > 1}
        last = {
            one.key: msgspec.structs.replace(one, phase=claimrecord.UNPREPARING) for one in mine if len(one.pods) == 1
        }
        telemetry.crash_point("dramanager.before-let-go")
        await self._write(lambda records: {**records, **shared, **last})
        telemetry.crash_point("dramanager.before-unprepare")
        return tuple(last.values())

    @contextlib.asynccontextmanager
    async def _turn(self, keys: Iterable[Key]) -> AsyncIterator[None]:
        """Keep other pods of the same claims out of the block. Taken in one order: no two wait for each other."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(keys):
                await stack.enter_async_context(self._turns.setdefault(key, asyncio.Lock()))
            yield

    async def _write(self, change: Callable[[Records], Records]) -> None:
        """Change the records as one step: on disk, in a thread because that takes an fsync, then in memory."""
        async with self._writing:
            records = change(self._records)
            await asyncio.to_thread(self._file.save, [one for _, one in sorted(records.items())])
            self._records = records


def _by_reference(pod: core.Pod) -> dict[str, str]:
    """Return the claim's name by the pod's own for it."""
    named = {one.name: one.resource_claim_name for one in pod.spec.resource_claims}
    made = {one.name: name for one, name in lifecycle.templated(pod)}
    return {name: claim for name, claim in {**named, **made}.items() if claim}


def _extended(pod: core.Pod) -> str:
    """Return the claim that a scheduler made for a pod's extended resources; empty: none."""
    told = pod.status.extended_resource_claim_status
    return told.resource_claim_name if told is not None else ""


def _used(pod: core.Pod, container: core.Container) -> Iterator[tuple[str, str, str]]:
    """Yield what a container uses of the pod's claims: its word for it, the claim, and the request; empty: all."""
    named = _by_reference(pod)
    for one in container.resources.claims:
        word = f"{one.name}/{one.request}" if one.request else one.name
        yield word, named.get(one.name, ""), one.request or ""
    claim = _extended(pod)
    for requests in lifecycle.met_by_claim(pod, container.name).values():
        for request in requests:
            yield f"{claim}/{request}", claim, request


def _unmade(pod: core.Pod) -> tuple[str, ...]:
    """Return the pod's names for claims that are still to be made from templates."""
    return tuple(one.name for one, name in lifecycle.templated(pod) if name == "")


def _check(claim: ResourceClaim, pod: core.Pod, template: str | None) -> None:
    """Return if a pod may use a claim. Args: template: the pod's name for a claim that was made for it.

    Raises: Conflict: it may not.
    """
    about = claim.metadata
    if template is not None and not lifecycle.is_for(claim, pod, template):
        message = f"ResourceClaim {about.name} was not made for this pod"
        raise errors.Conflict(message, reason="ClaimNotOwned", hint="it is another's of that name: remove it")
    if claim.status.allocation is None:
        message = f"ResourceClaim {about.name} is not allocated"
        raise errors.Conflict(message, reason="ClaimNotAllocated", hint="`fairlead explain` says what it waits for")
    if not _is_reserved(claim, pod):
        message = f"the pod is not allowed to use ResourceClaim {about.name}: it is not reserved for it"
        raise errors.Conflict(message, reason="ClaimNotReserved", hint="a scheduler reserves it before it binds a pod")


def _check_extended(claim: ResourceClaim, pod: core.Pod) -> None:
    """Return if a claim was made for a pod's extended resources. Raises: Conflict: it was not."""
    about = claim.metadata
    if about.annotations.get(EXTENDED_RESOURCE_CLAIM) != "true" or not lifecycle.is_for(claim, pod):
        message = f"ResourceClaim {about.name} was not made for the extended resources of this pod"
        raise errors.Conflict(message, reason="ClaimNotOwned", hint="it is another's of that name: remove it")


def _is_reserved(claim: ResourceClaim, pod: core.Pod) -> bool:
    return any(one.uid == pod.metadata.uid for one in lifecycle.pod_users(claim))


def _known(old: ClaimRecord | None, fresh: ClaimRecord) -> ClaimRecord:
    """Return the record to go on with. Raises: Conflict: the one of before is still to be unprepared."""
    if old is None:
        return fresh
    if old.uid != fresh.uid:
        message = f"an older ResourceClaim of the same name {old.name} and UID {old.uid} is still to be unprepared here"
        raise errors.Conflict(message, reason="ClaimNameTaken", hint="its driver must be there for that")
    if old.phase == claimrecord.UNPREPARING:
        message = f"ResourceClaim {old.name} is being unprepared"
        raise errors.Conflict(message, reason="ClaimBeingUnprepared", hint="it is tried again")
    if old.allocation != fresh.allocation:
        message = f"ResourceClaim {old.name} has other devices now, and those of before are still to be unprepared here"
        raise errors.Conflict(message, reason="ClaimReallocated", hint="it is tried again")
    return old


def _with_pod(record: ClaimRecord, uid: str) -> ClaimRecord:
    return msgspec.structs.replace(record, pods=tuple(sorted({*record.pods, uid})))


def _without_pod(record: ClaimRecord, uid: str) -> ClaimRecord:
    return msgspec.structs.replace(record, pods=tuple(one for one in record.pods if one != uid))


def _done(
    claims: Iterable[ClaimRecord], verdicts: Mapping[str, answercheck.Verdict], call: str
) -> tuple[ClaimRecord, ...]:
    """Return the claims that all their drivers are done with."""
    return tuple(one for one in claims if all(one.uid in verdicts[driver].devices for driver in one.callers(call)))
