"""Probes and figures: what is late, what is not ready, and what was counted, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from fairlead import errors, telemetry
from fairlead.serve import monitor, plainserver, probes, sockets
from fairlead.workqueue import WorkQueue


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def _serving(meter: monitor.PrometheusMeter, problem: str = "") -> AsyncIterator[httpx.AsyncClient]:
    listener = sockets.listen_at("127.0.0.1:0")
    host, port = listener.getsockname()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(
            plainserver.serve_at(probes.create_app(meter.stalled, lambda: problem, meter.page), listener)
        )
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as client:
            yield client
        task.cancel()


async def test_a_loop_that_breaks_its_promise_makes_the_process_unhealthy() -> None:
    clock = _Clock()
    meter = monitor.PrometheusMeter(clock)
    async with _serving(meter) as client:
        assert (await client.get("/healthz")).text == "ok\n"
        meter.heartbeat("inventory", 30)
        clock.now += 31
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.text) == (503, "inventory last turned 31 s ago\n")
        meter.heartbeat("inventory", 30)
        assert (await client.get("/healthz")).status_code == 200
        meter.heartbeat("inventory", None)
        clock.now += 1000
        assert (await client.get("/healthz")).status_code == 200


async def test_what_keeps_the_process_from_its_work_is_said() -> None:
    async with _serving(monitor.PrometheusMeter(), "no lease yet") as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "no lease yet\n")
        assert (await client.get("/healthz")).status_code == 200


async def test_what_was_counted_is_shown_and_nothing_else() -> None:
    meter = monitor.PrometheusMeter()
    meter.add(telemetry.REGISTRATIONS, "nvidia.com/gpu")
    meter.add(telemetry.REGISTRATIONS, "nvidia.com/gpu")
    meter.set(telemetry.PENDING, 3)
    meter.observe(telemetry.ALLOCATE, 0.002, "nvidia.com/gpu")
    async with _serving(meter) as client:
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = answer.text.splitlines()
    assert 'fairlead_registrations_total{resource="nvidia.com/gpu"} 2.0' in lines
    assert "fairlead_scheduler_pending_pods 3.0" in lines
    assert 'fairlead_allocate_duration_seconds_bucket{le="0.0025",resource="nvidia.com/gpu"} 1.0' in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    assert "fairlead_leader" not in answer.text


async def test_two_meters_share_nothing() -> None:
    first, second = monitor.PrometheusMeter(), monitor.PrometheusMeter()
    first.add(telemetry.DECISIONS, "bound")
    assert b"fairlead_scheduler" in first.expose()
    assert b"fairlead_scheduler" not in second.expose()


@pytest.mark.parametrize("metric", telemetry.METRICS, ids=lambda metric: metric.name)
def test_every_metric_can_be_kept(metric: telemetry.Metric) -> None:
    meter = monitor.PrometheusMeter()
    labels = tuple(f"some {label}" for label in metric.labels)
    if metric.buckets_s:
        meter.observe(metric, 0.1, *labels)
    elif metric.name.endswith("_total"):
        meter.add(metric, *labels)
    else:
        meter.set(metric, 1, *labels)
    assert metric.name.encode() in meter.expose()


async def test_other_paths_and_methods_are_refused() -> None:
    async with _serving(monitor.PrometheusMeter()) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.post("/metrics")).status_code == 405
        head = await client.head("/healthz")
        assert (head.status_code, head.text, head.headers["content-length"]) == (200, "", "3")


async def test_a_worker_that_hangs_is_noticed_and_one_that_waits_is_not() -> None:
    clock = _Clock()
    meter = monitor.PrometheusMeter(clock)
    entered, leave, second = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(key: str) -> float | None:
        (entered if key == "x" else second).set()
        await leave.wait()
        return None

    queue = WorkQueue("test", work, meter=meter)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(queue.run())
        queue.add("x")
        await entered.wait()
        assert not meter.stalled()
        clock.now += 601
        assert meter.stalled() == "test of x last turned 601 s ago"
        leave.set()
        queue.add("y")
        await second.wait()
        clock.now += 1
        assert not meter.stalled()
        task.cancel()


@pytest.mark.parametrize("address", ["", "9400", "host:", "host:port", ":70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        sockets.listen_at(address)
    assert refused.value.reason == "AddressInvalid"


def test_a_taken_address_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(errors.Unavailable) as refused:
            sockets.listen_at(f"127.0.0.1:{port}")
    assert refused.value.reason == "AddressUnusable"


def test_an_address_may_have_no_host_or_brackets() -> None:
    with sockets.listen_at(":0") as every:
        assert every.getsockname()[0] in {"::", "0.0.0.0"}
    if socket.has_dualstack_ipv6():
        with sockets.listen_at("[::1]:0") as one:
            assert one.getsockname()[0] == "::1"


def test_answers_are_sent_at_once() -> None:
    """Without it the body of each answer waits 40 ms for the acknowledgement of its head."""
    with sockets.listen_at("127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        taken, _ = listener.accept()
        with taken:
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
