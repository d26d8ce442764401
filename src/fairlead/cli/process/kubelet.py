"""`fairlead kubelet`: runs the embedded kubelet's process; `fairlead up` starts it, help hides it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal

import click

from fairlead import errors, settings, telemetry
from fairlead.cli.core import options, plaintext, stopping
from fairlead.engine import machine as engines
from fairlead.node import agent
from fairlead.node.kubelet.kubelet import Kubelet
from fairlead.store.sqlite import store as sqlite

_PR_SET_PDEATHSIG = 1


@click.command(hidden=True)
@click.option("--parent", type=int, help="process whose death ends this one")
@options.settings_options()
def kubelet(config: settings.Settings, parent: int | None) -> None:
    """Play the kubelet's part on one machine."""
    if parent is not None:
        _die_with(parent)
    telemetry.configure(config.log.level, config.log.format)
    telemetry.arm_crash_point(config.debug.crash_at)
    asyncio.run(_run(config))


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent. Source: prctl(2), PR_SET_PDEATHSIG."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        message = f"process {parent} that started this kubelet is gone"
        raise errors.Conflict(message, reason="ParentGone")


async def _run(config: settings.Settings) -> None:
    stop = stopping.stop_event()
    with sqlite.SQLiteStore(config.state.folder / "state.db") as store:
        async with engines.open_engine(config.engine).served() as engine, asyncio.TaskGroup() as tasks:
            node = Kubelet(store=store, engine=engine, images=engine, settings=config, node=agent.node_name(config))
            task = tasks.create_task(node.run(lambda: plaintext.echo("ready")), name="kubelet")
            await stop.wait()
            task.cancel()
