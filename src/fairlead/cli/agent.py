"""`fairlead agent`: one GPU node's agent alone, beside any kubelet."""

from __future__ import annotations

import asyncio

import click

from fairlead import settings, telemetry
from fairlead.cli import options, stopping
from fairlead.node import agent as node_agent
from fairlead.silicon import machine


@click.command()
@options.settings_options("state", "silicon", "node", "log", "debug")
def agent(config: settings.Settings) -> None:
    """Serve this node's GPUs to a kubelet: device plugin, CDI specs, health."""
    telemetry.configure(config.log.level, config.log.format)
    telemetry.arm_crash_point(config.debug.crash_at)
    asyncio.run(_run(config))


async def _run(config: settings.Settings) -> None:
    stop = stopping.stop_event()
    folder = config.state.folder / "silicon"
    folder.mkdir(parents=True, exist_ok=True)
    silicon = machine.open_silicon(config.silicon, folder)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(node_agent.run_agent(config, silicon, None, ready=None), name="agent")
            await stop.wait()
            task.cancel()
    finally:
        await silicon.close()
