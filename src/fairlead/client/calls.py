"""Calls the API: takes paths and bodies, returns decoded answers, raises the errors that problem documents describe.

The bytes are carried by a `transport.Transport`. A problem document becomes the
error it describes, so that the same error has the same message, hint and exit code whether it was raised here or in
the service. The command line's client and the Python client both stand on it.
"""

from __future__ import annotations

import contextlib
import time
import urllib.parse
from collections import OrderedDict
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
STOPPING: Final = "ServiceStopping"
AWAY: Final = frozenset({STOPPING, "ServiceUnreachable", "ServiceBrokeOff"})
"""Reasons for which a service that was there before is waited for: it is being restarted, or was killed."""
PATIENCE_S: Final = 60.0
"""How long."""
_LOOK_S: Final = 1.0
_FRUITLESS: Final = 5
"""How often in a row a stream may break off at once before that is raised."""
_QUIET_S: Final = 5.0
"""A stream that lasted so long did not break off at once, though nothing may have come."""
_REMEMBERED: Final = 10_000
"""Values of a followed stream that are known again when it begins anew; a service keeps fewer events."""


class Calls:
    """One service."""

    def __init__(self, carrier: transport.Transport, *, retries: int = 0, patience_s: float = PATIENCE_S) -> None:
        """Take what carries the requests.

        Args:   retries: how often a request is sent again that was refused for a time (`Retry-After`) or broke off: of
                those that change nothing (GET) or are carried out once (`Idempotency-Key`); after a rate limit (429),
                of all.   patience_s: how long a service that has answered before is waited for where it is restarted:
                for the same requests, beside their retries; 0: not at all.
        """
        self._transport = carrier
        self._retries = retries
        self._patience_s = patience_s
        self._has_answered = False
        self.observe: Callable[[transport.Request], None] | None = None
        """Told of each request before it is sent."""
        self.on_away: Callable[[str], None] = _log_away
        """Told, once for each time, that the service is away and waited for."""

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
        left, absence = self._retries, Absence(self)
        while True:
            try:
                with contextlib.ExitStack() as opened:
                    answer = opened.enter_context(self._transport.send(request, timeout_s=timeout_s))
                    if answer.status < _ERROR:
                        self._has_answered = True
                        stack.push(opened.pop_all())
                        return answer
                    status, asked, failed = answer.status, answer.header("retry-after"), self._error(answer)
            except errors.Unavailable as error:
                status, asked, failed = 0, "", error
            self._has_answered = self._has_answered or status > 0
            if not _is_repeatable(request, status):
                raise failed
            if absence.waited(failed):
                continue
            wait_s = _seconds(asked) if asked else waits.next()
            is_named = bool(asked) or failed.reason in _BROKEN
            if not left or not is_named or wait_s > _LONGEST_ASKED_S:
                raise failed
            time.sleep(wait_s)
            left -= 1

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """Wait for no service that is away, for the length of a block."""
        before, self._patience_s = self._patience_s, 0.0
        try:
            yield
        finally:
            self._patience_s = before

    @property
    def patience_s(self) -> float:
        """How long the service is waited for now; 0 where it has never answered: it may not be there at all."""
        return self._patience_s if self._has_answered else 0.0

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

    def followed(self, path: str, *, params: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the values of a line stream that never ends, across restarts of the service.

        The service begins with the past each time; of its values those that came before are left out.
        Raises: as `lines`; Unavailable: the service does not come back in time, or breaks off again and again.
        """
        seen: OrderedDict[str, None] = OrderedDict()
        interruption = Interruption(self)
        while True:
            try:
                for value in self.lines("GET", path, params=params):
                    key = repr(value)
                    if key not in seen:
                        interruption.end()
                        yield value
                    seen[key] = None
                    if len(seen) > _REMEMBERED:
                        seen.popitem(last=False)
            except errors.Unavailable as error:
                interruption.wait(error)
            else:
                return

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


class Absence:
    """One time that a service is away, as one request sees it."""

    def __init__(self, service: Calls) -> None:
        """Take the service."""
        self._service = service
        self._until: float | None = None
        self._waits = backoff.Backoff(first_s=_FIRST_WAIT_S, last_s=_LOOK_S)

    def waited(self, failed: errors.FairleadError) -> bool:
        """Wait a moment and return True where the request should be sent again; False: the failure is final."""
        if failed.reason not in AWAY:
            return False
        now = time.monotonic()
        if self._until is None:
            patience_s = self._service.patience_s
            if not patience_s:
                return False
            self._until = now + patience_s
            self._service.on_away(f"{failed.message}: waiting up to {patience_s:.0f} s for it to come back")
        if now >= self._until:
            return False
        time.sleep(self._waits.next())
        return True


class Interruption:
    """A stream that breaks off, and is opened again where the service was only restarted."""

    def __init__(self, service: Calls) -> None:
        """Take the service."""
        self._service = service
        self._waits = backoff.Backoff(first_s=_FIRST_WAIT_S, last_s=_LOOK_S)
        self._began = time.monotonic()
        self._fruitless = 0

    def end(self) -> None:
        """Something new came."""
        self._fruitless = 0
        self._waits.reset()

    def wait(self, failed: errors.Unavailable) -> None:
        """Wait a moment before the stream is opened again. Raises: the failure, where that would not help.

        That the service is there again is left to the request that opens the stream, which has all the patience.
        """
        if time.monotonic() - self._began > _QUIET_S:
            self.end()
        self._fruitless += 1
        if failed.reason not in {STOPPING, "ServiceBrokeOff"} or not self._service.patience_s:
            raise failed
        if self._fruitless > _FRUITLESS:
            raise failed
        time.sleep(self._waits.next())
        self._began = time.monotonic()


def _log_away(message: str) -> None:
    """Warn by the standard library's log, which writes to standard error where the program set none up."""
    # Most processes never wait for their service, and do without the module.
    import logging

    logging.getLogger("fairlead").warning("%s", message)


def item_path(items: str, name: str) -> str:
    """Return the path of one of `items`, as `/v1/tenancies`. Raises: Invalid: a path with that name is another's."""
    if name in {"", ".", ".."}:
        raise errors.Invalid(f'"{name}" is no name', reason="NameInvalid", hint="leave no variable of a script empty")
    return f"{items}/{urllib.parse.quote(name, safe='')}"


def container_path(name: str) -> str:
    """Return the path of a container. Raises: Invalid."""
    if "/" in name or ":" in name:
        message = f'"{errors.readable(name)}" is not the name of a container'
        hint = "`fairlead ps -a` lists containers; an image: `fairlead image ls -o json`"
        raise errors.Invalid(message, reason="NameInvalid", hint=hint)
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
