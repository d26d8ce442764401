"""`fairlead api`: serves a cluster's API and console on TLS, to accounts with keys.

The same application as on one machine, over an API server's objects. Who comes by TLS is the account of a key, held to
its tenancies before anything is asked of the cluster; this process's own account, whose rights the chart gives, is what
the API server sees. The unix socket is for the administrator who can enter the pod: there the first accounts are made.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Final

import click

from fairlead import settings, telemetry
from fairlead.cli.core import cluster, options, sections, stopping

if TYPE_CHECKING:
    from fairlead.cli.process.listen.tlslistener import TLSListener
    from fairlead.store.kubernetes.store import KubernetesStore

_LISTEN: Final = ":8443"


_COMMON: Final = (
    "api_listen",
    "api_names",
    "api_certificate",
    "api_key",
    "database_url",
    "oidc_issuer",
    "oidc_client_id",
    "oidc_client_secret",
    "metering_prices",
    "cluster_kubeconfig",
    "log_level",
)


@click.command(cls=sections.SectionedCommand, common=_COMMON)
@options.settings_options(
    "api", "console", "database", "oidc", "webhooks", "mail", "notify", "metering", "state", "cluster", "log", "debug"
)
def api(config: settings.Settings) -> None:
    """Serve a cluster's API and console on TLS, to accounts with keys."""
    telemetry.configure(config.log.level, config.log.format)
    telemetry.arm_crash_point(config.debug.crash_at)
    asyncio.run(_run(settings.override(config, {"api.listen": config.api.listen or _LISTEN})))


async def _run(config: settings.Settings) -> None:
    from fairlead.cli.process.listen import tlslistener
    from fairlead.store.kubernetes import reach, rights, server

    stop, chosen = stopping.stop_event(), cluster.access(config)
    config.state.run.mkdir(parents=True, exist_ok=True, mode=0o755)
    rate = config.control.request_rate
    async with (
        cluster.monitored(config) as monitor,
        cluster.opened(config, meter=monitor.meter, requests_per_s=rate) as store,
        tlslistener.opened(config) as public,
    ):
        asked = server.Server(store.client, address=chosen.cluster.server)
        granted, reached, ready = rights.Watched(asked, rights.API), reach.Reach(asked), asyncio.Event()

        def problem() -> str:
            return (reached.problem() or granted.problem()) if ready.is_set() else "the API does not listen yet"

        monitor.check = problem
        async with asyncio.TaskGroup() as tasks:
            serving = _serve(config, store, public, chosen.cluster.server, ready, monitor.meter)
            started = (
                tasks.create_task(serving, name="api"),
                tasks.create_task(granted.run(), name="rights"),
                tasks.create_task(reached.run(), name="reach"),
            )
            await stop.wait()
            for task in started:
                task.cancel()


async def _serve(
    config: settings.Settings,
    store: KubernetesStore,
    public: TLSListener,
    address: str,
    ready: asyncio.Event,
    meter: telemetry.Meter,
) -> None:
    """Serve the API on its socket and on TLS until cancelled."""
    from fairlead.cli.core import inprocess
    from fairlead.serve import server
    from fairlead.serve.console import app as console
    from fairlead.serve.v1 import app, dependencies

    plain = inprocess.services_of(config, store, address)
    info = dataclasses.replace(
        plain.info,
        scheduler_name=config.control.scheduler_name,
        socket=config.api_socket,
        state_folder=config.state.folder,
        door=public.describe,
        ssh_door=public.describe_ssh,
    )
    services = dataclasses.replace(
        plain, callers=dependencies.Callers(), info=info, accounts=public.accounts, grants=public.grants
    )
    made = app.create_app(services)
    inner = console.create_app(made, has_login=False) if config.console.enabled else made
    async with asyncio.TaskGroup() as doors:
        doors.create_task(server.serve_unix(inner, config.api_socket, ready=ready, meter=meter), name="socket")
        doors.create_task(public.serve(made, store, services.backend, meter=meter), name="TLS")
        await ready.wait()
        telemetry.log.info("serving the API", path=public.address)
