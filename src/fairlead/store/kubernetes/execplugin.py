"""Running the programs that print credentials.

A plugin gets the process's environment with what the kubeconfig adds, no terminal, and a minute. What it writes to
standard error is for people, so its last line goes into the message; standard output holds secrets and goes nowhere.
Source: Kubernetes documentation, "client-go credential plugins".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Final

from fairlead import errors
from fairlead.wire.kubernetes import kubeconfig, meta

_PATIENCE_S: Final = 60.0


async def run(plugin: kubeconfig.Exec, cluster: kubeconfig.Cluster, *, env: Mapping[str, str]) -> kubeconfig.ExecStatus:
    """Return what the plugin gives. Raises: Unavailable: it fails; ProtocolError: it prints nonsense."""
    given = {item.name: item.value for item in plugin.env or ()}
    surroundings = {**env, **given, "KUBERNETES_EXEC_INFO": kubeconfig.exec_info(plugin, cluster)}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *(plugin.args or ()),
            env=surroundings,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = plugin.install_hint or "install it, or correct the kubeconfig"
        message = f"exec plugin {plugin.command} cannot be run: {error.strerror}"
        raise errors.Unavailable(message, reason="ExecPluginFailed", hint=hint) from error
    output, complaint = await _finish(process, plugin)
    if process.returncode:
        lines = [line.strip() for line in complaint.decode(errors="replace").splitlines() if line.strip()]
        message = (
            f"exec plugin {plugin.command} ended with {process.returncode}: {lines[-1] if lines else 'no message'}"
        )
        raise errors.Unavailable(message, reason="ExecPluginFailed")
    return kubeconfig.parse_exec(output, plugin)


async def _finish(process: asyncio.subprocess.Process, plugin: kubeconfig.Exec) -> tuple[bytes, bytes]:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await process.communicate()
    except TimeoutError as error:
        message = f"exec plugin {plugin.command} did not answer in {_PATIENCE_S:g} s"
        raise errors.Unavailable(message, reason="ExecPluginFailed") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def seconds_left(given: kubeconfig.ExecStatus) -> float | None:
    """Return for how long the credentials hold, None where they do not end by themselves."""
    until = meta.timestamp(given.expiration_timestamp)
    return None if until is None else until - time.time()
