"""The gate: many loops of one process ask a server that is away no more often than one would."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from fairlead import errors
from fairlead.backoff import Backoff
from fairlead.store.kubernetes import client, flowcontrol
from tests.unit.store import virtualtime
from tests.unit.store.kubernetes import scriptedserver as scripted

_GET = client.Request(method="GET", path="/api/v1/pods")


def _gate() -> flowcontrol.CircuitBreaker:
    return flowcontrol.CircuitBreaker(Backoff(first_s=0.2, last_s=2.0, chance=lambda: 1.0))


async def _ask_for_ever(gate: flowcontrol.CircuitBreaker, asked: list[float]) -> None:
    """One loop without any patience of its own."""
    while True:
        await gate.enter()
        asked.append(virtualtime.now())
        gate.failed(None)


def test_while_a_server_fails_all_loops_together_ask_ever_slower() -> None:
    async def scenario() -> None:
        gate = _gate()
        asked: list[float] = []
        gate.failed(None)
        begun = virtualtime.now()
        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(_ask_for_ever(gate, asked)) for _ in range(50)]
            await asyncio.sleep(20.1)
            for loop in loops:
                loop.cancel()
        assert [round(at - begun, 1) for at in asked[:5]] == [0.2, 0.6, 1.4, 3.0, 5.0]
        assert len(asked) == 12

    virtualtime.run(scenario(), moment_s=0)


def test_the_first_good_answer_lets_everybody_through_at_once() -> None:
    async def scenario() -> None:
        gate = _gate()
        gate.failed(30.0)
        begun = virtualtime.now()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(50):
                tasks.create_task(gate.enter())
            await asyncio.sleep(1)
            gate.succeeded()
        assert virtualtime.now() - begun == pytest.approx(1)
        await gate.enter()
        assert virtualtime.now() - begun == pytest.approx(1)

    virtualtime.run(scenario(), moment_s=0)


@pytest.mark.parametrize(("asked_s", "waited_s"), [(3.0, 3.0), (3600.0, flowcontrol.LONGEST_S), (0.0, 0.2)])
def test_a_server_that_asks_to_be_left_alone_is_not_for_ever(asked_s: float, waited_s: float) -> None:
    async def scenario() -> None:
        gate = _gate()
        begun = virtualtime.now()
        gate.failed(asked_s)
        await gate.enter()
        assert virtualtime.now() - begun == pytest.approx(waited_s)

    virtualtime.run(scenario(), moment_s=0)


def test_trouble_after_trouble_begins_with_short_waits_again() -> None:
    async def scenario() -> None:
        gate = _gate()
        asked: list[float] = []
        for _ in range(2):
            gate.failed(None)
            begun = virtualtime.now()
            for _ in range(3):
                await gate.enter()
                gate.failed(None)
            asked.append(round(virtualtime.now() - begun, 1))
            gate.succeeded()
        assert asked == [1.4, 1.4]

    virtualtime.run(scenario(), moment_s=0)


def test_many_requests_to_a_server_that_fails_are_few_on_the_wire_and_all_fail_in_their_time() -> None:
    async def scenario() -> None:
        async with scripted.serving(scripted.refuse(503)) as server, scripted.connected(server) as opened:
            begun = virtualtime.now()
            answers = await asyncio.gather(*(opened.request(_GET) for _ in range(20)), return_exceptions=True)
            assert all(isinstance(answer, errors.Unavailable) for answer in answers)
            assert virtualtime.now() - begun <= 10.6
            # those that were under way when it began to fail, then one after another
            assert len(server.calls) <= 20 + 8

    virtualtime.run(scenario())


def test_requests_that_waited_succeed_once_the_server_is_well() -> None:
    async def scenario() -> None:
        well_at = virtualtime.now() + 5

        async def answer(request: web.Request) -> web.StreamResponse:
            kind = scripted.reply({"ok": True}) if virtualtime.now() >= well_at else scripted.refuse(500)
            return await kind(request)

        async with scripted.serving(answer) as server, scripted.connected(server) as opened:
            answers = await asyncio.gather(*(opened.request(_GET) for _ in range(20)))
            assert set(answers) == {b'{"ok":true}'}
            assert virtualtime.now() - well_at <= 4
            assert len(server.calls) <= 20 + 6 + 20

    virtualtime.run(scenario())
