"""Composes the node agent: inventory, CDI specs, device plugins, registration and their records in one task tree.

`run_agent` composes the parts of the table `PARTS` and owns their order. A snapshot of the inventory becomes CDI specs
on disk first, then advertisements; a device that no spec names is advertised Unhealthy, so a full disk never hands out
what an engine cannot resolve. Verdicts need no new spec and go straight through. Each resource has its own socket and
its own task, started when the resource first has a device and kept from then on.

These are the core: an error there ends the agent, and its supervisor starts it again. The other parts (MIG, MPS,
events, objects and labels, conditions, traces) are optional: each runs under a guard (`node.part`) that starts it
again, reads the core's `Latest` values or queues what the core reports, and delays nothing. The agent stops by
cancellation and removes its sockets and specs; where a newer agent has taken over, the specs stay, since that one hands
out devices by them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import socket
from collections.abc import AsyncIterator, Callable
from typing import Final, ParamSpec

from fairlead import errors, telemetry
from fairlead.model import replica
from fairlead.model.ids import GPUUUID
from fairlead.node import (
    draparts,
    enginegate,
    leaseparts,
    migparts,
    mpsparts,
    part,
    report,
    simulatedload,
    storeparts,
    vfioparts,
)
from fairlead.node.cdi import specfiles, specguard
from fairlead.node.config import source
from fairlead.node.deviceplugin import pluginset, podresources
from fairlead.node.dra.around import Around
from fairlead.node.engines import charlinks
from fairlead.node.inventory import foldermonitor, health, healthmemory, latest, monitor
from fairlead.node.lease import gpuholders
from fairlead.node.metrics import exporter
from fairlead.node.publish import nodeevents
from fairlead.plan import supply as supplies
from fairlead.plan.cdi import conflict
from fairlead.plan.gpu import attribution, clash, door
from fairlead.plan.gpu.allocation import answer, choose
from fairlead.plan.gpu.snapshot import Snapshot, list_nodes
from fairlead.plan.supply import Supply
from fairlead.settings import Settings
from fairlead.silicon import running
from fairlead.silicon.port import SampledSilicon, Workloads
from fairlead.store.port import PatchingStore
from fairlead.wire.kubernetes import core, names

SPEC_RETRY_S: Final = 2.0
KUBELET_PATIENCE_S: Final = 2.0
"""How long the first advertisement waits for the kubelet's device list; without it every device is Unhealthy."""

P = ParamSpec("P")


AgentReport = report.AgentReport
Surroundings = report.Surroundings


def node_name(settings: Settings) -> str:
    """Return the configured node name, else the host's in the form Kubernetes allows.

    Raises: Invalid (`NodeNameInvalid`): it is none; a machine that was given no name is called "(none)".
    """
    found = settings.node.name or socket.gethostname().lower().replace("_", "-")
    if not names.is_object_name(found):
        message = f'"{errors.readable(found[:200])}" cannot be the name of a node: {names.SUBDOMAIN_RULE}'
        hint = "give the machine a name (`hostnamectl hostname NAME`), or set node.name"
        raise errors.Invalid(message, reason="NodeNameInvalid", hint=hint)
    return found


async def run_agent(
    settings: Settings,
    silicon: SampledSilicon,
    store: PatchingStore | None,
    *,
    ready: Callable[[AgentReport], None] | None,
    meter: telemetry.Meter = telemetry.UNMETERED,
    around: Surroundings | None = None,
    parts: tuple[part.Part[_Agent], ...] | None = None,
) -> None:
    """Run the agent until cancelled; `silicon` and `store` stay the caller's to close.

    Args:    store: where steps and objects go; None: nowhere.   ready: called once, when the first scan ended and its
             specs are on disk; registration goes on by itself, as long as it takes.
             around: None: the defaults.   parts: what it is made of; None: `PARTS`.
    Raises:  whatever ended a core part; an error here is a bug or a broken machine, never a missing GPU or kubelet.
    """
    if settings.node.door == door.CLAIMS and store is None:
        message = "node.door=claims, and the agent reaches no API server, which has the claims"
        raise errors.Invalid(message, reason="SettingInvalid", hint="give it a kubeconfig, or leave node.door out")
    vfioparts.check(settings.node, has_store=store is not None)
    part.PartThreads.install()
    async with contextlib.AsyncExitStack() as ending, asyncio.TaskGroup() as tasks:
        agent = _Agent(settings, silicon, store, meter, tasks, ready, around=around or Surroundings())
        ending.push_async_callback(agent.end_daemons)  # when no plugin serves any more
        for row in PARTS if parts is None else parts:
            if row.is_wanted(agent):
                tasks.create_task(agent.run(row), name=row.name)


class _Agent:
    def __init__(
        self,
        settings: Settings,
        silicon: SampledSilicon,
        store: PatchingStore | None,
        meter: telemetry.Meter,
        tasks: asyncio.TaskGroup,
        ready: Callable[[AgentReport], None] | None,
        *,
        around: Surroundings,
    ) -> None:
        self._meter, self._tasks, self._ready = meter, tasks, ready
        self._guards = {name: part.Guard(name, meter=meter) for name in _GUARDED}
        self.settings, self.node, self._around = settings, node_name(settings), around
        self.events = nodeevents.NodeEvents(self.node, store)
        boot_id = running.read_running(settings.silicon.root).boot_id
        xids = exporter.XIDCounts()
        self.watch = monitor.InventoryMonitor(
            silicon,
            rescan_s=settings.silicon.rescan_s,
            on_change=self._note_health,
            on_event=lambda event: self._guards["metrics"].tell(xids.note, event),
            turned=lambda within_s: meter.heartbeat("inventory", within_s),
            memory=healthmemory.HealthMemory(settings.state.folder / "agent", boot_id=boot_id) if boot_id else None,
        )
        self.passthrough = vfioparts.compose(settings, self.watch, boot_id=boot_id, changed=self._note_health)
        """GPUs that are passed through; None: none is."""
        self.workloads = silicon if isinstance(silicon, Workloads) else None
        self.folder = foldermonitor.FolderMonitor(settings.kubelet_folder)
        self.specs = specfiles.SpecFiles.of_node(settings.node, boot_id)
        self.guard = specguard.SpecGuard(self.specs, is_serving=lambda: not self._stands_by())
        self.supply: latest.Latest[Supply] = latest.Latest(supplies.NOTHING)
        """What this node gives away."""
        self.config = source.ConfigSource(settings)
        self._is_offering = False
        """Whether specs of a snapshot are on disk, so that devices may be advertised."""
        self._has_left_specs = asyncio.Event()
        self._has_successor = self._is_spec_owed = False
        self._topology = choose.Topology()
        self._gate = enginegate.EngineGate(
            around.engine or settings.node.engine,
            root=settings.node.host_mount,
            options=self._allocate_options,
            judged=lambda *said: self._note(self.events.engine_judged, *said),
        )
        self._hardware: object = None
        self.holdings = podresources.Holdings(settings.pod_resources)
        self.of_store = (
            storeparts.StoreParts(
                settings,
                self.node,
                store,
                snapshots=self.watch.snapshots,
                supply=self.supply,
                holdings=self.holdings,
                passthrough=self.passthrough,
                recall=(lambda grant: self.plugins.recall(grant)) if around.is_kubelet_foreign else None,  # noqa: PLW0108  (made later)
            )
            if store is not None
            else None
        )
        self._mig_strategy = self.of_store.mig.strategy if self.of_store else latest.Latest("")
        self.mig = migparts.compose(
            settings.node,
            silicon,
            self.of_store,
            holdings=self.holdings,
            changed=self._partition_changed,
            told=lambda *said: self._note(self.events.mig_configured, *said),
            store=store,
            placement=around.placement,
        )
        self.mps = mpsparts.compose(
            mpsparts.Folders(state=settings.state.folder, daemons=settings.mps_root),
            silicon,
            boot_id=boot_id,
            holdings=self.holdings,
            changed=self._partition_changed,
            told=lambda *said: self._note(self.events.mps_changed, *said),
            is_standing_by=self._stands_by,
        )
        self._exporter = exporter.Exporter(
            self.node,
            silicon,
            snapshots=self.watch.snapshots,
            holdings=self.holdings,
            xids=xids,
            listed=settings.node.metrics_counters,
            host_label=settings.node.metrics_host_label,
        )
        self.plugins = pluginset.PluginSet(
            tasks,
            self.folder,
            first_wait_s=settings.node.reregister_s,
            told=self._allocated if self.of_store is not None else None,
            on_registered=lambda plugin, path: self._note(self.events.registered, plugin, path),
            before_return=self._renew_specs,
            # An agent that stands by serves once our socket is gone: specs removed after that would be its own.
            before_end=self._has_left_specs.wait,
            meter=meter,
        )
        self.plugins.before_start = mpsparts.StartCheck(self.holdings).check
        self.plugins.answer_by(self._allocate_options(), self._gate.problem)
        beside = leaseparts.NodeFacts(
            self.node,
            silicon,
            boot_id,
            folder=settings.lease_folder,
            root=settings.silicon.root,
            mps_root=settings.mps_root,
            is_kubelet_foreign=around.is_kubelet_foreign,
            passthrough=self.passthrough,
        )
        self.lease = leaseparts.LeasePart(settings.lease, self.specs, self.of_store, self.holdings, beside)
        self.lease.listen(
            self._offer_again, lambda one: self._note(self.events.gpu_kept_back, one), self._guards["leases"].tell
        )
        self.plugins.gate, self.plugins.taken, self.plugins.prefer = (
            vfioparts.gate_of(
                settings,
                self.lease.gate,
                switches=lambda: len(self.watch.snapshots.value.switches),
                pods=self._ask_pods,
            ),
            self.lease.taken,
            self.lease.prefer,
        )
        self.dra = self._compose_claims(silicon, store, boot_id)
        """What gives GPUs away by ResourceClaims; None: there is no store, or no ledger."""
        if self.of_store is not None:
            self.of_store.pods.listen(self._pod_changed)

    async def _ask_pods(self) -> tuple[core.Pod, ...] | None:
        """Return this node's pods as they are now; None: there is no store. Raises: Unavailable."""
        return await self.of_store.pods.ask() if self.of_store is not None else None

    def _compose_claims(self, silicon: object, store: PatchingStore | None, boot_id: str) -> draparts.DRAPart | None:
        if store is None or self.of_store is None or self.lease.gate is None:
            return None
        around = Around(
            node=self.node,
            store=store,
            silicon=silicon,
            boot_id=boot_id,
            watch=self.watch,
            supply=self.supply,
            gate=self.lease.gate,
            pods=self.of_store.pods,
            node_object=self.of_store.node.node,
            daemons=self.mps.daemons.states if self.mps is not None else None,
            daemon_folders=self.mps.folders if self.mps is not None else lambda _: {},
            changed=self._offer_again,
            said=lambda *said: self._note(self.events.claim_said, *said),
        )
        return draparts.DRAPart(self.settings, around)

    async def run(self, row: part.Part[_Agent]) -> None:
        """Run one part, an optional one under its guard."""
        if row.is_core:
            await row.run(self, self._meter)
        else:
            await self._guards[row.name].run(functools.partial(row.run, self))

    def _note_health(self, change: health.Change) -> None:
        self._note(self.events.health_changed, change)

    def _note(self, note: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a method of the events part; its guard logs an error in it, and the core goes on."""
        self._guards["events"].tell(note, *args, **kwargs)

    def _allocate_options(self) -> answer.AllocateOptions:
        config = self.config.config.value
        return config.allocate if config is not None else answer.DEFAULT

    async def follow_config(self) -> None:
        """Offer anew whenever another configuration is in force, for ever."""
        async with asyncio.TaskGroup() as tasks:
            labels = self.of_store.node.labels if self.of_store is not None else None
            tasks.create_task(self.config.run(labels), name="config")
            tasks.create_task(self._tell_config(), name="config: told")
            async for config in self.config.config.changes():
                if config is None:
                    continue
                self._mig_strategy.set(config.mig_strategy)
                self.watch.judge_by(config.health)
                if config.name and not config.problem:
                    self._note(self.events.config_applied, config.name)
                self._gate.judge()
                self.plugins.answer_by(config.allocate, self._gate.problem)
                if self._is_offering:
                    self._plan_supply()
                    self.plugins.end(ad.resource for ad in self.supply.value.resources if not ad.devices)
                    self.supply.set(supplies.without_ended(self.supply.value))

    async def _tell_config(self) -> None:
        async for problem in self.config.problem.changes():
            if problem:
                self._note(self.events.config_refused, problem)

    async def offer(self) -> None:
        """Turn snapshots into specs and advertisements, for ever."""
        try:
            seen, ill = 0, frozenset[GPUUUID]()  # the initial, empty snapshot says nothing
            while True:
                seen = await self._next(seen)
                snapshot = self.watch.snapshots.value
                if self._is_offering and not snapshot.ill <= ill:
                    self._plan_supply()  # what ceases to be offered waits for no file
                ill = snapshot.ill
                await self._ensure_specs(snapshot)
                await self.holdings.until_known(KUBELET_PATIENCE_S)
                self._is_offering = True
                self._plan_supply()
                self._note(self.events.inventory_seen, snapshot.inventory)
                if self._ready is not None and snapshot.is_scanned:
                    ready, self._ready = self._ready, None
                    ready(self._report())
        finally:
            await asyncio.shield(self._leave_specs())

    async def _leave_specs(self) -> None:
        """Remove the specs, unless another agent hands out devices by the same files, or a container needs them.

        A container of a pod that holds devices may crash while we are away: without its spec the engine could not start
        it again until we are back, if ever (a bad value in an upgrade).
        """
        self._has_successor = self._stands_by()
        try:
            ours = {one.resource for one in self.supply.value.resources}
            if not self._has_successor and not await self.holdings.are_held(ours):
                await self.specs.remove()
        finally:
            self._has_left_specs.set()

    async def end_daemons(self) -> None:
        """End the MPS daemons once no plugin serves, unless another agent has taken them over."""
        if self.mps is not None and not self._has_successor:
            await self.mps.daemons.end_all()

    def _stands_by(self) -> bool:
        return self.plugins.is_standing_by

    async def _renew_specs(self) -> None:
        """Write the specs again: an agent that served in between has removed them."""
        snapshot = self.watch.snapshots.value
        await self.specs.ensure(snapshot.inventory, snapshot.drivers)

    async def keep_passthrough(self) -> None:
        """Bind GPUs to VFIO where the settings or the node's label say so, and follow the bus, for ever."""
        if self.passthrough is not None:
            await self.passthrough.run(self.of_store.node.labels if self.of_store is not None else None)

    async def follow_node(self) -> None:
        """Follow this node's Node object, for ever, where there is a store."""
        if self.of_store is not None:
            await self.of_store.node.run()

    async def check_strategy(self, meter: telemetry.Meter) -> None:
        """Log once where nothing on this node reads what Allocate answers."""
        problem = await enginegate.find_unread(self._allocate_options(), self.settings.silicon.root, meter)
        if problem is not None:
            self.events.strategy_judged(problem)

    async def watch_engine_support(self) -> None:
        """Hand out no device while the engine ignores, or may ignore, the form of Allocate's answers, for ever."""

        def judged() -> None:
            self.plugins.answer_by(self._allocate_options(), self._gate.problem)
            self._plan_supply()

        await self._gate.run(self.of_store.node.runtime if self.of_store is not None else None, judged)

    def _offer_again(self) -> None:
        if self._is_offering:
            self._plan_supply()

    def _partition_changed(self) -> None:
        self._offer_again()
        self.watch.ask_scan()

    async def watch_conflicts(self) -> None:
        """Keep devices back while another spec file defines them too, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.guard.run(), name="spec guard")
            before: tuple[conflict.Conflict, ...] = ()
            async for found in self.guard.conflicts.changes():
                if found != before:
                    for one in found:
                        telemetry.log.warning("cdi devices in conflict", reason=conflict.REASON, error=one.message)
                    self._note(self.events.conflicts_found, found)
                    self._plan_supply()
                before = found

    async def watch_holders(self) -> None:
        """Keep devices back that another resource has, as often as the kubelet's list changes, for ever."""

        async def follow(changes: AsyncIterator[object]) -> None:
            async for _ in changes:
                self._offer_again()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow(self.holdings.latest.changes()), name="holders: list")
            tasks.create_task(follow(self.holdings.is_absent.changes()), name="holders: kubelet")

    async def simulate_load(self, meter: telemetry.Meter) -> None:
        """Give simulated GPUs the load of those who hold them, for ever."""
        dead = None
        if (
            self.of_store is not None and self._around.is_kubelet_foreign
        ):  # our kubelet's containers are in no pod's cgroup
            find_openers = gpuholders.openers_below(self.settings.silicon.root)
            dead = simulatedload.DeadPods(self.of_store.pods, find_openers)
        await simulatedload.run(self.workloads, self.holdings, self.watch.snapshots, meter, dead)

    def _pod_changed(self, pod: core.Pod, is_gone: bool) -> None:
        is_over = is_gone or pod.status.phase in core.ENDED_PHASES
        if is_over and clash.concerns(self.supply.value.clashes, pod):
            self._plan_supply()

    async def _next(self, seen: int) -> int:
        """Wait for another snapshot; while specs are still to be written, for `SPEC_RETRY_S` at most."""
        try:
            async with asyncio.timeout(SPEC_RETRY_S if self._is_spec_owed else None):
                return await self.watch.snapshots.wait(seen)
        except TimeoutError:
            return seen

    def _report(self) -> AgentReport:
        return AgentReport(
            node=self.node,
            snapshots=self.watch.snapshots,
            supply=self.supply,
            registered=self.plugins.registered,
            cdi_names=self.specs.names,
            leases=self.lease.states,
            neighbours=self.lease.neighbours,
            find_neighbours=self.lease.find_neighbours,
            unverified=self.lease.unverified,
            holders_problem=lambda: self.holdings.problem,
            expose_gpus=self._exporter.expose,
            config_problem=lambda: self.config.problem.value or "the node's configuration is not known yet",
            is_unconfigured=lambda: self.config.config.value is None,
        )

    async def _ensure_specs(self, snapshot: Snapshot) -> None:
        if (hardware := (monitor.without_readings(snapshot.inventory), snapshot.drivers)) == self._hardware:
            return
        try:
            await self.specs.ensure(snapshot.inventory, snapshot.drivers)
        except errors.Unavailable as error:
            telemetry.log.warning("cdi specs not written", reason=error.reason, error=errors.sentence(error))
            self._is_spec_owed = True
        else:
            self._hardware, self._is_spec_owed = hardware, False
        self._topology = choose.plan_topology(snapshot.inventory)

    def _plan_supply(self) -> None:
        """Plan what this node gives away by what is known now, and have the plugins serve it."""
        config, snapshot, before = self.config.config.value, self.watch.snapshots.value, self.supply.value
        if config is None:
            return
        if self.dra is None and config.claims != door.PLUGIN:
            telemetry.log.warning("no gpu goes to claims", error="the agent reaches no API server")
            config = dataclasses.replace(config, claims=door.PLUGIN)
        resource = self.settings.node.resource
        naming = self.passthrough.naming if self.passthrough is not None else None
        found = supplies.plan(snapshot, config, self._facts(snapshot), before, resource=resource, naming=naming)
        if self.mps is not None:
            self.mps.want(found.daemons, self.dra.daemons if self.dra is not None else {})
        if found.clashes != before.clashes:
            self._tell_clashes(tuple(found.clashes.values()))
        for plugin in self.plugins.update(found.resources, self._topology, list_nodes(snapshot.drivers)):
            self._note(self.events.advertised, plugin)
        self.supply.set(found)

    def _tell_clashes(self, standing: tuple[clash.Clash, ...]) -> None:
        for device, message in {(replica.origin(one.device), one.message): None for one in standing}:
            telemetry.log.warning("gpu held by another resource", device=device, reason=clash.REASON, error=message)
        self._note(self.events.held_elsewhere, standing)

    def _facts(self, snapshot: Snapshot) -> supplies.Facts:
        """Return what the agent's parts report now.

        They are asked by the core: an error in an answer ends the agent, because a device whose state cannot be judged
        must not be given away. While the engine is not known devices stay offered, so that a pod that has them keeps
        them: Allocate refuses.
        """
        engine, pods = self._gate.problem, self.of_store.pods if self.of_store is not None else None
        is_known = engine is not None and engine.reason != answer.ENGINE_UNKNOWN
        return supplies.Facts(
            engine=(engine.reason, errors.sentence(engine)) if engine is not None and is_known else None,
            withheld=[one.withheld() for one in (self.mig, self.lease) if one is not None],
            specs=supplies.Specs(
                names=self.specs.names, folder=str(self.specs.folder), conflicts=self.guard.conflicts.value
            ),
            mps=self.mps.facts(snapshot.known) if self.mps is not None else None,
            doors=self.dra.doors() if self.dra is not None else door.Facts(),
            holders=supplies.Holders(
                unknown=self.holdings.awaited,
                listed=self.holdings.latest.value or (),
                pods=pods.all() if pods is not None and pods.is_listed else None,
            ),
        )

    def _allocated(self, call: attribution.Call) -> None:
        if self.of_store is not None:
            self._guards["trace"].tell(self.of_store.allocated, call)


async def _keep(found: migparts.MIGPart | mpsparts.MPSPart | None, meter: telemetry.Meter) -> None:
    if found is not None:
        await found.run(meter)


def _of_store(name: str, find: Callable[[storeparts.StoreParts], part.Run | None]) -> part.Part[_Agent]:
    """Return the row of an optional part, which runs only where the agent has a store and `find` returns its work."""

    def found(agent: _Agent) -> part.Run | None:
        return find(agent.of_store) if agent.of_store is not None else None

    async def run(agent: _Agent, meter: telemetry.Meter) -> None:
        if (work := found(agent)) is not None:
            await work(meter)

    return part.Part(name=name, run=run, is_wanted=lambda agent: found(agent) is not None)


PARTS: Final[tuple[part.Part[_Agent], ...]] = (
    part.Part(name="kubelet folder", is_core=True, run=lambda agent, _: agent.folder.run()),
    part.Part(name="inventory", is_core=True, run=lambda agent, _: agent.watch.run()),
    part.Part(name="configuration", is_core=True, run=lambda agent, _: agent.follow_config()),
    part.Part(name="device plugin", is_core=True, run=lambda agent, _: agent.offer()),
    part.Part(name="ledger", is_core=True, run=lambda agent, meter: agent.lease.run(agent.watch.snapshots, meter)),
    part.Part(name="spec guard", is_core=True, run=lambda agent, _: agent.watch_conflicts()),
    part.Part(name="engine support", is_core=True, run=lambda agent, _: agent.watch_engine_support()),
    part.Part(name="other holders", is_core=True, run=lambda agent, _: agent.watch_holders()),
    # Without the kubelet's list no device is healthy, so an error here ends the agent and the supervisor restarts it.
    part.Part(name="pod resources", is_core=True, run=lambda agent, meter: agent.holdings.run(meter)),
    part.Part(
        name="node object",
        is_core=True,
        run=lambda agent, _: agent.follow_node(),
        is_wanted=lambda agent: agent.of_store is not None,
    ),
    part.Part(
        name="simulated load",
        run=lambda agent, meter: agent.simulate_load(meter),
        is_wanted=lambda agent: agent.workloads is not None,
    ),
    part.Part(name="events", run=lambda agent, meter: agent.events.run(meter)),
    part.Part(name="strategy", run=lambda agent, meter: agent.check_strategy(meter)),
    part.Part(
        name="char links",
        run=lambda agent, meter: charlinks.serve(agent.settings.silicon.root, meter),
        is_wanted=lambda agent: agent.settings.node.char_links and not agent.settings.silicon.simulate,
    ),
    part.Part(
        name="claims",
        run=lambda agent, meter: agent.dra.run(meter) if agent.dra is not None else asyncio.sleep(0),
        is_wanted=lambda agent: agent.dra is not None,
    ),
    part.Part(
        name="passthrough",
        run=lambda agent, _: agent.keep_passthrough(),
        is_wanted=lambda agent: agent.passthrough is not None,
    ),
    part.Part(name="mps", run=lambda agent, meter: _keep(agent.mps, meter), is_wanted=lambda agent: bool(agent.mps)),
    part.Part(name="mig", run=lambda agent, meter: _keep(agent.mig, meter), is_wanted=lambda agent: bool(agent.mig)),
    _of_store("publications", lambda found: found.publisher.run),
    _of_store("pods", lambda found: found.follow_pods),
    _of_store("conditions", lambda found: found.conditions.run),
    _of_store("node conditions", lambda found: found.publish_health),
    _of_store("leases", lambda found: found.leases.run if found.leases is not None else None),
    _of_store("baselines", lambda found: found.baselines.run if found.baselines is not None else None),
    _of_store("trace", lambda found: found.trace.run if found.trace is not None else None),
)
"""What the agent is made of. Names stand in its log (`role`) and in `fairlead_part_failures_total`."""
_GUARDED: Final[tuple[str, ...]] = (*(row.name for row in PARTS if not row.is_core), "metrics")
"""Parts that the core reports to through a guard; `metrics` is not a task here, a server asks its exporter."""
