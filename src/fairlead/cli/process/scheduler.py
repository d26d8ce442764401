"""`fairlead scheduler`: binds a cluster's pods; one replica works, the others wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from fairlead import settings, telemetry
from fairlead.cli.core import cluster, options

if TYPE_CHECKING:
    from fairlead.control.manager import Controller
    from fairlead.store.kubernetes.store import KubernetesStore


@click.command()
@options.settings_options("control", "cluster", "log", "debug")
def scheduler(config: settings.Settings) -> None:
    """Bind a cluster's pods that name this scheduler (spec.schedulerName: fairlead)."""
    from fairlead.control.scheduler.controller import Scheduler
    from fairlead.store.kubernetes import rights

    def make(store: KubernetesStore, meter: telemetry.Meter) -> tuple[Controller, ...]:
        return (Scheduler(store, store.pods, config.control, meter=meter),)

    asyncio.run(cluster.lead(config, "fairlead-scheduler", make, rights.SCHEDULER))
