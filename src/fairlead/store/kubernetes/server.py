"""Asks an API server what it is and what the asker may do.

Source: Kubernetes API reference, `/version`; authorization.k8s.io/v1 types.go.
"""

from __future__ import annotations

import msgspec

from fairlead import errors
from fairlead.store.kubernetes import client as http
from fairlead.wire.kubernetes import api
from fairlead.wire.text import typedjson


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


class Server:
    """One API server."""

    def __init__(self, client: http.Client, *, address: str) -> None:
        """Take open connections, and the server's address as a person should see it."""
        self._client = client
        self.address = address

    async def version(self) -> str:
        """Return the version of Kubernetes, `v1.36.2`. Raises: Unavailable, Denied, ProtocolError."""
        body = await self._client.request(http.Request(method="GET", path="/version"))
        try:
            return typedjson.decode(body, type=_Version).git_version
        except msgspec.MsgspecError as error:
            message = f"{self.address} says no version: {error}"
            raise errors.ProtocolError(message, reason="VersionUnreadable", hint="is it an API server?") from error

    async def may(self, verb: str, resource: str, *, group: str = "", part: str = "", namespace: str = "") -> bool:
        """Return whether the caller may do this.

        Args:    part: subresource, `log`.   namespace: empty: in all of them.
        Raises:  Unavailable, ProtocolError; Denied: even the question is forbidden.
        """
        request = http.Request(
            method="POST",
            path="/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            body=api.access_review(verb, resource, group=group, part=part, namespace=namespace),
        )
        return api.is_allowed(await self._client.request(request))
