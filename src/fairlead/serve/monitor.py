"""Counts what a long-lived process does: the rows of `telemetry.METRICS` and the process's own figures.

`stalled` names the loops whose next heartbeat is overdue (`Meter.heartbeat`); `/healthz` answers by it.

Source: Prometheus exposition formats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import prometheus_client
from prometheus_client import metrics

from fairlead import telemetry


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
        """Return which loops missed their heartbeat, "" where none did."""
        now = self._clock()
        slow = [(loop, begun) for loop, (begun, due) in sorted(self._due.items()) if now > due]
        return ", ".join(f"{loop} last turned {now - begun:.0f} s ago" for loop, begun in slow)

    def expose(self) -> bytes:
        """Return every figure in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)

    async def page(self) -> bytes:
        """Return the same, for an application that awaits its pages."""
        return self.expose()

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
