"""Turns changes of containers and GPUs into events for webhooks.

The state that was last written of each object is compared with what the store says, from the list on: what changed
while the service was down is sent when it is back, as the state that is true then. States in between are not known.
The same holds when more than `_MOST` changes wait for the database: then everything is listed again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from fairlead import errors, telemetry
from fairlead.plan.pod import podstate
from fairlead.plan.tenancy import baseline
from fairlead.serve.webhooks.port import REMOVED, Event, Outbox
from fairlead.store import port, reflector
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, gpulease
from fairlead.wire.kubernetes.gpulease import GPULease

_POD, _LEASE, _TENANCY = "pod:", "lease:", "tenancy:"
_NONE: Final = ("", "")
_AGAIN_S: Final = 5.0
_MOST: Final = 10_000
"""Changes that wait for the database."""
T = TypeVar("T")
_Listed = tuple[str, Sequence[Any]]


class Watcher:
    """Follows a store for an outbox."""

    def __init__(self, store: port.Store, outbox: Outbox) -> None:
        self._store, self._outbox = store, outbox
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
            for kind, prefix in ((Tenancy, _TENANCY), (core.Pod, _POD), (GPULease, _LEASE)):
                following = reflector.follow(
                    self._store,
                    kind,
                    port.EVERYTHING,
                    listed=functools.partial(listed, prefix),
                    changed=queue.put_nowait,
                    is_optional=True,
                )
                tasks.create_task(following)
            tasks.create_task(self._take(queue))

    async def _take(self, queue: asyncio.Queue[_Listed | port.Change[Any]]) -> None:
        self._seen = dict(await _insist(self._outbox.seen))
        while True:
            await _insist(functools.partial(self.handle, await queue.get()))

    async def handle(self, found: _Listed | port.Change[Any]) -> None:
        """Write what one change, or a list, means."""
        if isinstance(found, port.Change):
            if isinstance(found.object, Tenancy):
                self._keep(found.object, is_gone=found.kind is port.ChangeKind.DELETED)
            else:
                await self._note(found.object, is_gone=found.kind is port.ChangeKind.DELETED)
            return
        prefix, items = found
        if prefix == _TENANCY:
            self._whose.clear()
            for item in items:
                self._keep(item, is_gone=False)
            return
        there = set()
        for item in items:
            there.add(f"{prefix}{item.metadata.uid}")
            await self._note(item, is_gone=False)
        for name in [one for one in self._seen if one.startswith(prefix) and one not in there]:
            # Its name is not known any more; receivers know the container by its uid.
            whose = self._seen[name].partition(" ")[2]
            await self._write(name, None, Event(type=REMOVED, uid=whose, data={"uid": name.removeprefix(prefix)}))

    async def _note(self, item: Any, *, is_gone: bool) -> None:
        if isinstance(item, core.Pod):
            state = None if is_gone else podstate.state_of(item)
            name = f"{_POD}{item.metadata.uid}"
            before = self._seen[name].partition(" ")[0] if name in self._seen else None
            if before != state:
                event = await self._container(item, state)
                await self._write(name, None if state is None else f"{state} {event.uid}", event)
        elif isinstance(item, GPULease):
            name, quarantined = f"{_LEASE}{item.metadata.uid}", item.status.state == gpulease.QUARANTINED
            if quarantined and not is_gone and name not in self._seen:
                data = {"gpu": item.spec.gpu, "node": item.spec.node_name, "lease": item.metadata.name}
                await self._write(name, gpulease.QUARANTINED, Event(type="gpu.quarantined", uid="", data=data))
            elif name in self._seen and (is_gone or not quarantined):
                await self._write(name, None)

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
        return Event(type=REMOVED if state is None else f"container.{state}", uid=uid, data=data)

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
    """Ask the database again until it answers: a later change must not be told before this one."""
    while True:
        try:
            return await call()
        except errors.FairleadError as error:
            telemetry.log.error("webhook events not written", reason=error.reason, error=errors.sentence(error))
            await asyncio.sleep(_AGAIN_S)


def _named(item: Tenancy) -> tuple[str, str]:
    return item.metadata.name, item.metadata.uid
