"""Asks an API server what it is and what this client may do.

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

    async def may(
        self, verb: str, resource: str, *, group: str = "", part: str = "", namespace: str = "", user: str = ""
    ) -> bool:
        """Return whether the caller, or a user, may do this.

        Args:    part: subresource, `log`.   namespace: empty: in all of them.   user: empty: the caller.
        Raises:  Unavailable, ProtocolError; Denied: even the question is forbidden.
        """
        kind = "subjectaccessreviews" if user else "selfsubjectaccessreviews"
        request = http.Request(
            method="POST",
            path=f"/apis/authorization.k8s.io/v1/{kind}",
            body=api.access_review(verb, resource, group=group, part=part, namespace=namespace, user=user),
        )
        return api.is_allowed(await self._client.request(request))

    async def list_rules(self, namespace: str = "default") -> tuple[api.Rule, ...]:
        """Return what the caller may do in a namespace, as far as the authorizers list it. Raises: as `may`."""
        request = http.Request(
            method="POST",
            path="/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            body=api.rules_review(namespace),
        )
        return api.parse_rules(await self._client.request(request))
