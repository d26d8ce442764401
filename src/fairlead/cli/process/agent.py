"""`fairlead agent`: runs one GPU node's agent alone, beside any kubelet, on a cluster or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairlead import errors, settings, telemetry
from fairlead.cli.core import cluster, lazygroup, sections, stopping
from fairlead.cli.process import gpumetrics, pluginflags
from fairlead.node import agent as node_agent
from fairlead.node.isolation import ownfolder
from fairlead.plan.gpu import door
from fairlead.serve import probes
from fairlead.silicon import machine
from fairlead.silicon.sim.silicon import SimulatedSilicon
from fairlead.store.kubernetes import rights

if TYPE_CHECKING:
    from fairlead.store.kubernetes.server import Server
    from fairlead.store.kubernetes.store import KubernetesStore
    from fairlead.store.subresource import Placement

KUBELET_FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
"""Source: kubelet deviceplugin/v1beta1 constants.go, DevicePluginPath; no flag of a kubelet moves it."""

_NODE_STATUS: Final = "nodes/status"
_FAULTS_AGAIN_S: Final = 5.0
"""Between tries to take the socket over from an older agent that is about to end."""


_VERBS: Final = {
    "check": lazygroup.Verb(
        "Commands", "process.agentcheck:check", "Say what a configuration file does, field by field."
    ),
    "config": lazygroup.Verb(
        "Commands", "process.agentconfig:config", "Choose, or list, the configurations of a folder."
    ),
}
"""Loaded when they are called: the agent itself needs nothing of them."""


_COMMON: Final = (
    "silicon_simulate",
    "silicon_root",
    "silicon_driver_root",
    "node_name",
    "node_door",
    "node_vfio",
    "node_device_list_strategy",
    "node_mig_strategy",
    "node_metrics",
    "plugin_config_file",
    "lease_ledger",
    "cluster_kubeconfig",
    "log_level",
)


@click.group(cls=sections.SectionedGroup, common=_COMMON, verbs=_VERBS, invoke_without_command=True)
@pluginflags.settings_options(
    *("state", "silicon", "node", "plugin", "labels", "health", "lease", "fabric", "control.start_objectives"),
    *("cluster", "log", "debug"),
)
@click.pass_context
def agent(ctx: click.Context, /, config: settings.Settings) -> None:
    """Serve this node's GPUs to a kubelet: device plugin, CDI specs, health; report them to the cluster.

    The kubelet gets its devices whether or not the API server answers; what is to be said to the cluster is said when
    it does. Without any cluster's credentials nothing is said. Takes the configuration file, flags and variables of
    NVIDIA's device plugin; `fairlead agent check FILE` says what a file does.
    """
    if ctx.invoked_subcommand is not None:
        return
    if config.node.kubelet_folder is None:
        config = settings.override(config, {"node.kubelet_folder": KUBELET_FOLDER})
    config = pluginflags.with_file(config)
    telemetry.configure(config.log.level, config.log.format)
    telemetry.arm_crash_point(config.debug.crash_at)
    ownfolder.set_umask()
    asyncio.run(_run(config))


async def _run(config: settings.Settings) -> None:
    stop = stopping.stop_event()
    ownfolder.close({config.state.folder: ownfolder.OURS})
    folder = config.state.folder / "silicon"
    folder.mkdir(parents=True, exist_ok=True)
    async with cluster.monitored(config) as monitor, _store(config, monitor.meter) as store:
        silicon = machine.open_silicon(config.silicon, folder)

        granted = None if store is None else rights.Watched(_asked(store, config), _needed(config))

        reported: asyncio.Future[node_agent.AgentReport] = asyncio.get_running_loop().create_future()

        def ready(report: node_agent.AgentReport) -> None:
            monitor.check = lambda: _problem(report, granted)
            reported.set_result(report)

        monitor.check = lambda: "the first scan has not ended"
        try:
            async with asyncio.TaskGroup() as tasks:
                running = node_agent.run_agent(
                    config,
                    silicon,
                    store,
                    ready=ready,
                    meter=monitor.meter,
                    # a kubelet of a cluster records no steps of ours
                    around=node_agent.Surroundings(
                        is_kubelet_foreign=store is not None, placement=_placement(config, store)
                    ),
                )
                work = [tasks.create_task(running, name="agent")]
                if granted is not None:
                    work.append(tasks.create_task(granted.run(), name="rights"))
                if where := gpumetrics.address(config.node.metrics, is_local=False):
                    work.append(tasks.create_task(_serve_metrics(where, reported, monitor), name="gpu metrics"))
                if isinstance(silicon, SimulatedSilicon):
                    work.append(tasks.create_task(_serve_faults(silicon, config), name="faults"))
                await stop.wait()
                for task in work:
                    task.cancel()
        finally:
            await silicon.close()


async def _serve_metrics(where: str, reported: asyncio.Future[node_agent.AgentReport], one: cluster.Monitor) -> None:
    await gpumetrics.serve(where, probes.create_app(one.stalled, one.problem, (await reported).expose_gpus))


async def _serve_faults(silicon: SimulatedSilicon, config: settings.Settings) -> None:
    """Let simulated GPUs be broken through a socket; without one the agent goes on all the same.

    Of two agents on a node, as a rolling update has them, the older keeps the socket; the newer has it after that.
    """
    # Only simulated silicon costs an agent this.
    from fairlead.serve import plainserver
    from fairlead.serve.v1.gpus import faultsocket

    faults = faultsocket.create_app(silicon, node_agent.node_name(config))
    while True:
        try:
            await plainserver.serve_unix(faults, config.fault_socket)
        except errors.FairleadError as error:
            telemetry.log.warning(
                "no faults can be simulated through this agent", reason=error.reason, error=error.message
            )
        await asyncio.sleep(_FAULTS_AGAIN_S)


def _problem(report: node_agent.AgentReport, granted: rights.Watched | None) -> str:
    """Say what keeps the agent from its work, "" where nothing does: the kubelet first, then the API server.

    Named are resources that no kubelet has taken in yet, a kubelet that does not say who holds what, and rights that
    the API server does not grant.
    """
    offered = {ad.resource for ad in report.supply.value.resources if ad.devices}
    missing = ", ".join(sorted(offered - report.registered.value))
    found = (
        f"not registered with a kubelet: {missing}" if missing else "",
        report.holders_problem(),
        report.config_problem() if report.is_unconfigured() else "",
        granted.problem() if granted is not None else "",
    )
    return "; ".join(one for one in found if one)


def _needed(config: settings.Settings) -> tuple[rights.Right, ...]:
    tainting = rights.TAINTING if config.health.node_taint else ()
    tainting += rights.TAINTING_DEVICES if config.health.device_taint else ()
    status = rights.AGENT if config.health.node_condition else tuple(r for r in rights.AGENT if r.full != _NODE_STATUS)
    draining = rights.DRAINING if config.node.mig_drain != "never" else ()
    leasing = rights.LEASING if config.lease.ledger == "on" else ()
    claims = rights.CLAIMS if config.node.door == door.CLAIMS else ()
    return (*status, *tainting, *draining, *leasing, *claims)


def _placement(config: settings.Settings, store: KubernetesStore | None) -> Placement | None:
    """Return who evicts pods, where the settings allow it; elsewhere nothing of it is loaded."""
    if store is None or config.node.mig_drain == "never":
        return None
    from fairlead.store.kubernetes import subresource

    return subresource.KubernetesPods(store.client, store)


def _asked(store: KubernetesStore, config: settings.Settings) -> Server:
    # Without a cluster nothing of its client is loaded.
    from fairlead.store.kubernetes import server

    return server.Server(store.client, address=cluster.access(config).cluster.server)


@contextlib.asynccontextmanager
async def _store(config: settings.Settings, meter: telemetry.Meter) -> AsyncIterator[KubernetesStore | None]:
    """Give the cluster's store, None where nothing names a cluster: a kubelet's devices need none."""
    try:
        cluster.access(config)
    except errors.Unavailable as error:
        if error.reason != cluster.MISSING:
            raise
        telemetry.log.warning("this node is reported to no cluster", reason=error.reason, error=errors.sentence(error))
        yield None
        return
    async with cluster.opened(config, meter=meter) as store:
        yield store
