"""Opens the client a verb works with: of a service, or of a cluster through an application in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fairlead.cli.core import invocation

if TYPE_CHECKING:
    from fairlead.cli.core.client import Client
    from fairlead.cli.core.target import Target

_NOT_NAMED: Final = "this changes something, and no service runs here: the cluster of KUBECONFIG was not named"


@contextlib.contextmanager
def opened(call: invocation.Invocation) -> Iterator[Client]:
    """Give a client of the service that is meant, or of a cluster.

    A service is connected to with the first request.
    Raises: as `Invocation.target`; Unavailable, ProtocolError, Invalid: what names the cluster is unfit.
    """
    meant = call.target()
    if not meant.is_cluster:
        from fairlead.cli.core import client

        with client.at(meant.url, meant.login) as one:
            _show(call, meant, one)
            yield one
        return
    # Only a cluster costs its client and an application in this process.
    from fairlead.cli.core import cluster, inprocess

    config = call.cluster_settings(meant)
    refusal = _NOT_NAMED if meant.is_implied else ""
    with inprocess.opened(config, cluster.access(config), refusal=refusal) as one:
        _show(call, meant, one)
        yield one


def _show(call: invocation.Invocation, meant: Target, client: Client) -> None:
    """Have requests printed where that was asked for."""
    if call.show_request:
        from fairlead.cli.core import showing

        client.observe = showing.printer(meant)
