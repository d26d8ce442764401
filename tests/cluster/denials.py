"""Finds what the API server denied to Fairlead's own programs: every right that code uses must be in its role.

The API server of a cluster writes down what service accounts ask (`tools.cluster.component`). A request of ours goes by
its User-Agent, so that a test may try with a token of ours what no role allows. An account that is gone counts for
nothing: a release's roles are deleted before its pods have ended. `fairlead withdraw` runs then, and counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from fairlead import errors
from tools.cluster import api, home

_AGENT: Final = "fairlead/"
_PREFIX: Final = "system:serviceaccount:"
_WITHDRAW: Final = "-withdraw"
_FORBIDDEN: Final = 403


@dataclass
class Denials:
    """The denials of one cluster, read on from where the last reader stopped."""

    cluster: home.Cluster
    _offset: int = 0

    def take(self) -> list[str]:
        """Return what was denied to programs of ours since the last call, one sentence each."""
        path = self.cluster.site.audit
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]  # the last line may be in the making
        self._offset += len(whole) + bool(whole)
        found = [event for line in whole.splitlines() if is_denial(event := json.loads(line))]
        if not found:
            return []
        with self.cluster.api() as server:
            gone = {who for who in map(_account, found) if not who.endswith(_WITHDRAW) and _is_gone(server, who)}
        return sorted({_sentence(event) for event in found if _account(event) not in gone})


def is_denial(event: dict[str, Any]) -> bool:
    """Return whether an event of the API server's audit log is a denial to a program of ours."""
    is_ours = event["user"]["username"].startswith(_PREFIX) and event.get("userAgent", "").startswith(_AGENT)
    return bool(is_ours and event.get("responseStatus", {}).get("code") == _FORBIDDEN)


def _account(event: dict[str, Any]) -> str:
    return str(event["user"]["username"].removeprefix(_PREFIX))


def _sentence(event: dict[str, Any]) -> str:
    return f"{_account(event)}: {event['verb']} {event['requestURI']}: {event['responseStatus'].get('message', '')}"


def _is_gone(server: api.API, account: str) -> bool:
    namespace, _, name = account.partition(":")
    try:
        server.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
    except errors.NotFound:
        return True
    return False
