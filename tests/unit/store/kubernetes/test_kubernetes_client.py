"""The HTTP client under a server that refuses, stalls and hangs up: what is repeated, when, and how often."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.store.kubernetes import client, failure, flowcontrol
from fairlead.wire.kubernetes import api
from tests.unit.store import virtualtime
from tests.unit.store.kubernetes import scriptedserver as scripted

GET = client.Request(method="GET", path="/api/v1/pods")
POST = client.Request(method="POST", path="/api/v1/pods", body=b"{}", repeatable=False)
DELETE = client.Request(method="DELETE", path="/api/v1/pods/p", body=b"{}")


def test_retry_after_is_waited_for() -> None:
    async def scenario() -> None:
        script = (scripted.refuse(429, "TooManyRequests", retry_after="3"), scripted.reply({"ok": True}))
        async with scripted.serving(*script) as server, scripted.connected(server) as opened:
            assert await opened.request(GET) == b'{"ok":true}'
            first, second = server.calls
            assert 3.0 <= second.at - first.at <= 3.5

    virtualtime.run(scenario())


def test_a_server_that_asks_for_more_patience_than_there_is_ends_the_request_at_once() -> None:
    async def scenario() -> None:
        script = scripted.refuse(429, "TooManyRequests", "later", retry_after="3600")
        async with scripted.serving(script) as server, scripted.connected(server) as opened:
            with pytest.raises(errors.Unavailable, match="later"):
                await opened.request(POST)
            assert len(server.calls) == 1

    virtualtime.run(scenario())


@pytest.mark.parametrize("answer", [scripted.refuse(500, "InternalError"), scripted.refuse(503), scripted.drop])
def test_failures_that_last_are_retried_ever_slower_until_patience_ends(answer: scripted.Answer) -> None:
    async def scenario() -> None:
        async with scripted.serving(answer) as server, scripted.connected(server) as opened:
            begun = virtualtime.now()
            with pytest.raises(errors.Unavailable):
                await opened.request(GET)
            assert 3.0 <= virtualtime.now() - begun <= 10.5
            pauses = [later.at - call.at for call, later in zip(server.calls, server.calls[1:], strict=False)]
            assert [round(pause, 1) for pause in pauses if pause > 0.1] == [0.2, 0.4, 0.8, 1.6, 3.2]

    virtualtime.run(scenario())


def test_failures_that_pass_are_healed() -> None:
    async def scenario() -> None:
        script = (scripted.refuse(500), scripted.drop, scripted.refuse(504), scripted.reply([]))
        async with scripted.serving(*script) as server, scripted.connected(server) as opened:
            assert await opened.request(GET) == b"[]"

    virtualtime.run(scenario())


@pytest.mark.parametrize("answer", [scripted.refuse(500), scripted.drop])
def test_what_may_not_happen_twice_is_not_sent_twice(answer: scripted.Answer) -> None:
    async def scenario() -> None:
        async with scripted.serving(answer) as server, scripted.connected(server) as opened:
            with pytest.raises(errors.Unavailable):
                await opened.request(POST)
            assert len(server.calls) == 1

    virtualtime.run(scenario())


@pytest.mark.parametrize(
    "answer", [scripted.refuse(429, retry_after="1"), scripted.refuse(429), scripted.refuse(503, retry_after="1")]
)
def test_what_certainly_did_not_happen_is_sent_again(answer: scripted.Answer) -> None:
    async def scenario() -> None:
        async with scripted.serving(answer, scripted.reply({})) as server, scripted.connected(server) as opened:
            assert await opened.request(POST) == b"{}"
            assert len(server.calls) == 2

    virtualtime.run(scenario())


def test_a_deletion_whose_answer_was_lost_is_done_when_the_object_is_gone() -> None:
    async def scenario() -> None:
        script = (scripted.drop, scripted.refuse(404, "NotFound"))
        async with scripted.serving(*script) as server, scripted.connected(server) as opened:
            assert await opened.request(DELETE) == b""

    virtualtime.run(scenario())


def test_a_deletion_of_what_was_never_there_is_not_found() -> None:
    async def scenario() -> None:
        async with scripted.serving(scripted.refuse(404, "NotFound")) as server, scripted.connected(server) as opened:
            with pytest.raises(errors.NotFound):
                await opened.request(DELETE)

    virtualtime.run(scenario())


def test_a_server_that_is_not_there_is_unreachable_and_awaited() -> None:
    async def scenario() -> None:
        async with scripted.serving(scripted.reply({})) as server, scripted.connected(server) as opened:
            await server.stop()
            with pytest.raises(errors.Unavailable) as failed:
                await opened.request(POST)
            assert failed.value.reason == "APIServerUnreachable"
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(opened.request(POST))
                await asyncio.sleep(3)
                await server.start()
            assert waiting.result() == b"{}"

    virtualtime.run(scenario())


def test_a_storm_of_failures_meets_a_bounded_number_of_requests() -> None:
    async def scenario() -> None:
        limits = client.Limits(requests_per_s=20, burst=10)
        async with scripted.serving(scripted.refuse(500)) as server, scripted.connected(server, limits) as opened:

            async def ask() -> None:
                with pytest.raises(errors.Unavailable):
                    await opened.request(GET)

            begun = virtualtime.now()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(60):
                    tasks.create_task(ask())
            assert len(server.calls) <= 20 * (virtualtime.now() - begun) + 10.5

    virtualtime.run(scenario())


def test_no_more_requests_are_in_flight_than_agreed() -> None:
    async def scenario() -> None:
        at_once, most = 0, 0

        async def slow(request: web.Request) -> web.StreamResponse:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(1)
            at_once -= 1
            return await scripted.reply({})(request)

        limits = client.Limits(at_once=3)
        async with scripted.serving(slow) as server, scripted.connected(server, limits) as opened:
            await asyncio.gather(*(opened.request(GET) for _ in range(9)))
        assert most == 3

    virtualtime.run(scenario())


def test_a_token_that_is_refused_is_read_again_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        token = tmp_path / "token"
        token.write_text("old\n")
        script = (scripted.reply({}), scripted.refuse(401, "Unauthorized"), scripted.reply({}), scripted.refuse(401))
        async with scripted.serving(*script) as server, scripted.connected(server, token_file=str(token)) as opened:
            await opened.request(GET)
            token.write_text("new\n")
            await opened.request(GET)
            with pytest.raises(errors.Denied):
                await opened.request(GET)
            tokens = [call.headers["Authorization"] for call in server.calls]
            assert tokens == ["Bearer old", "Bearer old", "Bearer new", "Bearer new", "Bearer new"]

    virtualtime.run(scenario())


def test_a_token_file_is_read_again_every_minute(tmp_path: Path) -> None:
    async def scenario() -> None:
        token = tmp_path / "token"
        token.write_text("first")
        async with scripted.serving(scripted.reply({})) as server:
            async with scripted.connected(server, token_file=str(token)) as opened:
                await opened.request(GET)
                token.write_text("second")
                await opened.request(GET)
                await asyncio.sleep(61)
                await opened.request(GET)
            tokens = [call.headers["Authorization"] for call in server.calls]
            assert tokens == ["Bearer first", "Bearer first", "Bearer second"]

    virtualtime.run(scenario())


def test_a_silent_server_is_given_up_on() -> None:
    async def scenario() -> None:
        async def never(_: web.Request) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError

        limits = client.Limits(answer_s=7)
        async with scripted.serving(never) as server, scripted.connected(server, limits) as opened:
            begun = virtualtime.now()
            with pytest.raises(errors.Unavailable):
                await opened.request(POST)
            assert virtualtime.now() - begun == pytest.approx(7, abs=1)

    virtualtime.run(scenario())


@pytest.mark.parametrize(
    ("code", "reason", "message", "kind", "expected"),
    [
        (404, "NotFound", 'pods "x" not found', errors.NotFound, "KindNotServed"),
        (409, "AlreadyExists", "exists", errors.Conflict, "AlreadyExists"),
        (409, "Conflict", "the object has been modified", errors.Conflict, "StaleVersion"),
        (409, "Conflict", "Precondition failed: UID in precondition: a", errors.Conflict, "UidMismatch"),
        (409, "Conflict", "pod x is already assigned to node y", errors.Conflict, "AlreadyBound"),
        (410, "Expired", "too old", errors.Gone, "HistoryCompacted"),
        (422, "Invalid", "bad name", errors.Invalid, "Invalid"),
        (400, "BadRequest", "bad", errors.Invalid, "BadRequest"),
        (413, "RequestEntityTooLarge", "large", errors.Invalid, "RequestEntityTooLarge"),
        (401, "Unauthorized", "who", errors.Denied, "Unauthorized"),
        (403, "Forbidden", "exceeded quota", errors.Denied, "Forbidden"),
        (429, "TooManyRequests", "slow", errors.Unavailable, "TooManyRequests"),
        (500, "InternalError", "oops", errors.Unavailable, "InternalError"),
        (503, "", "", errors.Unavailable, "Http503"),
    ],
)  # fmt: skip
def test_refusals_have_their_class(
    code: int, reason: str, message: str, kind: type[errors.FairleadError], expected: str
) -> None:
    error = failure.from_status(code, api.Status(kind="Status", reason=reason, message=message))
    assert (type(error), error.reason) == (kind, expected)
    assert message in error.message


def test_a_named_object_that_is_missing_is_told_from_a_kind_that_is() -> None:
    details = api.StatusDetails(name="x", kind="pods")
    error = failure.from_status(404, api.Status(kind="Status", reason="NotFound", message="no x", details=details))
    assert (type(error), error.reason) == (errors.NotFound, "NotFound")


def test_a_dying_namespace_is_named_as_the_reason() -> None:
    details = api.StatusDetails(causes=(api.StatusCause(reason="NamespaceTerminating"),))
    error = failure.from_status(403, api.Status(kind="Status", reason="Forbidden", message="no", details=details))
    assert error.reason == "NamespaceTerminating"


def test_what_a_proxy_says_is_not_quoted() -> None:
    assert "secret" not in str(failure.refusal(502, b"<html>secret</html>"))
    assert "secret" not in str(failure.refusal(403, b'{"kind":"Secret","message":"secret"}'))


@given(st.lists(st.floats(min_value=0, max_value=5), max_size=30), st.integers(1, 5))
def test_a_bucket_gives_a_burst_and_then_its_rate(pauses: list[float], burst: int) -> None:
    async def scenario() -> None:
        bucket, taken = flowcontrol.RateLimiter(per_s=2, burst=burst), []
        for pause_s in pauses:
            await asyncio.sleep(pause_s)
            await bucket.take()
            taken.append(virtualtime.now())
        for first, at in enumerate(taken):
            for count, later in enumerate(taken[first:], start=1):
                assert count <= burst + 2 * (later - at) + 1e-6

    virtualtime.run(scenario())
