"""Collects and checks what is held on this machine for what is gone, with the command that gives it back.

The database is read beside the service that writes it; nothing is changed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors, settings
from fairlead.cli.doctor.finding import Finding
from fairlead.engine import machine as engines
from fairlead.node import leftovers
from fairlead.store.sqlite import database
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta

_AGAIN_S: Final = 2.0
"""What is being given back at this moment is looked at again after so long."""
_SHOWN: Final = 10
_WHY: Final = {
    "lease": "no other container gets this GPU meanwhile",
    "mount": "its memory stays in use, and what was in it can be read by root",
    "folder": "what is in it takes room, and was a container's",
    "network": "its subnet is taken",
    "file": "it takes room",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was found."""

    found: tuple[leftovers.Leftover, ...] = ()
    problem: str = ""
    """Why it cannot be known; empty: it can."""
    is_read: bool = False
    is_served: bool = False
    """Whether a service runs, which gives back what it owns."""


async def collect(config: settings.Settings, *, is_served: bool) -> Facts:
    """Look for what is held for nothing; not where we are not root, who alone may see all of it."""
    path = config.state.folder / "state.db"
    if os.geteuid() != 0 or not path.exists():
        return Facts()
    try:
        found = await _find(config, path)
        if found and is_served:
            await asyncio.sleep(_AGAIN_S)
            found = tuple(one for one in await _find(config, path) if one in found)
    except errors.FairleadError as error:
        return Facts(problem=errors.sentence(error), is_read=True)
    return Facts(found=found, is_read=True, is_served=is_served)


async def _find(config: settings.Settings, path: Path) -> tuple[leftovers.Leftover, ...]:
    async def known() -> leftovers.Known:
        return await asyncio.to_thread(_known, path)

    return await leftovers.find(config, engines.open_engine(config.engine), known, now=time.time())


def _known(path: Path) -> leftovers.Known:
    pods = _list(path, core.Pod)
    return leftovers.Known(
        pods=frozenset(uid for _, _, uid in pods),
        names=frozenset((namespace, name) for namespace, name, _ in pods),
        namespaces=frozenset(name for _, name, _ in _list(path, core.Namespace)),
        tenancies=frozenset(uid for _, _, uid in _list(path, Tenancy)),
    )


def _list(path: Path, kind: type[meta.Object]) -> tuple[tuple[str, str, str], ...]:
    return database.list_ids(path, f"{kind.API_VERSION}/{kind.KIND}")


def check(seen: Facts) -> Iterator[Finding]:
    """Yield findings; none where nothing was looked at."""
    if not seen.is_read:
        return
    if seen.problem:
        what = f"not checked: what is held for nothing any more ({seen.problem})"
        why = "leases, mounts, networks and files may be left of what is gone"
        yield Finding(check="leftovers", level="skip", what=what, why=why, fix="mend that, then `fairlead doctor`")
        return
    start = "" if seen.is_served else "`fairlead up` takes back what is its own; else "
    for kind in leftovers.KINDS:
        of_kind = [one for one in seen.found if one.kind == kind]
        for one in of_kind[:_SHOWN]:
            what = f"{one.kind} of nothing that is still there: {one.what}"
            fix = one.fix if kind == "lease" else start + one.fix
            yield Finding(check="leftovers", level="warn", what=what, why=_WHY[kind], fix=fix)
        if len(of_kind) > _SHOWN:
            what = f"{len(of_kind) - _SHOWN} more of the kind {kind} are left of what is gone"
            yield Finding(check="leftovers", level="warn", what=what, why=_WHY[kind], fix="mend those first")
    if not seen.found:
        what = "no lease, mount, folder, network or file is held for what is gone"
        yield Finding(check="leftovers", level="ok", what=what)
