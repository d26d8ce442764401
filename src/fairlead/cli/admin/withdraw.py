"""`fairlead withdraw`: removes the agents' publications when Fairlead leaves the cluster."""

from __future__ import annotations

import asyncio

import click

from fairlead import settings, telemetry
from fairlead.cli.core import cluster, options, plaintext


@click.command()
@click.option(
    "--after-pods",
    "label",
    metavar="KEY=VALUE",
    help="first wait until no pod of the namespace (cluster.namespace) has this label: agents that live publish again",
)
@click.option("--within", "within_s", type=float, default=60.0, show_default=True, help="seconds to wait for that")
@options.settings_options("cluster", "log")
def withdraw(config: settings.Settings, *, label: str | None, within_s: float) -> None:
    """Remove what agents published in a cluster.

    That is GPUDevice, GPULease, FirmwareBaseline, NodeFeature and DeviceTaintRule objects, and the labels, condition
    and taint of Nodes. Who had which GPU stays in each node's ledger, and is published again by an agent that is
    installed again.
    """
    from fairlead.control.node import withdraw as withdrawal
    from fairlead.store.port import Selector

    async def work() -> withdrawal.Withdrawn:
        async with cluster.opened(config) as store:
            if label is not None:
                key, _, value = label.partition("=")
                agents = Selector(namespace=config.cluster.namespace, labels={key: value})
                await withdrawal.until_ended(store, agents, within_s=within_s)
                await withdrawal.remove_tests(store, config.cluster.namespace)
            return await withdrawal.withdraw(store)

    telemetry.configure(config.log.level, config.log.format)
    done = asyncio.run(work())
    removed = f"removed {len(done.devices)} GPUDevice and {done.leases} GPULease objects"
    plaintext.echo(f"{removed}; gave up labels of {len(done.nodes)} nodes")
