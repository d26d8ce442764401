"""Collects and checks when the certificate ends that the API shows on TLS."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.cli.doctor.finding import Finding
from fairlead.settings import Settings

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


def collect(config: Settings, folder: Path) -> Facts:
    """Read the certificate's end. Args: folder: of the state."""
    from fairlead.serve import certificate  # it loads a large library

    own = certificate.own(folder)
    try:
        operators = certificate.operators(config.api.certificate, config.api.key)
        where = operators or own
        if operators is None and not own.certificate.exists():
            return Facts()
        return Facts(path=where.certificate, is_own=operators is None, ends_at=certificate.ends_at(where))
    except errors.Invalid as error:
        path = config.api.certificate or own.certificate
        return Facts(path=path, is_own=not config.api.certificate, problem=error.message)
    except OSError:
        return Facts()  # another account's folder


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


_CLOSED: Final = "clients refuse a certificate that has ended or is none: logins and the API on TLS fail"
_OWN: Final = (
    "a running service renews its own 30 days before the end: where it could not, its log has `certificate not renewed`"
)
