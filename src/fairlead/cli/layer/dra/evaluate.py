"""Evaluates a CEL expression on published devices, and says what it gives and costs for each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.cli.layer.dra import note
from fairlead.plan.cel import compile as cel
from fairlead.plan.cel import literal
from fairlead.plan.cel.running.charge import LIMIT
from fairlead.plan.cel.value import name_of
from fairlead.plan.claim import expression
from fairlead.plan.claim.pool.candidate import DeviceID
from fairlead.wire.kubernetes.resource.device import Device
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

SHOWN: Final = 50
_LONGEST_S: Final = 20.0
"""How long devices are gone through: an expression may cost a second on each of ten thousand."""
_LONGEST: Final = 200
"""Characters of a value."""
_AROUND: Final = 36
"""Characters of the expression that are shown on each side of what is wrong with it."""
_COMPARED, _MOST_COMPARED = 600, 1000
"""Characters of a name, and names, that a misspelt one is compared with."""
_PLAIN: Final = frozenset({bool, int, str, type(None)})
_KINDS: Final = frozenset({"bool", "dyn"})


class DeviceValue(msgspec.Struct, frozen=True, kw_only=True):
    """What an expression gives for one device."""

    device: str
    """`DRIVER/POOL/NAME`."""
    value: Any = None
    """A bool, a whole number, a text or null; of another type: as CEL writes it."""
    text: str = ""
    """As CEL writes it; empty where there is an error."""
    type: str = ""
    cost: int | None = None
    """None: it is not known, because the device cannot be read."""
    is_over_limit: bool = False
    error: str = ""


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """An expression on devices."""

    expression: str
    release: str
    """Of Kubernetes, whose costs count."""
    type: str
    """As the expression is checked; `dyn`: only evaluation tells."""
    estimate: int | None
    """The most that it may cost, by the API server; None: it has no bound."""
    limit: int = LIMIT
    is_selector: bool
    """Whether an API server stores it in a claim or a class."""
    devices: tuple[DeviceValue, ...]
    left_out: tuple[str, ...] = ()
    """What was not evaluated or not read, and how much of it."""
    caret: tuple[str, ...] = ()
    """Where the first error is, in lines."""

    @property
    def has_failed(self) -> bool:
        """Whether it fails on any device."""
        return any(one.error for one in self.devices)


def compiled(text: str, release: str) -> cel.Selector:
    """Return an expression that is ready to use. Raises: Invalid, which shows the place."""
    try:
        return cel.compile_selector(text, release=release, result=cel.ANY)
    except errors.Invalid as error:
        lines = "".join(f"\n  {line}" for line in caret(text, error))
        message = f"the expression is no CEL: {error.message}{lines}"
        hint = "it is over `device`: device.driver, device.attributes[DOMAIN].NAME, device.capacity[DOMAIN].NAME"
        raise errors.Invalid(message, reason=error.reason, hint=hint, **error.context) from error


def caret(text: str, error: errors.FairleadError) -> tuple[str, ...]:
    """Return the line of an expression that an error is in, and a caret below the place; none: it names no place."""
    line, column = error.context.get("line"), error.context.get("column")
    rows = text.split("\n")
    if not isinstance(line, int) or not isinstance(column, int) or not 0 < line <= len(rows):
        return ()
    first = max(0, column - 1 - _AROUND)
    shown = rows[line - 1][first : column - 1 + _AROUND]
    # One character for each, so that the caret stays below its own.
    plain = "".join(one if one.isprintable() else "?" for one in shown)
    return f"{'…' if first else ''}{plain}", " " * (column - 1 - first + bool(first)) + "^"


def devices(
    slices: Iterable[ResourceSlice], chosen: Sequence[str]
) -> tuple[list[tuple[DeviceID, Device]], tuple[str, ...]]:
    """Return the devices to look at, by driver, pool and name, and what is left out.

    Args:    chosen: `DRIVER/POOL/NAME` or `NAME`; none: all.
    Raises:  NotFound: a name that no device has.
    """
    every = list(slices)
    newest = note.newest(every)
    old = len(every) - len(newest)
    found = [
        (DeviceID(one.spec.driver, one.spec.pool.name, device.name), device)
        for one in newest
        for device in one.spec.devices
    ]
    found.sort(key=lambda one: one[0])
    if chosen:
        found = _chosen(found, chosen)
    left = f"not looked at: {note.count(old, 'slice')} of an older generation of a pool"
    return found, (left,) if old else ()


def _chosen(found: list[tuple[DeviceID, Device]], chosen: Sequence[str]) -> list[tuple[DeviceID, Device]]:
    wanted = set(chosen)
    kept = [one for one in found if str(one[0]) in wanted or one[0].device in wanted]
    missing = wanted - {str(at) for at, _ in kept} - {at.device for at, _ in kept}
    for name in sorted(missing):
        near = errors.closest(name[:_COMPARED], [str(at)[:_COMPARED] for at, _ in found[:_MOST_COMPARED]])
        message = f'no device "{errors.readable(name)}" is published in the newest generation of any pool'
        hint = f"did you mean {near}?" if near else "`fairlead dra slices --devices` lists them"
        raise errors.NotFound(message, reason="DeviceNotFound", hint=hint)
    return kept


def evaluate(
    selector: cel.Selector,
    found: Sequence[tuple[DeviceID, Device]],
    *,
    left_out: Iterable[str] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Evaluated:
    """Return what an expression gives for devices; it ends after 20 s, with what it has."""
    values: list[DeviceValue] = []
    marks: tuple[str, ...] = ()
    until = clock() + _LONGEST_S
    for at, device in found:
        if clock() > until:
            break
        one, error = _evaluate(selector, at, device)
        values.append(one)
        if error is not None and not marks:
            marks = caret(selector.text, error)
    left = [*left_out]
    if len(values) < len(found):
        rest = note.count(len(found) - len(values), "device")
        left.append(f"not evaluated: {rest}, since {_LONGEST_S:.0f} s were over: choose some with --device")
    estimate = selector.estimate()
    is_cheap = estimate is not None and estimate <= LIMIT
    return Evaluated(
        expression=errors.readable(selector.text),
        release=selector.release,
        type=errors.readable(selector.kind),
        estimate=estimate,
        is_selector=is_cheap and selector.kind in _KINDS,
        devices=tuple(values),
        left_out=tuple(left),
        caret=marks,
    )


def _evaluate(selector: cel.Selector, at: DeviceID, device: Device) -> tuple[DeviceValue, errors.FairleadError | None]:
    name = errors.readable(str(at))
    try:
        view = expression.of_device(at.driver, device)
    except errors.FairleadError as error:
        return DeviceValue(device=name, error=f"the device cannot be read: {error.message}"), None
    try:
        done = selector.evaluate(view)
    except errors.FairleadError as error:
        cost = error.context.get("cost")
        spent = cost if isinstance(cost, int) else None
        over = error.reason == "CELCost"
        return DeviceValue(device=name, error=error.message, cost=spent, is_over_limit=over), error
    text = errors.readable(literal.written(done.value, longest=_LONGEST))
    plain = type(done.value) in _PLAIN and len(text) <= _LONGEST
    value = done.value if plain else text
    return DeviceValue(device=name, value=value, text=text, type=name_of(done.value), cost=done.cost), None


def lines(found: Evaluated, *, every: bool) -> Iterator[str]:
    """Yield the values for a terminal. Args: every: all devices, not the first fifty."""
    yield from note.wrapped(f"{found.type}, {_judged(found)}")
    shown = found.devices if every else found.devices[:SHOWN]
    rows = [("DEVICE", "COST", "VALUE"), *((one.device, _cost(one), _told(one)) for one in shown)]
    yield from note.table(rows)
    if len(shown) < len(found.devices):
        yield from note.wrapped(f"{_tally(found.devices[len(shown) :])} more: --all shows them")
    yield from note.wrapped(f"{_tally(found.devices)}.{_most(found)}")
    yield from (f"  {line}" for line in found.caret)
    for one in found.left_out:
        yield from note.wrapped(one)


def _judged(found: Evaluated) -> str:
    estimate = "without a bound" if found.estimate is None else f"at most {found.estimate}"
    cost = f"costs {estimate} by the API server's estimate of {found.release}"
    if found.estimate is None or found.estimate > found.limit:
        return f"{cost}: it stores no more than {found.limit}, so it refuses this one"
    if not found.is_selector:
        return f"{cost}: no selector, since those are of type bool"
    return f"{cost} (limit {found.limit})"


def _cost(one: DeviceValue) -> str:
    return "" if one.cost is None else f"{one.cost}{' !' if one.is_over_limit else ''}"


def _told(one: DeviceValue) -> str:
    return f"error: {one.error}" if one.error else one.text


def _tally(values: Sequence[DeviceValue]) -> str:
    counts = Counter("error" if one.error else one.text if one.type == "bool" else "other" for one in values)
    words = {"true": "true", "false": "false", "error": "failed", "other": "with another value"}
    parts = [f"{counts[key]} {word}" for key, word in words.items() if counts[key]]
    told = "" if set(counts) <= {"other"} else f": {', '.join(parts)}"
    return f"{note.count(len(values), 'device')}{told}"


def _most(found: Evaluated) -> str:
    costs = [one.cost for one in found.devices if one.cost is not None]
    most = f" It cost {max(costs)} at most, of {found.limit}." if costs else ""
    failed = " Where it fails, kube-scheduler ends the scheduling of the pod." if found.has_failed else ""
    return f"{most}{failed}"


def plain(found: Evaluated, *, every: bool) -> Evaluated:
    """Return the values for a program; bounded as the lines are."""
    if every or len(found.devices) <= SHOWN:
        return found
    rest = f"not shown: {_tally(found.devices[SHOWN:])}: --all shows them"
    return msgspec.structs.replace(found, devices=found.devices[:SHOWN], left_out=(*found.left_out, rest))
