"""What goes wrong around deliveries: a disk that is full, a clock that was wrong, names and servers that never end."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.serve.database import engine
from fairlead.serve.webhooks import delivery, mail, port
from fairlead.serve.webhooks.calls import Calls
from fairlead.serve.webhooks.delivery import Sender
from fairlead.serve.webhooks.store import StoredWebhooks
from tests.unit.serve.webhooks import killed, smtpsink
from tests.unit.serve.webhooks.smtpsink import Sink

_SENDER, _ROOT = "fairlead@example.org", Path(__file__).parents[4]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Any]:
    async with engine.opened(engine.url_of("", tmp_path)) as made:
        yield made


async def _told(kept: StoredWebhooks) -> None:
    event = port.Event(type="container.failed", uid="", data={"name": "train", "namespace": "n"})
    await kept.record("pod:1", "failed", [event])


def _mailed(to: str = "ann@example.com") -> port.Spec:
    return port.Spec(url=f"mailto:{to}", events=(), tenancy="", uid="", account="", format=port.EMAIL)


class _FullDisk:
    """An outbox that cannot write for a while."""

    def __init__(self, kept: StoredWebhooks, refusals: int) -> None:
        self._kept, self.refusals = kept, refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)

    async def done(self, one: port.Due, **how: Any) -> bool:
        if self.refusals:
            self.refusals -= 1
            raise errors.Unavailable("the disk is full", reason="DatabaseUnavailable")
        return await self._kept.done(one, **how)


async def test_a_person_is_told_once_though_it_cannot_be_written(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_LOOK_S", 0.001)
    with smtpsink.opened(Sink()) as sink:
        server = mail.Server(host="127.0.0.1", port=sink.port, security=mail.NONE, sender=_SENDER)
        kept = StoredWebhooks(database=database, mail=server)
        await kept.create(_mailed())
        await _told(kept)
        full = _FullDisk(kept, refusals=3)
        sender = Sender(outbox=full, mail=server)
        while full.refusals:
            await sender.deliver()
        await sender.deliver()
    assert len(sink.mails) == 1


async def test_what_a_wrong_clock_wrote_is_sent_when_the_clock_is_right_again(database: Any) -> None:
    clock = [1_900_000_000.0]
    kept = StoredWebhooks(database=database, allowed=killed.ALLOWED, now=lambda: clock[0])
    await kept.create(port.Spec(url="http://127.0.0.1:9/x", events=(), tenancy="", uid="", account=""))
    await _told(kept)
    clock[0] = 1_700_000_000.0
    (due,) = await kept.due()
    await kept.done(due, status=None, error="refused")
    assert await kept.due() == ()
    clock[0] += 5
    (due,) = await kept.due()
    clock[0] = 1_600_000_000.0
    assert len(await kept.due()) == 1


async def test_mails_of_a_wrong_clock_do_not_count_until_it_comes(database: Any) -> None:
    clock = [1_900_000_000.0]
    server = mail.Server(host="mail.example", sender=_SENDER, per_hour=1)
    kept = StoredWebhooks(database=database, mail=server, now=lambda: clock[0])
    made = (await kept.create(_mailed())).webhook
    await _told(kept)
    clock[0] = 1_700_000_000.0
    await _told(kept)
    states = [one.state for one in (await kept.show(made.id, port.ALL)).deliveries]
    assert states == ["pending", "pending"]


async def test_a_mail_server_that_drips_is_given_up_and_holds_one_place(database: Any) -> None:
    with smtpsink.dripping() as drips:
        server = mail.Server(host="127.0.0.1", port=drips, security=mail.NONE, sender=_SENDER)
        kept = StoredWebhooks(database=database, mail=server)
        made = (await kept.create(_mailed())).webhook
        await _told(kept)
        await Sender(outbox=kept, mail=server, mails=Calls(name="mail", most=1, longest_s=0.2)).deliver()
        (one,) = (await kept.show(made.id, port.ALL)).deliveries
    assert (one.state, one.error) == ("pending", "the mail server has not taken it within 0.2 s")


async def test_calls_are_bounded_and_their_places_come_back() -> None:
    calls, gate = Calls(name="test", most=1, longest_s=0.2), threading.Event()
    with pytest.raises(TimeoutError):
        await calls.run(gate.wait)
    with pytest.raises(TimeoutError):
        await calls.run(lambda: None)  # the place is taken still
    gate.set()
    assert await calls.run(lambda: 7) == 7
    with pytest.raises(ValueError, match="x"):
        await calls.run(lambda: int("x"))
    assert await calls.run(lambda: 8) == 8


async def test_names_that_nobody_answers_for_take_no_thread_of_the_service(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, real = threading.Event(), socket.getaddrinfo

    def asked(host: str, *more: Any, **words: Any) -> Any:
        return gate.wait(20) and [] if host.endswith(".example") else real(host, *more, **words)

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    kept = StoredWebhooks(database=database, allowed=killed.ALLOWED)
    for number in range(10):
        url = f"https://slow{number}.example/"
        await kept.create(port.Spec(url=url, events=(), tenancy="", uid="", account=""))
    await _told(kept)
    asyncio.get_running_loop().set_default_executor(futures.ThreadPoolExecutor(2))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Sender(outbox=kept, allowed=killed.ALLOWED).deliver())
        try:
            await asyncio.sleep(0.2)
            async with asyncio.timeout(5):
                await asyncio.to_thread(lambda: None)
        finally:
            gate.set()


_ENDS = """
import asyncio, sys
from fairlead.serve.webhooks import delivery, mail
server = mail.Server(host="127.0.0.1", port=int(sys.argv[1]), security=mail.NONE, sender="f@example.org")
message = mail.compose(b'{"type": "webhook.test"}', to="a@example.org", sender="f@example.org", id_="e", at=0.0)
async def main():
    sender = delivery.Sender(outbox=None, mail=server)
    sending = asyncio.ensure_future(sender.mails.run(lambda: mail.send(server, message, to="a@example.org")))
    await asyncio.sleep(0.3)
    sending.cancel()
asyncio.run(main())
print("ended", flush=True)
"""


def test_a_service_ends_though_its_mail_server_never_does() -> None:
    with smtpsink.dripping() as drips:
        child = subprocess.Popen([sys.executable, "-c", _ENDS, str(drips)], cwd=_ROOT, stdout=subprocess.PIPE)
        try:
            out, _ = child.communicate(timeout=12)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    assert (out, child.returncode) == (b"ended\n", 0)
