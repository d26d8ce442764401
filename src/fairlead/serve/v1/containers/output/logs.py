"""Reads what containers wrote: one run, or run after run until the pod has ended.

A run is known by the id that the kubelet reports in the pod's status. What is seen there may be old when it is read, so
the status is fetched again before output is: a run that ended meanwhile is read as the previous one, and none twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Final

from fairlead import errors
from fairlead.model.container.output import Notice
from fairlead.plan.pod import podstate
from fairlead.serve.backend.containers import pods
from fairlead.serve.closing import closing
from fairlead.store.port import ChangeKind, Selector, Store
from fairlead.store.subresource import LogOptions, Logs
from fairlead.wire.kubernetes import core, names

_SUCCESSION_S: Final = 30
"""How long a restarted pod's successor is waited for; it is stored as soon as the old pod is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose output, and how much of it."""

    container: str
    options: LogOptions
    once: bool = False
    """End with the first run that is followed, also where it will be started again."""
    goes_on: bool = False
    """The caller read a part before: the previous run is read too, since some of it may be unread."""


async def latest(logs: Logs, pod: core.Pod, wanted: Wanted) -> AsyncIterator[bytes]:
    """Return the newest run's output so far; the first bytes are waited for, so that a refusal is an answer.

    Raises: Conflict (`ContainerNotStarted`), and whatever `Logs.logs` raises.
    """
    if not pod.spec.node_name:
        raise pods.not_started(pod)
    chunks = logs.logs(pod, wanted.container, wanted.options)
    first = await anext(chunks, b"")
    return _from(first, chunks)


async def _from(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with closing(rest) as chunks:
        if first:
            yield first
        async for chunk in chunks:
            yield chunk


@dataclass(slots=True)
class _Read:
    """What was read of one pod."""

    runs: set[str] = field(default_factory=set)
    restarts: int = 0
    """How often it had been started again when its newest read run began."""
    is_replaced: bool = False


async def follow(store: Store, logs: Logs, pod: core.Pod, wanted: Wanted) -> AsyncIterator[bytes]:
    """Yield output from the newest run on, waiting for the first start, until the pod has ended or is gone.

    One that is restarted is followed on in the pod that takes its place. A `Notice` comes before each later run.
    """
    following: core.Pod | None = pod
    while following is not None:
        read = _Read()
        async with closing(_follow_one(store, logs, following, wanted, read)) as chunks:
            async for chunk in chunks:
                yield chunk
        if not read.is_replaced or wanted.once:
            return
        following = await _successor(store, following)
        if following is not None:
            yield Notice(f"{following.metadata.name} was stopped and is started again\n".encode())


async def without_notices(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what processes wrote, and nothing of our own."""
    async with closing(pieces) as chunks:
        async for chunk in chunks:
            if not isinstance(chunk, Notice):
                yield chunk


async def _follow_one(
    store: Store, logs: Logs, pod: core.Pod, wanted: Wanted, read: _Read
) -> AsyncGenerator[bytes, None]:
    async with closing(pods.follow(store, pod)) as changes:
        async for change in changes:
            is_gone = change.kind is ChangeKind.DELETED
            read.is_replaced = names.REPLACED in change.object.metadata.annotations
            newest = podstate.runs(change.object, wanted.container)[1]
            if not is_gone and newest and newest not in read.runs:
                async with closing(_unread(store, logs, pod, wanted, read)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            is_over = is_gone or (podstate.is_final(change.object) and not read.is_replaced)
            if is_over or (wanted.once and read.runs):
                return


async def _successor(store: Store, pod: core.Pod) -> core.Pod | None:
    """Return the pod that replaces a deleted one; None: none was stored within `_SUCCESSION_S`."""
    about = pod.metadata
    selector = Selector(namespace=about.namespace, fields={"metadata.name": about.name})
    listing = await store.list(core.Pod, selector)
    for found in listing.items:
        return found if found.metadata.uid != about.uid else None
    with contextlib.suppress(TimeoutError, errors.Gone):
        async with asyncio.timeout(_SUCCESSION_S):
            async with closing(store.watch(core.Pod, selector, since=listing.resource_version)) as changes:
                async for change in changes:
                    if change.kind is not ChangeKind.DELETED:
                        return change.object
    return None


async def _unread(store: Store, logs: Logs, pod: core.Pod, wanted: Wanted, read: _Read) -> AsyncGenerator[bytes, None]:
    """Yield the output of the runs that were not read yet, the newest to its end, and note them as read."""
    try:
        fresh = await pods.find_pod(store, pod.metadata.name, pod.metadata.namespace)
    except errors.NotFound:
        return
    if fresh.metadata.uid != pod.metadata.uid:
        return
    before, newest = podstate.runs(fresh, wanted.container)
    options = replace(wanted.options, tail=None if read.runs else wanted.options.tail)
    is_due = bool(read.runs or wanted.goes_on) and bool(before) and before not in read.runs
    due = [(before, replace(options, previous=True))] if is_due else []
    if newest and newest not in read.runs:
        due.append((newest, replace(options, follow=True)))
    if read.runs and due:
        yield _again(fresh, wanted.container, read.restarts, shown=len(due))
    read.restarts = podstate.restarts(fresh, wanted.container)
    for run, how in due:
        async with closing(logs.logs(fresh, wanted.container, how)) as chunks:
            async for chunk in chunks:
                yield chunk
        read.runs.add(run)


def _again(pod: core.Pod, container: str, before: int, *, shown: int) -> Notice:
    """Return the notice that a container was started again, with the number of runs whose output is lost."""
    count = podstate.restarts(pod, container)
    ended = podstate.last_exit_code(pod, container)
    why = "" if ended is None else f"; it had ended with {ended}"
    missed = count - before - shown
    left_out = f"; the output of {missed} runs between is gone" if missed > 0 else ""
    return Notice(f"{pod.metadata.name} was started again (restart {count}{why}{left_out})\n".encode())
