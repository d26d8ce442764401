"""Lists containers although podman cannot list them all.

A running container whose network namespace is gone (its mount was taken away, the machine's `/run` was cleared) fails
podman's whole listing, and with it everything on the machine. Podman names that container; the others are listed by
their ids, and the named one is inspected, which podman can do.
Source: podman 4.3, libpod/boltdb_state_linux.go (replaceNetNS); containers/storage, containers.json.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
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


async def list_rows(podman: cli.Podman, labels: Mapping[str, str]) -> list[podman_json.Container]:
    """Return the containers that carry all labels. Raises: what podman's message means."""
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
                return await _inspected(podman, broken, labels)
            continue
        retries += 1
        # A container removed while podman walks its list fails the whole walk.
        if error.reason != "ContainerNotFound" or retries == _RETRIES:
            raise error
    rows = podman_json.decode(result.stdout, list[podman_json.Container], what="container list")
    return [*rows, *await _inspected(podman, broken, labels)] if broken else rows


def _stored(folder: Path) -> list[str]:
    """Return the ids of all containers that podman's storage has; none where it keeps them elsewhere."""
    try:
        rows = msgspec.json.decode((folder / "containers.json").read_bytes(), type=list[dict[str, object]])
    except (OSError, msgspec.MsgspecError):
        return []
    return [str(row["id"]) for row in rows if "id" in row]


async def _inspected(
    podman: cli.Podman, broken: Mapping[str, None], labels: Mapping[str, str]
) -> list[podman_json.Container]:
    """Return those of the broken containers that carry all labels, and name every one of them in the log."""
    found = []
    for identity in broken:
        result = await podman.run("container", "inspect", "--", identity)
        if result.code != 0:
            continue  # removed meanwhile
        (seen,) = podman_json.decode(result.stdout, list[podman_json.Inspected], what="inspect")
        hint = f"its network namespace is gone: podman rm --force {seen.name}"
        telemetry.log.warning("container breaks podman's listing", container=seen.name, reason=hint)
        has = seen.config.labels or {}
        if all(key in has and value in {"", has[key]} for key, value in labels.items()):
            found.append(_row(seen))
    return found


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
