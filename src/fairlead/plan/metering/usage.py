"""Turns possessions of GPUs into charges: who had which GPU, for how long, hour by hour. Pure.

What counts is the possession that the node's ledger wrote down (`GPULease`), from the allocation until no process has
the GPU open: not a pod's phase. Time is counted in whole microseconds, so that parts add up to the whole. On one GPU no
two charges overlap: where two leases do (a clock that was set back, a ledger that was lost), the later one counts from
the end of the earlier one, and that is said. So the sum over everybody never exceeds the wall time of a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.wire.kubernetes.gpulease import ENDED, GPULease
from fairlead.wire.text import timestamp

MICROS: Final = 1_000_000
HOUR: Final = 3600 * MICROS


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One lease, from when to when it counts. Times are microseconds since 1970."""

    lease: str
    """Name of the GPULease."""
    gpu: str
    node: str
    model: str
    """Product name; empty: nothing says it any more."""
    namespaces: tuple[str, ...]
    """Of the containers that had it, sorted; empty: the kubelet never named one."""
    begin: int
    end: int
    """Where it still is: the time of asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """What leases say, and what of it could not be counted as it stands."""

    items: tuple[Interval, ...]
    """By GPU, then by time."""
    notes: tuple[str, ...]
    """Sentences for a person, one for each lease that was cut or left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one namespace had of one lease, within one hour. Times are microseconds since 1970."""

    lease: str
    gpu: str
    node: str
    model: str
    namespace: str
    """Empty: it is not known who had the GPU; charged to no one."""
    begin: int
    end: int
    amount: int
    """Microseconds of GPU: `end - begin`, divided where containers of several namespaces shared the GPU."""


def intervals(leases: Iterable[GPULease], models: Mapping[str, str], *, now: float) -> Intervals:
    """Return when each lease counts; on one GPU no two overlap.

    Args:    models: product names by name of the GPUDevice.   now: Unix seconds.
    """
    found: list[Interval] = []
    notes: list[str] = []
    for one in leases:
        name = one.metadata.name
        begin, end = timestamp.parse(one.spec.held_at), _end(one, now)
        if begin is None or end is None:
            notes.append(f"lease {name} is left out: it does not say when it began or ended")
            continue
        found.append(
            Interval(
                lease=name,
                gpu=one.spec.gpu,
                node=one.spec.node_name,
                model=models.get(one.spec.gpu_device, ""),
                namespaces=tuple(sorted({holder.namespace for holder in one.status.holders})),
                begin=_micros(begin),
                end=_micros(end),
            )
        )
    found.sort(key=lambda item: (item.gpu, item.begin, item.lease))
    return Intervals(items=tuple(_apart(found, notes)), notes=tuple(notes))


_NOTED_S: Final = 0.5


def _end(one: GPULease, now: float) -> float | None:
    """Return when a lease ended; the present where it has not, None where it does not say."""
    return timestamp.parse(one.status.ended_at) if one.status.state in ENDED or one.status.ended_at else now


def _micros(seconds: float) -> int:
    return round(seconds * MICROS)


def _apart(found: Iterable[Interval], notes: list[str]) -> Iterator[Interval]:
    """Yield intervals that are sorted by GPU and begin, each from the end of the one before on."""
    last: tuple[str, int, str] = ("", 0, "")
    lost: dict[str, float] = {}
    for one in found:
        gpu, until, before = last
        begin = max(one.begin, until) if one.gpu == gpu else one.begin
        if begin != one.begin:
            pair = f"lease {one.lease} overlaps {before} on the same GPU"
            lost[pair] = (min(until, max(one.end, one.begin)) - one.begin) / MICROS
        if one.end > begin:
            last = (one.gpu, one.end, one.lease)
            yield dataclasses.replace(one, begin=begin)
    # One lease ends and the next begins within the same second where GPUs change hands: nothing is lost by that.
    if whole := {pair: seconds for pair, seconds in lost.items() if seconds >= _NOTED_S}:
        first = next(iter(whole))
        notes.append(
            f"{first}: {whole[first]:.0f} s of it are not counted"
            if len(whole) == 1
            else f"{len(whole)} leases overlap another on the same GPU: {sum(whole.values()):.0f} s of them are not "
            f"counted; {first}, for one"
        )


def held(found: Iterable[Interval], *, begin: int, end: int) -> int:
    """Return the microseconds of GPU that intervals have within a period."""
    return sum(max(0, min(one.end, end) - max(one.begin, begin)) for one in found)


def charges(found: Iterable[Interval], *, begin: int, end: int) -> Iterator[Charge]:
    """Yield what is charged within a period, one row for each lease, namespace and hour of the clock (UTC).

    A GPU that containers of several namespaces shared is divided evenly among these for the whole lease, since a lease
    does not say which of them had it when; what cannot be divided goes to the first by name.
    """
    for one in found:
        at, until = max(one.begin, begin), min(one.end, end)
        while at < until:
            stop = min(until, (at // HOUR + 1) * HOUR)
            whose = one.namespaces or ("",)
            share, rest = divmod(stop - at, len(whose))
            for number, namespace in enumerate(whose):
                yield Charge(
                    lease=one.lease,
                    gpu=one.gpu,
                    node=one.node,
                    model=one.model,
                    namespace=namespace,
                    begin=at,
                    end=stop,
                    amount=share + (number < rest),
                )
            at = stop
