"""Engine containers of a pod: which one is meant, its output from the beginning, the attempts after it.

The kubelet labels every engine container with its pod, its container's name and the number of the attempt; a restart is
a new engine container. Following output goes from attempt to attempt until the pod has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fairlead import errors
from fairlead.engine.port import ContainerPhase, ContainerState, Engine
from fairlead.serve.api import stream
from fairlead.serve.v1 import pods, view
from fairlead.store.port import ChangeKind, Store
from fairlead.wire.kubernetes import core, names


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose output, and how much of it."""

    container: str
    tail: int | None
    """Last lines only, of what is there at the beginning; None: all."""
    timestamps: bool
    once: bool
    """End with the first attempt that is followed, also where it will be started again."""


def container_name(pod: core.Pod, wanted: str) -> str:
    """Return which container of the pod is meant: the named one, else its first.

    Raises: NotFound: the pod has none of that name; the message lists what it has.
    """
    names = [item.name for item in (*pod.spec.containers, *pod.spec.init_containers)]
    if not wanted:
        return names[0]
    if wanted not in names:
        message = f'"{pod.metadata.name}" has no container "{wanted}" (it has: {", ".join(names)})'
        raise errors.NotFound(message, reason="ContainerNotFound", hint="leave the name out to mean the first")
    return wanted


async def list_attempts(engine: Engine, pod: core.Pod, name: str) -> list[ContainerState]:
    """Return the engine containers of one container, the newest attempt last."""
    found = await engine.list_containers({names.POD_UID: pod.metadata.uid, names.CONTAINER_NAME: name})
    return sorted(found, key=_attempt)


def _attempt(state: ContainerState) -> int:
    text = state.labels.get(names.ATTEMPT, "0")
    return int(text) if text.isdecimal() else 0


async def find_running(engine: Engine, pod: core.Pod, name: str) -> ContainerState:
    """Return the running engine container. Raises: Conflict (`ContainerNotRunning`), saying where the pod stands."""
    for state in reversed(await list_attempts(engine, pod, name)):
        if state.phase is ContainerPhase.RUNNING:
            return state
    shown = view.container_view(pod)
    message = f'container "{pod.metadata.name}" is not running (it is {shown.state})'
    raise errors.Conflict(message, reason="ContainerNotRunning", hint=f"`fairlead explain {pod.metadata.name}`")


async def latest_logs(
    engine: Engine, pod: core.Pod, name: str, *, tail: int | None, timestamps: bool
) -> AsyncIterator[bytes]:
    """Return the newest attempt's output so far.

    Raises: Conflict (`ContainerNotStarted`): there is no attempt yet, or it never came to one.
    """
    attempts = [item for item in await list_attempts(engine, pod, name) if _has_run(item)]
    if attempts:
        return engine.logs(attempts[-1].name, follow=False, tail=tail, timestamps=timestamps)
    raise not_started(pod)


def not_started(pod: core.Pod) -> errors.Conflict:
    """Say that a pod has no output, and where it stands."""
    shown = view.container_view(pod)
    why = ": ".join(part for part in (shown.reason, shown.message) if part)
    about = f"{shown.state}, {why}" if why else shown.state
    hint = None if view.is_final(pod) else f"`fairlead logs -f {pod.metadata.name}` waits for it"
    message = f'container "{pod.metadata.name}" has no output: it has not started ({about})'
    return errors.Conflict(message, reason="ContainerNotStarted", hint=hint)


def _has_run(state: ContainerState) -> bool:
    return state.phase is not ContainerPhase.CREATED


async def follow_logs(store: Store, engine: Engine, pod: core.Pod, wanted: Wanted) -> AsyncIterator[bytes]:
    """Yield output from the newest attempt on, waiting for the first start, until the pod has ended or is gone."""
    seen: set[str] = set()
    async with stream.closing(pods.follow_pod(store, pod)) as changes:
        async for change in changes:
            fresh = [item for item in await list_attempts(engine, pod, wanted.container) if item.id not in seen]
            started = [item for item in fresh if _has_run(item)]
            for attempt in started if seen else started[-1:]:
                limit = None if seen else wanted.tail
                logs = engine.logs(attempt.name, follow=True, tail=limit, timestamps=wanted.timestamps)
                async with stream.closing(logs) as chunks:
                    async for chunk in chunks:
                        yield chunk
                seen.add(attempt.id)
            seen |= {item.id for item in started}
            if wanted.once and seen:
                return
            if change.kind is ChangeKind.DELETED or view.is_final(change.object):
                return
