"""Composes notices to people: the mail server of the settings, times, and what is said of those given up."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model.step import TraceStep
from fairlead.serve.webhooks import foresight, mail
from fairlead.serve.webhooks.port import Due
from fairlead.settings.serving import MailSettings, NotifySettings
from fairlead.store import tracerecorder
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core

_LARGEST_PORT: Final = 65535


def mail_server(given: MailSettings) -> mail.Server:
    """Return the mail server of the settings. Raises: Invalid (`MailSettingsInvalid`)."""
    if not given.server:
        return mail.Server()
    if not 0 < given.port <= _LARGEST_PORT or any(one.isspace() or not one.isprintable() for one in given.server):
        message = f"mail.server and mail.port: {errors.readable(given.server[:80])}:{given.port} is not a server"
        raise errors.Invalid(message, reason="MailSettingsInvalid", hint="mail.server=smtp.example.com, mail.port=587")
    if not given.sender:
        message = "mail.server is set, and mail.sender is not"
        raise errors.Invalid(message, reason="MailSettingsInvalid", hint="mail.sender=fairlead@example.com")
    if given.user and given.security == mail.NONE and given.server not in _HERE:
        message = "mail.security=none would send the password of mail.user in the clear"
        raise errors.Invalid(message, reason="MailSettingsInvalid", hint="mail.security=starttls or tls")
    return mail.Server(
        host=given.server,
        port=given.port,
        security=given.security,
        user=given.user,
        password_file=given.password_file,
        ca=given.ca,
        sender=mail.parse_address(given.sender),
        per_hour=given.per_hour,
        domains=tuple(name for one in given.domains.lower().split(",") if (name := one.strip())),
    )


_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def times(given: NotifySettings) -> foresight.Times:
    """Return when people are told."""
    return foresight.Times(wait_s=given.wait_min * 60, ahead_s=given.ahead_min * 60)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Says of a container that a notice about it was given up."""

    store: Store

    async def record(self, item: Due, _why: str) -> None:
        """Record an event of the container, if the notice is of one."""
        data = json.loads(item.body).get("data", {})
        if not data.get("name") or not data.get("namespace"):
            return
        about = core.ObjectReference(
            api_version=core.Pod.API_VERSION,
            kind=core.Pod.KIND,
            name=str(data["name"]),
            namespace=str(data["namespace"]),
            uid=str(data.get("uid", "")),
        )
        # Where it was to go is its owner's alone to know, and who sees the container may be somebody else.
        message = f"a notice of it was given up ({item.format}): `fairlead notify show` or `webhook show` say why"
        step = TraceStep(layer="api", reason="NoticeGivenUp", message=message, at=time.time(), is_warning=True)
        await tracerecorder.record(self.store, about, step, once=f"notice {item.webhook}")
