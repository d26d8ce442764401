"""Follows the pods bound to this node, once for all readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fairlead.store import reflector
from fairlead.store.port import Change, ChangeKind, Selector, Store
from fairlead.wire.kubernetes import core

Listener = Callable[[core.Pod, bool], None]
"""Called with each pod as it is now, or as it was last, and whether it is gone."""


class Pods:
    """This node's pods as the store has them."""

    def __init__(self, node: str, store: Store) -> None:
        """Take whose pods and where they are; nothing is read before `run`."""
        self._selector: Final = Selector(fields={"spec.nodeName": node})
        self._store = store
        self._pods: dict[str, core.Pod] = {}
        self._listeners: list[Listener] = []
        self.listed: Final = asyncio.Event()
        """Set once the store has said which pods there are, be it none."""

    @property
    def is_listed(self) -> bool:
        """Whether the store has said which pods there are."""
        return self.listed.is_set()

    def listen(self, listener: Listener) -> None:
        """Have every change reported to a listener; before `run`."""
        self._listeners.append(listener)

    def find(self, uid: str) -> core.Pod | None:
        """Return a pod by uid, None where there is none."""
        return self._pods.get(uid)

    def all(self) -> tuple[core.Pod, ...]:
        """Return every pod."""
        return tuple(self._pods.values())

    async def ask(self) -> tuple[core.Pod, ...]:
        """Ask the store for every pod as it is now, for who may not miss one. Raises: Unavailable: it does not say."""
        return (await self._store.list(core.Pod, self._selector)).items

    def living(self, *, begun: bool = False) -> frozenset[tuple[str, str]]:
        """Return namespace and name of the pods that have not ended. Args: begun: only those a kubelet has taken in."""
        return frozenset(
            (pod.metadata.namespace, pod.metadata.name)
            for pod in self._pods.values()
            if pod.status.phase not in core.ENDED_PHASES and not (begun and pod.status.start_time is None)
        )

    async def run(self) -> None:
        """Follow for ever."""
        await reflector.follow(self._store, core.Pod, self._selector, listed=self._listed, changed=self._changed)

    def _listed(self, pods: tuple[core.Pod, ...]) -> None:
        before, self._pods = self._pods, {pod.metadata.uid: pod for pod in pods}
        self.listed.set()
        for uid, pod in before.items():
            if uid not in self._pods:
                self._tell(pod, is_gone=True)
        for pod in pods:
            self._tell(pod, is_gone=False)

    def _changed(self, change: Change[core.Pod]) -> None:
        if change.renamed_to:
            return
        pod, is_gone = change.object, change.kind is ChangeKind.DELETED
        if is_gone:
            self._pods.pop(pod.metadata.uid, None)
        else:
            self._pods[pod.metadata.uid] = pod
        self._tell(pod, is_gone=is_gone)

    def _tell(self, pod: core.Pod, *, is_gone: bool) -> None:
        for listener in self._listeners:
            listener(pod, is_gone)
