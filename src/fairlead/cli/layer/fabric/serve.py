"""`fairlead fabric serve`: the agent beside a Fabric Manager, in the Service VM that has the NVSwitches."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

import click

from fairlead import telemetry
from fairlead.cli.core import options, plaintext, stopping
from fairlead.cli.layer.fabric import reach
from fairlead.kernel import socketpeer
from fairlead.settings import Settings
from fairlead.silicon.fabric import address, agentclient, agentserver

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
@reach.named_options
@options.settings_options("fabric", "state", "log", hidden=True)
def serve(config: Settings, /, *, listen: str | None) -> None:
    """Serve the Manager's calls to this Service VM's host, to callers that have the secret, until SIGTERM.

    Listens on a unix socket or on vsock, and never on TCP. The file fabric.secret must be the same on both sides.
    """
    telemetry.configure(config.log.level, config.log.format)
    where = address.parse(listen or str(config.state.run / "fabric.sock"))
    reached = reach.reach_library(config)
    secret = agentclient.read_secret(config.fabric_secret)
    server = agentserver.AgentServer(reached.connection, secret, timeout_s=reached.timeout_s, is_allowed=_is_allowed)
    server.listen(where)
    try:
        plaintext.echo(f"serving the Fabric Manager at {reached.name} on {where}")
        asyncio.run(_stopped())
    finally:
        server.close()


async def _stopped() -> None:
    await stopping.stop_event().wait()


def _is_allowed(connected: socket.socket) -> bool:
    """Say whether a caller may knock: root or this user on a unix socket, this machine or its host by vsock."""
    peer = socketpeer.read(connected)
    if peer is not None:
        return peer.uid in {0, os.geteuid()}
    return int(connected.getpeername()[0]) in _HOSTS
