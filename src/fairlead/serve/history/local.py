"""Answers from this machine's own file. What a caller saw of a GPU is what was measured while they held it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import functools
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from fairlead import errors
from fairlead.model import replica
from fairlead.model.device import gpus_by_device
from fairlead.model.gpu import GPU, Inventory
from fairlead.plan.history import figure, tier
from fairlead.plan.history.figure import CONTAINER, FIGURES, HELD, MIG, Interval, Points, Row
from fairlead.plan.idle import judge
from fairlead.serve.history.file import Held
from fairlead.serve.history.port import Question, Sees
from fairlead.serve.history.recorder import Recorder
from fairlead.serve.history.view import GPULine, GPUMetricsList, HistoryView, MetricsView, SeriesView, UsePeriod
from fairlead.wire.kubernetes import core
from fairlead.wire.text import timestamp

T = TypeVar("T")

_LINE: Final = 60
"""Minutes of a small picture."""
_WEEK_S: Final = 7 * tier.DAY_S
_FRESH_S: Final = 10.0
"""How long an answer about all GPUs is good for; there is no newer sample meanwhile."""
_MOST_WAITING: Final = 64
"""Questions that wait for the file at once; more are asked to come again."""
_MOST_DEVICES: Final = 64
"""Devices of one container in one answer."""


class LocalHistory:
    """A `port.History` over a recorder's file."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        scan: Callable[[], Inventory],
        days: float,
        most_bytes: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take what is asked. Args: scan: gives the machine's GPUs.   days, most_bytes: what is kept, for a person."""
        self._recorder, self._scan, self._days, self._most, self._now = recorder, scan, days, most_bytes, now
        self._reader = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="history-reader")
        self._waiting = 0
        self._glance: tuple[float, GPUMetricsList] | None = None

    def describe(self) -> HistoryView:
        """See `port.History.describe`."""
        file = self._recorder.file
        return HistoryView(
            days=self._days,
            rows=file.size.rows,
            size_bytes=file.size.bytes,
            most_bytes=self._most,
            since=None if file.size.begin is None else timestamp.emit(file.size.begin),
            problem=self._recorder.problem,
            set_aside=str(file.set_aside or ""),
        )

    async def of_container(self, pod: core.Pod, asked: Question) -> MetricsView:
        """See `port.History.of_container`."""
        window = self._window(asked)
        uid = pod.metadata.uid
        held = self._current(
            await self._ask(lambda: self._recorder.file.read_held(uid=uid)), lambda one: one.uid == uid
        )
        rows = await self._ask(lambda: self._recorder.file.read(CONTAINER, uid, window))
        series = [*_series(CONTAINER, figure.spread(rows, window, len(FIGURES[CONTAINER])))]
        found: dict[str, GPU] = {gpu.uuid: gpu for gpu in self._scan().gpus}
        order = {uuid: gpu.index for uuid, gpu in found.items()}
        devices = sorted({(one.gpu, replica.origin(one.device)) for one in held}, key=lambda one: order.get(one[0], -1))
        for gpu, device in devices[:_MOST_DEVICES]:
            mine = figure.joined(one.interval for one in held if replica.origin(one.device) == device)
            others = self._others(await self._holders(gpu, window.begin), uid, device, mine)
            seen = await self._device(found.get(gpu), gpu, device, window, mine, is_shared=others)
            series += [one for one in seen if one.metric != HELD]
        notes = self._notes(asked, window)
        if len(devices) > _MOST_DEVICES:
            notes = (*notes, f"{len(devices) - _MOST_DEVICES} of its devices are left out")
        return self._view(pod.metadata.name, window, series, notes, namespace=pod.metadata.namespace)

    async def of_gpu(self, gpu: str, asked: Question, *, sees: Sees | None = None) -> MetricsView:
        """See `port.History.of_gpu`."""
        board, device = self._named(gpu)
        window = self._window(asked)
        mine: Sequence[Interval] | None = None
        if sees is not None:
            mine = _seen(await self._holders(board, window.begin), device, sees)
            if not mine:
                raise _unknown(gpu)
        found = next((one for one in self._scan().gpus if one.uuid == board), None)
        series = await self._device(found, board, device, window, mine)
        if sees is not None:
            series = [one for one in series if one.metric != HELD]
        return self._view(device, window, series, self._notes(asked, window))

    async def measured(self, uid: str, devices: Iterable[str], window: judge.Window) -> judge.Measured:
        """Return what was measured of a pod and its devices, see `control.idle.keeper.Figures`.

        Raises: Unavailable: the last sample was not kept, or the file does not answer.
        """
        if self._recorder.problem:
            raise errors.Unavailable("the last sample was not kept", reason="HistoryUnreachable")
        boards = gpus_by_device(self._scan().gpus)
        asked = tier.choose(window.since, window.until, None, now=window.until, days=self._days)
        found: dict[str, list[Row]] = {}
        for device in sorted({replica.origin(one) for one in devices})[:_MOST_DEVICES]:
            board = boards.get(device)
            kind = figure.GPU if board == device else MIG
            key = device if board is not None else ""
            found[device] = await self._ask(functools.partial(self._recorder.file.read, kind, key, asked))
        container = await self._ask(lambda: self._recorder.file.read(CONTAINER, uid, asked))
        return judge.Measured(devices=found, container=container)

    def _named(self, text: str) -> tuple[str, str]:
        """Return the GPU that is meant, and the device. Raises: NotFound."""
        for one in self._scan().gpus:
            if text in {one.uuid, str(one.index)}:
                return one.uuid, one.uuid
            if any(text == mig.uuid for mig in one.mig_devices):
                return one.uuid, text
        raise _unknown(text)

    async def of_gpus(self, *, sees: Sees | None = None) -> GPUMetricsList:
        """See `port.History.of_gpus`."""
        now = self._now()
        if sees is None and self._glance is not None and 0 <= now - self._glance[0] < _FRESH_S:
            return self._glance[1]
        window = tier.Window(begin=tier.floor(now - (_LINE - 1) * 60, 60), step_s=60, count=_LINE, tier=1)
        gpus = self._scan().gpus
        items = []
        for gpu in gpus:
            mine = None if sees is None else _seen(await self._holders(gpu.uuid, window.begin), gpu.uuid, sees)
            if mine is not None and not mine:
                continue
            rows = await self._rows(figure.GPU, gpu.uuid, window, mine)
            items.append(GPULine(gpu=gpu.uuid, loads=_rounded(figure.spread(rows, window, 1)[0].means)))
        made = GPUMetricsList(items=tuple(items), periods=() if sees else await self._periods(gpus, now))
        if sees is None:
            self._glance = (now, made)
        return made

    async def _periods(self, gpus: Sequence[GPU], now: float) -> tuple[UsePeriod, ...]:
        """Return how all GPUs were used today and in a week."""
        midnight = dt.datetime.fromtimestamp(now, dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        begins = (("today", int(midnight.timestamp())), ("week", tier.floor(now - _WEEK_S, tier.TIERS[-1].step_s)))
        held = [one.name for one in FIGURES[figure.GPU]].index(HELD)
        made = []
        for name, begin in begins:
            step_s = tier.TIERS[-1].step_s
            window = tier.Window(begin=begin, step_s=step_s, count=int((now - begin) // step_s) + 1, tier=2)
            rows = [row for gpu in gpus for row in await self._rows(figure.GPU, gpu.uuid, window, None)]
            made.append(
                UsePeriod(
                    name=name,
                    since=timestamp.emit(begin),
                    held_percent=_round(figure.average(rows, held)),
                    used_percent=_round(figure.average(rows, 0)),
                )
            )
        return tuple(made)

    # reading

    def _window(self, asked: Question) -> tier.Window:
        return tier.choose(asked.since, asked.until, asked.step_s, now=self._now(), days=self._days)

    async def _ask(self, read: Callable[[], T]) -> T:
        """Read the file in the readers' thread. Raises: Unavailable (`HistoryBusy`, `HistoryUnreachable`)."""
        if self._waiting >= _MOST_WAITING:
            message = f"{self._waiting} questions about figures are being answered"
            raise errors.Unavailable(message, reason="HistoryBusy", hint="ask again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, read)
        except sqlite3.Error as error:
            self._recorder.file.doubt(error)
            message = f"the figures cannot be read: {error}"
            hint = "`fairlead doctor` says what is wrong with them; a damaged file is set aside at the next sample"
            raise errors.Unavailable(message, reason="HistoryUnreachable", hint=hint) from error
        finally:
            self._waiting -= 1

    async def _rows(self, kind: str, key: str, window: tier.Window, mine: Sequence[Interval] | None) -> list[Row]:
        """Return the rows of a device. Args: mine: when the caller held it; None: all rows."""
        rows = await self._ask(lambda: self._recorder.file.read(kind, key, window))
        if mine is None:
            return rows
        return [row for row in rows if figure.within(row, mine)]

    async def _device(
        self,
        gpu: GPU | None,
        board: str,
        device: str,
        window: tier.Window,
        mine: Sequence[Interval] | None,
        *,
        is_shared: bool = False,
    ) -> list[SeriesView]:
        kind = MIG if device != board else figure.GPU
        rows = await self._rows(kind, device, window, mine)
        index = None if gpu is None else gpu.index
        found = figure.spread(rows, window, len(FIGURES[kind]))
        return [*_series(kind, found, device=device, index=index, is_shared=is_shared)]

    async def _holders(self, gpu: str, since: int) -> list[Held]:
        found = await self._ask(lambda: self._recorder.file.read_held(gpu=gpu, since=since))
        return self._current(found, lambda one: one.gpu == gpu)

    def _current(self, found: Iterable[Held], is_meant: Callable[[Held], bool]) -> list[Held]:
        """Return holders, those of now as of the last sample."""
        made = {(one.uid, one.device, one.since): one for one in found}
        made.update({(one.uid, one.device, one.since): one for one in self._recorder.held if is_meant(one)})
        return list(made.values())

    @staticmethod
    def _others(holders: Sequence[Held], uid: str, device: str, mine: Sequence[Interval]) -> bool:
        """Return whether another pod held the device while this one did."""
        return any(
            one.uid != uid
            and replica.origin(one.device) == device
            and any(one.since < own.until and own.since < one.until for own in mine)
            for one in holders
        )

    def _notes(self, asked: Question, window: tier.Window) -> tuple[str, ...]:
        notes = []
        if asked.step_s is not None and asked.step_s != window.step_s:
            notes.append(f"a period that begins so long ago has steps of {window.step_s} s")
        if asked.since < self._now() - self._days * tier.DAY_S:
            notes.append(f"figures are kept for {self._days:g} days (history.days)")
        if self._recorder.problem:
            notes.append(f"nothing was kept at the last sample: {self._recorder.problem}")
        return tuple(notes)

    @staticmethod
    def _view(
        of: str, window: tier.Window, series: Sequence[SeriesView], notes: tuple[str, ...], *, namespace: str = ""
    ) -> MetricsView:
        return MetricsView(
            of=of,
            namespace=namespace,
            since=timestamp.emit(window.begin),
            until=timestamp.emit(window.end),
            step_s=window.step_s,
            times=tuple(range(window.begin, window.end, window.step_s)),
            series=tuple(series),
            notes=notes,
        )


def _unknown(text: str) -> errors.NotFound:
    message = f'there is no GPU "{errors.readable(text)}", or none that you held in this period'
    return errors.NotFound(message, reason="GPUUnknown", hint="`fairlead gpus` lists them")


def _seen(holders: Sequence[Held], device: str, sees: Sees) -> Sequence[Interval]:
    """Return when a caller held a device as a whole or a replica of it, as far as they may see it."""
    made = []
    for one in holders:
        if replica.origin(one.device) == device and (since := sees(one.namespace)) is not None:
            begin = max(one.since, math.ceil(since))
            if begin < one.until:
                made.append(Interval(since=begin, until=one.until))
    return figure.joined(made)


def _series(
    kind: str, found: Sequence[Points], *, device: str = "", index: int | None = None, is_shared: bool = False
) -> Iterable[SeriesView]:
    for one, points in zip(FIGURES[kind], found, strict=True):
        yield SeriesView(
            metric=one.name,
            unit=one.unit,
            title=one.text,
            device=device,
            index=index,
            is_shared=is_shared,
            means=_rounded(points.means),
            peaks=_rounded(points.peaks),
        )


def _rounded(values: Iterable[float | None]) -> tuple[float | None, ...]:
    return tuple(map(_round, values))


@functools.lru_cache(maxsize=4096)
def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
