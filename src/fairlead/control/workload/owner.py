"""Finds what an owner has made, makes more of it and gives it up, for the controllers of workloads.

Everything is read from the store at each reconcile, and one worker has one owner: what was made a moment ago is seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from fairlead import errors, telemetry
from fairlead.control.workload.port import PodMaker
from fairlead.model.container.step import TraceStep
from fairlead.plan.workload import podset
from fairlead.store import tracerecorder
from fairlead.store.port import Change, Selector, Store
from fairlead.wire.kubernetes import core, meta

T = TypeVar("T", bound=meta.Object)
REFUSED_S: Final = 5.0
"""After how long a pod that was refused is asked for again."""


@dataclass(slots=True)
class Owners:
    """What the controllers of workloads share."""

    store: Store
    maker: PodMaker
    clock: Callable[[], float] = time.time
    _told: dict[str, str] = field(default_factory=dict)
    """By owner's uid: what was said last of a pod that cannot be made."""

    async def owned(self, kind: type[T], owner: meta.Object) -> list[T]:
        """Return the objects of a kind that an owner made, on their way out too."""
        found = await self.store.list(kind, Selector(namespace=owner.metadata.namespace))
        return [one for one in found.items if podset.owned_by(owner, one)]

    async def make(self, pods: Iterable[core.Pod], owner: meta.Object, maker: meta.Object | None = None) -> bool:
        """Make pods; returns False where one was refused, which is recorded once until the words change.

        Args: owner: whose events have the refusal.   maker: the object that a person made; None: the owner.
        """
        for one in pods:
            telemetry.crash_point("workload.before-make")
            try:
                made = await self.maker.make(one, maker or owner)
            except errors.Conflict as error:
                if error.reason != "AlreadyExists":
                    raise
                continue  # the next look sees it
            except (errors.RequestError, errors.Denied, errors.Insufficient) as error:
                await self.tell(owner, "FailedCreate", f"Error creating: {errors.sentence(error)}")
                return False
            telemetry.crash_point("workload.after-make")
            self._told.pop(owner.metadata.uid, None)
            await self._record(owner, "SuccessfulCreate", f"Created pod: {made.metadata.name}", is_warning=False)
        return True

    async def remove(self, items: Iterable[meta.Object], owner: meta.Object) -> None:
        """Ask for the end of what an owner made."""
        for one in items:
            about = one.metadata
            try:
                await self.store.delete(type(one), about.name, about.namespace, uid=about.uid)
            except (errors.NotFound, errors.Conflict):
                continue  # it is gone
            telemetry.crash_point("workload.after-remove")
            if isinstance(one, core.Pod):
                await self._record(owner, "SuccessfulDelete", f"Deleted pod: {about.name}", is_warning=False)

    async def tell(self, owner: meta.Object, reason: str, message: str) -> None:
        """Record a warning of an owner, once until it changes."""
        if self._told.get(owner.metadata.uid) != message:
            self._told[owner.metadata.uid] = message
            await self._record(owner, reason, message, is_warning=True)

    async def _record(self, owner: meta.Object, reason: str, message: str, *, is_warning: bool) -> None:
        step = TraceStep(
            layer="workload", reason=reason, message=message, at=self.clock(), facts={}, is_warning=is_warning
        )
        await tracerecorder.record(self.store, tracerecorder.reference(owner), step)


def key(item: meta.Object) -> str:
    """Return the key of an object in its controller's queue."""
    return f"{item.metadata.namespace}/{item.metadata.name}"


def split(text: str) -> tuple[str, str]:
    """Return namespace and name of a key."""
    namespace, _, name = text.partition("/")
    return namespace, name


def itself(change: Change[T]) -> Iterable[str]:
    """Return the key of the object that changed."""
    return (key(change.object),)


def owner_of(kind: type[meta.Object]) -> Callable[[Change[T]], Iterable[str]]:
    """Return a function that gives the key of the owner of what changed, if that is of a kind."""

    def keys(change: Change[T]) -> Iterable[str]:
        about = change.object.metadata
        for one in about.owner_references:
            if one.controller and one.kind == kind.KIND:
                yield f"{about.namespace}/{one.name}"

    return keys
