"""Turns changes of containers and GPUs into events for webhooks, and what comes with time: long waits, near ends.

The state that was last written of each object is compared with what the store says, from the list on: what changed
while the service was down is sent when it is back, as the state that is true then. States in between are not known.
The same holds when more than `_MOST` changes wait for the database: then everything is listed again.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from fairlead import errors, telemetry
from fairlead.plan.pod import podstate
from fairlead.plan.tenancy import baseline
from fairlead.serve.webhooks import foresight
from fairlead.serve.webhooks.port import ENDS_SOON, GPU_SICK, GPU_WELL, REMOVED, SICK, WAITS, Event, Outbox
from fairlead.store import port, reflector
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, gpudevice, gpulease, names
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.gpulease import GPULease

_POD, _LEASE, _TENANCY, _GPU, _EVENT = "pod:", "lease:", "tenancy:", "gpu:", "event:"
_MARKS: Final = {WAITS: "waits:", ENDS_SOON: "ends:", SICK: "sick:"}
"""What was said of what is to come for a pod, beside its state."""
_LOOK_S: Final = 30.0
"""How often pods are looked at for what comes with time."""
_LONGEST_MARK: Final = 128
_RESERVED: Final = "reservation "
_TIME: Final = "time"
_NONE: Final = ("", "")
_AGAIN_S: Final = 5.0
_MOST: Final = 10_000
"""Changes that wait for the database."""
T = TypeVar("T")
_Listed = tuple[str, Sequence[Any]]


class Watcher:
    """Follows a store for an outbox."""

    def __init__(
        self,
        store: port.Store,
        outbox: Outbox,
        *,
        times: foresight.Times | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take what is followed. Args: now: Unix seconds."""
        self._store, self._outbox = store, outbox
        self._times, self._now = times or foresight.Times(), now
        self._pods: dict[str, core.Pod] = {}
        """By uid: those that have not ended."""
        self._seen: dict[str, str] = {}
        self._whose: dict[str, tuple[str, str]] = {}
        """Name and uid of the tenancy by namespace, `_NONE` for a namespace of none; looked up at first use."""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow(asyncio.Queue(_MOST))
            except* asyncio.QueueFull:
                telemetry.log.warning("changes wait for webhooks' database, all is listed again", count=_MOST)

    async def _follow(self, queue: asyncio.Queue[_Listed | port.Change[Any]]) -> None:
        def listed(prefix: str, items: Sequence[Any]) -> None:
            queue.put_nowait((prefix, items))

        async with asyncio.TaskGroup() as tasks:
            for kind, prefix, selected in (
                (Tenancy, _TENANCY, port.EVERYTHING),
                (core.Pod, _POD, port.EVERYTHING),
                (GPULease, _LEASE, port.EVERYTHING),
                (GPUDevice, _GPU, port.EVERYTHING),
                (core.Event, _EVENT, port.Selector(fields={"reason": foresight.AHEAD})),
            ):
                following = reflector.follow(
                    self._store,
                    kind,
                    selected,
                    listed=functools.partial(listed, prefix),
                    changed=queue.put_nowait,
                    is_optional=True,
                )
                tasks.create_task(following)
            tasks.create_task(self._take(queue))
            tasks.create_task(self._tick(queue))

    async def _tick(self, queue: asyncio.Queue[_Listed | port.Change[Any]]) -> None:
        """Have time looked at in its turn among changes."""
        while True:
            await asyncio.sleep(_LOOK_S)
            queue.put_nowait((_TIME, ()))

    async def _take(self, queue: asyncio.Queue[_Listed | port.Change[Any]]) -> None:
        self._seen = dict(await _insist(self._outbox.seen))
        while True:
            await _insist(functools.partial(self.handle, await queue.get()))

    async def handle(self, found: _Listed | port.Change[Any]) -> None:
        """Write what one change, or a list, means."""
        if isinstance(found, port.Change):
            if found.renamed_to:
                return  # receivers know it by its uid
            if isinstance(found.object, Tenancy):
                self._keep(found.object, is_gone=found.kind is port.ChangeKind.DELETED)
            else:
                await self._note(found.object, is_gone=found.kind is port.ChangeKind.DELETED)
            return
        prefix, items = found
        if prefix == _TIME:
            for pod in tuple(self._pods.values()):
                await self._foresee(pod)
        elif prefix == _TENANCY:
            self._whose.clear()
            for item in items:
                self._keep(item, is_gone=False)
        else:
            await self._list(prefix, items)

    async def _list(self, prefix: str, items: Sequence[Any]) -> None:
        """Write what a list of objects means: what is new, what changed, and what is gone since."""
        if prefix == _POD:
            self._pods.clear()
        there = set()
        for item in items:
            there.add(f"{prefix}{item.metadata.uid}")
            await self._note(item, is_gone=False)
        for name in [one for one in self._seen if one.startswith(prefix) and one not in there]:
            # Its name is not known any more; receivers know the container by its uid.
            whose = self._seen[name].partition(" ")[2]
            event = Event(type=REMOVED, uid=whose, data={"uid": name.removeprefix(prefix)})
            await self._write(name, None, *((event,) if prefix == _POD else ()))
        if prefix == _POD:
            await self._forget(there)

    async def _note(self, item: Any, *, is_gone: bool) -> None:
        if isinstance(item, core.Pod):
            state = None if is_gone else podstate.state_of(item)
            name = f"{_POD}{item.metadata.uid}"
            before = self._seen[name].partition(" ")[0] if name in self._seen else None
            if before != state:
                event = await self._container(item, state)
                await self._write(name, None if state is None else f"{state} {event.uid}", event)
            if is_gone or podstate.is_final(item):
                self._pods.pop(item.metadata.uid, None)
                await self._unmark(item.metadata.uid)
            else:
                self._pods[item.metadata.uid] = item
                await self._foresee(item)
        elif isinstance(item, core.Event):
            if not is_gone and (fact := foresight.of_event(item)) is not None:
                await self._say_ahead(item, fact)
        elif isinstance(item, GPUDevice):
            await self._judge(item, is_gone=is_gone)
        elif isinstance(item, GPULease):
            name, quarantined = f"{_LEASE}{item.metadata.uid}", item.status.state == gpulease.QUARANTINED
            if quarantined and not is_gone and name not in self._seen:
                data = {"gpu": item.spec.gpu, "node": item.spec.node_name, "lease": item.metadata.name}
                await self._write(name, gpulease.QUARANTINED, Event(type="gpu.quarantined", uid="", data=data))
            elif name in self._seen and (is_gone or not quarantined):
                await self._write(name, None)

    async def _judge(self, item: GPUDevice, *, is_gone: bool) -> None:
        """Write that a GPU is unhealthy, or healthy again; nothing is written where its health is unknown."""
        name, health = f"{_GPU}{item.metadata.uid}", item.status.health
        is_sick = health in {gpudevice.UNHEALTHY, gpudevice.LOST}
        data = {"gpu": item.spec.uuid, "node": item.spec.node_name, "reason": item.status.reason}
        data["message"] = item.status.message[:500]
        if is_gone:
            if name in self._seen:
                await self._write(name, None)
        elif is_sick and name not in self._seen:
            await self._write(name, health, Event(type=GPU_SICK, uid="", data=data))
        elif health == gpudevice.HEALTHY and name in self._seen:
            await self._write(name, None, Event(type=GPU_WELL, uid="", data={**data, "reason": "", "message": ""}))

    async def _foresee(self, pod: core.Pod) -> None:
        """Write what is to come for a pod, once; what is no longer true may be written again later."""
        found = {fact.kind: fact for fact in foresight.facts(pod, self._now(), self._times)}
        for kind, prefix in _MARKS.items():
            name, fact = f"{prefix}{pod.metadata.uid}", found.get(kind)
            if fact is None:
                # A reservation's warning comes by an event, which the pod does not show.
                if name in self._seen and not self._seen[name].startswith(_RESERVED):
                    await self._write(name, None)
            elif self._seen.get(name) != fact.mark[:_LONGEST_MARK] and not self._is_said(pod, name, fact):
                await self._write(name, fact.mark[:_LONGEST_MARK], await self._event(pod, kind, fact.data))

    def _is_said(self, pod: core.Pod, name: str, fact: foresight.Fact) -> bool:
        """Return whether a warning preceded the end of a pod: its state is announced besides."""
        cause = f"{fact.data.get('cause', '')} "
        return pod.status.stop_request is not None and self._seen.get(name, "").startswith(cause)

    async def _say_ahead(self, event: core.Event, fact: foresight.Fact) -> None:
        name = f"{_MARKS[ENDS_SOON]}{event.involved_object.uid}"
        pod = self._pods.get(event.involved_object.uid)
        if pod is not None and self._seen.get(name) != fact.mark[:_LONGEST_MARK]:
            await self._write(name, fact.mark[:_LONGEST_MARK], await self._event(pod, ENDS_SOON, fact.data))

    async def _unmark(self, uid: str) -> None:
        for prefix in _MARKS.values():
            if f"{prefix}{uid}" in self._seen:
                await self._write(f"{prefix}{uid}", None)

    async def _forget(self, there: Collection[str]) -> None:
        """Drop the marks of pods that are gone. Args: there: names of those that are not."""
        uids = {name.removeprefix(_POD) for name in there}
        for prefix in _MARKS.values():
            for name in [one for one in self._seen if one.startswith(prefix)]:
                if name.removeprefix(prefix) not in uids:
                    await self._write(name, None)

    async def _event(self, pod: core.Pod, kind: str, data: Mapping[str, Any]) -> Event:
        """Return an event of a pod."""
        tenancy, uid = await self._tenancy(pod.metadata.namespace)
        about = pod.metadata
        named = {"name": about.name, "namespace": about.namespace, "tenancy": tenancy, "uid": about.uid}
        return Event(type=kind, uid=uid, data={**named, **data}, account=_account(pod))

    async def _container(self, pod: core.Pod, state: str | None) -> Event:
        tenancy, uid = await self._tenancy(pod.metadata.namespace)
        reason, message = podstate.why(pod)
        data: Mapping[str, Any] = {
            "name": pod.metadata.name,
            "namespace": pod.metadata.namespace,
            "tenancy": tenancy,
            "uid": pod.metadata.uid,
            "state": state or "removed",
            "reason": reason,
            "message": message[:500],
        }
        if podstate.is_final(pod):
            data = {**data, "exit_code": podstate.exit_code(pod)}
        kind = REMOVED if state is None else f"container.{state}"
        return Event(type=kind, uid=uid, data=data, account=_account(pod))

    def _keep(self, item: Tenancy, *, is_gone: bool) -> None:
        """Note a tenancy's namespace, and forget the namespaces of none: one may belong to it now."""
        self._whose = {name: one for name, one in self._whose.items() if one not in {_NONE, _named(item)}}
        if not is_gone and (namespace := baseline.namespace_name(item)):
            self._whose[namespace] = _named(item)

    async def _tenancy(self, namespace: str) -> tuple[str, str]:
        """Return name and uid of a namespace's tenancy; asked for once, and kept from the watch from then on."""
        if namespace not in self._whose:
            owner = baseline.find_by_namespace(namespace, (await self._store.list(Tenancy)).items)
            self._whose[namespace] = _NONE if owner is None else _named(owner)
        return self._whose[namespace]

    async def _write(self, name: str, state: str | None, *events: Event) -> None:
        sent = () if name.startswith(_LEASE) and state is None else events
        await self._outbox.record(name, state, sent)
        if state is None:
            self._seen.pop(name, None)
        else:
            self._seen[name] = state


async def _insist(call: Callable[[], Awaitable[T]]) -> T:
    """Ask the database again until it answers: a later change must not be announced before this one."""
    while True:
        try:
            return await call()
        except errors.FairleadError as error:
            telemetry.log.error("webhook events not written", reason=error.reason, error=errors.sentence(error))
            await asyncio.sleep(_AGAIN_S)


def _account(pod: core.Pod) -> str:
    """Return who started a pod; only we set the mark."""
    return pod.metadata.annotations.get(names.ACCOUNT, "")


def _named(item: Tenancy) -> tuple[str, str]:
    return item.metadata.name, item.metadata.uid
