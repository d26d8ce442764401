"""Watches one kind of object: a stream that is cut resumes where it ended, nothing missed or shown twice.

A watch remembers the version of the last event or bookmark it saw. Servers end every watch after some minutes, restart,
or are cut off: the next connection starts at that version, after a wait that grows while nothing comes. Two things
cannot be healed and raise `Gone`: the server has dropped the history (410, as an answer or within the stream), or its
data is older than what we have seen (it was restored from a backup). The latter a server does not say by itself: it
would wait in silence until its versions catch up. So every reconnection first asks for the present version and
compares. The order of versions is Kubernetes' promise since 1.35 and etcd's before that.

Source: Kubernetes API concepts, "Efficient detection of changes", "Watch bookmarks", "Resource versions".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Generic, TypeVar

import msgspec

from fairlead import errors, telemetry
from fairlead.store import port
from fairlead.store.kubernetes import client as http
from fairlead.store.kubernetes import failure, path
from fairlead.wire.kubernetes import api, meta

T = TypeVar("T", bound=meta.Object)

_LONGEST_S: Final = 300
"""After this a server ends our watch, so that watchers spread over its replicas again."""
_LARGEST_LINE: Final = 16 << 20
"""An event holds one object, and an API server stores none of more than 3 MB."""
_CALM_S: Final = 30.0
"""A stream that lasted this long, or brought anything, resets the back-off."""
_FINAL = (errors.Gone, errors.ProtocolError, errors.Invalid)


class Watch(Generic[T]):
    """One watch of one kind from one version on."""

    def __init__(self, client: http.Client, kind: type[T], selector: port.Selector, *, since: str) -> None:
        if not since.isdecimal() or int(since) == 0:
            message = f"resource version {since!r} is not of an API server's history"
            raise errors.Gone(message, reason="VersionUnknown", hint="list again, then watch from that version")
        self._client = client
        self._kind = kind
        self._decoder = api.object_decoder(kind)
        self._path = path.collection(kind, selector.namespace)
        self._selection = path.selection(selector)
        self._position = since
        self._was_open = False

    async def changes(self) -> AsyncGenerator[port.Change[T], None]:
        """Yield changes for ever. Raises: Gone, ProtocolError; before the first connection holds, what refused it."""
        clock = asyncio.get_running_loop()
        backoff = self._client.backoff()
        while True:
            started, position = clock.time(), self._position
            try:
                if self._was_open:
                    self._client.meter.add(telemetry.WATCHES, self._kind.KIND, "resumed")
                    await self._check_history()
                async with contextlib.aclosing(self._connection()) as stream:
                    async for change in stream:
                        yield change
            except _FINAL:
                raise
            except errors.FairleadError as error:
                if not self._was_open:
                    raise
                telemetry.log.debug("watch cut", role=self._kind.KIND, reason=error.reason, error=error.message)
            if clock.time() - started >= _CALM_S or position != self._position:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _check_history(self) -> None:
        """Raise Gone where the server's data is older than what was seen."""
        request = http.Request(method="GET", path=self._path, query=path.query(limit=1, **self._selection))
        now = api.page_decoder(self._kind).decode(await self._client.request(request)).metadata.resource_version
        if now.isdecimal() and self._position.isdecimal() and int(now) < int(self._position):
            message = f"the API server is at version {now} and was at {self._position}: its data is older than it was"
            raise errors.Gone(message, reason="HistoryReplaced", hint="list again, then watch from that version")

    async def _connection(self) -> AsyncGenerator[port.Change[T], None]:
        query = path.query(
            watch=True,
            resourceVersion=self._position,
            allowWatchBookmarks=True,
            timeoutSeconds=_LONGEST_S,
            **self._selection,
        )
        request = http.Request(method="GET", path=self._path, query=query)
        async with self._client.stream(request, silence_s=_LONGEST_S + 30) as chunks:
            self._was_open = True
            async with contextlib.aclosing(lines(chunks)) as stream:
                async for line in stream:
                    change = self._read(line)
                    if change is not None:
                        yield change

    def _read(self, line: bytes) -> port.Change[T] | None:
        try:
            event = api.watch_event.decode(line)
            match event.type:
                case "BOOKMARK":
                    self._position = api.bookmark.decode(event.object).metadata.resource_version
                    return None
                case "ERROR":
                    found = api.status.decode(event.object)
                    raise failure.from_status(found.code, found)
                case _:
                    item = self._decoder.decode(event.object)
                    kind = port.ChangeKind(event.type)
        except (msgspec.MsgspecError, ValueError) as error:
            message = f"watch event of {self._kind.KIND} after version {self._position} cannot be read: {error}"
            raise errors.ProtocolError(message, reason="ObjectUnreadable") from error
        self._position = item.metadata.resource_version
        return port.Change(kind=kind, object=item)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the whole lines of a stream without their ends; what follows the last end was cut and is dropped.

    Raises: ProtocolError: a line is larger than any object.
    """
    begun: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            line = b"".join([*begun, part]) if begun else part
            begun.clear()
            size = 0
            if line:
                yield line
        if rest:
            begun.append(rest)
            size += len(rest)
        if size > _LARGEST_LINE:
            message = f"a watch sent {size} bytes without an end of line"
            raise errors.ProtocolError(message, reason="AnswerTooLarge", hint="is it an API server?")
