"""`fairlead scheduler` and `fairlead controller`: the two Deployments of a cluster, one working replica each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from fairlead import settings, telemetry
from fairlead.cli import cluster, options

if TYPE_CHECKING:
    from fairlead.control.manager import Controller
    from fairlead.store.kubernetes.store import KubernetesStore


@click.command()
@options.settings_options("control", "cluster", "log", "debug")
def scheduler(config: settings.Settings) -> None:
    """Bind pods of a Kubernetes cluster that name this scheduler (spec.schedulerName: fairlead)."""
    from fairlead.control.scheduler import Scheduler

    def make(store: KubernetesStore, meter: telemetry.Meter) -> tuple[Controller, ...]:
        return (Scheduler(store, config.control, meter=meter),)

    _begin(config)
    asyncio.run(cluster.lead(config, "fairlead-scheduler", make))


@click.command()
@options.settings_options("control", "cluster", "log", "debug")
def controller(config: settings.Settings) -> None:
    """Keep Fairlead's objects in a Kubernetes cluster true."""
    from fairlead.control.gpudevice import GPUDevices

    def make(store: KubernetesStore, _meter: telemetry.Meter) -> tuple[Controller, ...]:
        return (GPUDevices(store),)

    _begin(config)
    asyncio.run(cluster.lead(config, "fairlead-controller", make))


def _begin(config: settings.Settings) -> None:
    telemetry.configure(config.log.level, config.log.format)
    telemetry.arm_crash_point(config.debug.crash_at)
