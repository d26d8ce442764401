"""What an API server answers beside objects: its version, what containers wrote, what the asker may do.

Source: Kubernetes API reference, "read log of the specified Pod"; `/version`; authorization.k8s.io/v1 types.go.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from fairlead import errors
from fairlead.store.kubernetes import client as http
from fairlead.store.kubernetes import path
from fairlead.wire.kubernetes import api, core

_SILENCE_S: Final = 365 * 86400.0
"""A container that writes nothing is no broken connection."""
_WAITING: Final = ("is waiting to start", "is not available", "does not have a host assigned", "not found in pod")
"""What servers and kubelets say of a container that has not run yet."""


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
            return msgspec.json.decode(body, type=_Version).git_version
        except msgspec.MsgspecError as error:
            message = f"{self.address} says no version: {error}"
            raise errors.ProtocolError(message, reason="VersionUnreadable", hint="is it an API server?") from error

    async def may(self, verb: str, resource: str, *, group: str = "", part: str = "", namespace: str = "") -> bool:
        """Return whether whoever asks may do this.

        Args:    part: subresource, `log`.   namespace: empty: in all of them.
        Raises:  Unavailable, ProtocolError; Denied: even the question is forbidden.
        """
        request = http.Request(
            method="POST",
            path="/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            body=api.access_review(verb, resource, group=group, part=part, namespace=namespace),
        )
        return api.is_allowed(await self._client.request(request))

    async def logs(
        self, namespace: str, pod: str, container: str, *, follow: bool, tail: int | None, timestamps: bool
    ) -> AsyncIterator[bytes]:
        """Yield what the newest run of a container wrote, as it comes.

        Raises: Conflict (`ContainerNotStarted`); NotFound; Denied; Unavailable: its kubelet does not answer.
        """
        request = http.Request(
            method="GET",
            path=path.named(core.Pod, namespace, pod, "log"),
            query=path.query(container=container, follow=follow or None, tailLines=tail, timestamps=timestamps or None),
        )
        try:
            async with self._client.stream(request, silence_s=_SILENCE_S) as chunks:
                async for chunk in chunks:
                    yield chunk
        except errors.Invalid as error:
            if not any(words in error.message for words in _WAITING):
                raise
            hint = f"`fairlead explain -n {namespace} {pod}` says why"
            raise errors.Conflict(error.message, reason="ContainerNotStarted", hint=hint) from error
