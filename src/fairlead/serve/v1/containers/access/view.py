"""Describes the processes of a container, and what it uses."""

from __future__ import annotations

from typing import Annotated

import msgspec


class ProcessTable(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of one container."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What one container has used so far."""

    name: str
    namespace: str
    container: str
    at: Annotated[str, msgspec.Meta(description="time of the reading")]
    cpu_ns: Annotated[int | None, msgspec.Meta(description="nanoseconds of all CPUs since the start")]
    memory_bytes: Annotated[int | None, msgspec.Meta(description="without the page cache that goes first")]
    memory_limit_bytes: int | None
    processes: int | None
    received_bytes: int | None
    sent_bytes: int | None
    devices: Annotated[dict[str, tuple[str, ...]], msgspec.Meta(description="ids granted to the group, by resource")]
    is_pods: Annotated[
        bool,
        msgspec.Meta(
            description="CPU, memory and processes are the whole group's, which runs in one sandbox of gVisor"
        ),
    ] = False


class DoorRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a browser is led to."""

    path: Annotated[
        str, msgspec.Meta(description="first page, from / on; empty: the page of its template, with its token, or /")
    ] = ""


class DoorView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a browser finds a container's port."""

    address: Annotated[str, msgspec.Meta(description="to be opened within a minute, once; it is a secret until then")]
    origin: Annotated[str, msgspec.Meta(description="of the port's pages, as long as it is open")]
    expires_at: Annotated[str, msgspec.Meta(description="latest end; it ends earlier with its login or container")]
