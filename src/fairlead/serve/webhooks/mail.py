"""Sends events by e-mail: one message a connection, in a thread, to the server that the operator names.

Nothing that a tenant says reaches a header but the subject, which is one printable line; the message is made by the
standard library's policy for SMTP, which refuses line breaks in headers. The message's id is the event's, so that a
message which was sent twice, since the answer was lost, can be told.
Source: RFC 5321 sections 4.2.1 (4yz and 5yz replies), 4.5.3.1; RFC 5322; RFC 3834 section 5; RFC 8314 section 3.3.
"""

from __future__ import annotations

import contextlib
import email.message
import email.policy
import email.utils
import re
import smtplib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.webhooks import words
from fairlead.settings.serving import MailSettings

SCHEME: Final = "mailto:"
TIMEOUT_S: Final = 15.0
_LOCAL: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS: Final = re.compile(rf"({_LOCAL})@({_LABEL}(\.{_LABEL})*)")
_LONGEST, _LONGEST_LOCAL = 254, 64
_LARGEST_PORT: Final = 65535
_LONGEST_SECRET: Final = 4096
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Servers that a password reaches without leaving this machine."""
NONE, STARTTLS, TLS = "none", "starttls", "tls"
_FOR_GOOD: Final = 5
"""First digit of a reply after which another try ends the same."""


@frozen
class Server:
    """Where mail is handed over; `host` empty: none is sent."""

    host: str = ""
    port: int = 587
    security: str = STARTTLS
    user: str = ""
    password_file: Path | None = None
    """Read before each message, so that a new password needs no restart."""
    ca: Path | None = None
    """Certificates that the server's is signed by; None: those of this machine."""
    sender: str = ""
    per_hour: int = 20
    """Messages of one account, or of one tenancy's webhooks."""
    domains: tuple[str, ...] = ()
    """Domains that accounts may have mail sent to; empty: every one."""


@frozen
class Failure:
    """Why a message was not handed over."""

    message: str
    code: int | None = None
    is_final: bool = False
    """Another try would end the same: the server refuses the message, or its recipient, for good."""


def parse_address(text: str) -> str:
    """Return an address in the form of RFC 5321's Mailbox, without quoting. Raises: Invalid (`MailAddressInvalid`)."""
    found = _ADDRESS.fullmatch(text)
    # `=?…?=` is an encoded word (RFC 2047): who decodes it reads another address, as our own header would show.
    if found is None or "=?" in text or len(text) > _LONGEST or len(found.group(1)) > _LONGEST_LOCAL:
        message = f'"{errors.readable(text[:80])}" is not an e-mail address that is written to'
        raise errors.Invalid(message, reason="MailAddressInvalid", hint="for example ann@example.com")
    return text


def check_recipient(text: str, server: Server, *, is_trusted: bool) -> str:
    """Return an address that mail may be sent to.

    Args:    is_trusted: of an administrator, who is bound to no domains.
    Raises:  Invalid: `MailOff`, `MailAddressInvalid`; Denied (`MailDomainRefused`).
    """
    if not server.host:
        message = "this service sends no e-mail: it has no mail server"
        raise errors.Invalid(message, reason="MailOff", hint="its operator sets mail.server and mail.sender")
    found = parse_address(text)
    domain = found.rpartition("@")[2].lower()
    if server.domains and not is_trusted and domain not in server.domains:
        message = f"no e-mail goes to {domain}"
        raise errors.Denied(message, reason="MailDomainRefused", hint=f"to {', '.join(server.domains)} (mail.domains)")
    return found


def of_settings(given: MailSettings) -> Server:
    """Return the mail server of the settings. Raises: Invalid (`MailSettingsInvalid`)."""
    if not given.server:
        return Server()
    if not 0 < given.port <= _LARGEST_PORT or any(one.isspace() or not one.isprintable() for one in given.server):
        message = f"mail.server and mail.port: {errors.readable(given.server[:80])}:{given.port} is not a server"
        raise errors.Invalid(message, reason="MailSettingsInvalid", hint="mail.server=smtp.example.com, mail.port=587")
    if not given.sender:
        message = "mail.server is set, and mail.sender is not"
        raise errors.Invalid(message, reason="MailSettingsInvalid", hint="mail.sender=fairlead@example.com")
    if given.user and given.security == NONE and given.server not in _HERE:
        message = "mail.security=none would send the password of mail.user in the clear"
        raise errors.Invalid(message, reason="MailSettingsInvalid", hint="mail.security=starttls or tls")
    return Server(
        host=given.server,
        port=given.port,
        security=given.security,
        user=given.user,
        password_file=given.password_file,
        ca=given.ca,
        sender=parse_address(given.sender),
        per_hour=given.per_hour,
        domains=tuple(name for one in given.domains.lower().split(",") if (name := one.strip())),
    )


def compose(body: bytes, *, to: str, sender: str, id_: str, at: float) -> email.message.EmailMessage:
    """Return the message of an event. Args: id_: of the event.   at: Unix seconds when it happened."""
    said = words.of_body(body)
    made = email.message.EmailMessage(policy=email.policy.SMTP)
    made["From"] = f"Fairlead <{sender}>"
    made["To"] = to
    # Names are no encoded words (RFC 2047), which could hold whatever ends a header.
    made["Subject"] = f"Fairlead: {said.title}".replace("=?", "= ?")
    made["Date"] = email.utils.formatdate(at, usegmt=True)
    made["Message-ID"] = f"<{id_}@{sender.rpartition('@')[2]}>"
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(f"{said.text}\n", cte="quoted-printable")
    return made


def send(server: Server, message: email.message.EmailMessage, *, to: str) -> Failure | None:
    """Hand a message over; blocks for as long as the server says something each `TIMEOUT_S`.

    Returns: None: it was taken.
    """
    try:
        with opened(server) as connection:
            connection.send_message(message, from_addr=server.sender, to_addrs=[to])
    except smtplib.SMTPRecipientsRefused as error:
        code, said = next(iter(error.recipients.values()), (0, b""))
        return _answered(code, said, "the mail server refuses the recipient")
    except errors.FairleadError as error:
        return Failure(message=error.message)
    except smtplib.SMTPResponseException as error:
        return _answered(error.smtp_code, error.smtp_error, "the mail server refuses the message")
    except (smtplib.SMTPException, OSError) as error:
        return Failure(message=_said(error))
    return None


@contextlib.contextmanager
def opened(server: Server) -> Iterator[smtplib.SMTP]:
    """Give a connection that is logged in, where a user is named.

    Raises: Unavailable: `MailServerUnreachable`, `MailServerRefuses`, `MailPasswordUnreadable`.
    """
    connection = _connected(server)
    try:
        _log_in(connection, server)
        yield connection
        with contextlib.suppress(smtplib.SMTPException, OSError):
            connection.quit()
    finally:
        connection.close()


def _connected(server: Server) -> smtplib.SMTP:
    where, made = f"{server.host}:{server.port}", None
    try:
        context = ssl.create_default_context(cafile=None if server.ca is None else str(server.ca))
        if server.security == TLS:
            return smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=context)
        made = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
        if server.security == STARTTLS:
            made.starttls(context=context)
    except (OSError, smtplib.SMTPException) as error:
        if made is not None:
            made.close()
        if isinstance(error, smtplib.SMTPNotSupportedError):
            message, hint = f"the mail server {where} has no STARTTLS", "mail.security=tls with port 465, or none"
        else:
            message = f"the mail server {where} cannot be reached: {_said(error)}"
            hint = "check mail.server, mail.port, mail.security (starttls: mostly 587, tls: 465) and mail.ca"
        raise errors.Unavailable(message, reason="MailServerUnreachable", hint=hint) from error
    return made


def _log_in(connection: smtplib.SMTP, server: Server) -> None:
    if not server.user:
        return
    try:
        secret = "" if server.password_file is None else _first_line(server.password_file)
    except (OSError, UnicodeDecodeError) as error:
        message = f"mail.password_file cannot be read: {type(error).__name__}"
        hint = "a file that root reads, with the password in its first line"
        raise errors.Unavailable(message, reason="MailPasswordUnreadable", hint=hint) from error
    try:
        connection.login(server.user, secret)
    except (OSError, UnicodeEncodeError, smtplib.SMTPException) as error:
        code = f" ({error.smtp_code})" if isinstance(error, smtplib.SMTPResponseException) else ""
        message = f"the mail server {server.host}:{server.port} does not let {errors.readable(server.user)} in{code}"
        hint = "check mail.user and what is in mail.password_file"
        raise errors.Unavailable(message, reason="MailServerRefuses", hint=hint) from error


def _first_line(file: Path) -> str:
    """Return a file's first line. Raises: OSError, UnicodeDecodeError."""
    with file.open(encoding="utf-8") as opened_file:
        return opened_file.readline(_LONGEST_SECRET).rstrip("\r\n")


def _answered(code: int, said: bytes | str, what: str) -> Failure:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    line = words.plain(text)[:120]
    return Failure(message=f"{what}: {code} {line}", code=code, is_final=code // 100 == _FOR_GOOD)


def _said(error: Exception) -> str:
    text = error.smtp_error if isinstance(error, smtplib.SMTPResponseException) else str(error)
    line = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return words.plain(line)[:160] or type(error).__name__
