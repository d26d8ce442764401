"""`fairlead down`: stops what `fairlead up` runs, containers first."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import click

from fairlead import errors, settings
from fairlead.cli.core import client, options, plaintext
from fairlead.kernel import heldlock

_POLL_S = 0.05
_HOLD = "hold-workloads"
"""File of the run folder that keeps Deployments and Jobs from making pods anew (`cli.process.local.workloads`)."""


@click.command()
@click.option("--keep", is_flag=True, help="leave containers running; the next start adopts them")
@click.option(
    "--timeout",
    "timeout_s",
    type=options.Duration(is_whole=False),
    default=60.0,
    show_default=True,
    help="how long to wait for the end",
)
@click.option(
    "--grace",
    "grace_s",
    type=options.Duration(),
    default=10,
    show_default=True,
    help="between SIGTERM and SIGKILL of each container",
)
@options.settings_options("state", "api", "engine")
def down(config: settings.Settings, keep: bool, timeout_s: float, grace_s: int) -> None:
    """Stop and remove all containers, then the service.

    Deployments, StatefulSets and Jobs stay: the next start makes their containers anew.
    """
    deadline = time.monotonic() + timeout_s
    lock = config.state.folder / "lock"
    pid = running_pid(lock)
    if pid is None:
        plaintext.echo(f"no service runs with state folder {config.state.folder}")
        if left := _left_running(config):
            plaintext.echo(f"containers of it go on: {', '.join(left)}", err=True)
            plaintext.echo("  hint: `fairlead up` takes them over again; then `fairlead down` ends them", err=True)
        return
    if not keep:
        with contextlib.suppress(OSError):  # another account's folder: the service itself says what it may not
            (config.state.run / _HOLD).touch()
        _remove_containers(client.at(str(config.api_socket)), grace_s, deadline)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while running_pid(lock) is not None:
        if time.monotonic() > deadline:
            message = f"fairlead (pid {pid}) did not end within {timeout_s:.0f} s"
            raise errors.Unavailable(message, reason="StopTimeout", hint=f"look at its log, or end it: kill -9 {pid}")
        time.sleep(_POLL_S)
    plaintext.echo("fairlead is down")


def _left_running(config: settings.Settings) -> list[str]:
    """Return the containers that run without their service, by name; none where the engine cannot be asked."""
    import asyncio

    from fairlead.engine import machine
    from fairlead.engine.port import ContainerPhase
    from fairlead.wire.kubernetes import names

    with contextlib.suppress(OSError, UnicodeDecodeError, errors.FairleadError):
        identity = (config.state.folder / "kubelet" / "home-id").read_text().strip()
        found = asyncio.run(machine.open_engine(config.engine).list_containers({names.HOME: identity}))
        running = [one for one in found if one.phase is ContainerPhase.RUNNING]
        return sorted({one.labels.get(names.POD_NAME, one.name) for one in running})
    return []


def running_pid(lock: Path) -> int | None:
    """Return the pid of the service that holds the state folder, None where none does."""
    found = heldlock.holder(lock)
    return found.pid if found else None


def _remove_containers(api: client.Client, grace_s: int, deadline: float) -> None:
    waiting = {(item.name, item.namespace) for item in api.list_containers(show_ended=True)}
    for name, namespace in waiting:
        with contextlib.suppress(errors.NotFound):
            api.delete(name, namespace, grace_s=grace_s)
    while waiting:
        waiting &= {(item.name, item.namespace) for item in api.list_containers(show_ended=True)}
        if waiting and time.monotonic() > deadline:
            names = ", ".join(sorted(name for name, _ in waiting))
            message = f"containers still there: {names}"
            raise errors.Unavailable(message, reason="StopTimeout", hint="`fairlead ps` shows their state")
        time.sleep(_POLL_S if waiting else 0)
