"""`fairlead scheduler`: binds a cluster's pods; one replica works, the others wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from fairlead import errors, settings, telemetry
from fairlead.cli.core import cluster, options

if TYPE_CHECKING:
    from fairlead.control.manager import Controller
    from fairlead.plan.schedule.rankings import Rankings
    from fairlead.store.kubernetes.store import KubernetesStore


@click.command()
@options.settings_options("control", "cluster", "log", "debug")
def scheduler(config: settings.Settings) -> None:
    """Bind a cluster's pods that name this scheduler (spec.schedulerName: fairlead)."""
    from fairlead.control.scheduler.controller import Scheduler
    from fairlead.store.kubernetes import rights

    if config.control.extender:
        asyncio.run(_extend(config))
        return

    def make(store: KubernetesStore, meter: telemetry.Meter) -> tuple[Controller, ...]:
        rankings = rankings_of(config.control.policy)
        return (Scheduler(store, store.pods, config.control, rankings=rankings, meter=meter),)

    rankings_of(config.control.policy)  # a policy that cannot be is said before the lease is waited for
    asyncio.run(cluster.lead(config, "fairlead-scheduler", make, rights.SCHEDULER))


async def _extend(config: settings.Settings) -> None:
    """Answer a kube-scheduler on this machine; several may be asked at once, so no lease is held.

    Raises: Invalid: the address is not this machine's alone: a caller can have pods bound.
    """
    import dataclasses
    import ipaddress

    from fairlead.control.scheduler.extender import Extender
    from fairlead.serve import calls, server
    from fairlead.store.kubernetes import rights

    address = config.control.extender
    try:
        is_local = ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        hint = "run it beside each kube-scheduler, at 127.0.0.1:PORT"
        message = f'control.extender "{address}" is not a loopback address: a caller can have pods bound'
        raise errors.Invalid(message, reason="AddressInvalid", hint=hint)
    listener, judges = server.listen_at(address), rankings_of(config.control.policy)
    answering: dict[str, calls.Call] = {}

    def make(store: KubernetesStore, _meter: telemetry.Meter) -> tuple[Controller, ...]:
        one = Extender(store.pods, judges)
        answering.update(one.calls)
        return (one,)

    alone = dataclasses.replace(config, control=dataclasses.replace(config.control, leader_elect=False))
    async with asyncio.TaskGroup() as tasks:
        app = calls.create_app(answering, lambda: "")
        serving = tasks.create_task(server.serve_at(app, listener), name="extender")
        await cluster.lead(alone, "fairlead-extender", make, rights.SCHEDULER)
        serving.cancel()


def rankings_of(policy: str) -> Rankings:
    """Return what judges nodes: by arrays where numpy is there, else node by node.

    Raises: Unavailable: the policy is known to the arrays only, and numpy is not installed.
    """
    from fairlead.plan.schedule import reference
    from fairlead.plan.schedule.rankings import PlainRankings

    try:
        from fairlead.plan.schedule.engine.rankings import EngineRankings
    except ModuleNotFoundError as error:
        if policy in reference.POLICIES:
            telemetry.log.info("nodes are judged one by one", reason="NoNumpy")
            return PlainRankings(policy)
        message = f"policy {policy!r} needs numpy, which is not installed"
        hint = f"pip install 'fairlead[engine]', or choose {' or '.join(reference.POLICIES)}"
        raise errors.Unavailable(message, reason="NoNumpy", hint=hint) from error
    return EngineRankings(policy)
