"""Carries who connected from the server to the handlers, as the kernel noted it when the connection was made.

The server puts the answer into the ASGI scope's `state`, which no byte of a request can reach.
Source: ASGI specification, "Lifespan State".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead.kernel.socketpeer import Peer

KEY: Final = "peer"
"""Of the scope's state."""
HANG_UP: Final = "hang_up"
"""Of the scope's state: cuts the connection, for who sends to a client that takes nothing in."""


def of_state(state: Mapping[str, Any]) -> Peer | None:
    """Return whom the server noted; None where it noted no caller."""
    found = state.get(KEY)
    return found if isinstance(found, Peer) else None
