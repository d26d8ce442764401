"""Shows the agent that serves claims that another one waits to take over, as in a rolling update.

An agent whose ledger another one has listens at a socket of its own in the driver's folder until it has it. The one
that serves looks there as it ends, and goes on answering until the next one is registered: a kubelet whose call fails
asks again for the pod after 60 to 90 s only (kuberuntime_manager.go: SyncPod returns without a result).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.node.deviceplugin import plugin

NAMES: Final = "standby-*.sock"
"""The sockets' names, as a pattern."""
_ROOTS: Final = 0o600
_LOOKS: Final = 128
"""How often it can be looked whether an agent waits: nothing is said on a connection, and nobody accepts it."""


@contextlib.contextmanager
def stand_by(folder: Path) -> Iterator[None]:
    """Say that an agent waits to serve, in the driver's folder, where there is one; nothing else depends on it."""
    path = folder / NAMES.replace("*", os.urandom(4).hex())
    with socket.socket(socket.AF_UNIX) as listening:
        if folder.is_dir():
            try:
                plugin.assert_path_fits(path)
                listening.bind(str(path))
                path.chmod(_ROOTS)
                listening.listen(_LOOKS)
            except (OSError, errors.Unavailable) as error:  # of a longer name than the driver's own socket
                telemetry.log.warning("not seen to wait for claims", path=str(path), error=str(error))
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


async def is_awaited(folder: Path) -> bool:
    """Return whether an agent waits to serve; a socket that one left behind says nothing."""
    return any([await plugin.answers(path) for path in sorted(folder.glob(NAMES)) if path.is_socket()])  # noqa: ASYNC240
