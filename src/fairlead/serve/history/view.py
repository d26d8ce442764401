"""Describes figures over time, as the API answers them; without the web framework."""

from __future__ import annotations

from typing import Annotated

import msgspec

Numbers = tuple[float | None, ...]


class SeriesView(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over the period."""

    metric: Annotated[
        str,
        msgspec.Meta(
            description="of a container: cpu, memory, received, sent, read, written; of a GPU: load, memory, power, "
            "temperature, clock, held"
        ),
    ]
    unit: Annotated[str, msgspec.Meta(description="%, bytes, bytes/s, W, C or MHz; 100 % of cpu is one CPU")]
    title: Annotated[str, msgspec.Meta(description="for a person: GPU load")]
    device: Annotated[str, msgspec.Meta(description="UUID of the GPU or MIG device; empty: the container's own")] = ""
    index: Annotated[int | None, msgspec.Meta(description="of the GPU on its node; null: not known")] = None
    is_shared: Annotated[
        bool, msgspec.Meta(description="others held the GPU meanwhile: the figures include theirs")
    ] = False
    means: Annotated[Numbers, msgspec.Meta(description="mean of each step; null: not known")]
    peaks: Annotated[Numbers, msgspec.Meta(description="largest value of each step; null: not known")]


class MetricsView(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one container or GPU, at regular steps."""

    of: Annotated[str, msgspec.Meta(description="name of the container, or UUID of the GPU or MIG device")]
    namespace: Annotated[str, msgspec.Meta(description="of the container; empty: it is a GPU")] = ""
    since: Annotated[str, msgspec.Meta(description="begin of the first step")]
    until: Annotated[str, msgspec.Meta(description="end of the last step")]
    step_s: int
    times: Annotated[tuple[int, ...], msgspec.Meta(description="begin of each step, Unix seconds")]
    series: tuple[SeriesView, ...]
    source: Annotated[str, msgspec.Meta(description="machine: this service's own samples; prometheus")] = "machine"
    notes: Annotated[tuple[str, ...], msgspec.Meta(description="what is missing, and why")] = ()


class UsePeriod(msgspec.Struct, frozen=True, kw_only=True):
    """How GPUs were used in a period."""

    name: Annotated[str, msgspec.Meta(description="today or week: since midnight UTC, the last seven days")]
    since: str
    held_percent: Annotated[float | None, msgspec.Meta(description="share of the GPUs' time in which they were held")]
    used_percent: Annotated[
        float | None, msgspec.Meta(description="mean load of the GPUs that say it, whether they were held or not")
    ]


class GPULine(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one GPU in the last hour, for a small picture."""

    gpu: str
    loads: Annotated[Numbers, msgspec.Meta(description="mean of each minute, the oldest first; null: not known")]


class GPUMetricsList(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs at a glance."""

    items: tuple[GPULine, ...]
    periods: Annotated[
        tuple[UsePeriod, ...], msgspec.Meta(description="of all GPUs; empty for who has a part of the machine")
    ] = ()


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """How figures are kept here."""

    days: Annotated[float, msgspec.Meta(description="how long; 0: not at all")]
    rows: int = 0
    size_bytes: int = 0
    most_bytes: int = 0
    since: Annotated[str | None, msgspec.Meta(description="of the oldest; null: nothing is kept yet")] = None
    prometheus: Annotated[str, msgspec.Meta(description="which Prometheus is asked; empty: none")] = ""
    problem: Annotated[str, msgspec.Meta(description="why nothing was kept at the last sample; empty: it was")] = ""
    set_aside: Annotated[str, msgspec.Meta(description="where a damaged file was put; empty: there was none")] = ""
