"""Answers those who watch a long-lived process: `/healthz`, `/readyz`, `/metrics`.

`/healthz` answers whether the process should be left alone: it answers at all, and no loop that promised to turn again
is late (`Meter.heartbeat`). `/readyz` is asked of the process, as its composition says. `/metrics` has the rows of
`telemetry.METRICS` and the process's own figures. The application is three paths of bare ASGI: the framework of the
API would double the agent's memory for them.

Source: Prometheus exposition formats; Kubernetes probes (any status from 200 to 399 is success).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import prometheus_client
from prometheus_client import metrics

from fairlead import telemetry

Check = Callable[[], str]
"""Returns what is wrong, or nothing."""

_TEXT: Final = b"text/plain; charset=utf-8"


class PrometheusMeter:
    """A `telemetry.Meter` with a registry of its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin empty: a row is shown once something was said about it. `clock` gives monotonic seconds."""
        self._clock = clock
        self._registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        self._instruments: dict[str, Any] = {}
        self._due: dict[str, tuple[float, float]] = {}

    def add(self, metric: telemetry.Metric, *labels: str) -> None:
        """See `telemetry.Meter.add`."""
        self._labelled(metric, labels).inc()

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None:
        """See `telemetry.Meter.set`."""
        self._labelled(metric, labels).set(value)

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None:
        """See `telemetry.Meter.observe`."""
        self._labelled(metric, labels).observe(seconds)

    def heartbeat(self, loop: str, within_s: float | None) -> None:
        """See `telemetry.Meter.heartbeat`."""
        if within_s is None:
            self._due.pop(loop, None)
        else:
            now = self._clock()
            self._due[loop] = (now, now + within_s)

    def stalled(self) -> str:
        """Return which loops did not turn in time, "" where all did."""
        now = self._clock()
        slow = [(loop, begun) for loop, (begun, due) in sorted(self._due.items()) if now > due]
        return ", ".join(f"{loop} last turned {now - begun:.0f} s ago" for loop, begun in slow)

    def expose(self) -> bytes:
        """Return every figure in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)

    def _labelled(self, metric: telemetry.Metric, labels: tuple[str, ...]) -> Any:
        instrument = self._instruments.get(metric.name)
        if instrument is None:
            instrument = self._instruments[metric.name] = _instrument(metric, self._registry)
        return instrument.labels(*labels) if metric.labels else instrument


def _instrument(metric: telemetry.Metric, registry: prometheus_client.CollectorRegistry) -> metrics.MetricWrapperBase:
    common: Mapping[str, Any] = {"labelnames": metric.labels, "registry": registry}
    if metric.buckets_s:
        return prometheus_client.Histogram(metric.name, metric.text, buckets=metric.buckets_s, **common)
    kind = prometheus_client.Counter if metric.name.endswith("_total") else prometheus_client.Gauge
    return kind(metric.name, metric.text, **common)


Scope = Mapping[str, Any]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, object, Send], Awaitable[None]]


def create_app(meter: PrometheusMeter, ready: Check) -> App:
    """Return the application; `ready` says why this process cannot do its work yet, or nothing."""
    pages: Mapping[str, Callable[[], tuple[int, bytes, bytes]]] = {
        "/healthz": lambda: _verdict(meter.stalled()),
        "/readyz": lambda: _verdict(ready()),
        "/metrics": lambda: (200, prometheus_client.CONTENT_TYPE_LATEST.encode(), meter.expose()),
    }

    async def app(scope: Scope, _receive: object, send: Send) -> None:
        page = pages.get(scope["path"])
        if page is None:
            status, kind, body = 404, _TEXT, f"there are: {', '.join(pages)}\n".encode()
        elif scope["method"] not in {"GET", "HEAD"}:
            status, kind, body = 405, _TEXT, b"only GET and HEAD\n"
        else:
            status, kind, body = page()
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app


def _verdict(problem: str) -> tuple[int, bytes, bytes]:
    return (503, _TEXT, f"{problem}\n".encode()) if problem else (200, _TEXT, b"ok\n")
