"""Remembers which containers the engine has, from lists and from what the kubelet itself did since.

The engine is the truth and a list shows one moment: a list that was begun before an act of the kubelet shows the
container as it was before. So each act is dated, and a list does not replace what was put after the list began.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Final

from fairlead.engine.port import ContainerPhase, ContainerState
from fairlead.node.kubelet import sandbox
from fairlead.wire.kubernetes import names

_LIST_LIFE_S: Final = 120.0
"""Longer than any listing takes."""


class ContainerCache:
    """The containers of one state folder, by their names in the engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin empty."""
        self._clock = clock
        self._states: dict[str, ContainerState] = {}
        self._put_at: dict[str, float] = {}
        self._recorded: set[str] = set()

    def now(self) -> float:
        """Return the moment to hand to `replace`, read before the engine is asked."""
        return self._clock()

    def replace(self, listed: Iterable[ContainerState], *, begun: float) -> set[str]:
        """Take over a list; returns the uids of the pods with a changed container."""
        old, new = self._states, {state.name: state for state in listed}
        for name in [name for name, at in self._put_at.items() if at >= begun]:
            new.pop(name, None)
            new |= {name: old[name]} if name in old else {}
        # Kept by age, not by this list's start: an older list may still be on its way and must not win either.
        self._put_at = {name: at for name, at in self._put_at.items() if at >= begun - _LIST_LIFE_S}
        self._states = new
        changed = (new.get(name) or old[name] for name in {*old, *new} if old.get(name) != new.get(name))
        return {uid for state in changed if (uid := _uid(state))}

    def put(self, state: ContainerState) -> None:
        """Take over the outcome of an act of our own, ahead of the engine's events."""
        self._put_at[state.name] = self._clock()
        self._states[state.name] = state

    def put_ended(self, state: ContainerState) -> None:
        """Take over that a container was stopped."""
        self.put(dataclasses.replace(state, phase=ContainerPhase.EXITED))

    def discard(self, name: str) -> None:
        """Take over that a container was removed."""
        self._put_at[name] = self._clock()
        self._states.pop(name, None)
        self._recorded.discard(name)

    def find(self, name: str) -> ContainerState | None:
        """Return a container by its name in the engine."""
        return self._states.get(name)

    def all(self) -> tuple[ContainerState, ...]:
        """Return every container."""
        return tuple(self._states.values())

    def uids(self) -> set[str]:
        """Return the pods that have a container."""
        return {uid for state in self._states.values() if (uid := _uid(state))}

    def of(self, uid: str) -> tuple[ContainerState, ...]:
        """Return a pod's containers without its sandbox."""
        return tuple(state for state in self._states.values() if _uid(state) == uid and not _is_sandbox(state))

    def sandboxes(self, uid: str) -> list[ContainerState]:
        """Return a pod's sandboxes."""
        return [state for state in self._states.values() if _uid(state) == uid and _is_sandbox(state)]

    def record_end(self, name: str) -> bool:
        """Note that a container's end is recorded; returns whether that is new."""
        is_new = name not in self._recorded
        self._recorded.add(name)
        return is_new


def _uid(state: ContainerState) -> str:
    return state.labels.get(names.POD_UID, "")


def _is_sandbox(state: ContainerState) -> bool:
    return state.labels.get(names.CONTAINER_NAME) == sandbox.CONTAINER
