"""Audits one container: the rules and nodes in force against its entitlement, and the repair.

Reads (`kernel.readback`), judges (`plan.audit`), and where asked to, mends: rules in its cgroups, nodes in its mount
namespace, then reads and judges again. What is reported as repaired was read back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.kernel import cgroup, readback
from fairlead.node.isolation import attach, entitlement
from fairlead.plan import audit as plan

_ROUNDS: Final = 3
"""A wide rule may hide another one, which the next look shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found and done."""

    pid: int
    source: str
    """Who says what the container is entitled to."""
    devices: tuple[str, ...]
    """Their CDI names."""
    findings: tuple[plan.Finding, ...]
    """As they are now."""
    repaired: tuple[str, ...]
    """What was changed, in order."""
    rules: tuple[str, ...]
    """In force now."""
    opens: dict[str, str]
    """What `open()` says of each device node it is entitled to, by path."""
    unread: tuple[str, ...]
    doubt: str = ""
    """Why it could not be judged; empty: it was."""

    @property
    def is_clean(self) -> bool:
        """Return whether it was judged and nothing is left to mend."""
        return not self.doubt and all(finding.is_told_only for finding in self.findings)


async def audit(pid: int, found: entitlement.Found, sources: entitlement.AllocationSources, *, repairs: bool) -> Report:
    """Audit one container.

    Args:    pid: host pid of its first process.
    Raises:  NotFound (`ProcessGone`); with `repairs` Unavailable, Conflict: what was to be changed is refused.
    """
    known = await asyncio.to_thread(attach.known_nodes, sources.registry)
    done: list[str] = []
    for _ in range(_ROUNDS):
        seen = await readback.read_back(pid, paths=tuple(node.path for node in found.entitlement.granted), numbers=())
        nodes = {node.path: (node.major, node.minor) for node in seen.nodes}
        verdict = plan.judge(found.entitlement, seen.in_force, nodes, known=known)
        if found.doubt or not repairs or verdict.is_clean:
            break
        done += await _repair(pid, verdict)
    return Report(
        pid=pid,
        source=found.source,
        devices=found.names,
        findings=() if found.doubt else verdict.findings,
        repaired=tuple(done),
        rules=seen.rules,
        opens=dict(seen.opens),
        unread=seen.unread,
        doubt=found.doubt or _blind(found, seen),
    )


def _blind(found: entitlement.Found, seen: readback.Isolation) -> str:
    """Return why the rules could not be judged, whatever the nodes say; empty: they were, or hold nothing back."""
    if seen.in_force is not None or found.entitlement.is_unconfined:
        return ""
    return "what the kernel enforces could not be read" + "".join(f"; {why}" for why in seen.unread)


async def _repair(pid: int, verdict: plan.Audit) -> list[str]:
    done: list[str] = []
    if verdict.deny or verdict.allow:
        try:
            cgroups = await asyncio.to_thread(cgroup.of_process, Path(f"/proc/{pid}"), Path("/"))
        except OSError as error:
            raise readback.gone(pid) from error
        await asyncio.to_thread(cgroup.change, cgroups, deny=verdict.deny, allow=verdict.allow)
        done += [f"denied {rule}" for rule in verdict.deny] + [f"allowed {rule}" for rule in verdict.allow]
    if verdict.make:
        done += [f"{what} {path}" for path, what in await attach.work(pid, make=verdict.make)]
    return done


def unjudged(names: list[str]) -> errors.Unavailable:
    """Return the error where it is not known what containers were given."""
    message = f"{len(names)} containers could not be judged: {', '.join(names)}"
    hint = "start the node's kubelet (`fairlead up`), or say by --device what they should have"
    return errors.Unavailable(message, reason="AllocationUnknown", hint=hint)


def differs(names: list[str]) -> errors.Conflict:
    """Return what is raised where containers may open less or more than they were given."""
    message = f"{len(names)} containers are not isolated as they should be: {', '.join(names)}"
    return errors.Conflict(message, reason="IsolationDiffers", hint="`fairlead isolate audit --repair` mends it")
