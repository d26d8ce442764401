"""`fairlead up`: runs Fairlead on this machine in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import Final

import click

from fairlead import __version__, errors, settings, telemetry
from fairlead.cli.core import invocation, options, plaintext, sections, stopping
from fairlead.cli.process import owner, pluginflags, standalone
from fairlead.model.gpu import Inventory
from fairlead.node.isolation import ownfolder

_COMMON: Final = (
    "profile",
    "listen",
    "state_folder",
    "api_group",
    "api_user_gpus",
    "api_mounts",
    "node_mig_strategy",
    "node_metrics",
    "lease_reuse",
    "metering_prices",
    "control_policy",
    "log_level",
)


@click.command(cls=sections.SectionedCommand, common=_COMMON)
@click.option(
    "--simulate",
    "profile",
    metavar="PROFILE",
    shell_complete=options.complete_profiles,
    help="use simulated silicon: h100x8, a100x8, h200x8, b200x8, l40sx8, t4x4, mixed, or a profile file",
)
@click.option(
    "--listen", "listen", metavar="HOST:PORT", help="serve the API on TLS as well, to accounts with keys, as :8443"
)
@pluginflags.settings_options()
@click.pass_context
def up(ctx: click.Context, /, config: settings.Settings, profile: str | None, listen: str | None) -> None:
    """Run Fairlead on this machine until Ctrl-C; running containers outlive it and are adopted at the next start."""
    started = time.monotonic()
    if profile:
        config = settings.override(config, {"silicon.simulate": profile})
    if listen is not None:
        config = settings.override(config, {"api.listen": listen})
    config = pluginflags.with_file(config)
    if os.geteuid() != 0:
        message = "fairlead up needs root: it makes device nodes and starts containers with device rules"
        raise errors.Denied(message, reason="NotRoot", hint="run it with sudo")
    telemetry.configure(config.log.level, config.log.format)
    telemetry.arm_crash_point(config.debug.crash_at)
    ownfolder.set_umask()
    with owner.own_machine(config) as owned:
        asyncio.run(_run(config, owned, started, invocation.current(ctx).env.get("NOTIFY_SOCKET", "")))


async def _run(config: settings.Settings, owned: owner.Owned, started: float, notify: str) -> None:
    stop = stopping.stop_event()

    def ready(report: standalone.Report) -> None:
        plaintext.echo(banner(config, report, owned), err=True)
        tell_manager(notify, "READY=1")

    try:
        await standalone.run_service(config, owned=owned, started=started, stop=stop, ready=ready)
    except* standalone.Stopped:
        plaintext.echo("fairlead stopped; running containers go on and are adopted at the next start", err=True)


def tell_manager(address: str, state: str) -> None:
    """Notify the service manager of our state, if one started us.  Source: sd_notify(3)."""
    if not address:
        return
    target = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, contextlib.suppress(OSError):
        channel.sendto(state.encode(), target)


_NO_DRIVER: Final = "none has a driver; `fairlead gpus` lists those for virtual machines"


def banner(config: settings.Settings, report: standalone.Report, owned: owner.Owned) -> str:
    """Return what a person sees once everything is ready."""
    engine = report.engine
    tried = "fairlead run -g 2 IMAGE -- nvidia-smi" if report.inventory.gpus else "fairlead gpus"
    lines = [
        f"fairlead {__version__} is up on {report.node} ({report.started_s:.1f} s)",
        f"  GPUs     {gpus_line(report.inventory) or _NO_DRIVER}",
        f"  engine   {engine.name} {engine.version} with {engine.runtime}, CDI up to {engine.cdi_ceiling},"
        f" cgroup v{engine.cgroup_version}",
        f"  API      {config.api_socket}",
        *(f"  {label:<9}{text}" for label, text in zip(("on TLS", ""), report.door, strict=True) if text),
        *((f"  console  {report.door[0]}/console",) if report.door[0] and config.console.enabled else ()),
        f"  state    {config.state.folder}",
        *(f"  note     {note}" for note in (owned.note, *engine.notes) if note),
        f"  try      {tried:<45}(Ctrl-C here stops the service)",
    ]
    return "\n".join(lines)


def gpus_line(inventory: Inventory) -> str:
    """Return the GPUs found in one line, and plainly whether they are simulated."""
    counts: dict[str, int] = {}
    for gpu in inventory.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    parts = [f"{number} x {name}" for name, number in counts.items()]
    drivers = [f"{driver.vendor.value} driver {driver.version}" for driver in inventory.drivers]
    lost = [f"{len(inventory.unreadable)} unreadable"] if inventory.unreadable else []
    mark = " - SIMULATED: no work runs on them" if inventory.is_simulated else ""
    return ", ".join([*parts, *lost, *drivers]) + mark
