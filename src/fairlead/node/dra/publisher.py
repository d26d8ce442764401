"""Keeps the ResourceSlices of one node true: what its driver offers to claims, and the taints on it.

Each round lists the node's slices, plans the writes (`plan.dra.slices`) and makes them; a change of what is offered or
tainted begins one at once. Slices that somebody else changes or deletes, as a kubelet does with all of them when it
starts, are written again after a wait that grows while it goes on, so that two drivers of one name do not write as fast
as they can. A round that wrote something is followed by another that looks whether it is still there. What the API
server did not keep is planned otherwise and said in `published`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.frozen import frozen
from fairlead.node.inventory import latest
from fairlead.plan.dra import slices
from fairlead.plan.dra.offered import DRIVER, OfferedDevice
from fairlead.store import reflector
from fairlead.store.port import Change, ChangeKind, PatchingStore, Selector
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.device import Device, DeviceTaint
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from fairlead.workqueue import WorkQueue

_ALL: Final = "slices"
_VERSIONS_KEPT: Final = 1024
_LEARNED_MOST: Final = len(slices.Dropped) + 2


@frozen
class Waits:
    """How long the publisher waits, in seconds."""

    together_s: float = 0.02
    """After a change: devices and taints that one scan changes are one write."""
    wiped_s: float = 1.0
    """After the first change by somebody else."""
    unsettled_s: float = 30.0
    """After each, while they go on, at most."""
    calm_s: float = 60.0
    """Without changes by somebody else, the next is the first again."""
    check_s: float = 60.0
    """After slices were written, until they are looked at again: a deletion that crossed a write may have no event."""


@frozen
class Published:
    """What the last round found and did."""

    slices: int = 0
    generation: int = 0
    devices: int = 0
    notes: tuple[str, ...] = ()
    """What the slices do not say, a sentence each."""
    problem: str = ""
    """Why the last round did not end well; empty: it did."""


NOT_YET: Final = Published()


@dataclasses.dataclass(frozen=True, slots=True)
class _Odd:
    """A slice that the server stores otherwise than it was written."""

    written: ResourceSlice
    stored: ResourceSlice


class Publisher:
    """The slices of one node."""

    def __init__(
        self,
        *,
        store: PatchingStore,
        node: latest.Latest[core.Node | None],
        offered: latest.Latest[tuple[OfferedDevice, ...] | None],
        tainted: latest.Latest[Mapping[str, tuple[DeviceTaint, ...]]],
        version: Callable[[], Awaitable[str]] | None = None,
        waits: Waits | None = None,
    ) -> None:
        """Take the sources; nothing is written before `run`.

        Args: offered: None: not known yet, what is published stays.   tainted: by the device's name.
              version: asks the API server for its own; None: it is the newest that is known here.
        """
        self._store, self._node, self._offered, self._tainted = store, node, offered, tainted
        self._version, self._waits = version, waits or Waits()
        self._queue = WorkQueue("resource slices", self._work)
        self._unsettled = Backoff(first_s=self._waits.wiped_s, last_s=self._waits.unsettled_s, jitter=0.0)
        self._disturbed_at: float | None = None
        self._is_disturbed = False
        """Somebody else's change waits for the next round; one that deletes every slice is one change."""
        self._node_uid = ""
        self._server, self._server_version = slices.Server(), ""
        self._is_server_read = False
        self._own: dict[str, str] = {}
        """The newest versions that this publisher wrote or found, by the slice's name."""
        self._versions: collections.deque[tuple[str, str]] = collections.deque(maxlen=_VERSIONS_KEPT)
        """Names and versions that it wrote or found lately: a watch may be behind."""
        self._is_writing = False
        self._unjudged: dict[str, Change[ResourceSlice]] = {}
        """The last change of each slice that the watch saw during a round."""
        self._odd: dict[str, _Odd] = {}
        self._remembered: dict[str, Device] = {}
        self.published = latest.Latest(NOT_YET)

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Keep the slices true for ever; what is published stays when this ends."""
        node = await self._known_node()
        own = Selector(fields=_fields(node.metadata.name))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(meter), name="resource slices")
            tasks.create_task(self._node.follow(self._see_node), name="resource slices: node")
            tasks.create_task(self._offered.follow(lambda _: self._begin()), name="resource slices: devices")
            tasks.create_task(self._tainted.follow(lambda _: self._begin()), name="resource slices: taints")
            tasks.create_task(
                reflector.follow(self._store, ResourceSlice, own, listed=self._see_list, changed=self._see),
                name="resource slices: watch",
            )

    async def _known_node(self) -> core.Node:
        async for node in self._node.changes():
            if node is not None:
                return node
        raise AssertionError("changes never end")

    def _begin(self) -> None:
        self._queue.add(_ALL, after_s=self._waits.together_s)

    def _see_node(self, node: core.Node | None) -> None:
        """Look again where the Node is another one of its name: its slices go with the old one."""
        if node is not None and node.metadata.uid != self._node_uid:
            self._node_uid = node.metadata.uid
            self._begin()

    def _see_list(self, items: Sequence[ResourceSlice]) -> None:
        """Look again after a gap in the watch, at another server perhaps."""
        self._is_server_read = False
        found = {one.metadata.name: one.metadata.resource_version for one in items}
        if found != self._own:
            self._begin()

    def _see(self, change: Change[ResourceSlice]) -> None:
        """Look again after a change by somebody else; during a round it is not known yet whose a change is."""
        if self._is_writing:
            self._unjudged[change.object.metadata.name] = change
        elif not self._is_own(change) and not self._is_disturbed:
            self._is_disturbed = True
            wait_s = self._disturbed_s()
            name = change.object.metadata.name
            telemetry.log.warning("resource slice changed by somebody else", role=name, duration_s=wait_s)
            self._queue.add(_ALL, after_s=wait_s)

    def _is_own(self, change: Change[ResourceSlice]) -> bool:
        name, version = change.object.metadata.name, change.object.metadata.resource_version
        return name not in self._own if change.kind is ChangeKind.DELETED else (name, version) in self._versions

    def _disturbed_s(self) -> float:
        """Return how long to wait after a change by somebody else."""
        now = asyncio.get_running_loop().time()
        if self._disturbed_at is None or now - self._disturbed_at > self._waits.calm_s:
            self._unsettled.reset()
        self._disturbed_at = now
        return self._unsettled.next()

    async def _work(self, _: str) -> float | None:
        self._is_disturbed = False
        node, devices = self._node.value, self._offered.value
        if node is None or devices is None:
            return None
        self._is_writing = True
        try:
            return await self._publish(node, devices)
        except errors.FairleadError as error:
            self.published.set(dataclasses.replace(self.published.value, problem=errors.sentence(error)))
            raise
        finally:
            self._is_writing, unjudged, self._unjudged = False, self._unjudged, {}
            for change in unjudged.values():
                self._see(change)

    async def _publish(self, node: core.Node, devices: tuple[OfferedDevice, ...]) -> float | None:
        await self._read_server()
        has_written = False
        for _ in range(_LEARNED_MOST):
            wanted = slices.plan_contents(devices, self._tainted.value, self._server)
            listing = await self._list(node.metadata.name)
            place = slices.Place(node=node.metadata.name, node_uid=node.metadata.uid)
            changes = slices.plan_changes(place, wanted, map(self._as_written, listing), self._remembered)
            try:
                if changes and not await self._write(changes, {one.metadata.name: one for one in listing}):
                    continue  # the server showed what it does not keep: plan again
            except errors.Invalid:
                if not self._place_counters_otherwise(wanted):
                    raise
                continue
            has_written = has_written or bool(changes)
            if not self._server.is_counting_proven and any(one.shared_counters for one in wanted):
                self._server = dataclasses.replace(self._server, is_counting_proven=True)
                continue
            break
        names = {device.name for one in wanted for device in one.devices}
        self._remembered = {name: device for name, device in self._remembered.items() if name in names}
        self._say(devices, wanted, [*(new for _, new in changes.update), *changes.create, *listing])
        return self._waits.check_s if has_written else None

    async def _read_server(self) -> None:
        """Ask for the server's version after each gap; another version may keep what the one before dropped."""
        if self._is_server_read or self._version is None:
            return
        version = await self._version()
        if version != self._server_version:
            self._server, self._server_version = slices.read_server(version), version
        self._is_server_read = True

    async def _list(self, node: str) -> tuple[ResourceSlice, ...]:
        found = (await self._store.list(ResourceSlice, Selector(fields=_fields(node)))).items
        self._remembered |= {device.name: device for one in found for device in one.spec.devices}
        self._own = {one.metadata.name: one.metadata.resource_version for one in found}
        self._versions.extend(self._own.items())
        return found

    def _as_written(self, stored: ResourceSlice) -> ResourceSlice:
        """Return a slice as it was written, where the server is known to store that as it does."""
        odd = self._odd.get(stored.metadata.name)
        if odd is None or odd.stored.spec != stored.spec:
            return stored
        return msgspec.structs.replace(stored, spec=odd.written.spec)

    async def _write(self, changes: slices.Changes, stored: Mapping[str, ResourceSlice]) -> bool:
        """Make the writes; returns False as soon as the server shows that it does not keep what they say."""
        for one in changes.delete:
            self._own.pop(one.metadata.name, None)
            with contextlib.suppress(errors.NotFound):
                await self._store.delete(ResourceSlice, one.metadata.name, uid=one.metadata.uid)
        for before, after in changes.update:
            if not self._learn(after, await self._store.patch(stored[before.metadata.name], after)):
                return False
        for one in changes.create:
            if not self._learn(one, await self._store.create(one)):
                return False
        return True

    def _place_counters_otherwise(self, wanted: Sequence[slices.Content]) -> bool:
        """Put counters into the slices of their devices, where a server of unknown version refused them apart.

        Returns False where that is not the reason; a server that refused both is asked for the first again later.
        """
        if self._server_version or not any(one.shared_counters for one in wanted):
            return False
        was_split = self._server.has_split_counters
        self._server = dataclasses.replace(
            self._server, has_split_counters=not was_split, is_counting_proven=not was_split
        )
        return was_split

    def _learn(self, written: ResourceSlice, stored: ResourceSlice) -> bool:
        name = stored.metadata.name
        self._own[name] = stored.metadata.resource_version
        self._versions.append((name, stored.metadata.resource_version))
        self._remembered |= {device.name: device for device in stored.spec.devices}
        self._odd.pop(name, None)
        if slices.is_kept(written, stored):
            return True
        dropped = slices.find_dropped(written, stored) - self._server.dropped
        if dropped:
            self._server = dataclasses.replace(self._server, dropped=self._server.dropped | dropped)
            return False
        self._odd[name] = _Odd(written, stored)
        telemetry.log.warning("resource slice stored otherwise than written", role=name, reason="SliceChanged")
        return True

    def _say(
        self, devices: tuple[OfferedDevice, ...], wanted: Sequence[slices.Content], there: Sequence[ResourceSlice]
    ) -> None:
        found = Published(
            slices=len(wanted),
            generation=max((one.spec.pool.generation for one in there), default=0),
            devices=sum(len(one.devices) for one in wanted),
            notes=slices.explain(devices, self._tainted.value, self._server),
        )
        for note in set(found.notes) - set(self.published.value.notes):
            telemetry.log.warning("devices not published as planned", reason="SliceFieldsDropped", error=note)
        self.published.set(found)


def _fields(node: str) -> dict[str, str]:
    return {"spec.nodeName": node, "spec.driver": DRIVER}
