"""Opens what a verb over a Kubernetes cluster needs: the store, a name in elections, and the monitor.

`access` says which cluster and as whom (`store.kubernetes.credentials`), `opened` gives the store over it, `monitored`
the figures and probes where an address for them is set. `lead` runs controllers for as long as this process holds the
lease of its kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairlead import errors, settings, telemetry
from fairlead.cli.core import invocation, stopping

if TYPE_CHECKING:
    from fairlead.control.manager import Controller
    from fairlead.store.kubernetes.credentials import Access
    from fairlead.store.kubernetes.rights import Right
    from fairlead.store.kubernetes.store import KubernetesStore

_NO_MARKS: Final[Mapping[str, str]] = {}
MISSING: Final = "KubeconfigMissing"
PATIENCE_S: Final = 3.0
"""How long verbs wait for an API server that is away: short, because a person waits."""


def access(config: settings.Settings) -> Access:
    """Return which cluster is meant and who we are to it; reads files, connects to nothing.

    Raises: Unavailable (`MISSING`): nothing names a cluster; Unavailable, ProtocolError, Invalid: what does is unfit.
    """
    from fairlead.store.kubernetes import credentials

    context = click.get_current_context(silent=True)
    call = invocation.current(context) if context is not None else invocation.Invocation(env={})
    home = Path(call.env.get("HOME") or "/")
    # What stands before the verb (`fairlead --kubeconfig FILE scheduler`) counts for processes, too.
    file, name = call.kubeconfig or config.cluster.kubeconfig, call.context or config.cluster.context
    try:
        return credentials.find(call.env, home=home, file=file, context=name or None)
    except errors.Unavailable as error:
        if error.reason != MISSING:
            raise
        hint = "set --cluster-kubeconfig or KUBECONFIG, or run it in a pod with a service account"
        raise errors.Unavailable(error.message, reason=MISSING, hint=hint) from error


@contextlib.asynccontextmanager
async def opened(
    config: settings.Settings, *, meter: telemetry.Meter = telemetry.UNMETERED, requests_per_s: int | None = None
) -> AsyncIterator[KubernetesStore]:
    """Give the store over the chosen cluster; an API server that is away is not an error yet.

    Args:   requests_per_s: how often it is asked at most, twice as many at once; None: as a node or a person asks.
    Raises: as `access`; Invalid: a rate below 1.
    """
    from fairlead.store.kubernetes import client, store

    limits = client.LIMITS
    if requests_per_s is not None:
        if requests_per_s < 1:
            message = f"control.request_rate is {requests_per_s}: nothing could ever be asked"
            raise errors.Invalid(message, reason="SettingInvalid", hint="give 1 or more; the default is 2000")
        limits = client.Limits(requests_per_s=requests_per_s, burst=2 * requests_per_s)
    async with store.KubernetesStore(access(config), limits=limits, meter=meter) as one:
        yield one


def identity(config: settings.Settings) -> str:
    """Return this process's name in elections, unique among processes and across restarts."""
    return config.cluster.identity or f"{socket.gethostname()}_{os.urandom(4).hex()}"


@dataclass(slots=True)
class Monitor:
    """Where figures go, and what `/readyz` says."""

    meter: telemetry.Meter = telemetry.UNMETERED
    stalled: Callable[[], str] = lambda: ""
    """Returns which loop hangs, where loops are counted."""
    check: Callable[[], str] = field(default=lambda: "starting")
    """Returns what keeps this process from its work, "" where nothing does; the verb sets it."""

    def problem(self) -> str:
        """Return what keeps this process from its work now."""
        return self.check()


@contextlib.asynccontextmanager
async def monitored(config: settings.Settings) -> AsyncIterator[Monitor]:
    """Serve probes and figures while the context is open, where `cluster.monitor` says at which address.

    Raises: Invalid, Unavailable: the address cannot be used.
    """
    if not config.cluster.monitor:
        yield Monitor()
        return
    from fairlead.serve import monitor, plainserver, probes, sockets

    meter = monitor.PrometheusMeter()
    one = Monitor(meter, stalled=meter.stalled)
    listener = sockets.listen_at(config.cluster.monitor)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(
            plainserver.serve_at(probes.create_app(meter.stalled, one.problem, meter.page), listener)
        )
        try:
            yield one
        finally:
            task.cancel()


async def lead(
    config: settings.Settings,
    lease_name: str,
    make: Callable[[KubernetesStore, telemetry.Meter], tuple[Controller, ...]],
    needed: tuple[Right, ...],
    marks: Mapping[str, str] = _NO_MARKS,
) -> None:
    """Run controllers over the cluster until asked to stop, one process at a time.

    The lease is renewed in a thread of its own. Ready means that the lease was read and every right is there.

    Args:    lease_name: of the Lease in `cluster.namespace`; without `control.leader_elect` no process takes it.
             make: gets the store that is fenced by the lease.   needed: rights that the work takes.
             marks: annotations that the leader writes on the lease.
    Raises:  Conflict (`LeaseLost`), in a group: another process may work now, so this one must end.
    """
    from fairlead.control import manager
    from fairlead.store import lease
    from fairlead.store.kubernetes import rights, server
    from fairlead.store.kubernetes.store import KubernetesStore

    telemetry.configure(config.log.level, config.log.format)
    telemetry.arm_crash_point(config.debug.crash_at)
    stop = stopping.stop_event()
    rate = config.control.request_rate
    async with monitored(config) as monitor, opened(config, meter=monitor.meter, requests_per_s=rate) as store:
        meter, chosen = monitor.meter, access(config)
        granted = rights.Watched(server.Server(store.client, address=chosen.cluster.server), needed)

        async def work(writing: KubernetesStore) -> None:
            await manager.run_controllers(writing, make(writing, meter), meter=meter)

        if config.control.leader_elect:
            who, where = identity(config), config.cluster.namespace
            election = lease.Election(
                store,
                name=lease_name,
                namespace=where,
                identity=who,
                meter=meter,
                beside=lambda: KubernetesStore(chosen),
                marks=marks,
            )
            unread = f"lease {where}/{lease_name} was not read yet"
            monitor.check = lambda: granted.problem() if election.was_answered else unread
            working = election.run(lambda leading: work(store.fenced(leading.fence)))
        else:
            monitor.check = granted.problem
            working = work(store)
        async with asyncio.TaskGroup() as tasks:
            started = (tasks.create_task(working, name=lease_name), tasks.create_task(granted.run(), name="rights"))
            await stop.wait()
            for task in started:
                task.cancel()
