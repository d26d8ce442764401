"""Checks policies for idle GPUs: those that cannot act, since nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.cli.core.client import Client
from fairlead.cli.doctor.finding import Finding
from fairlead.serve.history.view import HistoryView
from fairlead.serve.v1.containers.view import IDLE_UNKNOWN, ContainerList
from fairlead.serve.v1.queues.view import QueueList
from fairlead.settings import IdleSettings

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the service says."""

    sources: tuple[str, ...] = ()
    """What says that something is done about idle GPUs: a setting, queues. Empty: nothing is."""
    has_figures: bool = True
    """Whether this machine keeps figures of its own."""
    unjudged: tuple[str, ...] = ()
    """Containers that run and of whose GPUs it is not known whether they are idle."""


def collect(client: Client, given: IdleSettings, history: HistoryView | None, *, timeout_s: float) -> Facts:
    """Ask the service. Args: given: the settings, as this program reads them."""
    sources: tuple[str, ...] = () if given.action == "off" else (f"idle.action={given.action}",)
    try:
        queues = client.call("GET", "/v1/queues", QueueList, timeout_s=timeout_s).items
        acting = [one.name for one in queues if one.spec.idle is not None and one.spec.idle.action not in {"", "off"}]
        sources += tuple(f'queue "{name}"' for name in acting)
        items = client.call("GET", "/v1/containers", ContainerList, timeout_s=timeout_s).items if sources else ()
    except errors.FairleadError:
        return Facts()
    unknown = [one for one in items if one.idle is not None and one.idle.action == IDLE_UNKNOWN]
    unjudged = tuple(f"{one.namespace}/{one.name}" for one in unknown)
    return Facts(sources=sources, has_figures=bool(history and history.days), unjudged=unjudged)


def check(seen: Facts) -> Iterator[Finding]:
    """Yield findings; none where nothing is done about idle GPUs."""
    if not seen.sources:
        return
    by = errors.readable(", ".join(seen.sources[:_SHOWN])[:200])
    if not seen.has_figures:
        what = f"nothing is done about idle GPUs, though {by} says so: this machine keeps no figures of its own"
        why = "who uses GPUs is known by samples over time, and a lack of them ends nobody"
        fix = "set history.days (14), without history.prometheus, and start the service again"
        yield Finding(check="idle", level="warn", what=what, why=why, fix=fix)
        return
    if seen.unjudged:
        rest = f" and {len(seen.unjudged) - _SHOWN} more" if len(seen.unjudged) > _SHOWN else ""
        what = f"idle or not is not known of {errors.readable(', '.join(seen.unjudged[:_SHOWN])[:200])}{rest}"
        why = "their devices report no load, as MIG devices of some drivers, or figures have gaps: they are left alone"
        fix = "`fairlead explain NAME` says which; `fairlead stats` shows what is measured"
        yield Finding(check="idle", level="warn", what=what, why=why, fix=fix)
        return
    yield Finding(check="idle", level="ok", what=f"idle GPUs are watched ({by})")
