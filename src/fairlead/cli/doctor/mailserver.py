"""Collects and checks the mail server of notices: whether it is reached, encrypted, and lets its user in."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import daemonthread, errors
from fairlead.cli.doctor.finding import Finding
from fairlead.settings import Settings

_OTHERS: Final = 0o077
_LONGEST_S: Final = 20.0
"""How long is waited for the mail server in all: one that says a byte now and then never times out by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read."""

    server: str = ""
    """Of the settings; empty: no e-mail is sent."""
    has_accounts: bool = True
    """Whether the API on TLS is on, which keeps the accounts and what they are told."""
    problem: errors.FairleadError | None = None
    """Why nothing is handed over there; None: it would be."""
    open_file: Path | None = None
    """The password's file, where others may read it."""


def collect(settings: Settings, *, address: str = "") -> Facts:
    """Connect and log in, as a notice does; nothing is sent.

    Args: address: where the service says that it listens, by `up --listen` perhaps; empty: it does not, or is not up.
    """
    given = settings.mail
    if not given.server:
        return Facts()
    from fairlead.serve.webhooks import mail  # only where mail is sent

    def ask() -> None:
        with mail.opened(mail.of_settings(given)) as connection:
            connection.noop()

    problem = None
    try:
        daemonthread.start("mail server", ask, ended=lambda: None).result(_LONGEST_S)
    except errors.FairleadError as error:
        problem = error
    except TimeoutError:
        message = f"the mail server {given.server}:{given.port} does not get to an end within {_LONGEST_S:g} s"
        hint = "check mail.port and mail.security (starttls: mostly 587, tls: 465), and the server's own log"
        problem = errors.Unavailable(message, reason="MailServerUnreachable", hint=hint)
    except (smtplib.SMTPException, OSError) as error:
        message = f"the mail server {given.server} broke off: {type(error).__name__}"
        problem = errors.Unavailable(message, reason="MailServerUnreachable", hint="its own log says why")
    return Facts(
        server=f"{given.server}:{given.port}",
        has_accounts=bool(address or settings.api.listen),
        problem=problem,
        open_file=given.password_file if given.password_file is not None and _is_open(given.password_file) else None,
    )


def _is_open(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & _OTHERS)
    except OSError:
        return False


def check(seen: Facts) -> Iterator[Finding]:
    """Yield what is wrong with the mail server, or that nothing is; none where no e-mail is sent."""
    if not seen.server:
        return
    found = list(_wrong(seen))
    yield from found or [Finding(check="mail", level="ok", what=f"notices go out by {seen.server}")]


def _wrong(seen: Facts) -> Iterator[Finding]:
    if not seen.has_accounts:
        what, why = "mail.server is set, and api.listen is not", "notices are for accounts, which the API on TLS keeps"
        yield Finding(check="mail", level="warn", what=what, why=why, fix="set api.listen, for example to :8443")
    if seen.problem is not None:
        why = "notices by e-mail wait, and are given up after a day"
        yield Finding(check="mail", level="fail", what=seen.problem.message, why=why, fix=seen.problem.hint or "")
    if seen.open_file is not None:
        what, fix = f"others may read {seen.open_file}, the mail server's password", f"chmod 600 {seen.open_file}"
        yield Finding(check="mail", level="warn", what=what, why="they could send mail as this machine", fix=fix)
