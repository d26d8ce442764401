"""Serves the GPUs' metrics beside whatever else a process does.

An address that another program has is no reason to stop: GPUs are handed out all the same. It is said once, and tried
again, so that the metrics appear when the other program ends.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead import errors, telemetry
from fairlead.serve import plainserver, probes, sockets

PORT: Final = 9400
"""Source: NVIDIA dcgm-exporter, its default port."""
NONE: Final = "none"
_AGAIN_S: Final = 30.0
_STEP: Final = "`--node-metrics ADDRESS:PORT` serves them elsewhere, `none` nowhere; it is tried again"


def address(configured: str, *, is_local: bool) -> str:
    """Return where to serve; empty: nowhere. Args: is_local: for this machine alone, unless configured otherwise."""
    if configured == NONE:
        return ""
    return configured or f"{'127.0.0.1' if is_local else ''}:{PORT}"


async def serve(where: str, app: probes.App, *, again_s: float = _AGAIN_S) -> None:
    """Serve `app` until cancelled.

    Args:    where: `address`'s.   again_s: between tries to listen.
    Raises:  Invalid: the address is none.
    """
    told = ""
    while True:
        try:
            listener = sockets.listen_at(where)
        except errors.Unavailable as error:
            if error.message != told:
                telemetry.log.warning(
                    "gpu metrics not served yet", reason=error.reason, error=f"{error.message}; {_STEP}"
                )
            told = error.message
            await asyncio.sleep(again_s)
        else:
            await plainserver.serve_at(app, listener)
