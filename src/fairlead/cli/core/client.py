"""Calls the API; every verb that asks the service goes through this client.

It says what the API's paths mean and leaves how bytes travel to a `transport.Transport`. A problem document becomes
the error it describes, so that the same error has the same message, hint and exit code whether it was raised here or
in the service.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from fairlead import errors
from fairlead.cli.core import httptransport, transport
from fairlead.serve.api import problem
from fairlead.serve.v1 import statusview
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.traceview import TraceView
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.wire.text import typedjson

if TYPE_CHECKING:
    from fairlead.cli.core.login.contexts import Context

T = TypeVar("T")

_TIMEOUT_S: Final = 60.0
_ERROR: Final = 400
"""The lowest status that is an error."""


class Client:
    """One service."""

    def __init__(self, carrier: transport.Transport, *, namespace: str = "default", cluster: str = "") -> None:
        """Take what carries the requests.

        Args:   namespace: meant where none is named.   cluster: address of the API server behind it; empty: none.
        """
        self.namespace = namespace
        self.cluster = cluster
        self.refusal = ""
        """Why nothing is changed through this client; empty: it may be."""
        self._transport = carrier

    def close(self) -> None:
        """Let connections go; idempotent."""
        self._transport.close()

    def __enter__(self) -> Self:
        """Use it for a block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        timeout_s: float | None = _TIMEOUT_S,
    ) -> T:
        """Send one request and decode its answer.

        Args:    params: None values are left out.   body: sent as JSON.   content: sent as it is.
        Raises:  whatever the service's problem says; Unavailable: it does not answer; ProtocolError: not our API.
        """
        with self._sent(method, path, params, body, content=content, timeout_s=timeout_s) as answer:
            data = answer.read()
        try:
            return typedjson.decode(data or b"null", type=kind)
        except msgspec.MsgspecError as error:
            message = f"{self._transport.address} answered {method} {path} with what is not ours: {error}"
            raise errors.ProtocolError(message, reason="AnswerUnreadable", hint="is it a fairlead service?") from error

    @contextlib.contextmanager
    def stream(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None
    ) -> Iterator[Iterator[bytes]]:
        """Open an answer that comes in pieces; leaving the block closes it. Raises: as `call`."""
        with self._sent(method, path, params, body) as answer:
            yield answer.pieces()

    @contextlib.contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: Any,
        *,
        content: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[transport.Answer]:
        """Send one request and give its answer, which is not an error."""
        if method != "GET":
            self.check_named()
        request = transport.Request(
            method=method,
            target=_target(path, params or {}),
            headers={"content-type": "application/json"} if body is not None else {},
            body=msgspec.json.encode(body) if body is not None else content,
        )
        with self._transport.send(request, timeout_s=timeout_s) as answer:
            if answer.status >= _ERROR:
                raise self._error(answer)
            yield answer

    def check_named(self) -> None:
        """Raises RequestError (`ClusterNotNamed`) where nothing may be changed through this client."""
        if self.refusal:
            hint = "name it: `fairlead --kubeconfig FILE …` or `fairlead --context NAME …`"
            raise errors.RequestError(self.refusal, reason="ClusterNotNamed", hint=hint)

    def _error(self, answer: transport.Answer | transport.UpgradeRefused) -> errors.FairleadError:
        try:
            return problem.error_of(typedjson.decode(answer.read(), type=problem.Problem))
        except msgspec.MsgspecError:
            message = f"{self._transport.address} answered with status {answer.status}, which is not a problem of ours"
            return errors.ProtocolError(message, reason="AnswerUnreadable", hint="is it a fairlead service?")

    def lines(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the JSON values of a line stream. Raises: as `call`, and what a closing `problem` line says."""
        rest = b""
        with self.stream(method, path, params=params, body=body) as pieces:
            for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield self._line(line)

    def _line(self, line: bytes) -> dict[str, Any]:
        """Return the value of one line. Raises: ProtocolError; what a line with a problem says."""
        try:
            value = typedjson.decode(line, type=dict[str, Any])
            said = msgspec.convert(value["problem"], problem.Problem) if "problem" in value else None
        except msgspec.MsgspecError as error:
            message = f"{self._transport.address} sent a line that is not ours: {error}"
            raise errors.ProtocolError(message, reason="AnswerUnreadable", hint="is it a fairlead service?") from error
        if said is not None:
            raise problem.error_of(said)
        return value

    @contextlib.contextmanager
    def connect(self, path: str, params: Sequence[tuple[str, str]]) -> Iterator[transport.Session]:
        """Open a WebSocket. Raises: Unavailable: the service does not answer; what its refusal of the upgrade says."""
        self.check_named()  # a process in a container changes things as well
        with contextlib.ExitStack() as stack:
            try:
                session = stack.enter_context(self._transport.connect(f"{path}?{urllib.parse.urlencode(params)}"))
            except transport.UpgradeRefused as refused:
                raise self._error(refused) from refused
            yield session

    def get(self, path: str, *, params: Mapping[str, Any] | None = None) -> Any:
        """Return what a path answers, as plain JSON values."""
        return self.call("GET", path, object, params=params)

    # The calls that more than one verb makes.

    def container(self, name: str, namespace: str) -> ContainerView:
        """Return one container. Raises: NotFound."""
        return self.call("GET", container_path(name), ContainerView, params={"namespace": namespace})

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
        """Return why it is where it is."""
        return self.call("GET", f"{container_path(name)}/explain", view.Explanation, params={"namespace": namespace})

    def trace(self, name: str, namespace: str, *, container: str = "") -> TraceView:
        """Return its trace, or (by name) that of one container of a group."""
        params = {"namespace": namespace, "container": container or None}
        return self.call("GET", f"{container_path(name)}/trace", TraceView, params=params)

    def status(self) -> statusview.Status:
        """Return how the service is."""
        return self.call("GET", "/v1/status", statusview.Status)


def container_path(name: str) -> str:
    """Return the path of a container."""
    return f"/v1/containers/{urllib.parse.quote(name, safe='')}"


def at(url: str, login: Context | None = None) -> Client:
    """Return the client of the service at an address. Args: login: as whom. Raises: Invalid (`URLInvalid`)."""
    return Client(httptransport.HTTPTransport(url, login))


def _target(path: str, params: Mapping[str, Any]) -> str:
    """Return path and query; None values are left out, sequences repeated."""
    query = urllib.parse.urlencode({key: value for key, value in params.items() if value is not None}, doseq=True)
    return f"{path}?{query}" if query else path
