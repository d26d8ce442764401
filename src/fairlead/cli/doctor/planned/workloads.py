"""Checks workloads: controllers that do not act on what was changed, rollouts that do not get on, Jobs that failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairlead import errors
from fairlead.cli.core.client import Client
from fairlead.cli.doctor.finding import Finding
from fairlead.serve.v1.objects.view import ObjectList

_KINDS: Final = {"deployments": "deployment", "statefulsets": "statefulset", "replicasets": "replicaset", "jobs": "job"}
_AGAIN_S: Final = 2.0
"""A controller acts within milliseconds; what it has not seen after this it does not see."""
_SHOWN: Final = 3

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the service says."""

    unseen: tuple[str, ...] = ()
    """Workloads whose change no controller has acted on, as `KIND/NAME`."""
    stuck: tuple[str, ...] = ()
    """Rollouts that do not get on, each with its controller's words."""
    failed: tuple[str, ...] = ()
    """Jobs that were given up, each with why."""
    count: int = 0


def collect(client: Client, *, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> Facts:
    """Ask the service, twice where a change may be under way; nothing where it keeps no workloads."""
    found = _ask(client, timeout_s)
    unseen = _unseen(found)
    if unseen:
        sleep(_AGAIN_S)
        found = _ask(client, timeout_s)
        unseen = tuple(one for one in _unseen(found) if one in unseen)
    return Facts(
        unseen=tuple(name for name, _ in unseen),
        stuck=tuple(_said(found, "Progressing", "False")),
        failed=tuple(_said(found, "Failed", "True")),
        count=len(found),
    )


def _ask(client: Client, timeout_s: float) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for plural, word in _KINDS.items():
        try:
            items = client.call("GET", f"/v1/objects/{plural}", ObjectList, timeout_s=timeout_s).items
        except errors.FairleadError:  # an older service, or no workloads here
            continue
        for item in items:
            about = item.get("metadata", {})
            found[f"{word}/{about.get('namespace', '')}/{about.get('name', '')}"] = item
    return found


def _unseen(found: Mapping[str, Document]) -> tuple[tuple[str, int], ...]:
    """Return workloads with a generation that their controller has not observed; a Job observes none."""
    return tuple(
        (name, generation)
        for name, item in found.items()
        if not name.startswith("job/")
        and (generation := int(item.get("metadata", {}).get("generation") or 0))
        > int(item.get("status", {}).get("observedGeneration") or 0)
    )


def _said(found: Mapping[str, Document], type_: str, status: str) -> Iterator[str]:
    for name, item in found.items():
        for one in item.get("status", {}).get("conditions", ()):
            if (one.get("type"), one.get("status")) == (type_, status):
                yield f"{name} ({one.get('reason', '')}: {one.get('message', '')})"


def check(seen: Facts) -> Iterator[Finding]:
    """Yield findings; none where there are no workloads."""
    if seen.unseen:
        what = f"no controller has acted on {_some(seen.unseen)}"
        why = "the service's controllers are stuck or gone: pods are not made, replaced or ended"
        fix = "its log says which one failed; `fairlead service restart`, or `fairlead down --keep` and `up`"
        yield Finding(check="workload", level="fail", what=what, why=why, fix=fix)
    if seen.stuck:
        what = f"rollouts do not get on: {_some(seen.stuck)}"
        fix = "`fairlead get pods` and `fairlead explain POD` say what waits; `fairlead rollout undo` goes back"
        yield Finding(check="workload", level="warn", what=what, why="new pods do not get ready", fix=fix)
    if seen.failed:
        what = f"given up: {_some(seen.failed)}"
        fix = "`fairlead logs POD` has their last words; `fairlead delete job NAME` takes one away"
        yield Finding(
            check="workload", level="warn", what=what, why="their pods failed too often, or too long", fix=fix
        )
    if seen.count and not (seen.unseen or seen.stuck or seen.failed):
        yield Finding(check="workload", level="ok", what=f"{seen.count} kept as they were asked for")


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return errors.readable(", ".join(names[:_SHOWN])[:300]) + rest
