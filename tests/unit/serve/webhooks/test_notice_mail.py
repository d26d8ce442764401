"""E-mail to a real server on loopback: encrypted, logged in, tried again, given up, bounded; secrets stay inside."""

from __future__ import annotations

import datetime as dt
import email
import email.policy
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fairlead import errors, telemetry
from fairlead.serve import certificate
from fairlead.serve.database import engine
from fairlead.serve.webhooks import mail, port
from fairlead.serve.webhooks.delivery import Sender
from fairlead.serve.webhooks.store import CODES, WAITS_S, StoredWebhooks
from tests.unit.serve.webhooks import smtpsink
from tests.unit.serve.webhooks.smtpsink import Sink

_SENDER, _ANN = "fairlead@example.org", "ann@example.com"


class _Meter:
    """Counts."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], int] = {}

    def add(self, _metric: telemetry.Metric, *labels: str) -> None:
        self.counts[labels] = self.counts.get(labels, 0) + 1

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None: ...

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None: ...

    def heartbeat(self, loop: str, within_s: float | None) -> None: ...


class Post:
    """Notices over a database, a clock and a mail server."""

    def __init__(self, database: Any, server: mail.Server) -> None:
        self.now, self.meter, self.given_up = 1_700_000_000.0, _Meter(), list[str]()
        self.kept = StoredWebhooks(database=database, mail=server, now=lambda: self.now)
        self.sender = Sender(
            outbox=self.kept, mail=server, meter=self.meter, given_up=self._gave_up, now=lambda: self.now
        )

    async def _gave_up(self, item: port.Due, why: str) -> None:
        self.given_up.append(f"{item.format}: {why}")

    async def add(self, to: str = _ANN, **given: Any) -> port.WebhookView:
        wanted = {"events": (), "tenancy": "", "uid": "", "account": "", "format": port.EMAIL, **given}
        return (await self.kept.create(port.Spec(url=f"mailto:{to}", **wanted))).webhook

    async def happen(self, name: str = "train") -> None:
        event = port.Event(type="container.failed", uid="", data={"name": name, "namespace": "n", "exit_code": 1})
        await self.kept.record(f"pod:{name}", "failed", [event])

    async def last(self, id_: str) -> port.DeliveryView:
        return (await self.kept.show(id_, port.Whose(person=None))).deliveries[0]


@pytest.fixture
def files(tmp_path: Path) -> certificate.Files:
    made = certificate.own(tmp_path)
    certificate.ensure_own(made, ["localhost", "127.0.0.1"], dt.datetime.now(dt.UTC))
    return made


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Any]:
    async with engine.opened(engine.url_of("", tmp_path)) as made:
        yield made


def _server(sink: Sink, **more: Any) -> mail.Server:
    given = {"host": "127.0.0.1", "port": sink.port, "security": mail.NONE, "sender": _SENDER, **more}
    return mail.Server(**given)


async def test_an_event_arrives_as_a_message(database: Any) -> None:
    with smtpsink.opened(Sink()) as sink:
        post = Post(database, _server(sink))
        made = await post.add()
        await post.happen()
        assert await post.sender.deliver() == 1
    ((sender, to, body),) = sink.mails
    assert (sender, to) == (_SENDER, [_ANN])
    read = email.message_from_bytes(body, policy=email.policy.default)
    assert read["Subject"] == "Fairlead: container train of n has failed"
    assert "exit code 1" in read.get_content()
    last = await post.last(made.id)
    assert (last.state, last.status, read["Message-ID"]) == ("delivered", 250, f"<{last.id}@example.org>")
    assert post.meter.counts == {("email", "sent"): 1}


@pytest.mark.parametrize("security", [mail.STARTTLS, mail.TLS])
async def test_the_password_goes_by_an_encrypted_connection_and_is_shown_nowhere(
    database: Any, files: certificate.Files, tmp_path: Path, security: str
) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret-of-mail\n")
    sink = Sink(tls=certificate.open_context(files), is_tls_first=security == mail.TLS, users={"fl": "s3cret-of-mail"})
    with smtpsink.opened(sink), capture_logs() as logged:
        server = _server(
            sink, security=security, user="fl", password_file=secret, ca=files.certificate, host="localhost"
        )
        post = Post(database, server)
        made = await post.add()
        await post.happen()
        await post.sender.deliver()
        assert sink.logins == [("fl", True)]
        assert (await post.last(made.id)).state == "delivered"
        secret.write_text("wrong-password\n")
        post.now += 1
        await post.happen("other")
        await post.sender.deliver()
        last = await post.last(made.id)
        assert "does not let fl in (535)" in last.error
        untrusted = Post(database, replace(server, ca=None))
        untrusted.now = post.now + 60
        await untrusted.sender.deliver()
        assert "certificate verify failed" in (await post.last(made.id)).error
    shown = f"{logged} {await post.kept.show(made.id, port.ALL)} {server.password_file}"
    assert "s3cret-of-mail" not in shown
    assert "wrong-password" not in shown


async def test_a_server_without_starttls_is_handed_nothing(database: Any) -> None:
    with smtpsink.opened(Sink(replies={"STARTTLS": ["502 no"]})) as sink:
        post = Post(database, _server(sink, security=mail.STARTTLS))
        made = await post.add()
        await post.happen()
        await post.sender.deliver()
    assert sink.mails == []
    assert "has no STARTTLS" in (await post.last(made.id)).error


async def test_what_is_refused_for_now_is_tried_again_as_the_same_message(database: Any) -> None:
    with smtpsink.opened(Sink(replies={"RCPT": ["451 later"], "DATA": [""]})) as sink:
        post = Post(database, _server(sink))
        made = await post.add()
        await post.happen()
        for expected in ("451 later", "Connection unexpectedly closed"):
            await post.sender.deliver()
            last = await post.last(made.id)
            assert expected in last.error
            assert last.state == "pending"
            post.now += WAITS_S[last.attempts - 1]
        await post.sender.deliver()
        assert (await post.last(made.id)).state == "delivered"
        assert len(sink.mails) == 1
    assert post.meter.counts == {("email", "failed"): 2, ("email", "sent"): 1}


async def test_what_is_refused_for_good_is_given_up_at_once_and_said(database: Any) -> None:
    with smtpsink.opened(Sink(replies={"RCPT": ["550 5.1.1 no such\x07 person"]})) as sink:
        post = Post(database, _server(sink))
        made = await post.add()
        await post.happen()
        await post.sender.deliver()
    last = await post.last(made.id)
    assert (last.state, last.status, last.attempts) == ("given up", 550, 1)
    assert post.given_up == [f"email: {last.error.removeprefix('given up: ')}"]
    assert "\x07" not in last.error
    assert post.meter.counts == {("email", "given up"): 1}


async def test_a_server_that_is_away_is_waited_for(database: Any) -> None:
    post = Post(database, _server(Sink(port=smtpsink.free_port())))
    made = await post.add()
    await post.happen()
    await post.sender.deliver()
    last = await post.last(made.id)
    assert last.state == "pending"
    assert "cannot be reached" in last.error


async def test_an_account_is_sent_so_much_an_hour_and_what_is_more_is_said(database: Any) -> None:
    with smtpsink.opened(Sink()) as sink:
        post = Post(database, _server(sink, per_hour=3))
        made, second = await post.add(), await post.add("bob@example.com", tenancy="red", uid="u-red")
        for number in range(5):
            await post.happen(f"c{number}")
        while await post.sender.deliver():
            pass
        assert [to for _, to, _ in sink.mails] == [[_ANN]] * 3
        found = (await post.kept.show(made.id, port.ALL)).deliveries
        assert sorted(one.state for one in found) == ["delivered"] * 3 + ["given up"] * 2
        assert {one.error for one in found} == {"", "not sent: 3 in an hour are the most (mail.per_hour)"}
        assert post.meter.counts == {("email", "sent"): 3, ("email", "limited"): 2}
        assert (await post.kept.show(second.id, port.ALL)).deliveries == ()
        post.now += 3601
        await post.happen("later")
        assert await post.sender.deliver() == 1


async def test_an_address_is_confirmed_before_anything_else_goes_there(database: Any) -> None:
    mine: dict[str, Any] = {"account": "ann", "person": "ann", "reach": port.OWN, "is_trusted": False}
    with smtpsink.opened(Sink()) as sink:
        post = Post(database, _server(sink))
        made = await post.add(**mine)
        assert not made.is_confirmed
        await post.happen()
        while await post.sender.deliver():
            pass
        ((_, to, body),) = sink.mails
        assert to == [_ANN]
        text = email.message_from_bytes(body, policy=email.policy.default).get_content()
        found = re.search(rf"notify confirm {made.id} (\d{{8}})", text)
        assert found is not None
        whose = port.Whose(person="ann")
        with pytest.raises(errors.Conflict):
            await post.kept.test(made.id, whose)
        with pytest.raises(errors.Denied) as wrong:
            await post.kept.confirm(made.id, "not it", whose)
        assert wrong.value.reason == "CodeWrong"
        with pytest.raises(errors.NotFound):
            await post.kept.confirm(made.id, found.group(1), port.Whose(person="bob"))
        assert found.group(1) not in str(await post.kept.show(made.id, whose))
        assert (await post.kept.confirm(made.id, found.group(1), whose)).is_confirmed
        await post.kept.test(made.id, whose)
        assert await post.sender.deliver() == 1


async def test_codes_are_not_guessed_and_not_a_means_to_flood_somebody(database: Any) -> None:
    mine: dict[str, Any] = {"account": "ann", "person": "ann", "reach": port.OWN, "is_trusted": False}
    post, whose = Post(database, _server(Sink(port=1))), port.Whose(person="ann")
    made = await post.add(**mine)
    for _ in range(5):
        with pytest.raises(errors.Denied):
            await post.kept.confirm(made.id, "x", whose)
    with pytest.raises(errors.NotFound):
        await post.kept.confirm(made.id, "x", whose)
    for _ in range(CODES.burst - 1):
        await post.kept.delete((await post.add(**mine)).id, whose)
    with pytest.raises(errors.Throttled) as refused:
        await post.add(**mine)
    assert refused.value.reason == "NoticesTooMany"
