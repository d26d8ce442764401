"""Serves the routes of figures over time: of one container, of one GPU, and of all GPUs at a glance."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.api import moment
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.containers.pods import find_pod
from fairlead.serve.backend.port import require
from fairlead.serve.history.port import Question
from fairlead.serve.history.view import GPUMetricsList, MetricsView
from fairlead.serve.v1.containers.parameters import Name, Namespace
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.metrics import table

_HOUR_S: Final = 3600.0
_AGO: Final = re.compile(r"([0-9]{1,9})(s|m|min|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Since = Annotated[
    str | None, params.QueryParameter(description="begin, as 2026-11-01T00:00:00Z or 90m, 6h, 7d ago; empty: 1h")
]
Until = Annotated[str | None, params.QueryParameter(description="end, as `since`; empty: now")]
Step = Annotated[
    int | None,
    params.QueryParameter(
        description="seconds between two points, a multiple of 10; empty: so that there are at most 360"
    ),
]
Format = Annotated[str, params.QueryParameter(name="format", description="json or csv")]


def read_question(since: str | None, until: str | None, step: int | None, *, now: float) -> Question:
    """Return what is asked for. Raises: RequestError (`PeriodInvalid`)."""
    end = now if not until else _read("until", until, now)
    return Question(since=end - _HOUR_S if not since else _read("since", since, now), until=end, step_s=step)


def _read(name: str, text: str, now: float) -> float:
    """Return the Unix seconds of a parameter: a time, or how long ago."""
    if found := _AGO.fullmatch(text):
        return max(0.0, now - int(found[1]) * _SECONDS[found[2]])
    try:
        return moment.read(name, text)
    except errors.RequestError as error:
        hint = "how long ago, as 90m, 6h, 7d or 2w, or RFC 3339, as 2026-11-01T00:00:00Z"
        raise errors.RequestError(error.message, reason=error.reason, hint=hint) from error


def _answer(found: MetricsView, form: str) -> Any:
    """Return figures, or a response that has them in another form. Raises: RequestError (`FormatUnknown`)."""
    if form == "json":
        return found
    if form != "csv":
        message = f'format: "{errors.readable(form)}" is not one'
        raise errors.RequestError(message, reason="FormatUnknown", hint="json or csv")
    return response.Response(table.as_csv(found), media_type="text/csv; charset=utf-8")


@litestar.get(
    "/v1/containers/{name:str}/metrics",
    summary="Show what a container did over time",
    responses=documented(400, 404, 502, 503),
    tags=["container"],
)
async def read_container_metrics(
    services: Dependencies,
    name: Name,
    namespace: Namespace = "default",
    since: Since = None,
    until: Until = None,
    step: Step = None,
    form: Format = "json",
) -> MetricsView:
    """Return CPU, memory, network and disk of a container, and the figures of its GPUs while it held them.

    On one machine the service keeps them itself; where a Prometheus is set, it is asked.
    """
    asked = read_question(since, until, step, now=time.time())
    history = require(services.backend.history)
    pod = await find_pod(services.store, name, namespace)
    found: MetricsView = _answer(await history.of_container(pod, asked), form)
    return found


@litestar.get(
    "/v1/gpus/metrics", summary="Show all GPUs at a glance", responses=documented(404, 502, 503), tags=["machine"]
)
async def list_gpu_metrics(services: Dependencies) -> GPUMetricsList:
    """Return each GPU's load in the last hour, and how all GPUs were held and used today and in the last seven days.

    Tenants get those GPUs, and those minutes, that their containers held.
    """
    return await require(services.backend.history).of_gpus()


@litestar.get(
    "/v1/gpus/{gpu:str}/metrics",
    summary="Show what a GPU did over time",
    responses=documented(400, 404, 502, 503),
    tags=["machine"],
)
async def read_gpu_metrics(
    services: Dependencies,
    gpu: Annotated[str, params.PathParameter(description="UUID of a GPU or MIG device, or index of a GPU")],
    since: Since = None,
    until: Until = None,
    step: Step = None,
    form: Format = "json",
) -> MetricsView:
    """Return load, memory, power, temperature and clock; tenants get what was measured while they held it."""
    asked = read_question(since, until, step, now=time.time())
    found: MetricsView = _answer(await require(services.backend.history).of_gpu(gpu, asked), form)
    return found


ROUTES = (read_container_metrics, list_gpu_metrics, read_gpu_metrics)
