"""Describes a container's trace; without the web framework. Times are RFC 3339 text, lengths of time are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from fairlead.model.container.step import TraceStep
from fairlead.plan import trace
from fairlead.plan.trace import Record
from fairlead.wire.text import timestamp


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer did, as it recorded it."""

    layer: str
    reason: Annotated[str, msgspec.Meta(description="stable token, DevicesAllocated")]
    message: str
    at: Annotated[str, msgspec.Meta(description="when it ended")]
    duration_s: float | None
    facts: Annotated[Mapping[str, Any], msgspec.Meta(description="what was read or decided")]
    is_warning: bool
    teller: Annotated[str, msgspec.Meta(description="component that wrote the event; empty: recorded by Fairlead")]


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a trace."""

    stage: Annotated[str, msgspec.Meta(description="empty for a step of no known stage")]
    layer: str
    title: str
    record: Annotated[Record, msgspec.Meta(description="whether the layer recorded its step")]
    step: StepView | None
    offset_s: Annotated[
        float | None, msgspec.Meta(description="after the first step; negative for what the node did before it")
    ]
    count: Annotated[int, msgspec.Meta(description="how often it was recorded in a row")]


class TraceView(msgspec.Struct, frozen=True, kw_only=True):
    """All entries in order."""

    entries: tuple[EntryView, ...]
    started_at: Annotated[str | None, msgspec.Meta(description="when the first step was taken")]
    is_final: Annotated[bool, msgspec.Meta(description="it has ended: nothing more is to come")]


def trace_view(found: trace.Trace) -> TraceView:
    """Describe a trace."""
    return TraceView(
        entries=tuple(_entry(entry) for entry in found.entries),
        started_at=None if found.started_at is None else timestamp.emit(found.started_at),
        is_final=found.is_final,
    )


def _entry(entry: trace.Entry) -> EntryView:
    return EntryView(
        stage=entry.stage,
        layer=entry.layer,
        title=entry.title,
        record=entry.record,
        step=None if entry.step is None else _step(entry.step),
        offset_s=entry.offset_s,
        count=entry.count,
    )


def _step(step: TraceStep) -> StepView:
    return StepView(
        layer=step.layer,
        reason=step.reason,
        message=step.message,
        at=timestamp.emit(step.at),
        duration_s=step.duration_s,
        facts=step.facts,
        is_warning=step.is_warning,
        teller=step.teller,
    )
