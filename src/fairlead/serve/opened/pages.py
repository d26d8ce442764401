"""Draws the few pages that an opened port's host shows in its container's place. Pure.

They load nothing, name nothing to somebody without a cookie, and have no script: a container's server that is not up
yet is waited for by the browser itself (Refresh).
"""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:12vh auto;padding:0 1.5rem}h1{font-size:1.35rem}"
)
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_WAIT_S: Final = 2


@frozen
class Page:
    """One answer of this service on an opened port's host."""

    status: int
    title: str
    words: str
    reloads: bool = False


UNKNOWN: Final = Page(
    status=404, title="Nothing is open here", words="This address was closed, or never was one. Open it again."
)
LOCKED: Final = Page(
    status=401,
    title="Open it from the console",
    words="This page is a container's, and this browser has no leave to see it, or it has ended. Press Open on the "
    "container's page of the console, or print another address with `fairlead open`.",
)
USED: Final = Page(
    status=401,
    title="This address is good once",
    words="It was used already, or is more than a minute old. Press Open again, or print another one with "
    "`fairlead open`.",
)
FOREIGN: Final = Page(
    status=403,
    title="Refused",
    words="A page of another origin asked for this in the background. Open the address itself in a tab.",
)
ELSEWHERE: Final = Page(
    status=401,
    title="Opened from another address",
    words="Your browser comes from another network address than the login that opened this. Log in again from here.",
)
MALFORMED: Final = Page(status=400, title="Malformed request", words="No web server is sent a request of this form.")
METHOD: Final = Page(status=405, title="Not carried", words="CONNECT and TRACE are not carried to containers.")
BUSY: Final = Page(
    status=429,
    title="Too many connections",
    words="Your account has as many connections to containers as it may (`api.open_connections`). Close some tabs.",
)
SILENT: Final = Page(
    status=504,
    title="The container does not answer",
    words="Its server took the request and sent no answer in time. `fairlead logs` shows what it says.",
)
UNREADABLE: Final = Page(
    status=502,
    title="That is not a web page",
    words="What listens on this port does not speak HTTP. `fairlead port-forward` carries every protocol.",
)
BROKEN: Final = Page(
    status=502,
    title="The connection broke",
    words="The container's server ended the connection before its answer was whole.",
)


def waiting(port: int) -> Page:
    """Return the page of a port where no process listens yet."""
    words = f"Nothing listens on port {port} in the container yet. This page tries again by itself."
    return Page(status=502, title="Waiting for the container's server", words=words, reloads=True)


def of_error(error: errors.FairleadError, port: int) -> Page:
    """Return the page of why a container's port was not reached."""
    if error.reason == "PortRefused":
        return waiting(port)
    if isinstance(error, errors.Unauthenticated | errors.Denied):
        return LOCKED
    status = errors.row_of(error).http
    return Page(status=status, title="The container cannot be reached", words=errors.sentence(error))


Headers = list[tuple[bytes, bytes]]


def draw(page: Page, *, is_html: bool) -> tuple[Headers, bytes]:
    """Return headers and body. Args: is_html: False: for a program, as plain text."""
    if is_html:
        title, words = html.escape(errors.readable(page.title)), html.escape(errors.readable(page.words))
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme"'
        head += f' content="light dark"><title>{title}</title><style>{_STYLE}</style>'
        text = f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{title}</h1><p>{words}</p></body></html>'
    else:
        text = f"{page.title}: {errors.readable(page.words)}\n"
    body = text.encode("utf-8", "replace")
    headers = {
        "content-type": f"text/{'html' if is_html else 'plain'}; charset=utf-8",
        "content-length": str(len(body)),
        "content-security-policy": _POLICY,
        "cache-control": "no-store",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        **({"refresh": str(_WAIT_S)} if page.reloads else {}),
    }
    return [(name.encode(), value.encode()) for name, value in headers.items()], body
