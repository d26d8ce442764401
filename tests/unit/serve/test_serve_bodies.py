"""Request bodies have a budget: what is read, what is judged at once, and one of each caller at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead.serve import bodies

LARGE = b"x" * (1 << 20)


class World:
    """An application that keeps what it is given, and waits until it may answer."""

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.at_once = self.most = 0
        self.may_answer = asyncio.Event()
        self.app = bodies.ensure(self._app)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        self.at_once += len(body)
        self.most = max(self.most, self.at_once)
        self.given.append(body)
        await self.may_answer.wait()
        self.at_once -= len(body)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def post(self, body: bytes, *, client: str = "203.0.113.9", pieces: int = 1, says: bool = True) -> int:
        """Send a body; returns the status, 0 where the client went before it was answered."""
        step = max(1, -(-len(body) // pieces))
        parts = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
        said: list[Any] = []

        async def receive() -> Any:
            await asyncio.sleep(0)
            if not parts:
                await asyncio.Event().wait()
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Any) -> None:
            said.append(message)

        length = (b"content-length", str(len(body)).encode()) if says else (b"transfer-encoding", b"chunked")
        scope = {"type": "http", "headers": [length], "client": (client, 1), "state": {}}
        await self.app(scope, receive, send)
        return int(said[0]["status"]) if said else 0


async def settled() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("size", [0, 5, bodies.SMALL + 1, bodies.LARGEST])
async def test_a_body_arrives_whole_whatever_its_size(size: int, says: bool) -> None:
    world = World()
    world.may_answer.set()
    assert await world.post(b"y" * size, pieces=7, says=says) == 204
    assert world.given == [b"y" * size]


async def test_many_large_bodies_of_one_caller_are_judged_one_by_one() -> None:
    world = World()
    async with asyncio.TaskGroup() as group:
        posts = [group.create_task(world.post(LARGE)) for _ in range(10)]
        await settled()
        assert len(world.given) == 1
        world.may_answer.set()
    assert [post.result() for post in posts] == [204] * 10
    assert world.most == len(LARGE)


async def test_large_bodies_of_many_callers_stay_within_what_is_judged_at_once() -> None:
    world = World()
    async with asyncio.TaskGroup() as group:
        posts = [group.create_task(world.post(LARGE, client=f"203.0.113.{number}")) for number in range(20)]
        await settled()
        assert len(world.given) == 3
        world.may_answer.set()
    assert [post.result() for post in posts] == [204] * 20
    assert world.most <= 2 * bodies.LARGEST


async def test_small_bodies_pass_while_large_ones_wait() -> None:
    world = World()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(world.post(LARGE))
        await settled()
        for _ in range(5):
            group.create_task(world.post(b"small"))
        await settled()
        assert world.given.count(b"small") == 5
        world.may_answer.set()


async def test_more_bytes_than_may_be_read_are_asked_to_come_again() -> None:
    world = World()
    whole = b"z" * bodies.LARGEST
    async with asyncio.TaskGroup() as group:
        posts = [group.create_task(world.post(whole)) for _ in range(11)]
        await settled()
        refused = [post.result() for post in posts if post.done()]
        assert refused == [503] * 3  # eight of one caller are read, and no more
        other = group.create_task(world.post(LARGE, client="203.0.113.77"))
        await settled()
        assert not other.done()  # another caller has room, and waits for its turn
        world.may_answer.set()
    assert other.result() == 204


async def test_a_caller_that_goes_or_is_cancelled_gives_its_room_back() -> None:
    budget = bodies.Budget()
    assert budget.reserve("a", 5)
    budget.give_back("a", 5)
    assert not budget.read
    first = await budget.begin("a", 2 * bodies.LARGEST)
    async with asyncio.TaskGroup() as group, asyncio.timeout(5):
        waiting = [group.create_task(budget.begin(name, 5)) for name in ("a", "b")]
        await settled()
        assert (budget.judged, [task.done() for task in waiting]) == (2 * bodies.LARGEST, [False, False])
        waiting[0].cancel()
        await settled()
        budget.end(first)
        budget.end(first)
        await asyncio.wait(waiting[1:])
        assert (budget.judged, waiting[1].done()) == (5, True)
        budget.end(waiting[1].result())
        assert budget.judged == 0


async def test_a_turn_is_followed_by_a_pause_of_its_length_in_which_others_are_answered() -> None:
    loop, budget = asyncio.get_running_loop(), bodies.Budget()
    first = await budget.begin("a", 5)
    async with asyncio.TaskGroup() as group, asyncio.timeout(5):
        second = group.create_task(budget.begin("a", 5))
        await asyncio.sleep(0.1)
        held_s, ended = loop.time() - first.begun_at, loop.time()
        budget.end(first)
        await settled()
        assert not second.done()
        await second
        # A timer is as exact as the clock of its loop.
        assert loop.time() - ended >= held_s - 0.01
        budget.end(second.result())


async def test_a_request_that_waits_long_keeps_no_other_from_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_TURN_S", 0.01)
    world = World()
    async with asyncio.TaskGroup() as group, asyncio.timeout(10):
        for _ in range(3):
            group.create_task(world.post(LARGE))
        await asyncio.sleep(1)
        assert len(world.given) == 3  # though none has been answered
        world.may_answer.set()


async def test_a_client_that_leaves_in_the_middle_reaches_no_handler() -> None:
    world = World()

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        raise AssertionError

    headers = [(b"content-length", str(len(LARGE)).encode())]
    await world.app({"type": "http", "headers": headers, "client": None, "state": {}}, receive, send)
    assert world.given == []
