"""`fairlead controller`: keeps Fairlead's objects in a cluster true; one replica works, the others wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from fairlead import settings, telemetry
from fairlead.cli.core import cluster, options, sections

if TYPE_CHECKING:
    from fairlead.control.manager import Controller
    from fairlead.store.port import Store


_COMMON: Final = (
    "control_tenancies",
    "control_tenancy_enforcer",
    "control_tenancy_networks",
    "control_leader_elect",
    "cluster_kubeconfig",
    "cluster_monitor",
    "log_level",
)


@click.command(cls=sections.SectionedCommand, common=_COMMON)
@options.settings_options("control", "cluster", "log", "debug")
def controller(config: settings.Settings) -> None:
    """Keep Fairlead's objects in a cluster up to date."""
    from fairlead.control.node.gpudevice import GPUDevices
    from fairlead.control.node.gpulease import GPULeases
    from fairlead.control.tenancy import cluster as isolation
    from fairlead.control.tenancy.tenancy import Tenancies
    from fairlead.store.kubernetes import rights

    def make(store: Store, _meter: telemetry.Meter) -> tuple[Controller, ...]:
        nodes = GPUDevices(store), GPULeases(store, keep_s=config.lease.keep_days * 86400)
        if not config.control.tenancies:
            return nodes
        given = isolation.networks_of(config.control.tenancy_networks)
        networks = isolation.ClusterNetworks(store, enforcer=config.control.tenancy_enforcer, networks=given)
        possessions = isolation.ClusterPossessions(store)
        return (*nodes, Tenancies(store, networks, possessions, control=config.control, follows_pods=False))

    needed = (*rights.CONTROLLER, *(rights.TENANCIES if config.control.tenancies else ()))
    asyncio.run(cluster.lead(config, "fairlead-controller", make, needed))
