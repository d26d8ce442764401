"""Shows a verb's requests as curl lines on standard error, without the key: `--show-request`.

What a verb asks again and again while it waits is shown once.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fairlead.cli.core import plaintext
from fairlead.client import calls, transport

if TYPE_CHECKING:
    from fairlead.cli.core.target import Target

_UNIX = "http+unix://"
_VALUES = {"values", "values_base64"}
"""Fields of secrets."""
_KEY = '-H "Authorization: Bearer $FAIRLEAD_KEY"'


def printer(meant: Target) -> Callable[[transport.Request], None]:
    """Return what prints requests to a target, each kind of them once."""
    shown: set[tuple[str, str]] = set()

    def show(request: transport.Request) -> None:
        kind = (request.method, request.target.partition("?")[0])
        if kind not in shown:
            shown.add(kind)
            plaintext.echo(line(meant, request), err=True)

    return show


def line(meant: Target, request: transport.Request) -> str:
    """Return the curl line of a request; a session, which curl does not speak, as a remark."""
    words, address = _service(meant)
    url = shlex.quote(f"{address}{request.target}") if address else f'"$FAIRLEAD_URL"{shlex.quote(request.target)}'
    if request.headers.get("upgrade"):
        return f"# WebSocket: {url}"
    parts = ["curl", *words, *(["-X", request.method] if request.method != "GET" else []), url]
    shown = {name: value for name, value in request.headers.items() if name != calls.IDEMPOTENCY_KEY}
    for name, value in shown.items():  # a replayed line with the same Idempotency-Key would create nothing
        parts += ["-H", shlex.quote(f"{name}: {value}")]
    if request.body is not None:
        parts += ["--data", shlex.quote(_readable(request.body))]
    return " ".join(parts)


def _service(meant: Target) -> tuple[list[str], str]:
    """Return curl's options for a service, and its address; empty: the API runs inside this command."""
    if meant.is_cluster:
        return [], ""
    if meant.url.startswith((_UNIX, "/")):
        return ["--unix-socket", shlex.quote(meant.url.removeprefix(_UNIX))], "http://fairlead"
    words = [_KEY] if meant.login is not None and meant.url.startswith("https://") else []
    if meant.login is not None and meant.login.fingerprint:
        words += ["--insecure", "--pinnedpubkey", shlex.quote(meant.login.fingerprint)]
    scheme, _, rest = meant.url.partition("://")
    return words, f"{scheme}://{rest.rpartition('@')[2]}".rstrip("/")  # a password in the address is not shown


def _readable(body: bytes) -> str:
    """Return a body for a person: JSON over several lines, a name in place of what is secret; no bytes but text."""
    try:
        found = msgspec.json.decode(body)
        if isinstance(found, dict) and "password" in found:
            found["password"] = "$PASSWORD"  # noqa: S105 that is what stands in its place
        for name in _VALUES & found.keys() if isinstance(found, dict) else ():
            found[name] = dict.fromkeys(found[name], "$VALUE") if isinstance(found[name], dict) else "$VALUE"
        return json.dumps(found, indent=2, ensure_ascii=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace")
