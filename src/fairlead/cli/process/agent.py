"""`fairlead agent`: runs one GPU node's agent alone, beside any kubelet, on a cluster or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import click

from fairlead import errors, settings, telemetry
from fairlead.cli.core import cluster, options, stopping
from fairlead.node import agent as node_agent
from fairlead.silicon import machine
from fairlead.silicon.sim.silicon import SimulatedSilicon
from fairlead.store.port import Store

KUBELET_FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
"""Source: kubelet deviceplugin/v1beta1 constants.go, DevicePluginPath; no flag of a kubelet moves it."""


@click.command()
@options.settings_options("state", "silicon", "node", "cluster", "log", "debug")
def agent(config: settings.Settings) -> None:
    """Serve this node's GPUs to a kubelet: device plugin, CDI specs, health; tell the cluster about them.

    The kubelet gets its devices whether or not the API server answers; what is to be said to the cluster is said when
    it does. Without any cluster's credentials nothing is said.
    """
    if config.node.kubelet_folder is None:
        config = settings.override(config, {"node.kubelet_folder": KUBELET_FOLDER})
    telemetry.configure(config.log.level, config.log.format)
    telemetry.arm_crash_point(config.debug.crash_at)
    asyncio.run(_run(config))


async def _run(config: settings.Settings) -> None:
    stop = stopping.stop_event()
    folder = config.state.folder / "silicon"
    folder.mkdir(parents=True, exist_ok=True)
    async with cluster.monitored(config) as monitor, _store(config, monitor.meter) as store:
        silicon = machine.open_silicon(config.silicon, folder)

        def ready(report: node_agent.AgentReport) -> None:
            monitor.check = lambda: _unregistered(report)

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
                    is_kubelet_foreign=store is not None,
                )
                work = [tasks.create_task(running, name="agent")]
                if isinstance(silicon, SimulatedSilicon):
                    # Only simulated silicon costs an agent a server beside the monitor's.
                    from fairlead.serve import server
                    from fairlead.serve.v1 import faultdoor

                    door = faultdoor.create_app(silicon, node_agent.node_name(config))
                    work.append(tasks.create_task(server.serve_unix(door, config.fault_socket), name="faults"))
                await stop.wait()
                for task in work:
                    task.cancel()
        finally:
            await silicon.close()


def _unregistered(report: node_agent.AgentReport) -> str:
    """Say which resources no kubelet has taken in yet, "" where there are none such."""
    offered = {ad.resource for ad in report.advertised.value if ad.devices}
    missing = sorted(offered - report.registered.value)
    return f"not registered with a kubelet: {', '.join(missing)}" if missing else ""


@contextlib.asynccontextmanager
async def _store(config: settings.Settings, meter: telemetry.Meter) -> AsyncIterator[Store | None]:
    """Give the cluster's store, None where nothing names a cluster: a kubelet's devices need none."""
    try:
        cluster.access(config)
    except errors.Unavailable as error:
        if error.reason != cluster.MISSING:
            raise
        telemetry.log.warning("no cluster is told about this node", reason=error.reason, error=errors.sentence(error))
        yield None
        return
    async with cluster.opened(config, meter=meter) as store:
        yield store
