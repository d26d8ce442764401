"""`fairlead controller`: keeps Fairlead's objects in a cluster true; one replica works, the others wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from fairlead import settings, telemetry
from fairlead.cli.core import cluster, options

if TYPE_CHECKING:
    from fairlead.control.manager import Controller
    from fairlead.store.port import Store


@click.command()
@options.settings_options("control", "cluster", "log", "debug")
def controller(config: settings.Settings) -> None:
    """Keep Fairlead's objects in a cluster true."""
    from fairlead.control.node.gpudevice import GPUDevices
    from fairlead.control.node.gpulease import GPULeases
    from fairlead.store.kubernetes import rights

    def make(store: Store, _meter: telemetry.Meter) -> tuple[Controller, ...]:
        return GPUDevices(store), GPULeases(store, keep_s=config.lease.keep_days * 86400)

    asyncio.run(cluster.lead(config, "fairlead-controller", make, rights.CONTROLLER))
