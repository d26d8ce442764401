"""Collects and checks the certificate that the API shows on TLS: its end, and the names of opened ports."""

from __future__ import annotations

import dataclasses
import datetime as dt
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairlead import errors
from fairlead.cli.doctor.finding import Finding
from fairlead.settings import Settings

if TYPE_CHECKING:
    from fairlead.serve.certificate import Files

_SOON: Final = dt.timedelta(days=21)
"""An operator's is to be replaced by then; our own is renewed 30 days before its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read."""

    path: Path | None = None
    """The certificate's file; None: the API does not listen on TLS, or nothing was looked at."""
    is_own: bool = True
    ends_at: dt.datetime | None = None
    problem: str = ""
    """Why it cannot be read; empty: it can."""
    domain: str = ""
    """Below which containers' ports have their names; empty: browsers of this machine alone open any."""
    is_covered: bool = True
    """Whether the certificate is good for the names below the domain."""
    is_known: bool = True
    """Whether a name below the domain has an address."""


def collect(config: Settings, folder: Path) -> Facts:
    """Read the certificate's end. Args: folder: of the state."""
    from fairlead.serve import certificate  # it loads a large library

    own = certificate.own(folder)
    try:
        operators = certificate.operators(config.api.certificate, config.api.key)
        where = operators or own
        if operators is None and not own.certificate.exists():
            return Facts()
        seen = Facts(path=where.certificate, is_own=operators is None, ends_at=certificate.ends_at(where))
        return _with_domain(seen, config, where)
    except errors.Invalid as error:
        path = config.api.certificate or own.certificate
        return Facts(path=path, is_own=not config.api.certificate, problem=error.message)
    except OSError:
        return Facts()  # another account's folder


def _with_domain(seen: Facts, config: Settings, where: Files) -> Facts:
    from fairlead.serve import certificate  # as above
    from fairlead.serve.opened import hosts

    domain = hosts.parse_domain(config.api.open_domain)
    if domain is None:
        return seen
    try:
        socket.getaddrinfo(f"fairlead-doctor.{domain.name}", None)
        is_known = True
    except OSError:
        is_known = False
    is_covered = certificate.covers(where, domain.name)
    return dataclasses.replace(seen, domain=domain.name, is_covered=is_covered, is_known=is_known)


def check(seen: Facts, now: dt.datetime) -> Iterator[Finding]:
    """Yield a finding; none where the API does not listen on TLS."""
    if seen.path is None:
        return
    fix = _OWN if seen.is_own else f"put the next one into {seen.path}, with its key: it is taken up within 10 s"
    if seen.problem or seen.ends_at is None:
        yield Finding(check="certificate", level="fail", what=seen.problem, why=_CLOSED, fix=fix)
        return
    left, day = seen.ends_at - now, seen.ends_at.strftime("%Y-%m-%d")
    if left <= dt.timedelta(0):
        yield Finding(check="certificate", level="fail", what=f"{seen.path} ended on {day}", why=_CLOSED, fix=fix)
    elif left < _SOON:
        what = f"{seen.path} ends on {day}, in {left.days} days"
        yield Finding(check="certificate", level="warn", what=what, why=_CLOSED, fix=fix)
    else:
        what = f"the API's certificate is good until {day}"
        yield Finding(check="certificate", level="ok", what=what)
    yield from _opened(seen)


def _opened(seen: Facts) -> Iterator[Finding]:
    """Yield what keeps browsers from opened ports."""
    if not seen.is_covered:
        what = f"{seen.path} is not good for *.{seen.domain}, below which api.open_domain opens containers' ports"
        fix = f"have *.{seen.domain} among its names; a certificate of the service's own has it"
        if seen.is_own:
            fix = "start the service again: it makes its own certificate anew, with the same key"
        yield Finding(check="open", level="fail", what=what, why="browsers refuse the pages of `Open`", fix=fix)
    if not seen.is_known:
        what = f"no name below {seen.domain} has an address here"
        why = "`Open` leads browsers to names below api.open_domain, and they may not find them either"
        fix = f"add *.{seen.domain} to DNS, with this service's address"
        yield Finding(check="open", level="warn", what=what, why=why, fix=fix)


_CLOSED: Final = "clients refuse a certificate that has ended or is none: logins and the API on TLS fail"
_OWN: Final = (
    "a running service renews its own 30 days before the end: where it could not, its log has `certificate not renewed`"
)
