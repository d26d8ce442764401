"""Waits for a container that is being started, before the verbs that need it running.

`run -d` returns once the container is stored, and a script's next line is `exec` or `cp`. What is being started is
waited for; what waits for a GPU, cannot be started or has ended is left to the service, which refuses the verb with
the reason.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from fairlead import errors
from fairlead.cli.core import progress
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers.view import ContainerView

PATIENCE_S: Final = 300.0
"""How long a start is waited for; an image may have to be pulled."""
_ON_THE_WAY: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""What a kubelet says of a container that it is about to start."""


def await_running(client: Client, name: str, namespace: str, container: str = "") -> None:
    """Return at once unless the container is being started, else once it runs or will not.

    Args:    container: which one of the group; empty: the first.
    Raises:  NotFound; Conflict (`ContainerNotRunning`): it was not started within `PATIENCE_S`.
    """
    shown = client.container(name, namespace)
    if not is_starting(shown, container):
        return
    started = time.monotonic()
    with progress.Progress() as waiting:
        while is_starting(shown, container):
            if time.monotonic() - started > PATIENCE_S:
                message = f'container "{name}" is still being started after {PATIENCE_S:.0f} s'
                raise errors.Conflict(message, reason="ContainerNotRunning", hint=f"`fairlead explain {name}`")
            waiting.show(f"{name} is being started")
            if shown.state == "running":
                time.sleep(0.1)  # the group runs, this one of it does not yet
            shown = client.wait(name, namespace, state="started", timeout_s=0.2 if sys.stderr.isatty() else 1.0)


def is_starting(shown: ContainerView, container: str = "") -> bool:
    """Return whether a container will run in a moment, as far as the node and the scheduler have said."""
    match shown.state:
        case "pending":
            return not shown.reason  # no scheduler has said yet that it has to wait
        case "creating":
            return shown.reason in _ON_THE_WAY
        case "running":
            return any(
                part.name == container and part.state == "waiting" and part.reason in _ON_THE_WAY
                for part in shown.containers
            )
    return False
