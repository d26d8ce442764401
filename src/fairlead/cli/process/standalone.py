"""Composes Fairlead on one machine: store, agent, controllers and API in one process, the kubelet in a child.

Nothing below `cli` knows that it runs on one machine; this module is the only place that says so. The kubelet is a
separate process because on a cluster it is one: it may die and come back while the plugin, the controllers and the API
go on, and the other way round. It shares nothing with them but the store and the sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import grp
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fairlead import __version__, command, errors, settings, telemetry
from fairlead.backoff import Backoff
from fairlead.cli.process import gpumetrics, owner
from fairlead.cli.process.listen import ledgers, machinepage
from fairlead.cli.process.local import history, idling, reserving, tenancies, workloads
from fairlead.control import manager
from fairlead.control.claim import checkedclaims, devicetaint, resourceclaim
from fairlead.control.node import podgc, startphase
from fairlead.control.scheduler import controller
from fairlead.engine import machine as engines
from fairlead.engine.port import EngineInfo
from fairlead.model.container import isolation
from fairlead.model.gpu import Inventory, Vendor
from fairlead.node import agent, leftovers
from fairlead.node.isolation import ownfolder
from fairlead.node.kubelet import nodestatus
from fairlead.node.lease.neighbours import ending
from fairlead.node.sandbox import gvisor
from fairlead.plan.claim.life import lifecycle as claims
from fairlead.plan.dra import deviceclass
from fairlead.plan.gpu import door as gpudoor
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.lease import neighbour
from fairlead.plan.pod import device, mountable, podstate
from fairlead.plan.pod import machine as placing
from fairlead.plan.vfio import slot
from fairlead.serve import probes, server
from fairlead.serve.admission import sessiontemplate
from fairlead.serve.backend import local, neighbours, port
from fairlead.serve.backend.containers import enginepods, lifecycle
from fairlead.serve.console import app as consoledoor
from fairlead.serve.history import recorder
from fairlead.serve.metering import leases
from fairlead.serve.v1 import app, dependencies
from fairlead.silicon import machine, onereading
from fairlead.silicon.port import SampledSilicon
from fairlead.silicon.sim.silicon import SimulatedSilicon
from fairlead.silicon.vfio import discovery
from fairlead.store.embedded import placement
from fairlead.store.port import Selector, Store
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.scheduling import podgroup

if TYPE_CHECKING:
    from fairlead.cli.process.listen.tlslistener import TLSListener

_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0
_GOOD_RUN_S: Final = 30.0
"""After a run of this length the restart back-off begins anew."""
_OFFER_S: Final = 10.0
"""How long `up` waits for the Node to show what the plugins advertise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the banner shows."""

    node: str
    inventory: Inventory
    engine: EngineInfo
    started_s: float
    """From the command to everything ready."""
    door: tuple[str, str] = ("", "")
    """Address and fingerprint of the API on TLS; empty: it is off."""


async def run_service(
    config: settings.Settings,
    *,
    owned: owner.Owned,
    started: float,
    ready: Callable[[Report], None],
    stop: asyncio.Event,
) -> None:
    """Run everything until `stop` is set or a part fails.

    Args:    owned: what `owner.own_machine` gave.   started: monotonic time of the command's start.
             ready: called once, when a container can be submitted.
    """
    node, pricing = agent.node_name(config), leases.pricing(config.metering)
    _group(config.api.group)
    engine = engines.open_engine(config.engine)
    info = await engine.info()
    engines.check_cdi_folder(config.engine, config.node.cdi_folder, info)
    await asyncio.to_thread(_ready_folders, config)
    async with _opened(config) as (store, silicon), _public_door(config) as public:
        await _refuse_nothing(config, silicon)
        await _prepare(store, config, node)
        figures = machinepage.MachinePage(config, engine, store)
        watching, registered, serving = asyncio.Event(), asyncio.Event(), asyncio.Event()
        reports: list[agent.AgentReport] = []

        def agent_ready(report: agent.AgentReport) -> None:
            reports.append(report)
            watching.set()

        async with asyncio.TaskGroup() as tasks:
            serving_engine = f"{info.name}://{info.version}"
            evicting = placement.EmbeddedPlacement(store)
            around = agent.Surroundings(engine=serving_engine, placement=evicting)
            running = agent.run_agent(config, silicon, store, ready=agent_ready, around=around)
            tasks.create_task(running, name="agent")
            tasks.create_task(_supervise_kubelet(config, registered), name="kubelet")
            kept = tenancies.compose(config, store, engine, unverified=lambda name: _unverified(reports, name))
            living = lifecycle.LocalLifecycle(
                store=store,
                here=_here(config, node),
                gvisor=functools.partial(
                    _refuse_gvisor, config, lambda: reports[-1].snapshots.value.inventory if reports else None
                ),
            )
            making, measured = (
                workloads.PodMaker(living, workloads.hold_file(config.state.run)),
                idling.LateFigures(),
            )
            controllers: tuple[manager.Controller, ...] = (
                controller.Scheduler(
                    checkedclaims.CheckedClaims(store, user_devices=config.api.user_gpus),
                    evicting,
                    config.control,
                    groups=(podgroup.PodGroup,),
                    date=None,
                    more=(reserving.constraint(config),),
                ),
                reserving.keeper(config, store, evicting),
                idling.keeper(config, store, evicting, living, measured, tasks),
                podgc.PodGC(store, config.control, node=node),
                resourceclaim.ResourceClaims(store, user_devices=config.api.user_gpus),
                devicetaint.DeviceTaints(store, evicting),
                kept.controller,
                startphase.StartPhases(
                    store,
                    functools.partial(enginepods.first_output, engine),
                    objectives=config.control.start_objectives,
                    meter=figures.meter,
                ),
                *workloads.controllers(store, making),
            )
            tasks.create_task(manager.run_controllers(store, controllers), name="controllers")
            await watching.wait()
            # Before the API serves: a request for a restart must not meet one that is carried on.
            tasks.create_task(living.keep(), name="requests")
            door = dependencies.Services(
                callers=dependencies.Callers(
                    most_devices=config.api.user_gpus, mounts=mountable.parse(config.api.mounts)
                ),
                store=store,
                backend=dataclasses.replace(
                    local.backend(
                        store=store,
                        engine=engine,
                        node=node,
                        readings=local.Readings(
                            scan=lambda: reports[-1].snapshots.value.inventory,
                            drivers=lambda: reports[-1].snapshots.value.drivers,
                            leases=reports[-1].leases,
                            neighbours=reports[-1].neighbours,
                            advertised=lambda: reports[-1].supply.value.resources,
                            sampler=onereading.OneReading(silicon),
                        ),
                        faults=silicon if isinstance(silicon, SimulatedSilicon) else None,
                        state_folder=config.state.folder,
                        living=living,
                    ),
                    tenancies=kept.trial,
                    credentials=kept.credentials,
                    metering=leases.StoreMetering(store=store, pricing=pricing, is_kept=config.lease.ledger == "on"),
                    ledger=ledgers.NodeLedger(folder=config.lease_folder),
                    neighbours=_neighbours(config, reports),
                    history=await history.begin(
                        config,
                        tasks,
                        recorder.Machine(
                            store=store,
                            node=node,
                            engine=engine,
                            scan=lambda: reports[-1].snapshots.value.inventory,
                            sampler=onereading.OneReading(silicon),
                        ),
                    ),
                    reservations=reserving.capability(config, store),
                ),
                info=_service_info(config, node, owned.cdi_folder, public),
                accounts=public.accounts if public else dependencies.NO_ACCOUNTS,
                grants=public.grants if public else dependencies.NO_GRANTS,
            )
            making.context, measured.source = door.admission, door.backend.history
            _serve_metrics(config, tasks, lambda: figures.expose(reports[-1].expose_gpus))
            tasks.create_task(_serve_api(config, door, public, ready=serving, meter=figures.meter), name="api")
            await registered.wait()
            await serving.wait()
            await _offered(store, node, reports[-1].supply.value.resources)
            ready(
                Report(
                    node=node,
                    inventory=reports[-1].snapshots.value.inventory,
                    engine=info,
                    started_s=time.monotonic() - started,
                    door=door.info.door(),
                )
            )
            await stop.wait()
            raise Stopped


def _neighbours(config: settings.Settings, reports: Sequence[agent.AgentReport]) -> port.Neighbours | port.Absent:
    if config.lease.ledger != "on" or config.lease.neighbours == neighbour.IGNORE:
        return port.NO_NEIGHBOURS
    return neighbours.LocalNeighbours(
        find=reports[-1].find_neighbours,
        scan=lambda: reports[-1].snapshots.value.inventory,
        end_processes=ending.end,
    )


def _serve_metrics(config: settings.Settings, tasks: asyncio.TaskGroup, expose: Callable[[], Awaitable[bytes]]) -> None:
    """Serve the GPUs' figures for Prometheus, where that is on."""
    if where := gpumetrics.address(config.node.metrics, is_local=True):
        page = probes.create_app(lambda: "", lambda: "", expose)
        tasks.create_task(gpumetrics.serve(where, page), name="gpu metrics")


def _ready_folders(config: settings.Settings) -> None:
    """Close the folders of sockets, make the kubelet's, and remove what killed processes left half-written."""
    ownfolder.close(ownfolder.of_run(config))
    config.kubelet_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    leftovers.sweep(config)
    workloads.hold_file(config.state.run).unlink(missing_ok=True)


async def _serve_api(
    config: settings.Settings,
    services: dependencies.Services,
    public: TLSListener | None,
    *,
    ready: asyncio.Event,
    meter: telemetry.Meter,
) -> None:
    """Serve the API on its socket, and on TLS where that is on, until cancelled."""
    api, group = app.create_app(services), _group(config.api.group)
    local_door = consoledoor.create_app(api, has_login=False) if config.console.enabled else api
    async with asyncio.TaskGroup() as doors:
        serving = server.serve_unix(local_door, config.api_socket, ready=ready, group=group, meter=meter)
        doors.create_task(serving, name="socket")
        if public:
            doors.create_task(public.serve(api, services.store, services.backend, meter=meter), name="TLS")


def _unverified(reports: Sequence[agent.AgentReport], namespace: str) -> tuple[str, ...]:
    """Return the GPUs of a namespace that the ledger is not done with.

    Raises: Unavailable (`AgentStarting`).
    """
    if not reports:
        message = "the agent has not said yet which GPUs are held"
        raise errors.Unavailable(message, reason="AgentStarting", hint="it is asked again")
    return reports[-1].unverified(namespace)


def _group(name: str) -> int | None:
    """Return the id of the group that may use the API; None for no group. Raises: Invalid (`GroupUnknown`)."""
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        message = f'api.group: this machine has no group "{name}"'
        raise errors.Invalid(message, reason="GroupUnknown", hint=f"make it: groupadd --system {name}") from error


class Stopped(Exception):
    """Ends the task tree in an orderly way."""


@contextlib.asynccontextmanager
async def _public_door(config: settings.Settings) -> AsyncIterator[TLSListener | None]:
    """Give the door on TLS; None: it is off, and nothing of it is loaded. Raises: as `tlslistener.opened`."""
    if config.ssh.listen and not config.api.listen:
        message = "ssh.listen is set, and api.listen is not: the SSH door is for accounts, which the API on TLS keeps"
        raise errors.Invalid(message, reason="SSHWithoutAccounts", hint="for example `--listen 127.0.0.1:8443`")
    if not config.api.listen:
        yield None
        return
    try:
        from fairlead.cli.process.listen import tlslistener
    except ModuleNotFoundError as error:
        message = f"api.listen needs the database of accounts, and this installation is without {error.name}"
        hint = "install Fairlead's wheel with its extra: fairlead[server]"
        raise errors.Invalid(message, reason="DatabaseNotInstalled", hint=hint) from error
    async with tlslistener.opened(config) as found:
        yield found


async def _prepare(store: sqlite.SQLiteStore, config: settings.Settings, node: str) -> None:
    """Bring the store to where controllers may read it."""
    await _ensure_namespace(store, "default")
    if config.node.door == gpudoor.CLAIMS or config.plugin.config_file is not None:
        await ensure_classes(store, config.node.resource)
    await nodestatus.forget_devices(store, node)


async def ensure_classes(store: Store, resource: str) -> None:
    """Make the DeviceClasses of the driver that are missing; one that a person has changed stays as it is.

    Args: resource: of whole GPUs, for which the class of these stands.
    """
    for one, bare in zip(deviceclass.classes(resource), deviceclass.CLASSES, strict=True):
        try:
            await store.create(one)
        except errors.Conflict:
            there = await store.get(DeviceClass, one.metadata.name)
            if there.spec == bare.spec != one.spec:  # as an earlier release made it
                await store.update(msgspec.structs.replace(there, spec=one.spec))


async def _refuse_gvisor(
    config: settings.Settings, scan: Callable[[], Inventory | None], pod: core.Pod
) -> errors.FairleadError | None:
    """Return why a pod cannot run on gVisor on this machine; None: it can. Args: scan: None: not known yet."""
    program = await asyncio.to_thread(engines.find_runtime, config.engine, isolation.GVISOR_CLASS)
    has_gpus = bool(podstate.asked_devices(pod) or claims.has_claims(pod))
    if (found := scan()) is None and has_gpus:
        message = "the driver of this machine's GPUs is not known yet, which gVisor must know"
        return errors.Unavailable(message, reason="Starting", hint="ask again in a moment")
    versions = [one.version for one in found.drivers if one.vendor is Vendor.NVIDIA] if found and has_gpus else []
    return await gvisor.refusal(program, driver=versions[0] if versions else "")


def _here(config: settings.Settings, node: str) -> placing.Here:
    return placing.Here(
        node=node,
        scheduler=config.control.scheduler_name,
        resource=config.node.resource,
        devices=device.parse(config.api.devices),
    )


def _service_info(
    config: settings.Settings, node: str, cdi_folder: Path, public: TLSListener | None
) -> dependencies.ServiceInfo:
    return dependencies.ServiceInfo(
        version=__version__,
        node=node,
        started_at=time.time(),
        scheduler_name=config.control.scheduler_name,
        resource=config.node.resource,
        socket=config.api_socket,
        state_folder=config.state.folder,
        cdi_folder=cdi_folder,
        profile=config.silicon.simulate,
        door=public.describe if public else lambda: ("", ""),
        ssh_door=public.describe_ssh if public else lambda: None,
        templates=sessiontemplate.read(config.session.templates),
    )


@contextlib.asynccontextmanager
async def _opened(config: settings.Settings) -> AsyncIterator[tuple[sqlite.SQLiteStore, SampledSilicon]]:
    with sqlite.SQLiteStore(config.state.folder / "state.db") as store:
        silicon = await asyncio.to_thread(machine.open_silicon, config.silicon, config.state.folder / "silicon")
        try:
            yield store, silicon
        finally:
            await silicon.close()


async def _refuse_nothing(config: settings.Settings, silicon: SampledSilicon) -> None:
    """Say plainly that there is no GPU here, and what can be done without one."""
    if config.silicon.simulate:
        return
    inventory = await silicon.scan()
    # A desktop's integrated Intel graphics are a GPU, and not one to hand out; a GPU in MIG mode is.
    offered = (
        gpu.mig_enabled or advertise.resource_of(gpu, nvidia_resource="nvidia.com/gpu") for gpu in inventory.gpus
    )
    if not inventory.unreadable and not any(offered):
        beside = (await asyncio.to_thread(discovery.scan, config.silicon.root)).gpus
        if beside and config.node.vfio != slot.OFF:
            return
        message = "no GPU was found on this machine (no NVIDIA driver, no AMD or Intel GPU in /sys)"
        hint = (
            "`fairlead up --simulate h100x8` runs it all on simulated silicon; `fairlead doctor` says what is missing"
        )
        if bound := sum(one.is_bound_to_vfio for one in beside):
            message = f"no GPU of this machine has a driver; {bound} are bound to VFIO, for virtual machines"
            hint = "`fairlead up --node-vfio bound` offers those; `fairlead vfio release` gives them back to the driver"
        raise errors.Unavailable(message, reason="NoGPU", hint=hint)


async def _ensure_namespace(store: sqlite.SQLiteStore, name: str) -> None:
    with contextlib.suppress(errors.Conflict):
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=name)))


async def _offered(store: Store, node: str, advertised: Sequence[advertise.Advertisement]) -> None:
    """Have the Node show what the plugins advertise, or log that it does not."""
    wanted = frozenset(ad.resource for ad in advertised if ad.devices)
    if not await is_offered(store, node, wanted, within_s=_OFFER_S):
        telemetry.log.warning("the kubelet does not offer every device yet", resource=", ".join(sorted(wanted)))


async def is_offered(store: Store, node: str, resources: frozenset[str], *, within_s: float) -> bool:
    """Wait until the Node shows resources, so that an answer right after the start is whole.

    Returns: whether it does; a plugin that the kubelet does not take in must not hold the service up.
    """
    meant = Selector(fields={"metadata.name": node})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                listing = await store.list(core.Node, meant)
                if any(resources <= found.status.allocatable.keys() for found in listing.items):
                    return True
                with contextlib.suppress(errors.Gone):
                    async for change in store.watch(core.Node, meant, since=listing.resource_version):
                        if resources <= change.object.status.allocatable.keys():
                            return True
    return False


# the kubelet's process


async def _supervise_kubelet(config: settings.Settings, registered: asyncio.Event) -> None:
    """Keep the kubelet's process alive: started again with back-off whenever it ends."""
    failures, waits = 0, Backoff(first_s=_FIRST_RETRY_S, last_s=_LAST_RETRY_S, jitter=0)
    while True:
        begun = time.monotonic()
        code = await _run_kubelet(config, registered)
        failures += 1
        if time.monotonic() - begun > _GOOD_RUN_S:
            failures = 0
            waits.reset()
        wait_s = waits.next()
        telemetry.log.warning("kubelet ended, starting it again", role="kubelet", state=code, duration_s=wait_s)
        if not registered.is_set() and failures >= 3:
            message = f"the kubelet's process ended three times with status {code} before it was ready"
            raise errors.Unavailable(message, reason="KubeletFailed", hint="its errors stand above this one")
        await asyncio.sleep(wait_s)


async def _run_kubelet(config: settings.Settings, registered: asyncio.Event) -> int:
    environment = {**settings.environment(config), "PATH": os.defpath + ":/usr/sbin:/sbin:/usr/local/bin"}
    argv = [sys.executable, "-m", "fairlead.cli.main", "kubelet", "--parent", str(os.getpid())]
    here = Path()  # paths in the settings may be relative
    async with command.opened(argv, env=environment, stderr=command.OURS, at_once=False, folder=here) as running:
        if await running.output.read():
            registered.set()
        return await running.process.wait()
