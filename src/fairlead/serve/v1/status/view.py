"""Describes the service as a whole; without the web framework."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from fairlead.serve.backend.hardware import BackendStatus
from fairlead.serve.history.view import HistoryView
from fairlead.serve.v1.nodes.view import NodeView

STARTING_S: Final = 20.0
"""For so long after the service's start, what has not registered is starting and not failing."""


class Status(BackendStatus, frozen=True, kw_only=True):
    """How the service is."""

    version: str
    node: Annotated[str, msgspec.Meta(description="the machine's own; empty on a cluster")]
    started_at: Annotated[str, msgspec.Meta(description="when the service started")]
    socket: str
    address: Annotated[str, msgspec.Meta(description="of the API on TLS; empty: it is off")] = ""
    fingerprint: Annotated[
        str, msgspec.Meta(description="of its public key, as curl's --pinnedpubkey takes it; empty: it is off")
    ] = ""
    state_folder: str
    cdi_folder: str
    scheduler: str
    resource: str
    profile: Annotated[str, msgspec.Meta(description="profile of simulated silicon; empty on real hardware")]
    nodes: tuple[NodeView, ...]
    history: Annotated[
        HistoryView | None, msgspec.Meta(description="how figures over time are kept; null: they are not")
    ] = None
    containers: Annotated[dict[str, int], msgspec.Meta(description="number of containers by state")]
