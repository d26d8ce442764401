"""Shows programs on GPUs that Fairlead did not start, and ends them on an administrator's demand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from fairlead import errors, telemetry
from fairlead.model.gpu import Inventory
from fairlead.model.neighbour import Neighbour
from fairlead.plan.lease import neighbour
from fairlead.serve.backend import hardware
from fairlead.wire.text import timestamp

EndProcesses = Callable[[Collection[Neighbour]], Mapping[int, str]]
"""Ends processes and returns the outcome for each, by pid, as `node.lease.neighbours.ending.end` does; blocks."""


def view_of(one: Neighbour) -> hardware.NeighbourView:
    """Return a neighbour as administrators see it."""
    return hardware.NeighbourView(
        use=one.use.value,
        keeps=one.keeps,
        id=neighbour.identity(one),
        pid=one.pid,
        name=one.name,
        user=one.user,
        unit=one.unit,
        container=one.container,
        memory_bytes=one.memory_bytes,
        since=None if one.since is None else timestamp.emit(one.since),
        doubt=one.doubt,
    )


def hidden(one: hardware.NeighbourView) -> hardware.NeighbourView:
    """Return a neighbour as every account may see it: that there is one, and what it does."""
    return hardware.NeighbourView(use=one.use, keeps=one.keeps)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNeighbours:
    """A `port.Neighbours` of this machine."""

    find: Callable[[], Awaitable[Mapping[str, tuple[Neighbour, ...]]]]
    """Looks for them now, by GPU."""
    scan: Callable[[], Inventory]
    end_processes: EndProcesses

    async def end(self, gpus: Collection[str], ids: Collection[str], *, by: str) -> hardware.EndedNeighbours:
        """See `port.Neighbours.end`."""
        inventory = self.scan().gpus
        indices = {str(gpu.uuid): gpu.index for gpu in inventory}
        keys = {_key(name, indices, {gpu.pci_bus_id: str(gpu.uuid) for gpu in inventory}) for name in gpus}
        found: dict[str, tuple[Neighbour, set[int]]] = {}
        for key, each in (await self.find()).items():
            for one in each if not keys or key in keys else ():
                found.setdefault(neighbour.identity(one), (one, set()))[1].add(indices.get(key, -1))
        chosen = {name: pair for name, pair in found.items() if name in ids}
        refused = {name: neighbour.why_not_ended(one) for name, (one, _) in chosen.items()}
        ending = [one for name, (one, _) in chosen.items() if not refused[name]]
        done = await asyncio.to_thread(self.end_processes, ending) if ending else {}
        for one in ending:
            telemetry.log.warning("neighbour ended on demand", error=neighbour.who(one, one.since or 0), reason=by)
        items = [
            hardware.EndedNeighbour(
                pid=one.pid,
                name=one.name,
                user=one.user,
                container=one.container,
                gpus=tuple(sorted(on)),
                done="refused" if refused[name] else done.get(one.pid, "gone"),
                why=refused[name],
            )
            for name, (one, on) in chosen.items()
        ]
        gone = [
            hardware.EndedNeighbour(pid=_pid(name), name="", user="", container="", gpus=(), done="gone")
            for name in ids
        ]
        items += [one for name, one in zip(ids, gone, strict=True) if name not in found]
        return hardware.EndedNeighbours(items=tuple(items))


def _key(name: str, indices: Mapping[str, int], addresses: Mapping[str, str]) -> str:
    """Return which GPU is meant by an index, a UUID or a part of one, or an address. Raises: NotFound."""
    if name in addresses:
        return addresses[name]
    found = [key for key, index in indices.items() if name == str(index)]
    found = found or [key for key in indices if name.startswith("GPU-") and key.startswith(name)]
    if len(found) != 1:
        message = f'no GPU is "{name}"' if not found else f'"{name}" may be any of {len(found)} GPUs'
        raise errors.NotFound(message, reason="GPUUnknown", hint="`fairlead gpus -o wide` lists indices and UUIDs")
    return found[0]


def _pid(identity: str) -> int:
    first = identity.partition("-")[0]
    return int(first) if first.isdecimal() and len(first) < 10 else 0
