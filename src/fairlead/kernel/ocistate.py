"""Lists the containers of OCI runtimes from the state they keep: id, first process, bundle.

runc and crun write a file a container below /run, no matter who called them (podman, containerd, a shell). Nothing is
asked of an engine. A state may vanish while it is looked at; one that is there and cannot be read is in `list_unread`.
A state outlives a runtime that is killed, and its process: a pid is a container's only with the start time beside it.
Source: runc libcontainer/container_linux.go, State (`state.json`); crun libcrun/status.c (`status`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.kernel import processid
from fairlead.wire.text import typedjson
from fairlead_cdi import errors as cdi_errors
from fairlead_cdi import oci

_PATTERNS: Final = (
    "run/runc/*/state.json",
    "run/containerd/runc/*/*/state.json",
    "run/docker/runtime-runc/*/*/state.json",
    "run/crun/*/status",
    "run/containerd/crun/*/*/status",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One container of a runtime whose first process lives."""

    id: str
    pid: int
    bundle: Path
    started: int = 0
    """When its first process started, in clock ticks since boot; 0: the runtime does not say."""


class _Config(msgspec.Struct):
    labels: list[str] = []


class _Runc(msgspec.Struct):
    init_process_pid: int = 0
    init_process_start: int = 0
    config: _Config = msgspec.field(default_factory=_Config)


class _Crun(msgspec.Struct, rename="kebab"):
    pid: int = 0
    process_start_time: int = 0
    bundle: str = ""


def list_running(root: Path = Path("/")) -> tuple[Running, ...]:
    """Return the containers of all runtimes, by id."""
    found = {item.id: item for item in _states(root)}
    return tuple(found[key] for key in sorted(found))


def _states(root: Path) -> Iterator[Running]:
    for path in _files(root):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found = _read(path)
            if found.pid and _lives(found, root / "proc"):
                yield found


def _lives(item: Running, proc: Path) -> bool:
    with contextlib.suppress(errors.NotFound):
        return processid.find(item.pid, proc=proc).started == str(item.started) or not item.started
    return False


def list_unread(root: Path = Path("/")) -> tuple[tuple[str, str], ...]:
    """Return the containers whose state is there and cannot be read, by id, each with the error."""
    return tuple((path.parent.name, why) for path in sorted(_files(root)) if (why := _why_unread(path)))


def _why_unread(path: Path) -> str:
    try:
        _read(path)
    except FileNotFoundError:
        return ""  # it has ended meanwhile
    except (OSError, msgspec.MsgspecError) as error:
        return f"{path}: {getattr(error, 'strerror', None) or error}"
    return ""


def _files(root: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        yield from root.glob(pattern)


def _read(path: Path) -> Running:
    """Read one state file. Raises: OSError, msgspec.MsgspecError."""
    data = path.read_bytes()
    if path.name == "status":
        crun = typedjson.decode(data, type=_Crun)
        pid, started, bundle = crun.pid, crun.process_start_time, crun.bundle
    else:
        runc = typedjson.decode(data, type=_Runc)
        label = next((one for one in runc.config.labels if one.startswith("bundle=")), "")
        pid, started, bundle = runc.init_process_pid, runc.init_process_start, label.removeprefix("bundle=")
    return Running(id=path.parent.name, pid=pid, bundle=Path(bundle), started=started)


def read_config(bundle: Path) -> dict[str, Any] | None:
    """Return a bundle's runtime spec, None where it cannot be read any more."""
    try:
        return oci.decode_config((bundle / "config.json").read_bytes())
    except (OSError, cdi_errors.DocumentError):
        return None
