"""Carries who connected from the server to the handlers, as the kernel noted it when the connection was made.

The server puts the answer into the ASGI scope's `state`, which no byte of a request can reach.
Source: ASGI specification, "Lifespan State".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from fairlead.kernel.socketpeer import Peer

KEY: Final = "peer"
"""Of the scope's state."""
HANG_UP: Final = "hang_up"
"""Of the scope's state: cuts the connection of a client that reads nothing."""
TAKES_LONG: Final = "takes_long"
"""Of the scope's state: lifts the time limit of this request's body, for who bounds it by another."""

GONE: Final = "gone"
"""Of a WebSocket's state: set once the connection is over."""


def of_state(state: Mapping[str, Any]) -> Peer | None:
    """Return whom the server noted; None where it noted no caller."""
    found = state.get(KEY)
    return found if isinstance(found, Peer) else None


def gone_of_state(state: Mapping[str, Any]) -> asyncio.Event | None:
    """Return what is set once a WebSocket is over; None where the server does not say it."""
    found = state.get(GONE)
    return found if isinstance(found, asyncio.Event) else None
