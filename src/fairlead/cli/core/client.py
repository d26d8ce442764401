"""Calls the API for verbs: what `fairlead.client.calls` does, and the calls that more than one verb makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead import errors
from fairlead.cli.core import plaintext
from fairlead.client import calls, httptransport, transport
from fairlead.client.calls import container_path
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.traceview import TraceView
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.serve.v1.status import view as statusview
from fairlead.wire.kubernetes import names as array

if TYPE_CHECKING:
    from fairlead.client.contexts import Context

__all__ = ["Client", "at", "container_path"]


class Client(calls.Calls):
    """One service."""

    def __init__(self, carrier: transport.Transport, *, namespace: str = "default", cluster: str = "") -> None:
        """Take what carries the requests.

        Args:   namespace: meant where none is named.   cluster: address of the API server behind it; empty: none.
        """
        super().__init__(carrier)
        self.namespace = namespace
        self.cluster = cluster
        self.refusal = ""
        """Why nothing is changed through this client; empty: it may be."""
        self.on_away = _say

    def check_change(self) -> None:
        """Raises RequestError (`ClusterNotNamed`) where nothing may be changed through this client."""
        if self.refusal:
            hint = "name it: `fairlead --kubeconfig FILE …` or `fairlead --context NAME …`"
            raise errors.RequestError(self.refusal, reason="ClusterNotNamed", hint=hint)

    def container(self, name: str, namespace: str) -> ContainerView:
        """Return one container. Raises: NotFound."""
        return self.call("GET", container_path(name), ContainerView, params={"namespace": namespace})

    def named(self, names: Sequence[str], namespace: str) -> list[str]:
        """Return the containers that are meant: those of an array, in order, by a name that no container has."""
        found: list[str] = []
        for name in names:
            try:
                self.container(name, namespace)
                members: list[ContainerView] = []
            except errors.NotFound:
                members = self.list_containers(show_ended=True, labels=(f"{array.ARRAY}={name}",), namespace=namespace)
            members.sort(key=_index)
            found += [one.name for one in members] or [name]
        return list(dict.fromkeys(found))

    def list_containers(
        self, *, show_ended: bool = False, labels: Sequence[str] = (), namespace: str | None = None
    ) -> list[ContainerView]:
        """Return containers."""
        params = {"all": str(show_ended).lower(), "label": list(labels), "namespace": namespace}
        return list(self.call("GET", "/v1/containers", view.ContainerList, params=params).items)

    def wait(self, name: str, namespace: str, *, state: str, timeout_s: float) -> ContainerView:
        """Return the container once in that state, or as it is after `timeout_s` (60 at most a call)."""
        params = {"namespace": namespace, "state": state, "timeout": timeout_s}
        return self.call("GET", f"{container_path(name)}/wait", ContainerView, params=params, timeout_s=timeout_s + 30)

    def stop(self, name: str, namespace: str, *, grace_s: int | None = None) -> ContainerView:
        """Ask for a stop."""
        params = {"namespace": namespace, "grace": grace_s}
        return self.call("POST", f"{container_path(name)}:stop", ContainerView, params=params)

    def delete(self, name: str, namespace: str, *, grace_s: int | None = None) -> ContainerView:
        """Ask for a stop and removal."""
        params = {"namespace": namespace, "grace": grace_s}
        return self.call("DELETE", container_path(name), ContainerView, params=params)

    def signal(self, name: str, namespace: str, text: str) -> ContainerView:
        """Send a signal, by name or number, to a container's first process."""
        params = {"namespace": namespace, "signal": text}
        return self.call("POST", f"{container_path(name)}:signal", ContainerView, params=params)

    def explain(self, name: str, namespace: str) -> view.Explanation:
        """Return why a container waits, failed or runs on its node."""
        return self.call("GET", f"{container_path(name)}/explain", view.Explanation, params={"namespace": namespace})

    def trace(self, name: str, namespace: str, *, container: str = "") -> TraceView:
        """Return its trace, or (by name) that of one container of a group."""
        params = {"namespace": namespace, "container": container or None}
        return self.call("GET", f"{container_path(name)}/trace", TraceView, params=params)

    def status(self) -> statusview.Status:
        """Return how the service is."""
        return self.call("GET", "/v1/status", statusview.Status)


def _index(member: ContainerView) -> int:
    text = member.labels.get(array.INDEX, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def _say(message: str) -> None:
    plaintext.echo(f"fairlead: {message}", err=True)


def at(url: str, login: Context | None = None) -> Client:
    """Return the client of the service at an address. Args: login: as whom. Raises: Invalid (`URLInvalid`)."""
    return Client(httptransport.HTTPTransport(url, login))
