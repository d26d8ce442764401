"""Lists containers although podman cannot list them all.

A running container whose network namespace is gone (its mount was taken away, the machine's `/run` was cleared) fails
podman's whole listing, and with it everything on the machine. Podman names that container; the others are listed by
their ids, and the named one is inspected, which podman can do.

A container whose monitor was killed with it stays "running" or "stopping" in podman's database for ever: no process is
left to write its exit code, and a stop of it does nothing.
Source: podman 4.3, libpod/oci_conmon_common.go (UpdateContainerStatus), libpod/boltdb_state_linux.go (replaceNetNS);
containers/storage, containers.json.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import telemetry
from fairlead.engine.podman import args, cli
from fairlead.engine.podman import errors as podman_errors
from fairlead.engine.podman import json as podman_json
from fairlead.wire.text import timestamp

_LIST: Final = ("ps", "--all", "--no-trunc", "--format=json")
_BROKEN: Final = re.compile(rb"joining network namespace of container ([0-9a-f]{64})", re.IGNORECASE)
_RETRIES: Final = 3
_LIVING: Final = frozenset({"running", "stopping"})


async def list_rows(podman: cli.Podman, labels: Mapping[str, str]) -> list[podman_json.Container]:
    """Return the containers that carry all labels. Raises: what podman's message means."""
    rows, broken = await _walk(podman, labels)
    for one in broken:
        hint = f"its network namespace is gone: podman rm --force {one.name}"
        telemetry.log.warning("container breaks podman's listing", container=one.name, reason=hint)
    return [*rows, *(_row(one) for one in broken if _carries(one, labels))]


async def find_broken(podman: cli.Podman) -> tuple[str, ...]:
    """Return the names of the containers that fail podman's own listing, now and a second later.

    One whose network is being taken down fails it for a moment, too. Raises: what podman's message means.
    """
    found = {one.id for one in (await _walk(podman, {}))[1]}
    if not found:
        return ()
    await asyncio.sleep(_AGAIN_S)
    return tuple(sorted(one.name for one in (await _walk(podman, {}))[1] if one.id in found))


_AGAIN_S: Final = 1.0


async def find_abandoned(
    podman: cli.Podman, rows: Iterable[podman_json.Container], *, proc: Path = Path("/proc")
) -> set[str]:
    """Return the ids of containers that live by podman's word only: their process is gone, and so is their monitor."""
    living = [row for row in rows if row.state in _LIVING]
    alive = await asyncio.to_thread(_alive, {row.pid for row in living}, proc)
    suspects = await _inspected(podman, [row.id for row in living if row.pid not in alive])
    found = [one for one in suspects if one.state.status in _LIVING]
    pids = {pid for one in found for pid in (one.state.pid, one.state.conmon_pid) if pid}
    alive = await asyncio.to_thread(_alive, pids, proc)
    return {one.id for one in found if not alive & {one.state.pid, one.state.conmon_pid}}


def _alive(pids: Iterable[int], proc: Path) -> set[int]:
    return {pid for pid in pids if _is_alive(pid, proc)}


def _is_alive(pid: int, proc: Path) -> bool:
    """Return whether a process is there; a zombie holds nothing and ends nothing."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


async def _walk(
    podman: cli.Podman, labels: Mapping[str, str]
) -> tuple[list[podman_json.Container], list[podman_json.Inspected]]:
    """Return the containers that podman lists by these labels, and all those, with any labels, that it cannot list."""
    wanted = args.label_filters(labels)
    only: list[str] = []
    known: list[str] | None = None
    broken: dict[str, None] = {}
    retries = 0
    while True:
        result = await podman.run(*_LIST, *wanted, *only)
        if result.code == 0:
            break
        error = podman_errors.translate("containers", "list", result)
        found = _BROKEN.search(result.stderr)
        name = found[1].decode() if found else ""
        if name and name not in broken:
            broken[name] = None
            known = await asyncio.to_thread(_stored, (await podman.host()).bundle_folder) if known is None else known
            only = [f"--filter=id={one}" for one in known if one not in broken]
            if not only:
                return [], await _inspected(podman, broken)
            continue
        retries += 1
        # A container removed while podman walks its list fails the whole walk.
        if error.reason != "ContainerNotFound" or retries == _RETRIES:
            raise error
    rows = podman_json.decode(result.stdout, list[podman_json.Container], what="container list")
    return rows, await _inspected(podman, broken)


def _stored(folder: Path) -> list[str]:
    """Return the ids of all containers that podman's storage has; none where it keeps them elsewhere."""
    try:
        rows = msgspec.json.decode((folder / "containers.json").read_bytes(), type=list[dict[str, object]])
    except (OSError, msgspec.MsgspecError):
        return []
    return [str(row["id"]) for row in rows if "id" in row]


async def _inspected(podman: cli.Podman, broken: Iterable[str]) -> list[podman_json.Inspected]:
    """Return what podman says of single containers; those that were removed meanwhile are left out."""
    found = []
    for identity in broken:
        result = await podman.run("container", "inspect", "--", identity)
        if result.code == 0:
            found += podman_json.decode(result.stdout, list[podman_json.Inspected], what="inspect")
    return found


def _carries(seen: podman_json.Inspected, labels: Mapping[str, str]) -> bool:
    has = seen.config.labels or {}
    return all(key in has and value in {"", has[key]} for key, value in labels.items())


def _row(seen: podman_json.Inspected) -> podman_json.Container:
    state = seen.state
    return podman_json.Container(
        id=seen.id,
        names=[seen.name],
        state=state.status,
        labels=seen.config.labels,
        image=seen.image_name,
        pid=state.pid,
        exit_code=state.exit_code,
        started_at=_seconds(state.started_at),
        exited_at=_seconds(state.finished_at),
    )


def _seconds(text: str) -> int:
    return int(timestamp.unix_seconds(text)) if text and not text.startswith("0001-") else 0
