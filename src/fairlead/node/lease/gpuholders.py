"""Sees who has a GPU: the kubelet's list, the node's pods, and the processes that have its device nodes open.

Three sources, none trusted alone. A kubelet's list names containers, leaves out those of pods that ended, and is empty
for a moment after the kubelet began. Pods of the store outlive that moment. A process outlives its pod where the pod
was removed by force, or refused by a kubelet that began again: for seconds it may have no GPU open and still could, so
it counts as much. A process of a pod that lives, and that the kubelet gave no GPU, is a monitor with privileges of its
own; it is neither a tenant nor against a release.

Some files of a process cannot be told from a GPU (`kernel.openfiles`): a doubt. It counts for the processes that could
have been given the GPU: those that have its node in their /dev, those of the pods that had it, of pods in the same
namespaces (volumes are shared there, so that a descriptor can be sent), and of pods that the store does not know. The
doubts of others are not asked about, or one tenant's program could keep back every GPU.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.kernel import deviceusers, openfiles
from fairlead.model import cdikind, replica
from fairlead.model.driver import SHARED_NODES, DeviceNode, PassthroughGPU
from fairlead.model.gpu import GPU
from fairlead.model.neighbour import Neighbour
from fairlead.node.inventory import latest, pods
from fairlead.node.lease import openers as gpuopeners
from fairlead.node.lease.neighbours import finder
from fairlead.node.vfio import lentgate, thirdgate
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import neighbour
from fairlead.plan.lease.row import Claim, Row, State
from fairlead.plan.lease.settle import Seen
from fairlead.plan.vfio import slot, slotoffer
from fairlead.wire.kubernetes import core

_POD_UID: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")

_UNHELD: Final = frozenset({State.UNKNOWN, State.DIRTY, State.FREE})
"""States in which a program on the GPU is nobody's that the ledger knows."""
_LOOKED_S: Final = 0.5
"""How old what processes have open may be in a round, which looks at a GPU up to four times."""
_CLOSING: Final = frozenset({State.UNKNOWN, State.RELEASING, State.DIRTY, State.SCRUBBING, State.VERIFYING})

Listed = tuple[Holding, ...]
ListHoldings = Callable[[], Awaitable[Listed]]
"""Asks the kubelet now. Raises: Unavailable."""
WALK_S: Final = 1.0
"""How old what processes have open may be when a GPU is given away; the driver is asked then."""


@dataclass(frozen=True, slots=True)
class Passed:
    """What is known of GPUs that are passed through."""

    gate: thirdgate.ThirdGate
    naming: slot.Naming
    obstacle: Callable[[str], str] = lambda _: ""
    """Returns what a GPU that no tenant has is still in, by its key: an active NVLink partition; empty: nothing."""
    is_due: Callable[[str], bool] = lambda _: False
    """Returns whether a GPU must be reset before a tenant gets it, free or not, by its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Where neighbours are looked for, and which of them keep a GPU."""

    policy: str
    """The setting `lease.neighbours`."""
    list_programs: finder.ListPrograms | None = None
    """Asks the driver; None: no driver here tells."""
    root: Path = Path("/")
    """Where /proc of the host is."""
    mps_root: Path | None = None
    """Where the pipes of our own MPS daemons are."""
    find_users: finder.FindUsers | None = None
    """None: by /proc below the root."""


FindOpeners = Callable[[frozenset[openfiles.Number], frozenset[str]], tuple[openfiles.Opener, ...]]
"""Looks through the host's processes, as `openfiles.find_openers` does; called in a thread."""


class GPUHolders:
    """Sees who has this node's GPUs."""

    def __init__(
        self,
        list_holdings: ListHoldings,
        *,
        known: pods.Pods | None,
        find_openers: FindOpeners,
        neighbours: Neighbours | None = None,
        patience_s: float = gpuopeners.PATIENCE_S,
        passed: Passed | None = None,
        lent: lentgate.LentGate | None = None,
    ) -> None:
        """Take the sources.

        Args: known: this node's pods; None: the agent has no store.
              neighbours: where they are looked for; None: they do not matter.
              patience_s: seconds for which a GPU stays offered that was given back and is open still.
              passed: of GPUs that are passed through; None: there are none.
              lent: what keeps the nodes of vGPUs; None: nothing does.
        """
        self.openers: Final = gpuopeners.Openers(patience_s=patience_s)
        """What `look` saw last."""
        self._list, self._pods, self._find_openers = list_holdings, known, find_openers
        self._policy = neighbours.policy if neighbours is not None else neighbour.IGNORE
        self._finder = (
            finder.Finder(
                neighbours.list_programs,
                pod_of=_pod_uid,
                is_living=self._is_living_pod,
                root=neighbours.root,
                mps_root=neighbours.mps_root,
                find_users=neighbours.find_users,
            )
            if self._policy != neighbour.IGNORE and neighbours is not None
            else None
        )
        self.neighbours: latest.Latest[finder.Found] = latest.Latest({})
        """Programs on each GPU that Fairlead did not start, as they were seen last, by its key."""
        self._passed, self._lent = passed, lent
        self._snapshot = Snapshot()
        self._numbers: Mapping[str, frozenset[openfiles.Number]] = {}
        self._table: deviceids.Table = {}

    @property
    def snapshot(self) -> Snapshot:
        """The newest inventory."""
        return self._snapshot

    def reading(self, key: str) -> GPU | None:
        """Return the newest reading of a GPU; None: it does not answer now."""
        return next((gpu for gpu in self._snapshot.inventory.gpus if str(gpu.uuid) == key), None)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of every GPU of this node that can be given away."""
        passed = self._passed.gate.known if self._passed is not None else ()
        return (*map(str, self._snapshot.known), *passed)

    def passthrough(self, key: str) -> PassthroughGPU | None:
        """Return a GPU that is passed through; None: it is not, or is not there any more."""
        return self._passed.gate.find(key) if self._passed is not None else None

    def let_go(self, rows: Collection[Row]) -> None:
        """Let tenants' machines use the GPUs and vGPUs that they hold by the ledger, which has that on disk."""
        if self._passed is not None:
            self._passed.gate.give(frozenset(row.key for row in rows if row.state is State.HELD))
        if self._lent is not None:
            self._lent.give(rows)

    @property
    def lent_problems(self) -> Mapping[str, tuple[str, str]]:
        """Reason and message why a vGPU must not be given away, by its id."""
        return self._lent.problems if self._lent is not None else {}

    async def find_lent_refusals(self, names: Collection[str]) -> Mapping[str, str]:
        """Take vGPUs that are about to be given away, whoever has others of their board; returns who has one."""
        return await self._lent.find_refusals(names) if self._lent is not None else {}

    def close(self) -> None:
        """Let go of every GPU: this process answers for none of them any more."""
        if self._passed is not None:
            self._passed.gate.close()
        if self._lent is not None:
            self._lent.close()

    def update(self, snapshot: Snapshot) -> None:
        """Know these GPUs from now on."""
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        nodes = {node.path: node for driver in snapshot.drivers for node in driver.nodes}
        lent = [one for driver in snapshot.drivers for one in driver.vgpus]
        nodes |= {node.path: node for one in lent for node in one.nodes}
        boards = {gpu.pci_bus_id: gpu.uuid for gpu in snapshot.known.values()}
        if self._lent is not None:
            self._lent.update(lent, boards)
        own = {one.id: deviceids.Part(gpu=boards[one.parent], mig=one.id) for one in lent if one.parent in boards}
        self._table = {**deviceids.make_table(snapshot.known.values()), **{name: (part,) for name, part in own.items()}}
        paths = {gpu.uuid: gpu.device_nodes or (f"/dev/nvidia{gpu.minor}",) for gpu in snapshot.known.values()}
        for one in lent:
            if one.id in own:
                paths[own[one.id].gpu] += tuple(node.path for node in one.nodes)
        self._numbers = {
            str(uuid): frozenset(("c", nodes[path].major, nodes[path].minor) for path in own_paths if path in nodes)
            for uuid, own_paths in paths.items()
        }
        if self._finder is not None:
            shared: dict[openfiles.Number, str] = {
                ("c", nodes[path].major, nodes[path].minor): path
                for own_nodes in SHARED_NODES.values()
                for path in own_nodes
                if path in nodes
            }
            self._finder.update(self._numbers, shared, _very_files(nodes.values()))
        if self._passed is not None:
            self._passed.gate.update(snapshot.passthrough)
            found = self._passed.naming.slots(snapshot.passthrough, snapshot.partitions)
            self._table = {**self._table, **slotoffer.words(found)}

    def cdi_names(self, row: Row) -> frozenset[str]:
        """Return the qualified names under which CDI specs have the devices of a row's claims."""
        if self.passthrough(row.key) is not None:
            return frozenset(cdikind.qualified(claim.resource, claim.device) for claim in row.claims)
        found: set[str] = set()
        for origin in {replica.origin(claim.device) for claim in row.claims}:
            kinds = (*cdikind.ALLOCATED.values(), cdikind.LENT)
            found.update(cdikind.qualified(kind, origin) for kind in kinds)
            for gpu in self._snapshot.known.values():
                places = {str(gpu.uuid): str(gpu.index)}
                places |= {str(mig.uuid): f"{gpu.index}:{mig.index}" for mig in gpu.mig_devices}
                if origin in places:
                    found.add(cdikind.qualified(cdikind.ALLOCATED[gpu.vendor.value], places[origin]))
        return frozenset(found)

    async def list_holdings(self) -> Listed:
        """Ask the kubelet who holds what. Raises: Unavailable: it does not say."""
        return await self._list()

    async def look(
        self, rows: Collection[Row], listed: Listed, *, asked: frozenset[str], prepared: Collection[str] = ()
    ) -> dict[str, Seen]:
        """Look at some GPUs, by key: the list that was read before, pods as they are known, processes as they are.

        Processes are looked through only where a GPU may be given back: that takes milliseconds of the processor.
        Args: asked: devices that the kubelet asks for now; the store may still know a pod of theirs that has ended.
              prepared: UIDs of the ResourceClaims that are prepared: they have their devices, listed or not.
        """
        claims = self._claims(listed)
        refused = await self.take(rows)
        for row in rows:
            if kept := [claim for claim in row.claims if claim.holder in prepared and claim.holder]:
                claims[row.key] = (*claims.get(row.key, ()), *kept)
        numbers = frozenset(
            number for row in rows if row.state in _CLOSING for number in self._numbers.get(row.key, ())
        )
        uids = frozenset(claim.uid for row in rows if row.state in _CLOSING for claim in row.claims if claim.uid)
        groups = frozenset(f"pod{form}" for uid in uids for form in (uid, uid.replace("-", "_")))
        openers = await asyncio.to_thread(self._find_openers, numbers, groups) if numbers or groups else ()
        alive, used = self._alive(), self._refusing(rows, await self._find_neighbours(rows))
        now = time.time()
        seen = {
            row.key: Seen(
                claims=claims.get(row.key, ()),
                openers=(
                    *refused.get(row.key, ()),
                    *(found for one in openers if (found := self._in_words(row, one, listed))),
                ),
                doubts=(
                    *self.obstacles(row),
                    *(f"{one.name} (pid {one.pid}, {one.doubt})" for one in self._doubts(row, openers, listed)),
                ),
                neighbours=tuple(neighbour.who(one, now) for one in used.get(row.key, ())),
                asked=asked,
                is_due=self.is_due(row.key),
                living=self._living(row.claims, alive),
            )
            for row in rows
        }
        for row in rows:
            self.openers.saw(row, seen[row.key].processes, used.get(row.key, ()))
        return seen

    def obstacles(self, row: Row) -> tuple[str, ...]:
        """Return in words which NVLink partition a GPU that no tenant has is in: nobody gets it before it is out."""
        if self._passed is None or row.state is State.HELD:
            return ()
        return tuple(filter(None, (self._passed.obstacle(row.key),)))

    def is_due(self, key: str) -> bool:
        """Return whether a GPU must be reset before a tenant gets it, free or not."""
        return self._passed is not None and self._passed.is_due(key)

    async def take(self, rows: Collection[Row]) -> dict[str, tuple[str, ...]]:
        """Hold the GPUs that are passed through, and the vGPUs, that no tenant has; returns who keeps one from us.

        That such a GPU could be held is the proof that nobody has it: no walk through processes is one.
        """
        found = await self._lent.take(rows) if self._lent is not None else {}
        if self._passed is not None:
            refused = await self._passed.gate.take(row.key for row in rows if row.state is not State.HELD)
            found |= {key: (*found.get(key, ()), error.message) for key, error in refused.items()}
        return found

    async def find_refusing(self, rows: Collection[Row]) -> dict[str, tuple[Neighbour, ...]]:
        """Return the neighbours that keep GPUs from being given away now, by GPU."""
        return self._refusing(rows, await self._find_neighbours(rows, within_s=WALK_S))

    async def find_neighbours(self, keys: Collection[str]) -> dict[str, tuple[Neighbour, ...]]:
        """Return every neighbour on GPUs as it is now, by GPU; none where they are not looked for."""
        seen = await self._finder.find(keys) if self._finder is not None else {}
        return {key: neighbour.judge(self._policy, each) for key, each in seen.items()}

    async def _find_neighbours(self, rows: Collection[Row], *, within_s: float = _LOOKED_S) -> finder.Found:
        """Look for neighbours on GPUs that the driver has here, and let `neighbours` show them."""
        keys = [row.key for row in rows if row.key in self._numbers]
        if self._finder is None or not keys:
            return {}
        seen = await self._finder.find(keys, within_s=within_s)
        found = {key: neighbour.judge(self._policy, each) for key, each in seen.items()}
        shown = {**self.neighbours.value, **found}
        self.neighbours.set({key: shown[key] for key in shown if key in self._numbers})
        return found

    def _refusing(self, rows: Collection[Row], found: finder.Found) -> dict[str, tuple[Neighbour, ...]]:
        """Return which neighbours keep GPUs from tenants, of GPUs that the ledger gave nobody."""
        refusing = {row.key: tuple(one for one in found.get(row.key, ()) if one.keeps) for row in rows}
        return {row.key: refusing[row.key] for row in rows if row.state in _UNHELD and refusing[row.key]}

    def _is_living_pod(self, uid: str) -> bool:
        """Return whether a pod is one that the store knows and that has not ended."""
        return self._pods is not None and self._pods.find(uid) is not None and not self._has_ended(uid)

    def _in_words(self, row: Row, one: openfiles.Opener, listed: Listed) -> str:
        """Return which process has a GPU, or could still take it; "": it has nothing to do with it."""
        numbers = self._numbers.get(row.key, frozenset())
        if numbers & set(one.devices) and not self._is_monitor(row, one, listed):
            return f"{one.name} (pid {one.pid})"
        uid = _pod_uid(one.cgroups)
        if uid in {claim.uid for claim in row.claims} or numbers & set(one.reachable):
            return f"{one.name} (pid {one.pid}, of a pod that has ended)" if self._has_ended(uid) else ""
        return ""

    def _doubts(self, row: Row, openers: Iterable[openfiles.Opener], listed: Listed) -> Iterable[openfiles.Opener]:
        """Return the processes whose doubts are about a GPU that may be given back."""
        if row.state not in _CLOSING or self.passthrough(row.key) is not None:
            return ()
        doubtful = (one for one in openers if one.doubt and not self._in_words(row, one, listed))
        return (one for one in doubtful if self._could_have(row, one, listed))

    def _could_have(self, row: Row, one: openfiles.Opener, listed: Listed) -> bool:
        """Return whether a process could have been given a GPU that has not been found open in it."""
        if self._numbers.get(row.key, frozenset()) & set(one.reachable):
            return not self._is_monitor(row, one, listed)
        uid = _pod_uid(one.cgroups)
        if not uid:
            return False
        if self._pods is None or not self._pods.is_listed:
            return True
        pod = self._pods.find(uid)
        namespaces = {claim.namespace for claim in row.claims}
        return pod is None or pod.metadata.namespace in namespaces or uid in {claim.uid for claim in row.claims}

    def _has_ended(self, uid: str) -> bool:
        """Return whether a pod has ended as the store knows, which must have listed its pods."""
        if not uid or self._pods is None or not self._pods.is_listed:
            return False
        pod = self._pods.find(uid)
        return pod is None or pod.status.phase in core.ENDED_PHASES

    def _claims(self, listed: Listed) -> dict[str, tuple[Claim, ...]]:
        found: dict[str, dict[str, Claim]] = {}
        uids = self._uids()
        for holding in listed:
            for name in holding.ids:
                for part in deviceids.find_parts(holding.resource, name, self._table):
                    claim = Claim(
                        device=name,
                        resource=holding.resource,
                        is_shared=part.mig is not None or replica.origin(name) != name,
                        namespace=holding.namespace,
                        pod=holding.pod,
                        uid=uids.get((holding.namespace, holding.pod), ""),
                        container=holding.container,
                    )
                    found.setdefault(str(part.gpu), {})[name] = claim
        return {key: tuple(claims.values()) for key, claims in found.items()}

    def _uids(self) -> dict[tuple[str, str], str]:
        """Return the uids of pods that have begun: one that has not may have the name of one that ends."""
        pods = self._pods.all() if self._pods is not None else ()
        return {
            (pod.metadata.namespace, pod.metadata.name): pod.metadata.uid
            for pod in pods
            if pod.status.start_time is not None
        }

    def living(self, rows: Collection[Row]) -> frozenset[str]:
        """Return the devices whose claims name a pod that lives.

        Pods that no kubelet has taken in do not count: one may be asking now, and a StatefulSet reuses names.
        """
        named = (claim for row in rows for claim in row.claims if claim.is_seen)
        return self._living(named, self._alive(begun=True))

    def _alive(self, *, begun: bool = False) -> frozenset[tuple[str, str]] | None:
        """Return the pods that live, none where there is no store; None: the store has not listed them yet."""
        if self._pods is None:
            return frozenset()
        if not self._pods.is_listed:
            return None
        return self._pods.living(begun=begun)

    @staticmethod
    def _living(claims: Iterable[Claim], alive: frozenset[tuple[str, str]] | None) -> frozenset[str]:
        """Return the devices of claims whose pod lives; of all claims while the store has not listed the pods.

        A kubelet that has just started lists no pod before the API server has named it one, so its list alone does not
        prove that a pod has ended.
        """
        if alive is None:
            return frozenset(one.device for one in claims)
        return frozenset(one.device for one in claims if one.is_seen and (one.namespace, one.pod) in alive)

    def _is_monitor(self, row: Row, one: openfiles.Opener, listed: Listed) -> bool:
        """Return whether a process was given the GPU's node beside the kubelet: it did not need a tenant for it."""
        uid = _pod_uid(one.cgroups)
        wanted = self._numbers.get(row.key, frozenset()) & {*one.devices, *one.reachable}
        if self._pods is None or not uid or not wanted <= set(one.granted):
            return False
        pod = self._pods.find(uid)
        if pod is None or pod.status.phase in core.ENDED_PHASES:
            return False
        name = (pod.metadata.namespace, pod.metadata.name)
        holders = {
            (held.namespace, held.pod)
            for held in listed
            if any(deviceids.find_parts(held.resource, one_id, self._table) for one_id in held.ids)
        }
        return name not in holders and not pod_asks(pod)


def _very_files(nodes: Iterable[DeviceNode]) -> dict[openfiles.Number, deviceusers.File]:
    """Return which files the nodes of a simulated machine are: others of this host have the same numbers."""
    found: dict[openfiles.Number, deviceusers.File] = {}
    for node in nodes:
        if node.host_path != node.path:
            try:
                status = os.lstat(node.host_path)
            except OSError:
                continue
            if stat.S_ISCHR(status.st_mode):
                found["c", node.major, node.minor] = status.st_dev, status.st_ino
    return found


def _pod_uid(cgroups: Iterable[str]) -> str:
    """Return the uid of the pod that a process is of; "": its cgroups name none, or several."""
    # The first in a path is the pod's own; below it a container may name cgroups as it likes.
    uids = {uid.group(1).replace("_", "-") for path in cgroups if (uid := _POD_UID.search(path))}
    return uids.pop() if len(uids) == 1 else ""


def pod_asks(pod: core.Pod) -> bool:
    """Return whether a pod asks for any extended resource: then the kubelet may have given it what it has open."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any("/" in name for one in containers for name in one.resources.limits)


def openers_below(root: Path) -> FindOpeners:
    """Return what looks through the processes of the host whose /proc is below a root."""

    def find(numbers: frozenset[openfiles.Number], groups: frozenset[str]) -> tuple[openfiles.Opener, ...]:
        return openfiles.find_openers(numbers, groups=groups, root=host_root(root))

    return find


def host_root(root: Path) -> Path:
    """Return where /proc of the host is: below this root, or our own where nothing is there."""
    return root if (root / "proc/1").exists() else Path("/")
