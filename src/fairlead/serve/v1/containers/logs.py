"""Reads what containers wrote: one run, or run after run until the pod has ended.

A run is known by the id that the kubelet reports in the pod's status. What is seen there may be old when it is read, so
the status is fetched anew before output is: a run that ended meanwhile is read as the previous one, and none twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace

from fairlead import errors
from fairlead.plan.pod import podstate
from fairlead.serve.backend import pods
from fairlead.serve.closing import closing
from fairlead.store.port import ChangeKind, Store
from fairlead.store.subresource import LogOptions, Logs
from fairlead.wire.kubernetes import core


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose output, and how much of it."""

    container: str
    options: LogOptions
    once: bool = False
    """End with the first run that is followed, also where it will be started again."""


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


async def follow(store: Store, logs: Logs, pod: core.Pod, wanted: Wanted) -> AsyncIterator[bytes]:
    """Yield output from the newest run on, waiting for the first start, until the pod has ended or is gone."""
    seen: set[str] = set()
    async with closing(pods.follow(store, pod)) as changes:
        async for change in changes:
            is_over = change.kind is ChangeKind.DELETED or podstate.is_final(change.object)
            if change.kind is not ChangeKind.DELETED and podstate.runs(change.object, wanted.container)[1] not in {
                "",
                *seen,
            }:
                async with closing(_unread(store, logs, pod, wanted, seen)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            if is_over or (wanted.once and seen):
                return


async def _unread(
    store: Store, logs: Logs, pod: core.Pod, wanted: Wanted, seen: set[str]
) -> AsyncGenerator[bytes, None]:
    """Yield the output of the runs that were not read yet, the newest to its end, and note them as seen."""
    try:
        fresh = await pods.find_pod(store, pod.metadata.name, pod.metadata.namespace)
    except errors.NotFound:
        return
    if fresh.metadata.uid != pod.metadata.uid:
        return
    before, newest = podstate.runs(fresh, wanted.container)
    options = replace(wanted.options, tail=None if seen else wanted.options.tail)
    wished = [(before, replace(options, previous=True))] if seen and before and before not in seen else []
    if newest and newest not in seen:
        wished.append((newest, replace(options, follow=True)))
    for run, how in wished:
        async with closing(logs.logs(fresh, wanted.container, how)) as chunks:
            async for chunk in chunks:
                yield chunk
        seen.add(run)
