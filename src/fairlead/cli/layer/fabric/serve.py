"""`fairlead fabric serve`: the agent beside a Fabric Manager, in the Service VM that has the NVSwitches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Final

import click

from fairlead import telemetry
from fairlead.cli.core import options, plaintext, stopping
from fairlead.cli.layer.fabric import reach
from fairlead.kernel import socketpeer
from fairlead.model.gpu import Vendor
from fairlead.settings import Settings
from fairlead.silicon import running
from fairlead.silicon.fabric import address, agentclient, agentserver, machineport, version

_HOSTS: Final = frozenset({1, 2})
"""Context ids of vsock whose caller is the machine itself, or the host of this virtual machine."""


@click.command("serve")
@click.option(
    "--listen",
    "listen",
    metavar="PATH|CID:PORT",
    help="a unix socket, or vsock; as CID 4294967295 takes callers of any id of this machine  "
    "[default: fabric.sock in the run folder]",
)
@click.option(
    "--machine-port",
    metavar="PATH",
    help="the virtio port on which `fairlead fabric machine` on the host says secret and vsock port, in place of "
    "--listen and fabric.secret; signs of life are written there",
)
@reach.named_options
@options.settings_options("fabric", "state", "log", hidden=True)
def serve(config: Settings, /, *, listen: str | None, machine_port: str | None) -> None:
    """Serve the Manager's calls to this Service VM's host, to callers that have the secret, until SIGTERM.

    Listens on a unix socket or on vsock, and never on TCP. The file fabric.secret must be the same on both sides.
    """
    telemetry.configure(config.log.level, config.log.format)
    if machine_port is not None and listen is not None:
        raise click.UsageError("--machine-port says where to listen: leave --listen out")
    reached = reach.reach_library(config)
    port = machineport.MachinePort(machine_port) if machine_port is not None else None
    if port is not None:
        where, secret = port.wait_hello()
    else:
        where = address.parse_agent(listen or str(config.state.run / "fabric.sock"))
        secret = agentclient.read_secret(config.fabric_secret)
    said = version.checked("fabric.version", config.fabric.version)
    server = agentserver.AgentServer(
        reached.connection,
        secret,
        timeout_s=reached.timeout_s,
        is_allowed=_is_allowed,
        whereabouts=agentserver.Whereabouts(machine=_boot_id, version=lambda: said or _driver()),
    )
    server.listen(where)
    try:
        plaintext.echo(f"serving the Fabric Manager at {reached.name} on {where}")
        asyncio.run(_stopped(port))
    finally:
        server.close()


def _boot_id() -> str:
    return running.read_running(Path("/")).boot_id


def _driver() -> str:
    """Return the version of the driver that is loaded here, which a Manager must equal; empty: none is loaded."""
    return version.known(running.read_running(Path("/")).versions.get(Vendor.NVIDIA.value, ""))


async def _stopped(port: machineport.MachinePort | None) -> None:
    stop = stopping.stop_event()
    if port is None:
        await stop.wait()
        return
    while not stop.is_set():
        await asyncio.to_thread(port.beat)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(machineport.BEAT_S):
                await stop.wait()


def _is_allowed(connected: socket.socket) -> bool:
    """Say whether a caller may knock: root or this user on a unix socket, this machine or its host by vsock."""
    peer = socketpeer.read(connected)
    if peer is not None:
        return peer.uid in {0, os.geteuid()}
    return int(connected.getpeername()[0]) in _HOSTS
