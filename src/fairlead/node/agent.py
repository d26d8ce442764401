"""The GPU node's agent as one process tree: inventory → CDI specs → device plugins → kubelet, and a record of each.

`run_agent` composes the parts and owns their order. A snapshot of the inventory becomes CDI specs on disk first, then
advertisements; a device that no spec names is advertised Unhealthy, so a full disk never hands out what an engine
cannot resolve. Verdicts need no new spec and go straight through. Each resource has its own socket and its own task,
started when the resource first has a device and kept from then on. Steps and events (`node.journal`), objects and
labels (`node.publish`) go to the store through queues of their own, so a store that is slow or away delays nothing. A
part that ends takes the agent down with its error; whoever runs the agent restarts
it. The agent stops by cancellation and leaves neither sockets nor specs behind; but for the specs where a newer agent
has taken over, which hands out devices by them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.model.device import Device
from fairlead.node.cdi import specfiles
from fairlead.node.deviceplugin import plugin as deviceplugin
from fairlead.node.deviceplugin import registration
from fairlead.node.engines import charlinks, runtimecheck
from fairlead.node.inventory import latest, monitor
from fairlead.node.publish import nodeevents, objects
from fairlead.node.trace import observer
from fairlead.plan.gpu import advertise, answer, attribution, choose
from fairlead.plan.gpu import health as rules
from fairlead.settings import Settings
from fairlead.silicon import firmware, running
from fairlead.silicon.port import Silicon
from fairlead.store.port import Store
from fairlead.wire.proto import deviceplugin_pb2 as pb

SPEC_RETRY_S: Final = 2.0
HEALTH_POLICY: Final = rules.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """What the agent knows, live: every `Latest` goes on changing while the agent runs."""

    node: str
    snapshots: latest.Latest[monitor.Snapshot]
    advertised: latest.Latest[tuple[advertise.Advertisement, ...]]
    registered: latest.Latest[frozenset[str]]
    """Resources that a kubelet has taken in since the agent began."""
    cdi_names: frozenset[str]
    """Qualified names in the specs on disk when the agent became ready."""


def node_name(settings: Settings) -> str:
    """Return the configured node name, else the host's in the form Kubernetes allows."""
    return settings.node.name or socket.gethostname().lower().replace("_", "-")


async def run_agent(
    settings: Settings,
    silicon: Silicon,
    store: Store | None,
    *,
    ready: Callable[[AgentReport], None] | None,
    meter: telemetry.Meter = telemetry.UNMETERED,
    is_kubelet_foreign: bool = False,
) -> None:
    """Run the agent until cancelled; `silicon` and `store` stay the caller's to close.

    Args:    store: where steps and objects go; None: nowhere.   ready: called once, when the first scan ended and its
             specs are on disk; registration goes on by itself, as long as it takes.
             is_kubelet_foreign: the kubelet records no steps of containers; the agent observes and records them.
    Raises:  whatever ended a part; an error here is a bug or a broken machine, never a missing GPU or kubelet.
    """
    agent = _Agent(settings, silicon, store, meter, is_kubelet_foreign=is_kubelet_foreign)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(agent.folder.run(), name="kubelet folder")
        tasks.create_task(agent.watch.run(), name="inventory")
        tasks.create_task(agent.journal.run(), name="journal")
        tasks.create_task(agent.check_strategy(settings.silicon.root), name="device list strategy")
        if settings.node.char_links and not settings.silicon.simulate:
            tasks.create_task(charlinks.serve(settings.silicon.root), name="char links")
        if agent.publisher is not None:
            tasks.create_task(agent.publisher.run(), name="publications")
            tasks.create_task(agent.watch_engine_support(agent.publisher.runtime, tasks), name="engine")
        if agent.witness is not None:
            tasks.create_task(agent.witness.run(), name="witness")
        await agent.offer(tasks, ready)


class _Agent:
    def __init__(
        self,
        settings: Settings,
        silicon: Silicon,
        store: Store | None,
        meter: telemetry.Meter,
        *,
        is_kubelet_foreign: bool,
    ) -> None:
        self._meter = meter
        self.node = node_name(settings)
        self.journal = nodeevents.NodeEvents(self.node, store)
        machine = firmware.product_name(settings.silicon.root)
        self.publisher = objects.Publisher(self.node, store, machine=machine) if store is not None else None
        self.watch = monitor.InventoryMonitor(
            silicon,
            rescan_s=settings.silicon.rescan_s,
            policy=HEALTH_POLICY,
            on_change=self.journal.health_changed,
            turned=lambda within_s: meter.heartbeat("inventory", within_s),
        )
        self.folder = registration.FolderWatch(settings.kubelet_folder)
        self.specs = specfiles.SpecFiles(
            settings.node.cdi_folder,
            recipe=specfiles.recipe_of(settings.node),
            boot_id=running.read_running(settings.silicon.root).boot_id,
            stamping=settings.node.cdi_stamp,
            host_mount=settings.node.host_mount,
        )
        self.advertised: latest.Latest[tuple[advertise.Advertisement, ...]] = latest.Latest(())
        self.registered: latest.Latest[frozenset[str]] = latest.Latest(frozenset())
        self._settings = settings.node
        self._way = answer.AllocateOptions(
            strategies=answer.parse_strategies(settings.node.device_list_strategy),
            ids=settings.node.device_id_strategy,
            passes_device_specs=settings.node.pass_device_specs,
        )
        self._plugins: dict[str, deviceplugin.Plugin] = {}
        self._registrars: list[registration.Registrar] = []
        self._has_left_specs = asyncio.Event()
        self._topology = choose.Topology()
        self.witness = (
            observer.Observer(
                settings,
                self.node,
                store,
                snapshots=self.watch.snapshots,
                advertised=self.advertised,
                recall=self._recall,
                records_steps=is_kubelet_foreign,
            )
            if store is not None
            else None
        )
        self._engine_problem: errors.Unavailable | None = None
        """Why this node's engine would start containers without their devices."""
        self._hardware: object = None
        self._is_spec_owed = False

    async def offer(self, tasks: asyncio.TaskGroup, ready: Callable[[AgentReport], None] | None) -> None:
        """Turn snapshots into specs and advertisements, for ever."""
        try:
            seen = 0  # the initial, empty snapshot says nothing
            while True:
                seen = await self._next(seen)
                snapshot = self.watch.snapshots.value
                await self._ensure_specs(snapshot)
                self._advertise(snapshot, tasks)
                if self.publisher is not None:
                    self.publisher.update(snapshot)
                self.journal.inventory_seen(snapshot.inventory)
                if ready is not None and snapshot.is_scanned:
                    ready(self._report())
                    ready = None
        finally:
            await asyncio.shield(self._leave_specs())

    async def _leave_specs(self) -> None:
        """Remove the specs, unless another agent hands out devices by the same files."""
        try:
            if not any(registrar.is_standing_by for registrar in self._registrars):
                await self.specs.remove()
        finally:
            self._has_left_specs.set()

    async def _renew_specs(self) -> None:
        """Write the specs again: an agent that served in between has removed them."""
        snapshot = self.watch.snapshots.value
        await self.specs.ensure(snapshot.inventory, snapshot.drivers)

    async def check_strategy(self, root: Path) -> None:
        """Tell once where nothing on this node reads what Allocate answers."""
        problem = await asyncio.to_thread(runtimecheck.find_problem, self._way, root)
        if problem is not None:
            telemetry.log.warning("no runtime for these devices", reason=problem.reason, error=errors.sentence(problem))
            self.journal.way_judged(problem)

    async def watch_engine_support(self, runtime: latest.Latest[str], tasks: asyncio.TaskGroup) -> None:
        """Keep devices back while the node's engine would ignore the only way they are handed over, for ever."""
        async for engine in runtime.changes():
            problem = answer.find_problem(self._way, engine)
            if (problem is None) != (self._engine_problem is None):
                self._engine_problem = problem
                self.journal.engine_judged(engine, problem)
                self._advertise(self.watch.snapshots.value, tasks)

    async def _next(self, seen: int) -> int:
        """Wait for another snapshot; while specs could not be written, only so long: an equal scan wakes nobody."""
        try:
            async with asyncio.timeout(SPEC_RETRY_S if self._is_spec_owed else None):
                return await self.watch.snapshots.wait(seen)
        except TimeoutError:
            return seen

    def _report(self) -> AgentReport:
        return AgentReport(
            node=self.node,
            snapshots=self.watch.snapshots,
            advertised=self.advertised,
            registered=self.registered,
            cdi_names=self.specs.names,
        )

    async def _ensure_specs(self, snapshot: monitor.Snapshot) -> None:
        hardware = (monitor.without_readings(snapshot.inventory), snapshot.drivers)
        if hardware == self._hardware:
            return
        try:
            await self.specs.ensure(snapshot.inventory, snapshot.drivers)
        except errors.Unavailable as error:
            telemetry.log.warning("cdi specs not written", reason=error.reason, error=errors.sentence(error))
            self._is_spec_owed = True
        else:
            self._hardware, self._is_spec_owed = hardware, False
        self._topology = choose.plan_topology(snapshot.inventory)

    def _advertise(self, snapshot: monitor.Snapshot, tasks: asyncio.TaskGroup) -> None:
        offered = advertise.plan_advertisements(
            snapshot.inventory,
            nvidia_resource=self._settings.resource,
            verdicts=snapshot.verdicts,
            known=snapshot.known,
        )
        present = {ad.resource for ad in offered}
        ended = [ad for ad in self.advertised.value if ad.resource not in present]
        offered = (*(self._resolvable(ad) for ad in offered), *(dataclasses.replace(ad, devices=()) for ad in ended))
        for ad in offered:
            if ad.resource not in self._plugins:
                self._plugins[ad.resource] = deviceplugin.Plugin(
                    ad.resource,
                    way=self._way,
                    told=self.witness.told if self.witness is not None else None,
                    meter=self._meter,
                )
                tasks.create_task(self._serve(self._plugins[ad.resource]), name=f"plugin {ad.resource}")
            nodes = (node for driver in snapshot.drivers for node in driver.nodes)
            if self._plugins[ad.resource].update(ad, self._topology, nodes=nodes):
                self.journal.advertised(self._plugins[ad.resource])
        self.advertised.set(offered)

    def _recall(self, grant: attribution.Grant) -> pb.ContainerAllocateResponse | None:
        plugin = self._plugins.get(grant.resource)
        return plugin.recall(grant.ids) if plugin is not None else None

    def _resolvable(self, ad: advertise.Advertisement) -> advertise.Advertisement:
        """Keep back devices that no spec on disk names, and all of them while the engine would ignore names."""

        def judged(device: Device) -> Device:
            if not device.is_healthy:
                return device
            if self._engine_problem is not None:
                return dataclasses.replace(device, is_healthy=False, reason=self._engine_problem.reason)
            if f"{ad.kind}={device.parent or device.id}" in self.specs.names:
                return device
            return dataclasses.replace(device, is_healthy=False, reason="CDISpecMissing")

        return dataclasses.replace(ad, devices=tuple(map(judged, ad.devices)))

    async def _serve(self, plugin: deviceplugin.Plugin) -> None:
        endpoint = deviceplugin.Endpoint(plugin, self.folder.folder)

        def registered(_: str) -> None:
            self._meter.add(telemetry.REGISTRATIONS, plugin.resource)
            self.registered.set(self.registered.value | {plugin.resource})
            self.journal.registered(plugin, endpoint.path)

        registrar = registration.Registrar(
            endpoint,
            self.folder,
            first_wait_s=self._settings.reregister_s,
            on_registered=registered,
            before_return=self._renew_specs,
            # who stands by begins once our socket is gone, and must not lose its specs to us then
            before_end=self._has_left_specs.wait,
        )
        self._registrars.append(registrar)
        await registrar.run()
