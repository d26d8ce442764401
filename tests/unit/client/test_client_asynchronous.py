"""The asynchronous client: the same answers, many at once, and what is cancelled is broken off."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from fairlead import AsyncClient, errors
from fairlead.client.asynchronous import AsyncLogs, ClientOptions, ListOptions, LogOptions
from fairlead.client.client import Client
from fairlead.client.container import Container
from fairlead.client.session import logs
from tests.unit.cli.liveservice import Service


def _threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "fairlead-call"}


async def _until_no_thread_is_left() -> None:
    async with asyncio.timeout(10):
        while _threads():  # noqa: ASYNC110 threads set no event
            await asyncio.sleep(0.01)


async def test_a_container_is_run_followed_and_entered(service: Service) -> None:
    async with AsyncClient(service.env["FAIRLEAD_URL"]) as client:
        made = await client.run("demo", ["sh", "-c", "echo 1; sleep 0.05; echo 2"], gpus=1, name="a")
        assert [line async for line in made.logs(follow=True)] == ["1", "2"]
        assert ((await made.wait()).exit_code, made.state, repr(made)) == (
            0,
            "succeeded",
            "<AsyncContainer a succeeded: Completed>",
        )
        assert await made.logs().text() == "1\n2\n"
        assert b"".join([piece async for piece in made.logs().pieces()]) == b"1\n2\n"
        kept = await client.run("demo", ["sleep", "60"])
        assert (await kept.exec(["echo", "in"])).text == "in\n"
        assert [one.name for one in await client.containers()] == [kept.name]
        assert [one.gpu.index for one in await client.gpus()] == [0, 1, 2, 3]
        with pytest.raises(errors.NotFound):
            await client.container("nobody")
    await _until_no_thread_is_left()


async def test_many_waits_at_once_hold_nothing_up(service: Service) -> None:
    async with AsyncClient(service.env["FAIRLEAD_URL"]) as client, asyncio.TaskGroup() as group:
        made = [await client.run("demo", ["sleep", "0.3"]) for _ in range(20)]
        waits = [group.create_task(one.wait()) for one in made]
        assert (await client.status()).version == "0.0.0"
    assert {one.result().state for one in waits} == {"succeeded"}
    await _until_no_thread_is_left()


@pytest.mark.parametrize("what", ["wait", "follow"])
async def test_what_is_cancelled_is_broken_off(service: Service, what: str) -> None:
    async with AsyncClient(service.env["FAIRLEAD_URL"]) as client:
        made = await client.run("demo", ["sleep", "60"])
        await made.wait("started")

        async def follow() -> None:
            if what == "wait":
                await made.wait()
            async with contextlib.aclosing(made.logs(follow=True).__aiter__()) as lines:  # type: ignore[type-var]
                async for _ in lines:
                    pass

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(follow(), 0.2)
        await _until_no_thread_is_left()
        assert (await made.refresh()).state == "running"


def test_the_parameters_are_those_of_the_client_that_does_the_work() -> None:
    for options, method in (
        (ClientOptions, Client.__init__),
        (ListOptions, Client.containers),
        (LogOptions, Container.logs),
    ):
        names = {name for name in method.__annotations__ if name not in {"return", "url"}}
        assert names == set(options.__annotations__)


def test_logs_have_the_same_methods_awaited_or_not() -> None:
    def public(of: type) -> set[str]:
        return {name for name in vars(of) if not name.startswith("_")}

    assert public(AsyncLogs) == public(logs.Logs) == {"text", "pieces"}
