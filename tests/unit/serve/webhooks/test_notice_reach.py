"""Who is told of what, in which form it is sent, and what is shown of where."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.serve.accounts import port as accounts
from fairlead.serve.accounts import stores
from fairlead.serve.accounts.roles import Membership, Role
from fairlead.serve.database import engine
from fairlead.serve.webhooks import port
from fairlead.serve.webhooks.delivery import Sender
from fairlead.serve.webhooks.store import StoredWebhooks
from tests.unit.serve.webhooks import killed
from tests.unit.serve.webhooks.test_webhook_delivery import Receiver, receiver  # noqa: F401  a fixture

_TOKEN = "syt_secret_of_matrix"
_ROOM = "/_matrix/client/v3/rooms/%21room%3Aexample.org/send/m.room.message"


class Lab:
    """Accounts and notices."""

    def __init__(self, database: Any) -> None:
        self.people = stores.open_accounts(database).people
        self.kept = StoredWebhooks(database=database, allowed=killed.ALLOWED)
        self.sender = Sender(outbox=self.kept, allowed=killed.ALLOWED)

    async def notice(self, person: str, reach: str = port.OWN, uid: str = "", **more: Any) -> str:
        given = {"url": "https://hooks.example/x", "events": (), "tenancy": uid, "account": person, **more}
        spec = port.Spec(uid=uid, person=person, reach=reach, **given)
        return (await self.kept.create(spec)).webhook.id

    async def told(self, uid: str = "", account: str = "") -> set[str]:
        """Have something happen; return whose notices say it."""
        before = await self._counts()
        event = port.Event(type="container.failed", uid=uid, data={}, account=account)
        await self.kept.record("pod:1", "failed", [event])
        return {one for one, count in (await self._counts()).items() if count > before.get(one, 0)}

    async def _counts(self) -> dict[str, int]:
        found = (*await self.kept.list(port.Whose(person="")), *await self.kept.list(port.ALL))
        return {one.id: one.pending for one in found}


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        made = Lab(database)
        for name in ("ann", "bob"):
            await made.people.create(name, kind=accounts.PERSON, is_administrator=False)
            await made.people.grant(name, Membership(tenancy="red", uid="u-red", role=Role.VIEWER))
        await made.people.create("ada", kind=accounts.PERSON, is_administrator=True)
        yield made


async def test_each_is_told_of_their_own_of_their_tenancys_or_of_everything(lab: Lab) -> None:
    ann, bob = await lab.notice("ann"), await lab.notice("bob")
    team, ada = await lab.notice("bob", port.TENANCY, "u-red"), await lab.notice("ada", port.MACHINE)
    assert await lab.told("u-red", "ann") == {ann, team, ada}
    assert await lab.told("u-red", "bob") == {bob, team, ada}
    assert await lab.told("u-red") == {team, ada}
    assert await lab.told("u-blue", "ann") == {ada}
    assert await lab.told("", "") == {ada}


async def test_an_administrator_is_told_of_what_they_started_anywhere(lab: Lab) -> None:
    ada, ann = await lab.notice("ada"), await lab.notice("ann")
    assert await lab.told("u-red", "ada") == {ada}
    assert await lab.told("", "ada") == {ada}
    assert await lab.told("", "ann") == set()
    assert await lab.told("u-red", "ann") == {ann}


async def test_who_is_no_member_any_more_is_told_nothing_more(lab: Lab) -> None:
    await lab.notice("ann")
    await lab.notice("ann", port.TENANCY, "u-red")
    await lab.people.revoke("ann", "u-red")
    assert await lab.told("u-red", "ann") == set()


async def test_a_reach_that_was_forged_gives_nothing(lab: Lab) -> None:
    await lab.notice("ann", port.MACHINE)
    await lab.notice("ann", port.TENANCY, "u-blue")
    await lab.notice("ann", "")
    assert await lab.told("u-blue", "ann") == set()


async def test_a_later_account_of_the_name_inherits_nothing(lab: Lab) -> None:
    await lab.notice("ann")
    await lab.told("u-red", "ann")
    await lab.people.delete("ann")
    assert await lab.kept.list(port.Whose(person="")) == ()


async def test_notices_and_webhooks_are_kept_apart_and_each_persons_too(lab: Lab) -> None:
    mine = await lab.notice("ann")
    assert [one.id for one in await lab.kept.list(port.Whose(person="ann"))] == [mine]
    for whose in (port.ALL, port.Whose(uids=["u-red", ""]), port.Whose(person="bob")):
        assert await lab.kept.list(whose) == ()
        for act in (lab.kept.show, lab.kept.delete, lab.kept.test):
            with pytest.raises(errors.NotFound):
                await act(mine, whose)


async def test_a_slack_webhook_gets_words_and_its_address_is_shown_nowhere(lab: Lab, receiver: Receiver) -> None:  # noqa: F811
    url = f"{receiver.url}/T000/B000/secretpath"
    with capture_logs() as logged:
        id_ = await lab.notice("ada", port.MACHINE, url=url, format=port.SLACK)
        await lab.told()
        await lab.sender.deliver()
        receiver.status = 404
        await lab.told()
        await lab.sender.deliver()
    (headers, body), _ = receiver.got
    assert json.loads(body)["text"].startswith("container ? has failed")
    assert "webhook-signature" not in headers
    shown = await lab.kept.show(id_, port.Whose(person="ada"))
    assert shown.webhook.url == f"{receiver.url.rpartition('/')[0]}/…"
    assert "secretpath" not in f"{logged} {shown}"


async def test_a_matrix_room_gets_a_notice_once_by_its_accounts_token(lab: Lab, receiver: Receiver) -> None:  # noqa: F811
    base = receiver.url.rpartition("/")[0]
    id_ = await lab.notice("ada", port.MACHINE, url=f"{base}{_ROOM}", format=port.MATRIX, token=_TOKEN)
    await lab.told()
    await lab.sender.deliver()
    ((headers, body),) = receiver.got
    assert headers["authorization"] == f"Bearer {_TOKEN}"
    assert json.loads(body)["msgtype"] == "m.notice"
    shown = await lab.kept.show(id_, port.Whose(person="ada"))
    (last,) = shown.deliveries
    assert [urllib.parse.unquote(one) for one in receiver.paths] == [f"{urllib.parse.unquote(_ROOM)}/{last.id}"]
    assert (receiver.methods, last.state) == (["PUT"], "delivered")
    assert _TOKEN not in str(shown)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"format": "irc"}, "WebhookFormatUnknown"),
        ({"format": port.MATRIX}, "WebhookTokenInvalid"),
        ({"format": port.MATRIX, "token": "t"}, "WebhookURLInvalid"),
        ({"format": port.MATRIX, "token": "a b", "url": f"https://m.example{_ROOM}"}, "WebhookTokenInvalid"),
        ({"format": port.MATRIX, "token": "a\r\nX: y", "url": f"https://m.example{_ROOM}"}, "WebhookTokenInvalid"),
        ({"format": port.SLACK, "token": "t"}, "WebhookTokenInvalid"),
        ({"format": port.EMAIL, "url": "mailto:ann@example.com"}, "MailOff"),
        ({"format": port.SLACK, "url": "https://169.254.169.254/latest"}, "WebhookAddressRefused"),
        ({"format": port.SLACK, "url": "mailto:ann@example.com"}, "WebhookURLInvalid"),
    ],
    ids=lambda one: one if isinstance(one, str) else ascii(one)[:50],
)
async def test_what_cannot_be_sent_is_refused(lab: Lab, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(errors.FairleadError) as caught:
        await lab.notice("ann", **given)
    assert caught.value.reason == reason
