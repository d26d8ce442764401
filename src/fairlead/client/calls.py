"""Calls the API: takes paths and bodies, returns decoded answers, raises the errors that problem documents describe.

The bytes are carried by a `transport.Transport`. A problem document becomes the
error it describes, so that the same error has the same message, hint and exit code whether it was raised here or in
the service. The command line's client and the Python client both stand on it.
"""

from __future__ import annotations

import contextlib
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from fairlead import backoff, errors
from fairlead.client import transport
from fairlead.wire.fairlead import problem
from fairlead.wire.text import typedjson

T = TypeVar("T")

IDEMPOTENCY_KEY: Final = "idempotency-key"
"""Header of a request that the service carries out once, however often it comes."""
TIMEOUT_S: Final = 60.0
_ERROR: Final = 400
"""The lowest status that is an error."""
_TOO_MANY: Final = 429
_FIRST_WAIT_S, _LAST_WAIT_S = 0.2, 5.0
_LONGEST_ASKED_S: Final = 60.0
"""Longest Retry-After that is waited for; beyond it the refusal is raised."""
_BROKEN: Final = frozenset({"ServiceUnreachable", "ServiceBrokeOff", "RequestInFlight"})


class Calls:
    """One service."""

    def __init__(self, carrier: transport.Transport, *, retries: int = 0) -> None:
        """Take what carries the requests.

        Args:   retries: how often a request is sent again that was refused for a time (`Retry-After`) or broke off: of
                those that change nothing (GET) or are carried out once (`Idempotency-Key`); after a rate limit (429),
                of all.
        """
        self._transport = carrier
        self._retries = retries
        self.observe: Callable[[transport.Request], None] | None = None
        """Told of each request before it is sent."""

    @property
    def address(self) -> str:
        """The service's address, without passwords."""
        return self._transport.address

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
        timeout_s: float | None = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send one request and decode its answer.

        Args:    params: None values are left out.   body: sent as JSON.   content: sent as it is.
        Raises:  whatever the service's problem says; Unavailable: it does not answer; ProtocolError: not our API.
        """
        with self._sent(method, path, params, body, content=content, timeout_s=timeout_s, headers=headers) as answer:
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
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[transport.Answer]:
        """Send one request and give its answer, which is not an error."""
        if method != "GET":
            self.check_change()
        request = transport.Request(
            method=method,
            target=_target(path, params or {}),
            headers={**(headers or {}), **({"content-type": "application/json"} if body is not None else {})},
            body=msgspec.json.encode(body) if body is not None else content,
        )
        if self.observe is not None:
            self.observe(request)
        with contextlib.ExitStack() as stack:
            yield self._answered(stack, request, timeout_s)

    def _answered(
        self, stack: contextlib.ExitStack, request: transport.Request, timeout_s: float | None
    ) -> transport.Answer:
        """Return an answer that is not an error, kept open by the stack; send the request again where it may be."""
        waits = backoff.Backoff(first_s=_FIRST_WAIT_S, last_s=_LAST_WAIT_S)
        left = self._retries
        while True:
            try:
                with contextlib.ExitStack() as opened:
                    answer = opened.enter_context(self._transport.send(request, timeout_s=timeout_s))
                    if answer.status < _ERROR:
                        stack.push(opened.pop_all())
                        return answer
                    status, asked, failed = answer.status, answer.header("retry-after"), self._error(answer)
            except errors.Unavailable as error:
                status, asked, failed = 0, "", error
            wait_s = _seconds(asked) if asked else waits.next()
            is_named = bool(asked) or failed.reason in _BROKEN
            if not left or not is_named or wait_s > _LONGEST_ASKED_S or not _is_repeatable(request, status):
                raise failed
            time.sleep(wait_s)
            left -= 1

    def check_change(self) -> None:
        """Called before each request that is not a GET, and before each session: a subclass may refuse it."""

    def _error(self, answer: transport.Answer | transport.UpgradeRefused) -> errors.FairleadError:
        try:
            return problem.error_of(typedjson.decode(answer.read(), type=problem.Problem))
        except msgspec.MsgspecError:
            message = f"{self._transport.address} answered with status {answer.status} and no problem document"
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
        self.check_change()  # a process in a container changes things as well
        target = f"{path}?{urllib.parse.urlencode(params)}"
        if self.observe is not None:
            self.observe(transport.Request(method="GET", target=target, headers={"upgrade": "websocket"}))
        with contextlib.ExitStack() as stack:
            try:
                session = stack.enter_context(self._transport.connect(target))
            except transport.UpgradeRefused as refused:
                raise self._error(refused) from refused
            yield session

    def get(self, path: str, *, params: Mapping[str, Any] | None = None) -> Any:
        """Return what a path answers, as plain JSON values."""
        return self.call("GET", path, object, params=params)


def item_path(items: str, name: str) -> str:
    """Return the path of one of `items`, as `/v1/tenancies`. Raises: Invalid: a path with that name is another's."""
    if name in {"", ".", ".."}:
        raise errors.Invalid(f'"{name}" is no name', reason="NameInvalid", hint="leave no variable of a script empty")
    return f"{items}/{urllib.parse.quote(name, safe='')}"


def container_path(name: str) -> str:
    """Return the path of a container. Raises: Invalid."""
    return item_path("/v1/containers", name)


def _is_repeatable(request: transport.Request, status: int) -> bool:
    """Return whether a request may be sent again: it was not carried out, or is idempotent."""
    return status == _TOO_MANY or request.method == "GET" or IDEMPOTENCY_KEY in request.headers


def _seconds(text: str) -> float:
    """Return the seconds of a Retry-After; none where it is a date, which no service of ours sends."""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0.0


def _target(path: str, params: Mapping[str, Any]) -> str:
    """Return path and query; None values are left out, sequences repeated."""
    query = urllib.parse.urlencode({key: value for key, value in params.items() if value is not None}, doseq=True)
    return f"{path}?{query}" if query else path
