"""Puts an event into words for a person, and into the forms of chats and of e-mail. Pure.

Names and messages come from tenants: each is one line of printable text of bounded length wherever it lands, so that
none ends a header, mentions a channel, or fills a screen.
Source: Slack, "Formatting text for app surfaces", Escaping text (&, < and > alone; `<!channel>` mentions);
        Matrix client-server API v1.18, 11.2 `m.room.message` and `m.notice`, PUT .../send/{eventType}/{txnId};
        RFC 5322 section 2.1.1 (lines of at most 998 characters); RFC 3834 section 5 (Auto-Submitted).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.webhooks import port

_NAME, _LINE = 130, 500
_ENDED: Final = frozenset({"succeeded", "failed", "stopped"})


@frozen
class Words:
    """What a person reads."""

    title: str
    lines: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join((self.title, *self.lines))


def of_body(body: bytes) -> Words:
    """Return an event's words. Args: body: as it lies in the outbox."""
    found = json.loads(body)
    kind, data = str(found.get("type", "")), found.get("data")
    return words(kind, data if isinstance(data, Mapping) else {}, str(found.get("timestamp", "")))


def words(kind: str, data: Mapping[str, Any], at: str) -> Words:
    """Return an event in words."""
    group, _, what = kind.partition(".")
    if kind in _SPECIAL:
        made = _SPECIAL[kind](data)
    elif group == "container":
        made = Words(title=f"{_container(data)} {_STATES.get(what, f'is {_one(what, _NAME)}')}", lines=_why(data, what))
    else:
        given = (f"{_one(name, 40)}: {_one(value, _LINE)}" for name, value in data.items())
        made = Words(title=f"{_one(group, 40)}: {_one(what, 40)}", lines=tuple(given))
    return Words(title=made.title, lines=(*made.lines, f"at {_one(at, 40)}"))


_STATES: Final = {
    "pending": "waits for a place",
    "creating": "is being started",
    "running": "has started",
    "crashed": "crashed and is started again",
    "stopping": "is being stopped",
    "succeeded": "has ended well",
    "failed": "has failed",
    "stopped": "was stopped",
    "removed": "was removed",
}


def _container(data: Mapping[str, Any]) -> str:
    name, where = _one(data.get("name") or data.get("uid", "?"), _NAME), data.get("tenancy") or data.get("namespace")
    return f"container {name}" + (f" of {_one(where, _NAME)}" if where else "")


def _why(data: Mapping[str, Any], state: str = "") -> tuple[str, ...]:
    code = data.get("exit_code")
    said = ": ".join(_one(data[key], _LINE) for key in ("reason", "message") if data.get(key))
    ended = f"exit code {code}" if isinstance(code, int) and state in _ENDED else ""
    return tuple(filter(None, (said, ended)))


def _ends(data: Mapping[str, Any]) -> Words:
    when = f" at {_one(data['acts_at'], 40)}" if data.get("acts_at") else ""
    cause = _one(data.get("cause", ""), 40)
    return Words(title=f"{_container(data)} will be ended{when} ({cause})", lines=_why(data))


def _warned_only(data: Mapping[str, Any]) -> Words:
    if data.get("is_ended") is False:
        return Words(title=f"{_container(data)}: {_one(data.get('cause', ''), 40)}", lines=_why(data))
    return _ends(data)


def _gpu(data: Mapping[str, Any], word: str) -> Words:
    where = f" of {_one(data['node'], _NAME)}" if data.get("node") else ""
    return Words(title=f"GPU {_one(data.get('gpu', '?'), _NAME)}{where} {word}", lines=_why(data))


_SPECIAL: Final[Mapping[str, Callable[[Mapping[str, Any]], Words]]] = {
    port.TEST: lambda _data: Words(title="this is a test: notices of Fairlead arrive here"),
    port.CONFIRM: lambda data: Words(
        title="confirm this address for notices of Fairlead",
        lines=(
            f"fairlead notify confirm {_one(data.get('webhook', ''), 40)} {_one(data.get('code', ''), 40)}",
            "Nothing else is sent here before. If you did not ask for this, leave it.",
        ),
    ),
    port.WAITS: lambda data: Words(
        title=f"{_container(data)} has waited for {_one(data.get('minutes', '?'), 20)} minutes", lines=_why(data)
    ),
    port.ENDS_SOON: _warned_only,
    port.SICK: lambda data: Words(title=f"{_container(data)} holds a GPU that is unhealthy", lines=_why(data)),
    port.GPU_SICK: lambda data: _gpu(data, "is unhealthy"),
    port.GPU_WELL: lambda data: _gpu(data, "is healthy again"),
    "gpu.quarantined": lambda data: _gpu(data, "is kept back"),
}


def _one(value: object, longest: int) -> str:
    """Return a value as one line of printable text."""
    text = plain(str(value)[: 4 * longest])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def plain(text: str) -> str:
    """Return a text as one line without what is not printable: no escape for a terminal, no change of direction."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    return errors.readable(" ".join(shown.split()))


def slack(body: bytes) -> bytes:
    """Return the body for a Slack-compatible webhook, without markup or mentions of people."""
    # Mattermost and others read `@channel` without Slack's brackets, and Markdown, in which an address hides behind
    # words, or is fetched as an image: a word joiner keeps both text.
    text = of_body(body).text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return msgspec.json.encode({"text": text.replace("@", "@\u2060").replace("](", "]\u2060("), "mrkdwn": False})


def matrix(body: bytes) -> bytes:
    """Return the content of a Matrix room message: `m.notice`, which no other program answers, without mentions."""
    return msgspec.json.encode({"msgtype": "m.notice", "body": of_body(body).text, "m.mentions": {}})
