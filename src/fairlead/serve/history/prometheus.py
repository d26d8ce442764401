"""Answers from a Prometheus, whose word is not trusted.

Its answer is read up to a limit of bytes and within a time, and each series, time and value is checked: what does not
belong to the question is left out, and labels say whose a GPU's figures are. It is asked at the address of the setting
alone, without redirects and without proxies of the environment.
Source: Prometheus, "HTTP API", /api/v1/query_range; kubernetes cAdvisor's and dcgm-exporter's metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Final

import aiohttp
import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.plan.history import tier
from fairlead.serve.history.port import Question, Sees
from fairlead.serve.history.view import GPULine, GPUMetricsList, HistoryView, MetricsView, SeriesView
from fairlead.wire.kubernetes import core
from fairlead.wire.text import timestamp

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
_WHOLE_S: Final = 15.0
"""How long one question may take, which is several queries."""
_SILENT_S: Final = 5.0
"""How long one that did not answer is left alone, so that pages do not wait for it again and again."""
_MOST_WAITING: Final = 64
"""Questions at once; more are asked to come again."""
_MOST_BYTES: Final = 8 << 20
_MOST_SERIES: Final = 512
_AT_ONCE: Final = 4
_LARGEST: Final = 1e18
"""What is larger is not one of these figures."""
_DAYS: Final = 400.0


@frozen
class Asked:
    """One figure, and how it is asked for."""

    metric: str
    unit: str
    title: str
    name: str
    """Of the metric."""
    factor: float = 1.0
    is_rate: bool = False
    more: str = ""
    """More label matchers."""


_GPU: Final = (
    Asked(metric="load", unit="%", title="GPU load", name="DCGM_FI_DEV_GPU_UTIL"),
    Asked(metric="memory", unit="bytes", title="GPU memory", name="DCGM_FI_DEV_FB_USED", factor=float(1 << 20)),
    Asked(metric="power", unit="W", title="Power", name="DCGM_FI_DEV_POWER_USAGE"),
    Asked(metric="temperature", unit="C", title="Temperature", name="DCGM_FI_DEV_GPU_TEMP"),
    Asked(metric="clock", unit="MHz", title="SM clock", name="DCGM_FI_DEV_SM_CLOCK"),
)
_CONTAINER: Final = (
    Asked(
        metric="cpu",
        unit="%",
        title="CPU",
        name="container_cpu_usage_seconds_total",
        factor=100,
        is_rate=True,
        more=',container!=""',
    ),
    Asked(
        metric="memory", unit="bytes", title="Memory", name="container_memory_working_set_bytes", more=',container!=""'
    ),
    Asked(
        metric="received",
        unit="bytes/s",
        title="Network in",
        name="container_network_receive_bytes_total",
        is_rate=True,
    ),
    Asked(
        metric="sent", unit="bytes/s", title="Network out", name="container_network_transmit_bytes_total", is_rate=True
    ),
    Asked(metric="read", unit="bytes/s", title="Disk read", name="container_fs_reads_bytes_total", is_rate=True),
    Asked(metric="written", unit="bytes/s", title="Disk written", name="container_fs_writes_bytes_total", is_rate=True),
)


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: Annotated[list[tuple[float, str]], msgspec.Meta(max_length=20_000)] = []


class _Result(msgspec.Struct):
    resultType: str = ""  # noqa: N815 Prometheus' name
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Result = msgspec.field(default_factory=_Result)
    error: str = ""


class PrometheusHistory:
    """A `port.History` over a Prometheus."""

    def __init__(
        self, url: str, *, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take its address. Raises: Invalid (`HistoryURLInvalid`)."""
        parts = _split(url)
        if parts is None:
            message = f'history.prometheus: "{errors.readable(url)}" is not the address of a Prometheus'
            raise errors.Invalid(message, reason="HistoryURLInvalid", hint="for example http://127.0.0.1:9090")
        if parts.password is not None:
            message = "history.prometheus holds a password, which `fairlead settings` would show"
            raise errors.Invalid(message, reason="HistoryURLInvalid", hint="let it listen where it needs none")
        self._url, self._now, self._clock = url.rstrip("/"), now, clock
        self._waiting, self._silent_until = 0, -math.inf
        self._gate = asyncio.Semaphore(_AT_ONCE)

    def describe(self) -> HistoryView:
        """See `port.History.describe`."""
        return HistoryView(days=0, prometheus=self._url)

    async def of_container(self, pod: core.Pod, asked: Question) -> MetricsView:
        """See `port.History.of_container`; what an earlier container of the name had is left out."""
        async with self._question():
            return await self._of_container(pod, asked)

    async def _of_container(self, pod: core.Pod, asked: Question) -> MetricsView:
        window = self._window(asked)
        about = pod.metadata
        where = f"namespace={_quoted(about.namespace)},pod={_quoted(about.name)}"
        begin = timestamp.parse(about.creation_timestamp or "") or 0.0
        mine = {"namespace": about.namespace, "pod": about.name}
        series = []
        for one in _CONTAINER:
            selector = f"{one.name}{{{where}{one.more}}}"
            by = "namespace, pod"
            found = await self._query(f"sum by ({by}) ({_rated(selector, one, window)})", window)
            points = _sum([each for each in found if _has(each, mine)], window, one.factor, since=lambda _: begin)
            series.append(_view(one, points))
        for one in _GPU:
            found = await self._query(f"max by (namespace, pod, UUID) ({one.name}{{{where}}})", window)
            for uuid in dict.fromkeys(each.metric.get("UUID", "") for each in found if _has(each, mine)):
                gpus = [each for each in found if _has(each, {**mine, "UUID": uuid})]
                series.append(_view(one, _sum(gpus, window, one.factor, since=lambda _: begin), device=uuid[:100]))
        return _whole(about.name, window, series, namespace=about.namespace)

    async def of_gpu(self, gpu: str, asked: Question, *, sees: Sees | None = None) -> MetricsView:
        """See `port.History.of_gpu`; a GPU is named by its UUID here."""
        async with self._question():
            return await self._of_gpu(gpu, asked, sees=sees)

    async def _of_gpu(self, gpu: str, asked: Question, *, sees: Sees | None) -> MetricsView:
        window, series, is_known = self._window(asked), list[SeriesView](), False
        for one in _GPU:
            query = f"max by (UUID, namespace) ({one.name}{{UUID={_quoted(gpu)}}})"
            found = [each for each in await self._query(query, window) if _has(each, {"UUID": gpu})]
            points = _sum(found, window, one.factor, since=_since(sees), merge=max)
            is_known = is_known or any(each is not None for each in points)
            series.append(_view(one, points, device=gpu))
        if not is_known:
            message = f'the Prometheus knows no GPU "{errors.readable(gpu)}", or none that you held in this period'
            raise errors.NotFound(message, reason="GPUUnknown", hint="name its UUID: `fairlead gpus`")
        return _whole(gpu, window, series)

    async def of_gpus(self, *, sees: Sees | None = None) -> GPUMetricsList:
        """See `port.History.of_gpus`."""
        async with self._question():
            return await self._of_gpus(sees=sees)

    async def _of_gpus(self, *, sees: Sees | None) -> GPUMetricsList:
        now = self._now()
        window = tier.Window(begin=tier.floor(now - 59 * 60, 60), step_s=60, count=60, tier=0)
        found = await self._query("max by (UUID, namespace) (DCGM_FI_DEV_GPU_UTIL)", window)
        lines = []
        for uuid in dict.fromkeys(one.metric.get("UUID", "") for one in found):
            mine = [one for one in found if one.metric.get("UUID", "") == uuid]
            points = _sum(mine, window, 1.0, since=_since(sees), merge=max)
            if sees is None or any(one is not None for one in points):
                lines.append(GPULine(gpu=uuid[:100], loads=points))
        return GPUMetricsList(items=tuple(lines))

    def _window(self, asked: Question) -> tier.Window:
        return tier.choose(asked.since, asked.until, asked.step_s, now=asked.since, days=_DAYS)

    async def _query(self, query: str, window: tier.Window) -> Sequence[_Series]:
        """Return the series that answer a query. Raises: Unavailable (`PrometheusUnreachable`); ProtocolError."""
        last = window.end - window.step_s
        # The value at the end of a step is that of the step.
        values = {"query": query, "start": window.begin + window.step_s, "end": last + window.step_s}
        asked = {**{name: str(value) for name, value in values.items()}, "step": str(window.step_s)}
        data = await self._post("/api/v1/query_range", asked)
        try:
            found = msgspec.json.decode(data, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._broken("it does not answer as a Prometheus does") from error
        if found.status != "success":
            raise self._broken(f"it refused the question: {_plain(found.error[:200])}")
        if len(found.data.result) > _MOST_SERIES:
            raise self._broken(f"it answers with more than {_MOST_SERIES} series")
        return found.data.result

    async def _post(self, path: str, form: Mapping[str, str]) -> bytes:
        body = bytearray()
        try:
            async with (
                self._gate,
                aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False, auto_decompress=True) as client,
                client.post(f"{self._url}{path}", data=form, allow_redirects=False) as answer,
            ):
                async for piece in answer.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > _MOST_BYTES:
                        raise self._broken(f"it answers with more than {_MOST_BYTES >> 20} MiB")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            why = f"not within {_TIMEOUT.total:g} s" if isinstance(error, TimeoutError) else str(error)
            raise self._silent(why or type(error).__name__) from error
        return bytes(body)

    @contextlib.asynccontextmanager
    async def _question(self) -> AsyncIterator[None]:
        """Bound a question: how many there are, and how long it takes. Raises: Unavailable."""
        if self._waiting >= _MOST_WAITING:
            message = f"{self._waiting} questions about figures are being answered"
            raise errors.Unavailable(message, reason="HistoryBusy", hint="ask again in a moment")
        if (left := self._silent_until - self._clock()) > 0:
            raise self._unreachable(f"it did not a moment ago, and is asked again in {math.ceil(left)} s")
        self._waiting += 1
        try:
            async with asyncio.timeout(_WHOLE_S):
                yield
        except TimeoutError as error:
            raise self._silent(f"not within {_WHOLE_S:g} s") from error
        finally:
            self._waiting -= 1

    def _silent(self, why: str) -> errors.Unavailable:
        self._silent_until = self._clock() + _SILENT_S
        return self._unreachable(why)

    def _unreachable(self, why: str) -> errors.Unavailable:
        hint = "setting history.prometheus names it; without one the machine's own figures are shown"
        message = f"the Prometheus at {self._url} does not answer: {why}"
        return errors.Unavailable(message, reason="PrometheusUnreachable", hint=hint)

    def _broken(self, why: str) -> errors.ProtocolError:
        hint = "setting history.prometheus names it; a later `since` or a longer step asks for less"
        return errors.ProtocolError(
            f"the Prometheus at {self._url}: {why}", reason="PrometheusAnswerInvalid", hint=hint
        )


def _split(url: str) -> urllib.parse.SplitResult | None:
    """Return the parts of an address; None: it is not one of a server."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_server = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets of IPv6 that do not match, or a port beyond 65535
        return None
    return parts if is_server and not parts.query and not parts.fragment else None


def _plain(text: str) -> str:
    """Return foreign words without what a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _quoted(text: str) -> str:
    """Return a text as PromQL's string. Source: Prometheus, "Querying basics", string literals follow Go's rules."""
    plain = "".join(one for one in text if one.isprintable())
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _rated(selector: str, one: Asked, window: tier.Window) -> str:
    return f"rate({selector}[{max(window.step_s, 120)}s])" if one.is_rate else selector


def _since(sees: Sees | None) -> Callable[[_Series], float]:
    """Return since when a caller may see a series, by the namespace that held the GPU; infinite: never."""

    def since(one: _Series) -> float:
        found = 0.0 if sees is None else sees(one.metric.get("namespace", ""))
        return math.inf if found is None else found

    return since


def _has(one: _Series, labels: Mapping[str, str]) -> bool:
    return all(one.metric.get(name) == value for name, value in labels.items())


def _sum(
    found: Sequence[_Series],
    window: tier.Window,
    factor: float,
    *,
    since: Callable[[_Series], float] = lambda _: 0.0,
    merge: Callable[[float, float], float] = lambda one, other: one + other,
) -> tuple[float | None, ...]:
    """Return series as the points of a window; what is not a number, or outside it, is left out."""
    points: list[float | None] = [None] * window.count
    for one in found:
        first = max(window.begin, since(one))
        for at, text in one.values:
            begin = at - window.step_s
            if not math.isfinite(at) or begin < first or begin >= window.end:
                continue
            value = _number(text)
            place = int((begin - window.begin) // window.step_s)
            if value is not None:
                before = points[place]
                points[place] = value * factor if before is None else merge(before, value * factor)
    return tuple(None if one is None else round(one, 1) for one in points)


def _number(text: str) -> float | None:
    try:
        value = float(text[:64])
    except ValueError:
        return None
    return value if 0 <= value <= _LARGEST else None


def _view(one: Asked, points: tuple[float | None, ...], *, device: str = "") -> SeriesView:
    return SeriesView(metric=one.metric, unit=one.unit, title=one.title, device=device, means=points, peaks=points)


def _whole(of: str, window: tier.Window, series: Sequence[SeriesView], *, namespace: str = "") -> MetricsView:
    notes = () if any(value is not None for one in series for value in one.means) else (_NOTHING,)
    return MetricsView(
        of=of,
        namespace=namespace,
        since=timestamp.emit(window.begin),
        until=timestamp.emit(window.end),
        step_s=window.step_s,
        times=tuple(range(window.begin, window.end, window.step_s)),
        series=tuple(series),
        source="prometheus",
        notes=notes,
    )


_NOTHING: Final = (
    "the Prometheus has none of these figures: does it scrape Fairlead's agents and the kubelets' cAdvisor?"
)
