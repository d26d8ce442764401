"""Finds what is held on this machine for what is gone: leases, mounts, folders, networks, temporary files.

Each has a part that gives it back: the agent its GPUs, the kubelet its pods' folders and what is mounted in them, the
controller of tenancies their networks, and a start what a killed process left half-written. What is found here those
parts have missed, or do not run. What is held is looked at first, and who may hold it afterwards, so that what begins
meanwhile is taken for no leftover. Nothing is changed but by `sweep`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from fairlead import errors, files, telemetry, temporary
from fairlead.engine.port import ContainerState, Network
from fairlead.frozen import frozen
from fairlead.kernel.mounting import mount
from fairlead.node.kubelet import volumes
from fairlead.node.kubelet.devices import checkpoint
from fairlead.node.lease import ledgerfile
from fairlead.plan.lease.row import Claim, Row, State
from fairlead.plan.lease.settle import ORPHAN_S
from fairlead.plan.tenancy import baseline
from fairlead.settings import Settings
from fairlead.store.port import Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, names

KINDS: Final = ("lease", "mount", "folder", "network", "file")
_MOVING_S: Final = 60.0
"""So long a GPU may take to be released before it counts as held by nothing."""
_OF_OTHERS: Final = frozenset({"pods", "volumes", "silicon"})
"""Folders of the state in which containers or simulated hardware write."""


@frozen
class Leftover:
    """One thing that is held for what is gone."""

    kind: str
    """One of `KINDS`."""
    what: str
    fix: str


@frozen
class Known:
    """Who may hold something."""

    pods: frozenset[str]
    """Uids."""
    names: frozenset[tuple[str, str]]
    """Namespaces and names of the pods."""
    namespaces: frozenset[str]
    tenancies: frozenset[str]
    """Uids."""


class Engine(Protocol):
    """What is asked of an engine."""

    async def list_containers(self, labels: Mapping[str, str]) -> Sequence[ContainerState]:
        """See `engine.port.Engine.list_containers`."""
        ...

    async def list_networks(self) -> tuple[Network, ...]:
        """See `engine.port.Networks.list_networks`."""
        ...


async def known(store: Store) -> Known:
    """Return who may hold something, as the store knows it."""
    pods = (await store.list(core.Pod)).items
    return Known(
        pods=frozenset(pod.metadata.uid for pod in pods),
        names=frozenset((pod.metadata.namespace, pod.metadata.name) for pod in pods),
        namespaces=frozenset(one.metadata.name for one in (await store.list(core.Namespace)).items),
        tenancies=frozenset(one.metadata.uid for one in (await store.list(Tenancy)).items),
    )


async def find(
    config: Settings,
    engine: Engine,
    holders: Callable[[], Awaitable[Known]],
    *,
    now: float,
    root: Path = Path("/"),
    shared: Path | None = None,
) -> tuple[Leftover, ...]:
    """Return what is held for what is gone, by kind.

    Args:    now: seconds since 1970.   shared: where processes have temporary files; None: where the system says.
    Raises:  Unavailable, ProtocolError: the engine, the store or the ledger does not say what it has.
    """
    rows, mounts, folders, unfinished = await asyncio.to_thread(_look, config, root, shared)
    networks = await _networks(config, engine)
    containers = await engine.list_containers({names.POD_UID: ""})
    who = await holders()
    pods = who.pods | {one.labels[names.POD_UID] for one in containers}
    return (
        *(_lease(key, row) for key, row in sorted(rows.items()) if _is_for_none(row, who, now)),
        *_mounts(config, mounts, pods, who.namespaces),
        *(Leftover(kind="folder", what=str(one), fix=f"`rm -r {one}`") for one in folders if one.name not in pods),
        *(
            Leftover(kind="network", what=one.name, fix=f"`podman network rm {one.name}`")
            for one in networks
            if one.labels.get(baseline.UID, "") not in who.tenancies
        ),
        *(Leftover(kind="file", what=str(one), fix=f"`rm -r {one}`") for one in unfinished),
    )


def sweep(config: Settings, shared: Path | None = None) -> tuple[Path, ...]:
    """Remove what killed processes left half-written here, and return what that was. For a start that has the state.

    Args: shared: as `find`'s.
    """
    found = _unfinished(config, shared)
    temporary.sweep(within=shared)
    temporary.sweep((temporary.SOCKET,), config.state.run)
    files.remove(found)
    if found:
        telemetry.log.info("removed what killed processes left half-written", count=len(found), path=str(found[0]))
    return found


def _look(
    config: Settings, root: Path, shared: Path | None
) -> tuple[Mapping[str, Row], Sequence[Path], Sequence[Path], Sequence[Path]]:
    """Return the ledger's rows, what is mounted below the state, folders of pods, and what is half-written."""
    state, ledger = config.state.folder.absolute(), config.lease_folder / ledgerfile.NAME
    rows = ledgerfile.read_rows(ledger) if ledger.exists() else {}
    mounts = [one.place for one in mount.list_mounts(root) if state in one.place.parents]
    folders = [state / "pods" / uid for uid in sorted(volumes.list_pods(state / "pods"))]
    return rows, mounts, folders, _unfinished(config, shared)


def _unfinished(config: Settings, shared: Path | None) -> tuple[Path, ...]:
    state, run = config.state.folder, config.state.run
    inner = [one for one in files.list_folders(state) if one.name not in _OF_OTHERS]
    return (
        *temporary.find_abandoned(within=shared),
        *temporary.find_abandoned((temporary.SOCKET,), run),
        *(one for folder in (state, *inner) for one in files.find_unfinished(folder)),
    )


async def _networks(config: Settings, engine: Engine) -> list[Network]:
    try:
        home = checkpoint.read_home(config.state.folder / "kubelet")
    except OSError:
        return []  # no service has ever run here
    return [one for one in await engine.list_networks() if one.labels.get(names.HOME) == home]


def _mounts(
    config: Settings, found: Sequence[Path], pods: frozenset[str], namespaces: frozenset[str]
) -> Iterator[Leftover]:
    state, claims = config.state.folder.absolute(), config.claims_folder.absolute()
    holders = {state / "pods": pods, claims: namespaces}
    for place in found:
        for folder, living in holders.items():
            if folder in place.parents and place.relative_to(folder).parts[0] not in living:
                yield Leftover(kind="mount", what=str(place), fix=f"`umount {place}`")


def _is_for_none(row: Row, who: Known, now: float) -> bool:
    if row.state is State.RELEASING:
        return now - row.since > _MOVING_S
    return row.state is State.HELD and not any(_is_alive(one, who, now) for one in row.claims)


def _is_alive(claim: Claim, who: Known, now: float) -> bool:
    if not claim.is_seen:
        return now - claim.at <= 2 * ORPHAN_S  # the ledger itself releases it in half of that
    return claim.uid in who.pods if claim.uid else (claim.namespace, claim.pod) in who.names


def _lease(key: str, row: Row) -> Leftover:
    had = ", ".join(sorted({f"{one.namespace}/{one.pod}" for one in row.claims if one.is_seen})) or "no pod"
    fix = (
        f"`fairlead lease history {key}` says who had it; it is given back by the agent as soon as no process has it"
        " open: start the service if none runs"
    )
    return Leftover(kind="lease", what=f"{key} is {row.state.value} for {had}, which is gone", fix=fix)


async def count(
    config: Settings, engine: Engine, holders: Callable[[], Awaitable[Known]], *, now: float, meter: telemetry.Meter
) -> None:
    """Set the gauges of what is held for what is gone; what cannot be known is no number."""
    try:
        found = await find(config, engine, holders, now=now)
    except errors.FairleadError:
        for kind in KINDS:
            meter.set(telemetry.LEFTOVERS, float("nan"), kind)
        return
    for kind in KINDS:
        meter.set(telemetry.LEFTOVERS, sum(one.kind == kind for one in found), kind)
