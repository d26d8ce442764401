"""A Prometheus is asked for what belongs to the question, and its answer is not trusted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from fairlead import errors
from fairlead.serve.history import prometheus
from fairlead.serve.history.port import Question
from fairlead.serve.history.prometheus import PrometheusHistory
from fairlead.wire.kubernetes import core, meta

NOW = 1_700_000_000
HOUR = Question(since=NOW - 600, until=NOW, step_s=60)
Answer = Callable[[str], Any]


def series(labels: dict[str, str], *values: tuple[float, Any]) -> dict[str, Any]:
    return {"metric": labels, "values": list(values)}


@contextlib.asynccontextmanager
async def asked(answer: Answer) -> AsyncIterator[tuple[PrometheusHistory, list[str]]]:
    """Give a history over a server of its own, and the queries it gets."""
    queries: list[str] = []

    async def query(request: web.Request) -> web.StreamResponse:
        form = await request.post()
        queries.append(str(form["query"]))
        found = answer(queries[-1])
        if isinstance(found, web.StreamResponse):
            return found
        if callable(found):
            response: web.StreamResponse = await found(request)
            return response
        body = {"status": "success", "data": {"resultType": "matrix", "result": found}}
        return web.Response(text=json.dumps(body), content_type="application/json")

    app = web.Application()
    app.router.add_post("/api/v1/query_range", query)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield PrometheusHistory(f"http://127.0.0.1:{port}/", now=lambda: float(NOW)), queries
    finally:
        await runner.cleanup()


def pod(name: str = "train", created: str = "2023-01-01T00:00:00Z") -> core.Pod:
    about = meta.ObjectMeta(name=name, namespace="red", creation_timestamp=created)
    return core.Pod(metadata=about, spec=core.PodSpec(containers=(core.Container(name="main", image="x"),)))


async def test_a_container_is_asked_for_by_its_labels() -> None:
    def answer(query: str) -> Any:
        labels = {"namespace": "red", "pod": "train", "UUID": "GPU-1"}
        at = NOW - NOW % 60
        if "GPU_UTIL" in query:
            return [series(labels, (at, "90"), (at - 60, "NaN")), series({**labels, "pod": "other"}, (at, "5"))]
        return [series({"namespace": "red", "pod": "train"}, (at, "0.5"))] if "cpu_usage" in query else []

    async with asked(answer) as (history, queries):
        found = await history.of_container(pod(), HOUR)
    by = {(one.metric, one.device): one for one in found.series}
    assert [one for one in by["load", "GPU-1"].means if one is not None] == [90]
    assert [one for one in by["cpu", ""].means if one is not None] == [50]
    assert found.source == "prometheus"
    assert all('namespace="red",pod="train"' in query for query in queries)


async def test_no_name_leaves_its_string() -> None:
    async with asked(lambda _: []) as (history, queries):
        await history.of_container(pod('x"} or up{a="\\'), HOUR)
    for query in queries:
        assert re.search(r'pod="x\\"\} or up\{a=\\"\\\\"', query), query


async def test_an_earlier_container_of_the_name_is_left_out() -> None:
    labels = {"namespace": "red", "pod": "train"}
    at = NOW - NOW % 60
    async with asked(lambda _: [series(labels, (at - 300, "1"), (at, "1"))]) as (history, _):
        found = await history.of_container(pod(created="2023-11-14T22:10:00Z"), HOUR)  # 200 s before
    (cpu,) = (one for one in found.series if one.metric == "cpu")
    assert len([one for one in cpu.means if one is not None]) == 1


async def test_a_tenant_gets_no_series_of_another_namespace() -> None:
    at = NOW - NOW % 60
    mine, theirs = ({"UUID": "GPU-1", "namespace": name} for name in ("red", "blue"))

    def answer(_: str) -> Any:
        return [series(mine, (at, "10")), series(theirs, (at - 60, "99")), series({"UUID": "GPU-2"}, (at, "7"))]

    async with asked(answer) as (history, _):
        found = await history.of_gpu("GPU-1", HOUR, sees={"red": 0.0}.get)
        assert [one for one in found.series[0].means if one is not None] == [10]
        with pytest.raises(errors.NotFound):
            await history.of_gpu("GPU-1", HOUR, sees={"green": 0.0}.get)
        with pytest.raises(errors.NotFound):
            await history.of_gpu("GPU-1", HOUR, sees={"red": float(NOW)}.get)
        glance = await history.of_gpus(sees={"red": 0.0}.get)
    assert [one.gpu for one in glance.items] == ["GPU-1"]


async def _huge(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        for _ in range(1024):
            await response.write(b"[" * (1 << 20))
    return response


@pytest.mark.parametrize(
    "answer",
    [
        _huge,
        web.Response(text="[" * 100_000),
        web.Response(text='{"status": "error", "error": "no\\u001b[31m"}'),
        web.Response(text='{"status": "success", "data": {"result": [{"metric": 5}]}}'),
        web.Response(text="<html>"),
        [series({"a": str(number)}) for number in range(600)],
    ],
    ids=["a GB", "deep", "refusal", "form", "html", "many"],
)
async def test_what_is_no_answer_is_refused(answer: Any) -> None:
    async with asked(lambda _: answer) as (history, _):
        with pytest.raises(errors.ProtocolError) as caught:
            await history.of_gpu("GPU-1", HOUR)
    assert caught.value.reason == "PrometheusAnswerInvalid"
    assert "\x1b" not in caught.value.message


async def test_lies_are_left_out() -> None:
    at = NOW - NOW % 60
    values = [
        (at, "-5"),
        (at - 60, "1e300"),
        (at - 120, "words"),
        (1e18, "1"),
        (-5, "1"),
        (at - 180, "Inf"),
        (at - 240, "3"),
    ]
    async with asked(lambda _: [series({"UUID": "GPU-1"}, *values)]) as (history, _):
        found = await history.of_gpu("GPU-1", HOUR)
    assert [one for one in found.series[0].means if one is not None] == [3]


async def test_one_that_leads_elsewhere_is_not_followed() -> None:
    moved = web.Response(status=307, headers={"location": "http://127.0.0.1:1/"})
    async with asked(lambda _: moved) as (history, _):
        with pytest.raises(errors.ProtocolError):
            await history.of_gpu("GPU-1", HOUR)


async def test_one_that_is_not_there_is_said_with_the_setting() -> None:
    with pytest.raises(errors.Unavailable) as caught:
        await PrometheusHistory("http://127.0.0.1:1").of_gpu("GPU-1", HOUR)
    assert caught.value.reason == "PrometheusUnreachable"
    assert "history.prometheus" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "url",
    ["", "file:///etc/passwd", "http://", "http://a:b@c", "http://a/?q=1", "http://[", "http://a:99999", "http://a:0"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        PrometheusHistory(url)
    assert caught.value.reason == "HistoryURLInvalid"
    assert "b@" not in caught.value.message


async def test_one_that_is_silent_is_left_alone_for_a_moment() -> None:
    at = [0.0]
    history = PrometheusHistory("http://127.0.0.1:1", clock=lambda: at[0])
    with pytest.raises(errors.Unavailable):
        await history.of_gpus()
    async with asked(lambda _: []) as (there, queries):
        history._url = there._url  # it is there now
        with pytest.raises(errors.Unavailable, match="asked again in 5 s"):
            await history.of_gpus()
        assert not queries
        at[0] = 6.0
        assert (await history.of_gpus()).items == ()


async def test_one_that_answers_by_drops_ends_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.15)
        return web.Response(text='{"status": "success", "data": {"resultType": "matrix", "result": []}}')

    monkeypatch.setattr(prometheus, "_WHOLE_S", 0.4)
    async with asked(lambda _: slow) as (history, queries):
        with pytest.raises(errors.Unavailable, match=r"not within 0\.4 s"):
            await history.of_container(pod(), HOUR)  # eleven queries, each in time
    assert 1 < len(queries) < 6


async def test_ten_thousand_questions_do_not_wait_in_line() -> None:
    release = asyncio.Event()

    async def held(_: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response(text='{"status": "success", "data": {"resultType": "matrix", "result": []}}')

    refused: list[str] = []

    async with asked(lambda _: held) as (history, _), asyncio.TaskGroup() as group:

        async def ask() -> None:
            try:
                await history.of_gpus()
            except errors.Unavailable as error:
                refused.append(error.reason)
                if len(refused) == 10_000 - 64:
                    release.set()

        for _ in range(10_000):
            group.create_task(ask())
    assert refused == ["HistoryBusy"] * (10_000 - 64)
