"""Runs the programs that print credentials.

A plugin gets the process's environment with what the kubeconfig adds, no terminal, and a minute. What it writes to
standard error is for people, so its last line goes into the message; standard output holds secrets and goes nowhere.
Source: Kubernetes documentation, "client-go credential plugins".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fairlead import command, errors
from fairlead.wire.kubernetes import kubeconfig, meta

_PATIENCE_S: Final = 60.0
_LARGEST: Final = 1 << 20
"""Bytes that a plugin may write: a token or two certificates."""


async def run(plugin: kubeconfig.Exec, cluster: kubeconfig.Cluster, *, env: Mapping[str, str]) -> kubeconfig.ExecStatus:
    """Return what the plugin gives. Raises: Unavailable: it fails; ProtocolError: it prints nonsense."""
    given = {item.name: item.value for item in plugin.env or ()}
    surroundings = {**env, **given, "KUBERNETES_EXEC_INFO": kubeconfig.exec_info(plugin, cluster)}
    argv = [plugin.command, *(plugin.args or ())]
    try:
        done = await command.run(argv, env=surroundings, timeout_s=_PATIENCE_S, largest=_LARGEST, folder=Path())
    except errors.Unavailable as error:
        hint = plugin.install_hint or "install it, or correct the kubeconfig"
        message = f"exec plugin {plugin.command} gave no credentials: {error.message}"
        raise errors.Unavailable(message, reason="ExecPluginFailed", hint=hint) from error
    if done.code:
        message = f"exec plugin {plugin.command} ended with {done.code}: {done.last_line or 'no message'}"
        raise errors.Unavailable(message, reason="ExecPluginFailed")
    return kubeconfig.parse_exec(done.stdout, plugin)


def seconds_left(given: kubeconfig.ExecStatus, plugin: kubeconfig.Exec) -> float | None:
    """Return for how long credentials hold, None where they do not end. Raises: ProtocolError: until no known time."""
    try:
        until = meta.timestamp(given.expiration_timestamp)
    except (ValueError, OverflowError) as error:
        message = f'exec plugin {plugin.command} gave the expirationTimestamp "{given.expiration_timestamp}": {error}'
        raise errors.ProtocolError(message, reason="ExecCredentialInvalid", hint="it must be RFC 3339") from error
    return None if until is None else until - time.time()
