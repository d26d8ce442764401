"""Deliveries to webhooks: signed, at least once, also across kill -9; and never to what a tenant must not reach."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import signal
import socket
import sys
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientTimeout, web

from fairlead import errors
from fairlead.serve.database import engine
from fairlead.serve.webhooks import address, delivery, port, store
from fairlead.serve.webhooks.delivery import Sender
from fairlead.serve.webhooks.store import WAITS_S, StoredWebhooks
from tests.unit.serve.webhooks import killed

START = 1_700_000_000.0


class Receiver:
    """Takes webhooks on loopback."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.location = ""
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.methods: list[str] = []
        self.paths: list[str] = []

    async def take(self, request: web.Request) -> web.Response:
        self.methods.append(request.method)
        self.paths.append(request.raw_path)
        self.got.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        return web.Response(status=self.status, headers={"location": self.location} if self.location else {})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    app = web.Application()
    app.add_routes([web.post("/{path:.*}", made.take), web.put("/{path:.*}", made.take)])
    runner = web.AppRunner(app)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    made.url = f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
    try:
        yield made
    finally:
        await runner.cleanup()


class Lab:
    """Webhooks in a database, and a clock."""

    def __init__(self, database: Any) -> None:
        self.now = START
        self.kept = StoredWebhooks(database=database, allowed=killed.ALLOWED, now=lambda: self.now)
        self.sender = Sender(outbox=self.kept, allowed=killed.ALLOWED, now=lambda: self.now)

    async def hook(self, url: str, *events: str, uid: str = "") -> port.NewWebhook:
        return await self.kept.create(port.Spec(url=url, events=events, tenancy=uid and "red", uid=uid, account=""))

    async def happen(self, type_: str, *, uid: str = "", object_: str = "pod:1") -> None:
        await self.kept.record(object_, "running", [port.Event(type=type_, uid=uid, data={"name": "train"})])


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        yield Lab(database)


async def test_an_event_is_signed_as_standard_webhooks_says(lab: Lab, receiver: Receiver) -> None:
    made = await lab.hook(receiver.url)
    await lab.happen("container.failed")
    assert await lab.sender.deliver() == 1
    ((headers, body),) = receiver.got
    assert json.loads(body) == {
        "type": "container.failed",
        "timestamp": "2023-11-14T22:13:20Z",
        "data": {"name": "train"},
    }
    key = base64.b64decode(made.secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    right = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert (headers["webhook-signature"], headers["webhook-timestamp"]) == (f"v1,{right}", str(int(START)))
    (one,) = (await lab.kept.show(made.webhook.id, port.ALL)).deliveries
    assert (one.id, one.state, one.status, one.attempts) == (headers["webhook-id"], "delivered", 200, 1)
    assert await lab.sender.deliver() == 0
    assert made.secret not in str(await lab.kept.list(port.ALL))


async def test_what_is_not_taken_is_sent_again_with_growing_waits_and_given_up_at_last(
    lab: Lab, receiver: Receiver
) -> None:
    receiver.status = 503
    made = await lab.hook(receiver.url)
    await lab.happen("container.failed")
    for wait_s in WAITS_S:
        assert await lab.sender.deliver() == 1
        lab.now += wait_s - 1
        assert await lab.sender.deliver() == 0
        lab.now += 1
    assert await lab.sender.deliver() == 1
    lab.now += 10**6
    assert await lab.sender.deliver() == 0
    (one,) = (await lab.kept.show(made.webhook.id, port.ALL)).deliveries
    assert (one.state, one.attempts, one.error) == ("given up", 9, "given up: the receiver answers 503")
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert await lab.kept.prune() == 1


@pytest.mark.parametrize(("point", "sent"), [("webhook-recorded", 0), ("webhook-answered", 1)])
async def test_a_service_that_is_killed_sends_at_least_once_and_with_the_same_id(
    tmp_path: Path, receiver: Receiver, point: str, sent: int
) -> None:
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        await Lab(database).hook(receiver.url)
    program = [sys.executable, "-m", "tests.unit.serve.webhooks.killed", str(tmp_path), point]
    root = Path(__file__).parents[4]
    child = await asyncio.create_subprocess_exec(*program, cwd=root)
    assert await child.wait() == -signal.SIGKILL
    assert len(receiver.got) == sent
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        kept = StoredWebhooks(database=database, allowed=killed.ALLOWED)
        assert await kept.seen() == {"pod:1": "running"}
        await Sender(outbox=kept, allowed=killed.ALLOWED).deliver()
    assert len(receiver.got) == sent + 1
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


async def test_a_webhook_hears_of_its_tenancy_and_of_what_it_asked_for_alone(lab: Lab, receiver: Receiver) -> None:
    red = (await lab.hook(receiver.url, "container.*", uid="u-red")).webhook
    blue = (await lab.hook(receiver.url, uid="u-blue")).webhook
    every = (await lab.hook(receiver.url, "gpu.quarantined", "container.failed")).webhook
    await lab.happen("container.failed", uid="u-red")
    await lab.happen("container.running", uid="u-blue")
    await lab.happen("gpu.quarantined")
    pending = {one.id: one.pending for one in await lab.kept.list(port.ALL)}
    assert pending == {red.id: 1, blue.id: 1, every.id: 2}
    assert [one.id for one in await lab.kept.list(port.Whose(uids=["u-red"]))] == [red.id]
    for act in (lab.kept.show, lab.kept.delete, lab.kept.test):
        with pytest.raises(errors.NotFound):
            await act(blue.id, port.Whose(uids=["u-red"]))
    await lab.kept.delete(red.id, port.Whose(uids=["u-red"]))
    assert {one.id: one.pending for one in await lab.kept.list(port.ALL)} == {blue.id: 1, every.id: 2}
    assert {one.webhook for one in await lab.kept.due()} == {blue.id, every.id}


async def test_a_receiver_cannot_lead_a_delivery_elsewhere(lab: Lab, receiver: Receiver) -> None:
    receiver.status, receiver.location = 302, receiver.url
    made = await lab.hook(receiver.url)
    await lab.happen("container.failed")
    await lab.sender.deliver()
    (one,) = (await lab.kept.show(made.webhook.id, port.ALL)).deliveries
    assert (len(receiver.got), one.state, one.status) == (1, "pending", 302)


_FORBIDDEN = (
    "https://127.0.0.1/",
    "https://[::1]/",
    "https://169.254.169.254/latest/meta-data",
    "https://10.0.0.1/",
    "https://192.168.1.1/",
    "https://172.16.0.1/",
    "https://100.64.0.1/",
    "https://0.0.0.0/",
    "https://[::]/",
    "https://[fe80::1]/",
    "https://[fd00::1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b:1:a00:0:100:808:808]/",
    "https://[fec0::1]/",
    "https://192.0.0.8/",
    "https://192.88.99.1/",
    "https://[2002:7f00:1::]/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "http://93.184.216.34/",
)


@pytest.mark.parametrize("url", _FORBIDDEN)
async def test_an_address_of_the_inside_is_refused_when_the_webhook_is_made(tmp_path: Path, url: str) -> None:
    """OWASP API7: server side request forgery."""
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        with pytest.raises(errors.Denied) as refused:
            await StoredWebhooks(database=database).create(
                port.Spec(url=url, events=(), tenancy="", uid="", account="")
            )
    assert refused.value.reason == "WebhookAddressRefused"


@pytest.mark.parametrize(
    "url", ["ftp://x/", "https://", "https://u:p@x/", "https://x/#a", "https://[", "https://x:0/", "https://x/\n", "x"]
)
def test_what_is_not_an_address_is_named(url: str) -> None:
    with pytest.raises(errors.Invalid, match="not an address"):
        address.check_url(url, killed.ALLOWED)


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.1"])
async def test_a_name_that_leads_inside_is_refused_when_it_is_looked_up(
    lab: Lab, receiver: Receiver, host: str
) -> None:
    """OWASP API7: also where only the lookup shows it, and without a connection."""
    made = await lab.hook(receiver.url.replace("127.0.0.1", host).replace("http:", "https:"))
    await lab.happen("container.failed")
    await Sender(outbox=lab.kept, now=lambda: lab.now).deliver()
    (one,) = (await lab.kept.show(made.webhook.id, port.ALL)).deliveries
    assert "not a public address" in one.error or "not a canonical IPv4 address" in one.error
    assert (one.status, receiver.got) == (None, [])


async def test_a_name_is_looked_up_once_and_that_answer_is_connected_to(
    lab: Lab, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = list[str](), socket.getaddrinfo

    def rebinding(host: str, *more: Any, **words: Any) -> Any:
        if host != "hooks.example":
            return real(host, *more, **words)
        asked.append(host)
        return real("127.0.0.1" if len(asked) == 1 else "169.254.169.254", *more, **words)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    await lab.hook(receiver.url.replace("127.0.0.1", "hooks.example"))
    await lab.happen("container.failed")
    await lab.sender.deliver()
    assert (len(receiver.got), asked) == (1, ["hooks.example"])


async def test_a_receiver_that_never_answers_does_not_hold_the_others(
    lab: Lab, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_TIMEOUT", ClientTimeout(total=0.2))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        dead = await lab.hook(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        await lab.hook(receiver.url)
        await lab.happen("container.failed")
        await lab.sender.deliver()
    assert len(receiver.got) == 1
    assert "Timeout" in (await lab.kept.show(dead.webhook.id, port.ALL)).deliveries[0].error


@contextlib.asynccontextmanager
async def _running(sender: Sender) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sender.run())
        yield
        task.cancel()


async def test_a_tenancy_whose_receivers_never_answer_holds_up_no_other(lab: Lab, receiver: Receiver) -> None:
    """Each of ten webhooks with more due than a service sends at once."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        for number in range(10):
            await lab.hook(f"http://127.0.0.1:{silent.getsockname()[1]}/{number}", uid="u-red")
        for number in range(30):
            await lab.happen("container.failed", uid="u-red", object_=f"pod:{number}")
        lab.now += 1
        await lab.hook(receiver.url, uid="u-blue")
        for number in range(3):
            await lab.happen("container.failed", uid="u-blue", object_=f"pod:blue-{number}")
        async with _running(lab.sender), asyncio.timeout(5):
            while len(receiver.got) < 3:  # noqa: ASYNC110 the receiver keeps a list
                await asyncio.sleep(0.01)


async def test_a_database_that_is_away_for_a_moment_ends_no_delivery(
    lab: Lab, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_LOOK_S", 0.01)
    made = await lab.hook(receiver.url)
    await lab.happen("container.failed")
    real, tries = lab.kept.done, list[str]()

    async def away(
        self: StoredWebhooks, one: port.Due, *, status: int | None, error: str, is_final: bool = False
    ) -> bool:
        tries.append(one.id)
        if len(tries) == 1:
            raise errors.Unavailable("the database is away", reason="DatabaseUnavailable")
        return await real(one, status=status, error=error, is_final=is_final)

    monkeypatch.setattr(StoredWebhooks, "done", away)
    async with _running(lab.sender), asyncio.timeout(5):
        while (await lab.kept.show(made.webhook.id, port.ALL)).deliveries[0].state != "delivered":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (len(tries), len(receiver.got)) == (2, 1)


async def test_tries_of_a_tenancys_webhooks_have_a_rate(lab: Lab, receiver: Receiver) -> None:
    """Also where a webhook is made anew for each: the service is nobody's means to knock at another's door."""
    for _ in range(store.TESTS.burst):
        made = await lab.hook(receiver.url, uid="u-red")
        await lab.kept.test(made.webhook.id, port.Whose(uids=["u-red"]))
        await lab.kept.delete(made.webhook.id, port.Whose(uids=["u-red"]))
    last, other = await lab.hook(receiver.url, uid="u-red"), await lab.hook(receiver.url, uid="u-blue")
    with pytest.raises(errors.Throttled) as refused:
        await lab.kept.test(last.webhook.id, port.Whose(uids=["u-red"]))
    assert refused.value.reason == "WebhookTestsTooMany"
    assert 0 < int(str(refused.value.context["retry_after_s"])) <= 1 / store.TESTS.per_s
    await lab.kept.test(other.webhook.id, port.Whose(uids=["u-blue"]))


async def test_who_made_a_webhook_does_not_hear_what_names_of_the_inside_stand_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inside(*_: Any, **__: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.20.30.40", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", inside)
    made = await lab.hook("https://db.corp.example/")
    await lab.happen("container.failed")
    await lab.sender.deliver()
    (one,) = (await lab.kept.show(made.webhook.id, port.ALL)).deliveries
    assert ("not a public address" in one.error, "10.20.30.40" in one.error) == (True, False)


async def test_an_answer_that_unpacks_to_gigabytes_is_not_unpacked(lab: Lab) -> None:
    packed = zlib.compress(bytes(1 << 26), 9)

    async def bomb(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=packed, headers={"content-encoding": "deflate"})

    app = web.Application()
    app.add_routes([web.post("/", bomb)])
    runner = web.AppRunner(app)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    made = await lab.hook(f"http://127.0.0.1:{listener.getsockname()[1]}/")
    await lab.happen("container.failed")
    tracemalloc.start()
    try:
        await lab.sender.deliver()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await runner.cleanup()
    assert (await lab.kept.show(made.webhook.id, port.ALL)).deliveries[0].state == "delivered"
    assert most < 1 << 23


async def test_the_outbox_of_a_webhook_is_bounded(
    lab: Lab, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MOST_PENDING", 3)
    made = await lab.hook(receiver.url)
    for number in range(5):
        lab.now += 1
        await lab.happen("container.failed", object_=f"pod:{number}")
    found = (await lab.kept.show(made.webhook.id, port.ALL)).deliveries
    assert [one.state for one in found] == ["pending"] * 3 + ["given up"] * 2
    assert lab.kept.take_dropped() == (("fairlead", "given up"),) * 2
    assert lab.kept.take_dropped() == ()
    for _ in range(9):
        await lab.hook(receiver.url)
    with pytest.raises(errors.Conflict):
        await lab.hook(receiver.url)
