"""A machine's scheduler and controllers of claims over a store in memory, with drivers that publish devices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from fairlead import errors
from fairlead.control import manager
from fairlead.control.claim.devicetaint import DeviceTaints
from fairlead.control.claim.resourceclaim import ResourceClaims
from fairlead.store.embedded.placement import EmbeddedPlacement
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from tests.unit.control.scheduler.claimplane import DRIVER, ClaimPlane, read

TEMPLATE = core.PodResourceClaim(name="gpus", resource_claim_template_name="two")


def naming(claim: str) -> core.PodResourceClaim:
    return core.PodResourceClaim(name="gpus", resource_claim_name=claim)


class MachinePlane(ClaimPlane):
    """See `ClaimPlane`; the controllers are those of `fairlead up`."""

    def __init__(self, *, now: Callable[[], float] | None = None) -> None:
        super().__init__()
        clock = {} if now is None else {"now": now}
        self.claims = ResourceClaims(self.store)
        self.taints = DeviceTaints(self.store, EmbeddedPlacement(self.store), **clock)

    async def prepare(self, gpus: int = 4) -> None:
        await self.add_class()
        await self.add_machine("a", gpus)
        await self.add_template()

    async def add_template(self, name: str = "two", count: int = 2, **exactly: Any) -> None:
        wanted = {"deviceClassName": "gpu", "count": count, **exactly}
        spec = {"devices": {"requests": [{"name": "gpus", "exactly": wanted}]}}
        body = {"metadata": {"labels": {"team": "a"}, "annotations": {"why": "test"}}, "spec": spec}
        about = {"name": name, "namespace": "default"}
        await self.store.create(read("ResourceClaimTemplate", {"metadata": about, "spec": body}))

    async def add_user(self, name: str, reference: core.PodResourceClaim = TEMPLATE, **more: Any) -> core.Pod:
        return await self.add_pod(name, 0, resource_claims=(reference,), **more)

    async def add_rule(self, name: str, effect: str, **selector: str) -> DeviceTaintRule:
        spec = {"deviceSelector": {"driver": DRIVER, **selector}, "taint": {"key": "sick", "effect": effect}}
        return await self.store.create(read("DeviceTaintRule", {"metadata": {"name": name}, "spec": spec}))

    @contextlib.asynccontextmanager
    async def controlled(self, *, schedules: bool = True) -> AsyncIterator[None]:
        found = (self.claims, self.taints, *((self.scheduler,) if schedules else ()))
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(manager.run_controllers(self.store, found))
            yield
            task.cancel()

    async def all_claims(self) -> tuple[ResourceClaim, ...]:
        return (await self.store.list(ResourceClaim)).items

    async def until_claims(self, holds: Callable[[tuple[ResourceClaim, ...]], Any]) -> tuple[ResourceClaim, ...]:
        """Wait until something holds of all claims; returns them."""

        async def found() -> tuple[ResourceClaim, ...] | None:
            every = await self.all_claims()
            return (every or (None,)) if holds(every) else None  # type: ignore[return-value]

        every = await wait_for(found)
        return tuple(one for one in every if one is not None)

    async def finish_pod(self, name: str, phase: str = "Succeeded") -> None:
        """Write that a pod has ended, as its kubelet does."""
        while True:
            pod = await self.store.get(core.Pod, name, "default")
            status = msgspec.structs.replace(pod.status, phase=phase)
            with contextlib.suppress(errors.Conflict):
                await self.store.update_status(msgspec.structs.replace(pod, status=status))
                return

    async def rule_words(self, name: str) -> tuple[str, str]:
        rule = await self.store.get(DeviceTaintRule, name)
        return next(((one.reason, one.message) for one in rule.status.conditions), ("", ""))


async def wait_for(holds: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a question answers, asked until the answer is not false."""
    async with asyncio.timeout(20):
        while not (found := await holds()):  # noqa: ASYNC110 nothing tells of all kinds at once
            await asyncio.sleep(0.005)
    return found
