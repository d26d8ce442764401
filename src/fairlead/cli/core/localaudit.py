"""Audits the running containers of this machine: every one is judged, or said to be unjudged with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.cli.core import localcontainer
from fairlead.kernel import ocistate
from fairlead.node.isolation import attach, audit, entitlement
from fairlead.settings import Settings

_GONE: Final = "ProcessGone"


async def sources(config: Settings, folders: Sequence[str]) -> entitlement.AllocationSources:
    """Read who holds what: specs, the kubelet's word, its checkpoint."""
    return entitlement.AllocationSources(
        registry=await asyncio.to_thread(attach.scan, folders),
        holdings=await localcontainer.ask_kubelet(config.pod_resources),
        written=await asyncio.to_thread(localcontainer.read_books, config.state.folder / "kubelet"),
    )


async def audit_targets(
    targets: Sequence[localcontainer.Target],
    known: entitlement.AllocationSources,
    *,
    devices: Sequence[str] = (),
    repairs: bool = False,
    is_chosen: bool = False,
) -> list[tuple[str, audit.Report]]:
    """Audit containers; one that cannot be judged has a report with the doubt.

    Args:    devices: what each should have, instead of what the sources say.
             is_chosen: they were named, so one that has ended meanwhile is an error.
    Raises:  NotFound (`ProcessGone`); with `repairs` Unavailable, Conflict: what was to be changed is refused.
    """
    reports = []
    for target in targets:
        try:
            found = await asyncio.to_thread(entitlement.find, target.subject, known, asked=devices)
            reports.append((target.name, await audit.audit(target.pid, found, known, repairs=repairs)))
        except errors.FairleadError as error:
            if error.reason != _GONE and not is_chosen:
                reports.append((target.name, unjudged(target.pid, errors.sentence(error))))
            elif is_chosen:
                raise
    return reports


def unread_states(root: Path = Path("/")) -> list[tuple[str, audit.Report]]:
    """Return a report of doubt for each container whose runtime's state is there and cannot be read."""
    return [(name, unjudged(0, f"cannot be judged: {why}")) for name, why in ocistate.list_unread(root)]


def unjudged(pid: int, doubt: str) -> audit.Report:
    """Return the report of a container that nobody can judge."""
    return audit.Report(
        pid=pid,
        source=entitlement.NOTHING,
        devices=(),
        findings=(),
        repaired=(),
        rules=(),
        opens={},
        unread=(),
        doubt=doubt,
    )
