"""Elects a leader: one of several processes holds a `Lease` and works, the others wait. Over any store.

A candidate trusts only its own clock: a lease counts as abandoned when its record has not changed for its duration as
this process saw it, whatever times stand in it. The holder renews in good time and gives up earlier than another
process may take over, so two of them never work at once as long as clocks run at about the same speed and the work
stops when it is cancelled. A store of its own (`beside`) lets the holder renew in a thread with an event loop of its
own, so that no work of the process makes it late; an event loop that has not turned for `stalled_s` loses the lease all
the same, for it hangs. Each new holder gets a higher `token`, and its work the `fence` that its store is bound to by
`fenced`: a holder that was stopped, and wakes after another has taken over, writes nothing. A holder that ends in order
lets go at once.

Source: Kubernetes coordination/v1 Lease; client-go tools/leaderelection (records and their meaning are the same, so
both can take part in one election).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent import futures
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead import errors, telemetry
from fairlead.store import fence, port
from fairlead.wire.kubernetes import coordination, meta

_NO_MARKS: Final[Mapping[str, str]] = {}
_RELEASE_S: Final = 1.0
"""How long the end of a process may wait for its lease to be free, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The times of an election, as client-go has them by default."""

    lease_s: float = 15.0
    """How long others wait for a holder that says nothing; whole seconds in the record, rounded up."""
    renew_within_s: float = 10.0
    """A holder that could not renew for so long stops working; less than `lease_s`."""
    retry_s: float = 2.0
    """Between two attempts to take or to renew."""
    stalled_s: float = 60.0
    """A process whose work has not let its event loop turn for so long hangs, and is not renewed for (`beside`)."""


TERMS: Final = Terms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """What work gets while it leads."""

    token: int
    """Higher than every earlier holder's."""
    fence: fence.Fence
    """What proves it. Work must write through nothing but a store that is fenced with it (`port.Fencible`): that one
    refuses writes (`LeaseLost`) once the lease is another's."""


class Election:
    """One candidate. `identity` must be no other process's, not even this one's after a restart."""

    def __init__(  # noqa: PLR0913 a process's edge: what is given stands in for clock, chance and another store
        self,
        store: port.Store,
        *,
        name: str,
        namespace: str,
        identity: str,
        terms: Terms = TERMS,
        chance: Callable[[], float] = random.random,
        meter: telemetry.Meter = telemetry.UNMETERED,
        awake_clock: Callable[[], float] = fence.awake_clock,
        beside: Callable[[], AbstractAsyncContextManager[port.Store]] | None = None,
        marks: Mapping[str, str] = _NO_MARKS,
    ) -> None:
        """Take who stands for which lease.

        Args: beside: opens the same store for a thread of its own that renews; None: the work's event loop renews.
              marks: annotations that the holder writes on the lease.
        """
        self._marks = marks
        self._beside = beside
        self._turned_at = 0.0
        """When the work's event loop had its turn last, by time.monotonic."""
        self.was_answered = False
        """Whether the store has said anything about the lease yet: that it is held, free, or ours."""
        self._store = store
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._terms = terms
        self._chance = chance
        self._meter = meter
        self._seen: coordination.Lease | None = None
        self._seen_at = 0.0
        self._gone_at: float | None = None
        self._renewed_at = 0.0
        self._awake_clock = awake_clock
        self._renewed_awake = float("-inf")
        """When the newest renewal was asked for, by the clock that goes on while we are stopped."""

    async def run(self, work: Callable[[Leadership], Awaitable[None]]) -> None:
        """Wait for the lease, then do `work` until it returns or the lease is lost; let go at the end.

        Raises: Conflict (`LeaseLost`): it was, and the work was cancelled; in a group, whatever the work raises.
        """
        self._meter.set(telemetry.LEADER, 0, self._name)
        token = await self._acquire()
        self._meter.set(telemetry.LEADER, 1, self._name)
        telemetry.log.info("leading", lease=self._name, role=self._identity, count=token)
        lost: list[errors.Conflict] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                worker = tasks.create_task(_run(work, self._leadership(token)), name=f"leads {self._name}")
                keep = self._keep if self._beside is None else self._keep_beside
                keeper = tasks.create_task(keep(token, worker, lost), name=f"keeps {self._name}")
                worker.add_done_callback(lambda _: keeper.cancel())
        finally:
            self._meter.set(telemetry.LEADER, 0, self._name)
            if not lost:
                await self._release()
        if lost:
            raise lost[0]

    def _leadership(self, token: int) -> Leadership:
        mark = fence.Fence(
            lease=self._name,
            namespace=self._namespace,
            holder=self._identity,
            token=token,
            is_fresh=lambda: self._awake_clock() - self._renewed_awake < self._terms.renew_within_s,
        )
        return Leadership(token=token, fence=mark)

    async def _acquire(self) -> int:
        waits_for = ""
        while True:
            try:
                is_ours = await self._try()
                self.was_answered = True
                if is_ours:
                    return self._held.spec.lease_transitions
                if (holder := self._held.spec.holder_identity) != waits_for:
                    waits_for = holder
                    telemetry.log.info("waiting for the lease", lease=self._name, role=holder)
            except errors.Conflict:
                telemetry.log.debug("lease taken by another holder", lease=self._name)
            except errors.FairleadError as error:
                telemetry.log.warning(
                    "lease cannot be asked for", lease=self._name, reason=error.reason, error=errors.sentence(error)
                )
            await asyncio.sleep(self._terms.retry_s * (1 + 0.2 * self._chance()))

    @property
    def _held(self) -> coordination.Lease:
        if self._seen is None:
            raise RuntimeError("no lease was taken")
        return self._seen

    async def _try(self) -> bool:
        """Take the lease if it is free; returns whether it is ours. Raises: Conflict: another was faster; any other."""
        asked_at, awake_at = _clock(), self._awake_clock()
        try:
            lease = await self._store.get(coordination.Lease, self._name, self._namespace)
        except errors.NotFound:
            if self._seen is not None and not self._is_long_gone():
                return False
            about = meta.ObjectMeta(name=self._name, namespace=self._namespace, annotations=self._marks)
            spec = self._spec(coordination.LeaseSpec() if self._seen is None else self._seen.spec)
            self._renewed(await self._store.create(coordination.Lease(metadata=about, spec=spec)), asked_at, awake_at)
            return True
        self._observe(lease)
        if not self._is_free(lease):
            return False
        about = msgspec.structs.replace(lease.metadata, annotations={**lease.metadata.annotations, **self._marks})
        wanted = msgspec.structs.replace(lease, metadata=about, spec=self._spec(lease.spec))
        self._renewed(await self._store.update(wanted), asked_at, awake_at)
        return True

    def _is_long_gone(self) -> bool:
        """Whether a lease that was there has been missing for its duration.

        Who removes it may be removing this process as well: made again at once, it would outlive an uninstalled release
        and be in the way of the next.
        """
        if self._gone_at is None:
            self._gone_at = _clock()
        return _clock() - self._gone_at >= self._terms.lease_s

    def _observe(self, lease: coordination.Lease) -> None:
        self._gone_at = None
        if self._seen is None or self._seen.spec != lease.spec:
            self._seen_at = _clock()
        self._seen = lease

    def _is_free(self, lease: coordination.Lease) -> bool:
        if lease.spec.holder_identity in {"", self._identity}:
            return True
        duration_s = lease.spec.lease_duration_seconds or self._terms.lease_s
        return _clock() - self._seen_at >= duration_s

    def _spec(self, old: coordination.LeaseSpec) -> coordination.LeaseSpec:
        is_ours = old.holder_identity == self._identity
        return coordination.LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=math.ceil(self._terms.lease_s),
            acquire_time=old.acquire_time if is_ours else meta.now(),
            renew_time=meta.now(),
            lease_transitions=old.lease_transitions + (0 if is_ours else 1),
        )

    def _renewed(self, lease: coordination.Lease, asked_at: float, awake_at: float) -> None:
        self._observe(lease)
        self._renewed_at, self._renewed_awake = asked_at, awake_at

    async def _keep(self, token: int, worker: asyncio.Task[None], lost: list[errors.Conflict]) -> None:
        """Renew until cancelled; once that fails for too long, or another holds the lease, end the work."""
        self._lose(await self._renew_until_lost(self._store, token), worker, lost)

    async def _keep_beside(self, token: int, worker: asyncio.Task[None], lost: list[errors.Conflict]) -> None:
        """As `_keep`, but in a thread, which is waited for when this is cancelled."""
        home, stop = asyncio.get_running_loop(), futures.Future[None]()
        self._turned_at = time.monotonic()
        with futures.ThreadPoolExecutor(1, thread_name_prefix=f"keeps {self._name}") as threads:
            keeping = home.run_in_executor(threads, lambda: asyncio.run(self._renew_in_thread(home, token, stop)))
            try:
                why = await asyncio.shield(keeping)
            finally:
                stop.cancel()
                await asyncio.wait({keeping})
        self._lose(why, worker, lost)

    async def _renew_in_thread(self, home: asyncio.AbstractEventLoop, token: int, stop: futures.Future[None]) -> str:
        """Renew until the lease is lost, and return why, or until `stop` is cancelled."""
        if self._beside is None:
            raise RuntimeError("nothing to renew with beside the work")
        async with self._beside() as store, asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(self._renew_until_lost(store, token, home), name="renews")
            stopped = asyncio.wrap_future(stop)
            both: tuple[asyncio.Future[Any], ...] = (renewing, stopped)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not renewing.done():
                renewing.cancel()
                return "the work ended"
            stopped.cancel()
            return await renewing

    async def _renew_until_lost(
        self, store: port.Store, token: int, home: asyncio.AbstractEventLoop | None = None
    ) -> str:
        """Renew for ever; returns why the lease is lost. `home`: the work's event loop, where this is another."""
        while (deadline := self._renewed_at + self._terms.renew_within_s) > _clock():
            await asyncio.sleep(min(self._terms.retry_s, deadline - _clock()))
            if home is not None:
                home.call_soon_threadsafe(self._turned)
                if time.monotonic() - self._turned_at > self._terms.stalled_s:
                    return f"the process has not come to it for {self._terms.stalled_s:g} s"
            try:
                async with asyncio.timeout_at(deadline):
                    if not await self._renew(store, token):
                        return "it went to another, or away"
            except errors.FairleadError as error:
                telemetry.log.warning("lease not renewed", lease=self._name, reason=error.reason, error=error.message)
            except TimeoutError:
                break
        return "it could not be renewed in time"

    def _turned(self) -> None:
        self._turned_at = time.monotonic()

    def _lose(self, why: str, worker: asyncio.Task[None], lost: list[errors.Conflict]) -> None:
        message = f"lease {self._namespace}/{self._name} of {self._identity} is lost: {why}"
        lost.append(errors.Conflict(message, reason="LeaseLost", hint="start again and wait for it"))
        worker.cancel()

    async def _renew(self, store: port.Store, token: int) -> bool:
        """Renew what is held; returns whether it still is. Raises: any error of the store."""
        lease, asked_at, awake_at = self._held, _clock(), self._awake_clock()
        try:
            wanted = msgspec.structs.replace(lease, spec=self._spec(lease.spec))
            self._renewed(await store.update(wanted), asked_at, awake_at)
        except errors.NotFound:
            return False
        except errors.Conflict:
            lease = await store.get(coordination.Lease, self._name, self._namespace)
            if lease.spec.holder_identity != self._identity or lease.spec.lease_transitions != token:
                return False
            self._observe(lease)
        return True

    async def _release(self) -> None:
        """Release the lease, so that the next holder need not wait; one that took it meanwhile keeps it."""
        token = self._held.spec.lease_transitions
        with contextlib.suppress(errors.FairleadError, TimeoutError):
            async with asyncio.timeout(max(self._terms.retry_s, _RELEASE_S)):
                try:
                    await self._let_go(self._held)
                except errors.Conflict:  # a renewal that was cut short may have been written
                    lease = await self._store.get(coordination.Lease, self._name, self._namespace)
                    if (lease.spec.holder_identity, lease.spec.lease_transitions) == (self._identity, token):
                        await self._let_go(lease)

    async def _let_go(self, lease: coordination.Lease) -> None:
        spec = msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1, renew_time=meta.now())
        await self._store.update(msgspec.structs.replace(lease, spec=spec))


async def _run(work: Callable[[Leadership], Awaitable[None]], leadership: Leadership) -> None:
    await asyncio.sleep(0)  # lets the renewal begin before the work does anything
    await work(leadership)


def _clock() -> float:
    return asyncio.get_running_loop().time()
