"""Parses podman's JSON (`ps`, `images`, `events`, `inspect`) into the port's values.

Only the fields used are declared, all with defaults: podman adds and drops fields between releases, and what is absent
must never fail a listing.

Source: podman 4.3 `pkg/domain/entities` (ListContainer, ImageSummary, Event), by their JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from fairlead import errors
from fairlead.engine import port
from fairlead.engine.podman import host
from fairlead.wire.text import typedjson

T = TypeVar("T")

_PHASES: Final = {
    "configured": port.ContainerPhase.CREATED,
    "created": port.ContainerPhase.CREATED,
    "initialized": port.ContainerPhase.CREATED,
    "running": port.ContainerPhase.RUNNING,
    "paused": port.ContainerPhase.RUNNING,
    "stopping": port.ContainerPhase.RUNNING,
    "stopped": port.ContainerPhase.EXITED,
    "exited": port.ContainerPhase.EXITED,
    "removing": port.ContainerPhase.EXITED,
}
_LOST_EXIT: Final = 137
"""Where podman does not know the exit code (its -1), as the kubelet has it for containers that it lost."""


_Number = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""What a float holds without loss."""


class Container(msgspec.Struct, rename="pascal"):
    """One row of `podman ps`."""

    id: str
    names: list[str] = []
    state: str = ""
    labels: dict[str, str] | None = None
    image: str = ""
    pid: _Number = 0
    exit_code: _Number = 0
    started_at: _Number = 0
    exited_at: _Number = 0

    @property
    def phase(self) -> port.ContainerPhase:
        """The state in the port's words; one podman adds later counts by whether there is a process."""
        fallback = port.ContainerPhase.RUNNING if self.pid else port.ContainerPhase.EXITED
        return _PHASES.get(self.state, fallback)


class InspectedState(msgspec.Struct, rename="pascal"):
    """The state that an inspect prints; times are RFC 3339."""

    status: str = ""
    pid: _Number = 0
    conmon_pid: _Number = 0
    exit_code: _Number = 0
    started_at: str = ""
    finished_at: str = ""


class InspectedConfig(msgspec.Struct, rename="pascal"):
    """The configuration that an inspect prints."""

    labels: dict[str, str] | None = None


class Inspected(msgspec.Struct, rename="pascal"):
    """One container of `podman container inspect`."""

    id: str
    name: str = ""
    image_name: str = ""
    state: InspectedState = msgspec.field(default_factory=InspectedState)
    config: InspectedConfig = msgspec.field(default_factory=InspectedConfig)


class ImageRow(msgspec.Struct, rename="pascal"):
    """One row of `podman images`."""

    id: str
    names: list[str] | None = None
    size: _Number = 0
    created: _Number = 0


class ImageConfig(msgspec.Struct, rename="pascal"):
    """The part of `podman image inspect` that containers take over."""

    env: list[str] | None = None


class _Process(msgspec.Struct, frozen=True):
    env: list[str] | None = None


class _Root(msgspec.Struct, frozen=True):
    path: str = ""


class Bundle(msgspec.Struct):
    """The part of a container's OCI configuration that is read."""

    process: _Process = _Process()
    root: _Root = _Root()


class Event(msgspec.Struct, rename="pascal"):
    """One line of `podman events`."""

    name: str = ""
    status: str = ""


def decode(data: bytes, kind: type[T], *, what: str) -> T:
    """Decode JSON, or raise ProtocolError (`PodmanOutputInvalid`)."""
    try:
        return typedjson.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        message = f"podman's {what} is not what podman 4 and 5 print: {error}"
        raise errors.ProtocolError(message, reason="PodmanOutputInvalid", hint="which podman is this?") from error


def variables(lines: Sequence[str]) -> dict[str, str]:
    """Return what lines of NAME=value say."""
    return dict(line.split("=", 1) for line in lines if "=" in line)


def container_state(row: Container, *, oom_killed: bool, has_run: bool = False) -> port.ContainerState:
    """Return what one row says.

    Args: has_run: podman does not say so, and it was started and is gone; see `startrecord`, `listing`.
    """
    phase = port.ContainerPhase.EXITED if has_run else row.phase
    ended = phase is port.ContainerPhase.EXITED
    code = _LOST_EXIT if has_run or row.exit_code < 0 else row.exit_code
    return port.ContainerState(
        engine=host.NAME,
        id=row.id,
        name=row.names[0] if row.names else row.id,
        phase=phase,
        labels=row.labels or {},
        image=row.image,
        pid=row.pid if row.pid > 0 and not ended else None,
        exit_code=code if ended else None,
        oom_killed=oom_killed,
        # Go's zero time is long before 1970.
        started_at=float(row.started_at) if row.started_at > 0 else None,
        finished_at=float(row.exited_at) if ended and row.exited_at > 0 else None,
    )


def images(rows: Sequence[ImageRow]) -> tuple[port.Image, ...]:
    """Return the images; podman prints one with several names several times."""
    found: dict[str, port.Image] = {}
    for row in rows:
        names = {*(found[row.id].names if row.id in found else ()), *(row.names or ())}
        found[row.id] = port.Image(
            id=row.id, names=tuple(sorted(names)), size_bytes=row.size, created_at=float(row.created)
        )
    return tuple(found.values())
