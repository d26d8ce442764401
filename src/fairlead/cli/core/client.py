"""The client of the API, over a unix socket or HTTP; every verb that asks the service goes through it.

A problem document becomes the error it describes, so that the same error has the same message, hint and exit code
whether it was raised here or in the service.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
import msgspec
from websockets import exceptions as websocket_exceptions
from websockets.sync import client as websocket

from fairlead import errors
from fairlead.plan.trace import Trace
from fairlead.serve.api import problem
from fairlead.serve.v1 import machineview, view
from fairlead.serve.v1.view import ContainerView

T = TypeVar("T")

_UNIX: Final = "http+unix://"
_TIMEOUT_S: Final = 60.0
_CONNECT_S: Final = 5.0


class Client:
    """One service."""

    def __init__(self, url: str, *, namespace: str = "default", cluster: str = "") -> None:
        """Take an address: `http+unix:///run/fairlead/api.sock` or the socket's path alone, `http://…`, `https://…`.

        Args:   namespace: meant where none is named.   cluster: address of the API server behind it; empty: none.
        Raises: Invalid (`URLInvalid`).
        """
        self.namespace = namespace
        self.cluster = cluster
        self.refusal = ""
        """Why nothing is changed through this client; empty: it may be."""
        url = f"{_UNIX}{url}" if url.startswith("/") else url
        self.url = url
        self._socket = Path(url.removeprefix(_UNIX)) if url.startswith(_UNIX) else None
        if self._socket is None and urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
            message = f'address "{url}" is neither {_UNIX}/PATH nor http(s)://'
            raise errors.Invalid(message, reason="URLInvalid", hint="set --url or FAIRLEAD_URL")
        self._base = "http://fairlead" if self._socket else url.rstrip("/")
        self._http = httpx.Client(
            base_url=self._base,
            transport=httpx.HTTPTransport(uds=str(self._socket)) if self._socket else None,
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S),
            trust_env=self._socket is None,
        )

    def close(self) -> None:
        """Let connections go; idempotent."""
        self._http.close()

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
        self._raise_refusal(method)
        data = msgspec.json.encode(body) if body is not None else content
        headers = {"content-type": "application/json"} if body is not None else {}
        with self._translated():
            answer = self._http.request(
                method, path, params=_given(params), content=data, headers=headers, timeout=timeout_s
            )
        self._raise_problem(answer)
        try:
            return msgspec.json.decode(answer.content or b"null", type=kind)
        except msgspec.MsgspecError as error:
            message = f"{self.url} answered {method} {path} with what is not ours: {error}"
            raise errors.ProtocolError(message, reason="AnswerUnreadable", hint="is it a fairlead service?") from error

    def _raise_refusal(self, method: str) -> None:
        if self.refusal and method != "GET":
            hint = "name it: `fairlead --kubeconfig FILE …` or `fairlead --context NAME …`"
            raise errors.RequestError(self.refusal, reason="ClusterNotNamed", hint=hint)

    @contextlib.contextmanager
    def stream(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None
    ) -> Iterator[Iterator[bytes]]:
        """Open an answer that comes in pieces; leaving the block closes it. Raises: as `call`."""
        self._raise_refusal(method)
        data = msgspec.json.encode(body) if body is not None else None
        headers = {"content-type": "application/json"} if body is not None else {}
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        request = self._http.build_request(
            method, path, params=_given(params), content=data, headers=headers, timeout=timeout
        )
        with self._translated():
            answer = self._http.send(request, stream=True)
        try:
            if answer.is_error:
                with self._translated():
                    answer.read()
                self._raise_problem(answer)
            yield self._pieces(answer)
        finally:
            answer.close()

    def _pieces(self, answer: httpx.Response) -> Iterator[bytes]:
        with self._translated():
            yield from answer.iter_raw()

    def lines(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the JSON values of a line stream. Raises: as `call`, and what a closing `problem` line says."""
        rest = b""
        with self.stream(method, path, params=params, body=body) as pieces:
            for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    value: dict[str, Any] = msgspec.json.decode(line)
                    if "problem" in value:
                        raise problem.error_of(msgspec.convert(value["problem"], problem.Problem))
                    yield value

    def connect(self, path: str, params: Sequence[tuple[str, str]]) -> websocket.ClientConnection:
        """Open a WebSocket. Raises: Unavailable: the service does not answer, or refuses the upgrade."""
        query = urllib.parse.urlencode(params)
        uri = f"ws{self._base.removeprefix('http')}{path}?{query}"
        try:
            if self._socket is not None:
                return websocket.unix_connect(str(self._socket), uri, open_timeout=_CONNECT_S, max_size=None)
            return websocket.connect(uri, open_timeout=_CONNECT_S, max_size=None)
        except (OSError, TimeoutError, websocket_exceptions.WebSocketException) as error:
            raise self._unreachable(error) from error

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        if self._socket is not None and not self._socket.exists():
            raise self._missing(self._socket)
        try:
            yield
        except httpx.ReadTimeout as error:
            message = f"the service at {self.url} took longer than {_TIMEOUT_S:.0f} s to answer"
            raise errors.Unavailable(message, reason="ServiceSlow", hint="its log says what it waits for") from error
        except (httpx.ReadError, httpx.RemoteProtocolError) as error:
            message = f"the service at {self.url} broke off: {error}"
            raise errors.Unavailable(message, reason="ServiceBrokeOff", hint="its log says why") from error
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _missing(self, path: Path) -> errors.Unavailable:
        message = f"no service runs here: {path} does not exist"
        hint = "start one with `fairlead up`; --url chooses another one, --kubeconfig a Kubernetes cluster"
        return errors.Unavailable(message, reason="ServiceUnreachable", hint=hint)

    def _unreachable(self, error: Exception) -> errors.Unavailable:
        if self._socket is not None and not self._socket.exists():
            return self._missing(self._socket)
        if "Permission denied" in str(error):
            message, hint = f"{self._socket} may be opened by its owner only", "use the account that ran `fairlead up`"
        else:
            message, hint = f"the service at {self.url} does not answer: {error}", "`fairlead doctor` says more"
        return errors.Unavailable(message, reason="ServiceUnreachable", hint=hint)

    def _raise_problem(self, answer: httpx.Response) -> None:
        if not answer.is_error:
            return
        try:
            found = msgspec.json.decode(answer.content, type=problem.Problem)
        except msgspec.MsgspecError as error:
            message = f"{self.url} answered {answer.status_code} {answer.reason_phrase}"
            raise errors.ProtocolError(message, reason="AnswerUnreadable", hint="is it a fairlead service?") from error
        raise problem.error_of(found)

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

    def wait_until(self, name: str, namespace: str, *, state: str) -> ContainerView:
        """Return the container once in that state, however long it takes."""
        reached = {"started": view.STARTED, "ended": view.ENDED, "gone": frozenset({"gone"})}[state]
        while True:
            shown = self.wait(name, namespace, state=state, timeout_s=30)
            if shown.state in reached or shown.state == "gone":
                return shown

    def stop(self, name: str, namespace: str, *, grace_s: int | None = None) -> ContainerView:
        """Ask for a stop."""
        params = {"namespace": namespace, "grace": grace_s}
        return self.call("POST", f"{container_path(name)}:stop", ContainerView, params=params)

    def delete(self, name: str, namespace: str, *, grace_s: int | None = None) -> ContainerView:
        """Ask for a stop and removal."""
        params = {"namespace": namespace, "grace": grace_s}
        return self.call("DELETE", container_path(name), ContainerView, params=params)

    def explain(self, name: str, namespace: str) -> view.Explanation:
        """Return why it is where it is."""
        return self.call("GET", f"{container_path(name)}/explain", view.Explanation, params={"namespace": namespace})

    def trace(self, name: str, namespace: str, *, container: str = "") -> Trace:
        """Return its journey, or (by name) that of one container of a group."""
        params = {"namespace": namespace, "container": container or None}
        return self.call("GET", f"{container_path(name)}/trace", Trace, params=params)

    def status(self) -> machineview.Status:
        """Return how the service is."""
        return self.call("GET", "/v1/status", machineview.Status)


def container_path(name: str) -> str:
    """Return the path of a container."""
    return f"/v1/containers/{urllib.parse.quote(name, safe='')}"


def _given(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (params or {}).items() if value is not None}
